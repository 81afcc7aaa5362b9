// From a text to the token ids that are translated, and from ids to the tokens as they
// are shown: for the live page, and for the box on the site's home page.

const maxTokens = () => Math.min(config.max_len, 64);  // of a sentence, for a quick answer

function sourceIds(text) {
  return [...vocab.encode(text).slice(0, maxTokens()), vocab.eosId];
}

// The best hypothesis, with EOS if it ended.
function generatedIds({hypotheses: [best]}) {
  const hasEnded = best.tokenLogProbs.length > best.ids.length;
  return hasEnded ? [...best.ids, vocab.eosId] : best.ids;
}

// A letter of a script with spaces between words.
const isLetter = character => /(?![\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}])\p{L}/u.test(character ?? "");

// A space before a token is not shown; a token inside a word begins with a hyphen.
function shownTokens(ids) {
  const pieces = vocab.tokens(ids);
  return ids.map((id, i) => {
    if (id === vocab.eosId) return "EOS";
    if (id === vocab.bosId) return "BOS";
    const isInside = i > 0 && isLetter(pieces[i][0]) && isLetter(pieces[i - 1].at(-1));
    return isInside ? `-${pieces[i]}` : pieces[i].replace(SPACE, "") || "␣";
  });
}

// A single token, wherever it occurs.
const shownToken = id => shownTokens([id])[0];

// The number of the generated token that a page opens at, from 0: the pronoun for “it”,
// or in Chinese for “he”, “she” and “it”; -1 without one.
const PRONOUNS = ["er", "sie", "es", "他", "她", "它"];
const pronounAt = ids => ids.findIndex(id => PRONOUNS.includes(shownToken(id)));
