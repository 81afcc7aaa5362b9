// A text is divided into sentences by the patterns of the package (61b).

// The sentences of a text, each with the white space that follows it. A match of `end`
// ends none where a pair of `no_end` matches what is before and behind it.
function sentences(text, {end, no_end}) {
  const rules = no_end.map(([before, behind]) => [
    new RegExp(`(?:${before})$`, "u"), new RegExp(`^(?:${behind})`, "u")]);
  if (!/\p{Lu}/u.test(text)) rules.shift();
  const found = [];
  let start = 0;
  for (const {0: mark, index} of text.matchAll(new RegExp(end, "gu"))) {
    const next = index + mark.length;
    const before = text.slice(Math.max(start, index - 40), next);
    const behind = text.slice(next, next + 40);
    if (!behind || rules.some(([a, b]) => a.test(before) && b.test(behind))) continue;
    const sentence = text.slice(start, next).trimEnd();
    found.push([sentence, text.slice(start + sentence.length, next)]);
    start = next;
  }
  return [...found, [text.slice(start).trimEnd(), ""]];
}

const hasLetter = text => /\p{L}/u.test(text);

// The parts of a text that are translated one by one, each with the white space that
// stood before it. A tag of the target language is repeated; a sentence without a token
// is none, and one without a letter, which is not translated, needs no tag.
function partsOf(text, patterns, vocab) {
  const [tag = ""] = new RegExp(`^(?:${patterns.tag})`, "u").exec(text) ?? [];
  const found = [];
  let gap = "";
  for (const [sentence, after] of sentences(text.slice(tag.length), patterns)) {
    const bare = sentence.trim();
    if (vocab.encode(bare).length) {
      const whole = hasLetter(bare) ? `${tag} ${bare}`.trim() : bare;
      found.push({text: whole, gap: found.length ? gap : ""});
      gap = "";
    }
    gap += after;
  }
  return found.length ? found : [{text: text.trim(), gap: ""}];
}
