// The sentence, what is unusual about it, its translation token by token, and the most
// probable next tokens.

const N_LIKELIEST = 10;
const PLAY_MS = 600;  // between two tokens

// --- What is unusual about a sentence: one line, or nothing

// frequent German words that are no English ones
const GERMAN = new Set(`aber auf das dem der ein eine einen er es ich ist mit nicht sie
  sind und weil wir zu`.split(/\s+/));
const wordsOf = text => text.split(/\s+/)
  .map(word => word.replace(/^\P{L}+|\P{L}+$/gu, "")).filter(Boolean);
const knownWords = new Set(about.words?.map(word => word.toLowerCase()));
const trainingWords = new Set(about.words);
// A character, or its code point if it cannot be seen alone.
const visible = character => /[\p{M}\p{C}\p{Z}]/u.test(character)
  ? `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`
  : character;
function quoted(words) {
  const shown = words.slice(0, 5).map(word => `“${word}”`).join(say("comma"));
  return words.length > 5 ? `${shown} …` : shown;
}

function isGerman(words) {
  const found = words.filter(word => GERMAN.has(word) || /[äöüß]/i.test(word));
  const isFromEnglish = about.src_lang === "en" && about.tgt_lang === "de";
  return isFromEnglish && found.length > words.length / 4;
}

// The first two neighbours that no words of their classes are in the training text;
// "" stands for the beginning and the end of the sentence.
const WORDS = /[\p{L}\p{N}]+(?:['-][\p{L}\p{N}]+)*|[.,?!]/gu;
const classOf = new Map(about.pairs?.classes.flatMap(
  (words, i) => words.map(word => [word, i])));

function unknownPair(text) {
  if (!about.pairs) return null;
  const words = ["", ...text.toLowerCase().match(WORDS) ?? [], ""];
  const pairs = words.slice(1).map((word, i) => [words[i], word]);
  return pairs.find(([one, other]) =>
    !about.pairs.followers[classOf.get(one)]?.includes(classOf.get(other)));
}

function pairRemark([one, other]) {
  if (!one) return say("remark.begins", {word: other});
  return other ? say("remark.pair", {one, other}) : say("remark.ends", {word: one});
}

// Sentences of the training text begin with a capital letter, unless it has copies of
// them in other cases.
function isInOtherCase(text, words) {
  if (!about.words || about.case_variants) return false;
  return /^\P{L}*\p{Ll}/u.test(text)
    || words.some(word => !trainingWords.has(word.replace(/'s$/, "")));
}

function remarkOn(typed) {
  const text = vocab.normalize(typed);
  const sentences = sentencesOf(text).map(part => part.text);
  const nTokens = Math.max(...sentences.map(each => vocab.encode(each).length));
  const words = wordsOf(text);
  const isByte = id => id >= vocab.firstByteId && id < vocab.firstPieceId;
  const letters = [...new Set(text)].filter(
    letter => vocab.encode(letter).some(isByte));
  const isNew = word => !knownWords.has(word.toLowerCase().replace(/'s$/, ""));
  const unknown = [...new Set(about.words ? words.filter(isNew) : [])];
  if (!text.trim()) {
    return say("remark.empty");
  }
  if (!hasLetter(text)) {
    return say("remark.kept");
  }
  if (nTokens > MAX_TOKENS) {
    return say("remark.long", {n: nTokens, max: MAX_TOKENS});
  }
  if (isGerman(words.map(word => word.toLowerCase()))) {
    return say("remark.german");
  }
  if (letters.length) {
    return say("remark.characters", {characters: quoted(letters.map(visible))});
  }
  if (unknown.length) {
    return say("remark.words", {words: quoted(unknown)});
  }
  if (isInOtherCase(text, words)) {
    return say("remark.case");
  }
  const pair = sentences.map(unknownPair).find(each => each);
  return pair ? pairRemark(pair) : "";
}

// --- Entering a sentence

const textOf = ids => vocab.decode(ids) || say("no.tokens");

function submit(text) {
  const remark = remarkOn(text);
  stopPlaying();
  stopTyping();
  byId("message").textContent = remark;
  if (vocab.normalize(text).trim()) change({text, part: 0, step: 0, seed: 0, row: -1, column: -1});
}

function presetButton(text) {
  const button = element("button", {type: "button", textContent: text});
  button.addEventListener("click", () => {
    byId("sentence").value = text;
    submit(text);
  });
  return button;
}

// --- Several sentences: all are translated, and one is shown token by token

// the translations of sentences under the same settings
const translations = new Map();

function translationOf(text) {
  if (!hasLetter(text)) return text;
  const {moment, off, headsOff, temperature, topK, topP, beam, seed} = state;
  const key = JSON.stringify(
    [text, moment, off, headsOff, temperature, topK, topP, beam, seed]);
  if (!translations.has(key)) {
    translations.set(key, textOf(generatedIds(searchTranslation(text, switches()))));
  }
  return translations.get(key);
}

function partButton(textContent, i) {
  const button = element("button", {type: "button", textContent});
  button.dataset.key = `part:${i}`;
  button.setAttribute("aria-pressed", i === run.part);
  button.addEventListener("click", () => {
    stopPlaying();
    change({part: i, step: 0, row: -1, column: -1});
  });
  return button;
}

// --- The translation, token by token

function drawSentence() {
  const {ids, step, srcIds, parts, part} = run;
  const isKept = !hasLetter(run.text);
  const text = isKept ? run.text : vocab.decode(ids.slice(0, step));
  const rest = isKept ? "" : vocab.decode(ids).slice(text.length);
  const others = (from, to) => parts.slice(from, to).map(
    ({text, gap}) => gap + translationOf(text)).join("");
  const before = others(0, part) + parts[part].gap;
  byId("result").replaceChildren(
    ...before ? [before] : [], text || textOf(ids),
    element("span", {textContent: rest, ariaHidden: "true"}), others(part + 1));
  byId("copied-text").textContent = "";
  byId("parts").hidden = parts.length === 1;
  byId("parts").replaceChildren(
    ...parts.length > 1 ? parts.map(({text}, i) => partButton(text, i)) : []);
  byId("source").replaceChildren(...shownTokens(srcIds).map((textContent, i) =>
    element("li", {textContent, title: say("source.id", {id: srcIds[i]})})));
  byId("translation").replaceChildren(...shownTokens(ids).map(generatedToken));
  setTabStop(byId("translation"), byId("translation").children[step - 1]);
  byId("step").max = ids.length;
  byId("step").value = step;
  byId("step").setAttribute("aria-valuetext",
    say("step.value", {step, n: ids.length, token: shownTokens(ids)[step - 1]}));
  byId("back").disabled = step === 1;
  byId("forward").disabled = step === ids.length;
  drawLikeliest();
}

function generatedToken(text, i) {
  const probability = Math.exp(run.logProbs[i]);
  const rounded = probability.toFixed(2);
  const number = element("small", {textContent: rounded});
  const button = element("button", {type: "button"}, text, number);
  button.dataset.key = `token:${i}`;
  button.style.setProperty("--value", probability);
  button.classList.toggle("later", i >= run.step);
  button.setAttribute("aria-pressed", i === run.step - 1);
  button.ariaLabel = say("generated.token", {token: text, probability: rounded});
  button.addEventListener("click", () => chooseStep(i + 1));
  return button;
}

function chooseStep(step) {
  stopPlaying();
  change({step: step === run.ids.length ? 0 : step, row: -1});
}

// --- Playing: one more token at a time

let timer = 0;  // 0 while nothing is played

function stopPlaying() {
  clearTimeout(timer);
  timer = 0;
  byId("play").textContent = say("play");
}

function playFrom(step) {
  change({step: step === run.ids.length ? 0 : step, row: -1});
  if (step === run.ids.length) return stopPlaying();
  byId("play").textContent = say("pause");
  timer = setTimeout(() => playFrom(step + 1), PLAY_MS);
}

function togglePlaying() {
  if (timer) return stopPlaying();
  playFrom(run.step < run.ids.length ? run.step + 1 : 1);
}

// --- The most probable tokens at the chosen step, and what sampling cuts off

function drawLikeliest() {
  const probabilities = nextProbabilities();
  const kept = truncated(probabilities, state.topK, state.topP);
  const {step, ids: {length: n}} = run;
  const {temperature} = state;
  const values = {step, n, likeliest: N_LIKELIEST, temperature};
  byId("next-label").textContent = temperature === 1 ? say("next", values)
    : say("next.temperature", values);
  byId("next").replaceChildren(...largest(probabilities, N_LIKELIEST).map(
    id => likelyToken(id, probabilities[id], kept[id] === 0)));
  const isCut = kept !== probabilities;
  byId("next-kept").textContent = !isCut ? "" : say("next.kept", {
    n: kept.filter(Boolean).length,
    all: kept.length,
    kept: short(sum(kept)),
  });
}

function likelyToken(id, probability, isCut) {
  const bar = element("span", {className: "bar"});
  bar.style.setProperty("--value", probability);
  const name = element("span", {className: "name", textContent: shownToken(id)});
  const number = element("span", {className: "value"}, short(probability));
  const item = element("li", {}, name, bar, number);
  item.classList.toggle("chosen", id === run.ids[run.step - 1]);
  if (isCut) {
    item.classList.add("cut");
    bar.replaceChildren(element("span", {textContent: say("next.cut")}));
  }
  return item;
}
