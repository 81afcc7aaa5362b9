// Switching parts of the model off: what to expect, and what it does to this sentence.

// What a switch changed in this sentence, in numbers.
const MEASURES = {
  scale: () => ({
    now: short(meanLargestWeight(run.trace)),
    before: short(meanLargestWeight(intactTrace())),
  }),
  causal: () => ({now: short(meanLaterWeight())}),
};
const PARTS = Object.keys(SWITCHES).filter(name => name !== "headsOff");

const toggled = (list, name) =>
  list.includes(name) ? list.filter(other => other !== name) : [...list, name];

function actionButton(name, text, action) {
  const button = element("button", {type: "button", className: "secondary"}, text);
  button.dataset.key = `action:${name}`;
  button.addEventListener("click", action);
  return button;
}

// --- What the switches change in this sentence

function intactTrace() {
  const trace = new Map();
  const memory = encode(model, run.srcIds, SWITCHES, trace);
  decode(model, run.tgtIds, memory, SWITCHES, trace);
  return trace;
}

const mean = numbers => sum(numbers) / numbers.length;

function meanLargestWeight(trace) {  // over all heads and queries
  const rows = weightRows(trace, /\.weights$/);
  return mean(rows.map(({row}) => Math.max(...row)));
}

function meanLaterWeight() {  // over the heads and queries of decoder self-attention
  const rows = weightRows(run.trace, /^decoder.*self\.weights$/);
  return mean(rows.map(({row, query}) => sum(row.subarray(query + 1))));
}

// Every row of the attention weights at these paths, with the index of its query.
function weightRows(trace, paths) {
  const tensors = [...trace].filter(([path]) => paths.test(path));
  return tensors.flatMap(([_path, weights]) => {
    const [h, n] = weights.shape;
    return Array.from({length: h * n}, (_, i) => (
      {row: rowAt(weights, Math.floor(i / n), i % n), query: i % n}));
  });
}

// --- Switches

function drawBreak() {
  byId("switches").replaceChildren(
    ...PARTS.flatMap(switchOf));
  drawHeadSwitches();
  const {temperature, topK, topP} = state;
  for (const [id, value] of Object.entries({temperature, topK, topP})) {
    byId(id).value = value;
    byId(`${id}-value`).textContent = value;
  }
  if (!topK) byId("topK-value").textContent = say("topK.all");
  if (topP === 1) byId("topP-value").textContent = say("topP.all");
  byId("search").hidden = !state.seed;
  drawEffect();
  drawChanges();
}

function switchOf(name) {
  const checked = !state.off.includes(name);
  const input = element("input", {type: "checkbox", checked, role: "switch"});
  input.dataset.key = `switch:${name}`;
  input.addEventListener(
    "change", () => change({off: toggled(state.off, name)}));
  const title = element("span", {}, ...rich(`off.${name}`));
  const label = element("label", {className: "checkbox"}, input, title);
  const measured = checked || !(name in MEASURES) ? ""
    : say(`off.${name}.measured`, MEASURES[name]());
  const more = name === "positions" ? [shuffleButtons()]
    : [element("p", {className: "measured", textContent: measured})];
  const expect = element("p", {className: "expect"}, ...rich(`off.${name}.text`));
  return [label, expect, ...more, ...exampleOf(name)];
}

// --- For each switch an example whose translation changes without the part

const breaking = {};  // by the name of the switch; "" while none is found

function* findBreaking(name) {
  breaking[name] = "";
  const translate = changes => text =>
    String(generatedIds(searchTranslation(text, changes, START)));
  const [intact, broken] = [SWITCHES, {...SWITCHES, [name]: false}].map(translate);
  for (const text of EXAMPLES) {
    yield;
    if (intact(text) === broken(text)) continue;
    breaking[name] = text;
    keepFocus(drawBreak);
    return;
  }
}

function exampleOf(name) {
  if (!state.off.includes(name)) return [];
  if (!(name in breaking)) inSlices(findBreaking(name));
  const text = breaking[name];
  if (!text || [text, shuffled.text].includes(state.text)) return [];
  const button = actionButton(`example:${name}`, say("off.example", {text}), () => {
    byId("sentence").value = text;
    change({text, part: 0, off: [name], step: 0, seed: 0, row: -1, column: -1});
  });
  return [element("div", {className: "buttons"}, button)];
}

// --- Shuffling the words

let shuffled = {text: "", original: "", order: []};

function shuffleButtons() {
  const isShuffled = shuffled.text === state.text;
  const restore = isShuffled
    ? [actionButton("restore", say("shuffle.restore"), restoreOrder)] : [];
  const buttons = element("div", {className: "buttons"},
    actionButton("shuffle", say("shuffle"), shuffleWords), ...restore);
  const texts = isShuffled ? [...orderComparison(), memoryComparison()] : [];
  return element("div", {}, buttons, element("div", {id: "comparison"},
    ...texts.map(textContent => element("p", {textContent}))));
}

// The translations of both orders, with the same parts off.
function orderComparison() {
  const before = generatedIds(searchTranslation(shuffled.original, switches()));
  return [say("shuffle.before", {text: textOf(before)}),
    say("shuffle.after", {text: textOf(run.ids)})];
}

// A random order of the words in which they are still one sentence: "tired. The" would divide it.
function shuffledOrder(words) {
  const order = words.map((_, i) => i);
  for (let tries = 0; tries < 50; tries++) {
    for (let i = order.length - 1; i > 0; i--) {
      const j = Math.floor(Math.random() * (i + 1));
      [order[i], order[j]] = [order[j], order[i]];
    }
    const isSame = order.every((word, i) => word === i);
    if (!isSame && sentencesOf(inOrder(words, order)).length === 1) return order;
  }
  return order.sort((a, b) => a - b);
}

const inOrder = (words, order) => order.map(i => words[i]).join(" ");

function shuffleWords() {
  const original = shuffled.text === state.text ? shuffled.original : run.text;
  const words = original.split(/\s+/).filter(Boolean);
  const order = shuffledOrder(words);
  const text = inOrder(words, order);
  shuffled = {text, original: words.join(" "), order};
  byId("sentence").value = shuffled.text;
  change({text: shuffled.text, part: 0, step: 0, seed: 0});
}

function restoreOrder() {
  byId("sentence").value = shuffled.original;
  change({text: shuffled.original, step: 0, seed: 0});
}

// The rows of the memory before and after shuffling, compared token by token.
function memoryDifference() {
  const words = vocab.normalize(shuffled.original).split(" ");
  const lengths = words.map(word => vocab.encode(word).length);
  const starts = lengths.map((_, i) => sum(lengths.slice(0, i)));
  const rows = shuffled.order.flatMap(
    word => Array.from({length: lengths[word]}, (_, i) => starts[word] + i));
  const before = encode(model, sourceIds(shuffled.original), switches());
  return Math.max(...[...rows, rows.length].map((row, i) => {
    const now = rowAt(run.memory, i);
    return Math.max(...rowAt(before, row).map((value, j) => Math.abs(value - now[j])));
  }));
}

function memoryComparison() {
  const difference = memoryDifference();
  const values = {difference: show(difference)};
  const isSame = difference < 1e-3;
  return isSame ? say("shuffle.same", values) : say("shuffle.changed", values);
}

// --- The effect on the translation

const resetButton = () => actionButton("reset", say("reset"),
  () => change({off: [], headsOff: [], temperature: 1, topK: 0, topP: 1, seed: 0}));

// What is off or differs from the plain search, in words; empty if nothing is.
function changesText() {
  const parts = state.off.map(name => say(`off.${name}`));
  const off = [...parts, ...state.headsOff.map(headTitle)].map(
    name => name.toLowerCase());
  const texts = off.length ? [say("changes.off", {parts: off.join(say("comma"))})] : [];
  if (state.seed) texts.push(sampledText());
  else if (state.temperature !== 1) {
    texts.push(say("changes.temperature", {temperature: state.temperature}));
  }
  return texts.join(" · ");
}

function sampledText() {
  const {temperature, topK, topP} = state;
  const texts = [say("changes.sampled", {temperature})];
  if (topK) texts.push(say("changes.topK", {k: topK}));
  if (topP < 1) texts.push(say("changes.topP", {p: topP}));
  return texts.join(say("comma"));
}

function drawChanges() {
  const text = changesText();
  byId("changes").replaceChildren(
    ...text ? [...typeset(`${text} · `), resetButton()] : []);
}

function drawEffect() {
  const line = (name, ...content) => element("p", {},
    element("span", {className: "muted"}, name), element("span", {}, ...content));
  const name = state.seed ? say("effect.sampled", {sampled: sampledText()})
    : say("effect.now");
  const changed = isPlain() ? [] : [
    line(name, ...marked(run.ids, run.intactIds)),
    line("", say("effect.legend")),
    resetButton(),
  ];
  byId("effect").replaceChildren(
    line(say("effect.intact"), textOf(run.intactIds)), ...changed);
}

// The words of a translation; those that the other one lacks are marked, and those that
// only the other one has are struck out.
function marked(ids, others) {
  const [words, other] = [ids, others].map(each => textOf(each).split(" "));
  return differences(words, other).flatMap(([kind, textContent]) =>
    [kind === "same" ? textContent : element(kind, {textContent}), " "]);
}

// Both lists merged along a longest common subsequence: ["same", word], or "mark" or
// "del" before a word that only the first or only the second one has.
function differences(a, b) {
  const best = Array.from({length: a.length + 1}, () => Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1
        : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const merged = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && a[i] === b[j]) {
      merged.push(["same", a[i++]]);
      j++;
    } else if (i === a.length || j < b.length && best[i][j + 1] >= best[i + 1][j]) {
      merged.push(["del", b[j++]]);
    } else merged.push(["mark", a[i++]]);
  }
  return merged;
}
