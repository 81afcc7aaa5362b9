// Switching parts of the model off: what to expect, and what it does to this sentence.

const PARTS = {
  scale: {
    name: "Division by √d_k",
    expect: "Without it the scores are √d_k times as large, and each head puts nearly "
      + "all of its weight on one key. Short sentences are often still right.",
    link: ["Why divide by √d_k", "attention.html#why-divide-by-d_k"],
    measure: () => `Here the largest weight of a query is now ${
      short(meanLargestWeight(run.trace))} on average; with all parts on it is ${
      short(meanLargestWeight(intactTrace()))}.`,
  },
  causal: {
    name: "Causal mask",
    expect: "Without it each position of the prefix also attends to later ones, which "
      + "never happened in training.",
    link: ["The causal mask", "masking.html#teacher-forcing-and-the-causal-mask"],
    measure: () => "Here the weight of a query on later positions is now "
      + `${short(meanLaterWeight())} on average; with all parts on it is 0.`,
  },
  positions: {
    name: "Positional encoding",
    expect: "Without it attention ignores the order of the tokens. Switch it off, then "
      + "shuffle the words: the translation stays the same.",
    link: ["Attention ignores order", "position.html#attention-ignores-order"],
  },
  residual: {
    name: "Residual connections",
    expect: "Without them each sub-layer replaces its input instead of adding to it. "
      + "Nothing is left of the translation.",
    link: ["Residual connections", "stack.html#residual-connections"],
  },
};
const TEMPERATURE_TEXT = "The logits are divided by it. Above 1 the probabilities "
  + "become more equal, below 1 less. The most probable token stays the same, so "
  + "greedy search (beam size 1) gives the same translation; beam search and samples "
  + "may differ.";

const toggled = (list, name) =>
  list.includes(name) ? list.filter(other => other !== name) : [...list, name];
const withLink = (text, link) => [...typeset(`${text} `), notebookLink(...link)];
const fillText = (id, text, link) => byId(id).replaceChildren(...withLink(text, link));

function actionButton(text, action) {
  const button = element("button", {type: "button", className: "secondary"}, text);
  button.dataset.key = `action:${text}`;
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
    ...Object.entries(PARTS).flatMap(([name, part]) => switchOf(name, part)));
  drawHeadSwitches();
  byId("temperature").value = state.temperature;
  byId("temperature-value").textContent = state.temperature;
  byId("search").hidden = !state.seed;
  drawEffect();
  drawChanges();
}

function switchOf(name, part) {
  const checked = !state.off.includes(name);
  const input = element("input", {type: "checkbox", checked, role: "switch"});
  input.dataset.key = `switch:${name}`;
  input.addEventListener(
    "change", () => change({off: toggled(state.off, name)}));
  const title = element("span", {}, ...typeset(part.name));
  const label = element("label", {className: "checkbox"}, input, title);
  const measured = checked ? "" : part.measure?.() ?? "";
  const more = name === "positions" ? [shuffleButtons()]
    : [element("p", {className: "measured", textContent: measured})];
  const text = withLink(part.expect, part.link);
  const expect = element("p", {className: "expect"}, ...text);
  return [label, expect, ...more];
}

// --- Shuffling the words

let shuffled = {text: "", original: "", order: []};

function shuffleButtons() {
  const isShuffled = shuffled.text === state.text;
  const restore = isShuffled ? [actionButton("Restore the order", restoreOrder)] : [];
  const buttons = element("div", {className: "buttons"},
    actionButton("Shuffle the words", shuffleWords), ...restore);
  const texts = isShuffled ? [...orderComparison(), memoryComparison()] : [];
  return element("div", {}, buttons, element("div", {id: "comparison"},
    ...texts.map(textContent => element("p", {textContent}))));
}

// The translations of both orders, with the same parts off.
function orderComparison() {
  const before = generatedIds(searchTranslation(shuffled.original, switches()));
  return [`Before: ${textOf(before)}`, `Shuffled: ${textOf(run.ids)}`];
}

function shuffleWords() {
  const original = shuffled.text === state.text ? shuffled.original : state.text;
  const words = original.split(/\s+/).filter(Boolean);
  const order = words.map((_, i) => i);
  for (let i = order.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  if (order.every((word, i) => word === i)) order.reverse();
  const text = order.map(i => words[i]).join(" ");
  shuffled = {text, original: words.join(" "), order};
  byId("sentence").value = shuffled.text;
  change({text: shuffled.text, step: 0, seed: 0});
}

function restoreOrder() {
  byId("sentence").value = shuffled.original;
  change({text: shuffled.original, step: 0, seed: 0});
}

// The rows of the memory before and after shuffling, compared token by token.
function memoryDifference() {
  const words = vocab.source(shuffled.original).split(" ");
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
  return difference < 1e-3
    ? `The memory has the same rows in another order (largest difference ${
      show(difference)}).`
    : `The memory has changed: its rows differ by up to ${show(difference)}.`;
}

// --- The effect on the translation

const resetButton = () => actionButton("Reset all",
  () => change({off: [], headsOff: [], temperature: 1, seed: 0}));

// What is off or differs from the plain search, in words; empty if nothing is.
function changesText() {
  const parts = state.off.map(name => PARTS[name].name.toLowerCase());
  const heads = state.headsOff.map(name => headTitle(name).toLowerCase());
  const off = [...parts, ...heads];
  const texts = off.length ? [`Parts off: ${off.join(", ")}`] : [];
  if (state.seed) texts.push(`Sampled at temperature ${state.temperature}`);
  else if (state.temperature !== 1) texts.push(`Temperature ${state.temperature}`);
  return texts.join(" · ");
}

function drawChanges() {
  const text = changesText();
  byId("changes").replaceChildren(
    ...text ? [...typeset(`${text} · `), resetButton()] : []);
}

function drawEffect() {
  const line = (name, ...content) => element("p", {},
    element("span", {className: "muted"}, name), element("span", {}, ...content));
  const name = state.seed ? `Sampled at temperature ${state.temperature}` : "Now";
  const changed = isPlain() ? [] : [
    line(`${name}:`, ...marked(run.ids, run.intactIds)),
    resetButton(),
  ];
  byId("effect").replaceChildren(
    line("All parts on:", textOf(run.intactIds)), ...changed);
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
