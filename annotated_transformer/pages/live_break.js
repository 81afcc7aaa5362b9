// Switching parts of the model off: what to expect, and what it does to this sentence.

const PARTS = {
  scale: {
    name: "Division by √d_k",
    expect: "Without it the scores are √d_k times as large, and each head puts nearly "
      + "all of its weight on one key. Short sentences are often still right.",
    link: ["Why divide by √d_k", "attention.html#why-divide-by-d_k"],
  },
  causal: {
    name: "Causal mask",
    expect: "Without it each position of the prefix also attends to later ones, which "
      + "never happened in training. See what it changes in the decoder’s tensors.",
    link: ["The causal mask", "masking.html#teacher-forcing-and-the-causal-mask"],
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
const KINDS = {
  "encoder.self": "Encoder",
  "decoder.self": "Decoder",
  "decoder.cross": "Cross-attention",
};
const HEADS_TEXT = "A head that is off adds nothing to its sub-layer. Most heads can "
  + "be missed one at a time; “Try each head” finds those that change this "
  + "translation.";
const HEADS_LINK =
  ["Ablating each head", "heads.html#ablating-each-head-of-the-trained-model"];
const TEMPERATURE_TEXT = "The logits are divided by it. Above 1 the probabilities "
  + "become more equal, below 1 less. The most probable token stays the same, but "
  + "samples differ.";

const toggled = (list, name) =>
  list.includes(name) ? list.filter(other => other !== name) : [...list, name];
const expectation = (text, link) =>
  element("p", {className: "expect"}, ...typeset(`${text} `), notebookLink(...link));

function actionButton(text, action) {
  const button = element("button", {type: "button", className: "secondary"}, text);
  button.dataset.key = `action:${text}`;
  button.addEventListener("click", action);
  return button;
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
}

function switchOf(name, part) {
  const checked = !state.off.includes(name);
  const input = element("input", {type: "checkbox", checked, role: "switch"});
  input.dataset.key = `switch:${name}`;
  input.addEventListener(
    "change", () => change({off: toggled(state.off, name), step: 0}));
  const title = element("span", {}, ...typeset(part.name));
  const label = element("label", {className: "checkbox"}, input, title);
  const more = name === "positions" ? [shuffleButtons()] : [];
  return [label, expectation(part.expect, part.link), ...more];
}

// --- Heads

let trials = {key: "", changed: new Map()};  // what is known of single heads, by name
const trialKey = () => [state.text, state.off, state.beam, state.temperature].join("|");

const allHeads = kind => {
  const [stack, name] = kind.split(".");
  return Array.from({length: N_LAYERS[stack] * config.n_heads}, (_, i) => {
    const [layer, head] = [Math.floor(i / config.n_heads), i % config.n_heads];
    return {layer, head, name: `${stack}.${layer}.${name}:${head}`};
  });
};

const allHeadNames = () => Object.keys(KINDS).flatMap(allHeads).map(({name}) => name);

function drawHeadSwitches() {
  const rows = Object.entries(KINDS).map(([kind, title]) => element("div",
    {className: "head-row", role: "group", ariaLabel: title},
    element("span", {textContent: title}),
    ...allHeads(kind).map(headSwitch)));
  const group = element("div", {}, ...rows);
  Object.assign(group.dataset, {arrows: "", stop: ""});
  setTabStop(group, group.querySelector("button"));
  byId("heads-off").replaceChildren(byId("heads-off").querySelector("legend"),
    expectation(HEADS_TEXT, HEADS_LINK), group,
    element("div", {className: "buttons"}, actionButton("Try each head", tryEachHead)),
    headFindings());
}

function headSwitch({layer, head, name}) {
  const isOn = !state.headsOff.includes(name);
  const text = `${layer + 1}.${head + 1}`;
  const button = element("button", {type: "button", textContent: text});
  button.dataset.key = `off:${name}`;
  button.setAttribute("aria-pressed", !isOn);
  const matters = trials.key === trialKey() && trials.changed.has(name);
  button.classList.toggle("matters", matters);
  button.title = `${headName({layer, head})}: ${isOn ? "on" : "off"}`;
  button.ariaLabel = `Switch off ${headName({layer, head})}${
    matters ? ", changes the translation" : ""}`;
  button.addEventListener("click",
    () => change({headsOff: toggled(state.headsOff, name), step: 0}));
  return button;
}

// Translates without each head in turn, and keeps the page responsive meanwhile.
function tryEachHead() {
  const names = allHeadNames();
  const base = {...switches(), headsOff: []};
  const intact = generatedIds(searchTranslation(state.text, base));
  trials = {key: trialKey(), changed: new Map(), left: names.length, intact};
  const next = () => {
    if (trials.key !== trialKey()) return;
    const name = names[names.length - trials.left];
    const ids = generatedIds(
      searchTranslation(state.text, {...base, headsOff: [name]}));
    if (String(ids) !== String(trials.intact)) trials.changed.set(name, ids);
    trials.left -= 1;
    if (trials.left) setTimeout(next);
    draw();
  };
  next();
}

function headFindings() {
  const box = element("div", {className: "findings", role: "status"});
  if (trials.key !== trialKey()) return box;
  if (trials.left) {
    box.textContent = `${trials.left} heads are left to try.`;
    return box;
  }
  const n = trials.changed.size;
  const text = n
    ? `${n} of ${allHeadNames().length} heads change this translation when off:`
    : "No single head changes this translation.";
  box.append(element("p", {textContent: text}));
  for (const [name, ids] of trials.changed) {
    const [path, head] = name.split(":");
    const [stack, layer, kind] = path.split(".");
    const title = `${KINDS[`${stack}.${kind}`]} ${+layer + 1}.${+head + 1}: `;
    box.append(element("p", {}, element("b", {textContent: title}),
      ...marked(ids, trials.intact)));
  }
  return box;
}

// --- Shuffling the words

let shuffled = {text: "", original: "", order: []};

function shuffleButtons() {
  const isShuffled = shuffled.text === state.text;
  const restore = isShuffled ? [actionButton("Restore the order", restoreOrder)] : [];
  const buttons = element("div", {className: "buttons"},
    actionButton("Shuffle the words", shuffleWords), ...restore);
  const textContent = isShuffled ? memoryComparison() : "";
  return element("div", {}, buttons, element("p", {id: "comparison", textContent}));
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
  const lengths = shuffled.original.split(" ").map(word => vocab.encode(word).length);
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

function drawEffect() {
  const line = (name, ...content) => element("p", {},
    element("span", {className: "muted", textContent: name}), ...content);
  if (!isChanged()) {
    byId("effect").replaceChildren(line("All parts on", textOf(run.ids)));
    return;
  }
  byId("effect").replaceChildren(
    line("All parts on", textOf(run.intactIds)),
    line("Your changes", ...marked(run.ids, run.intactIds)),
    actionButton("Switch all on", () => change({off: [], headsOff: [], step: 0})));
}

// The words of a translation; those that are not in the other one are marked.
function marked(ids, others) {
  const [words, other] = [ids, others].map(each => textOf(each).split(" "));
  const common = commonWords(words, other);
  return words.flatMap((word, i) =>
    [common.has(i) ? word : element("mark", {textContent: word}), " "]);
}

// The indices of a longest common subsequence.
function commonWords(a, b) {
  const best = Array.from({length: a.length + 1}, () => Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1
        : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const found = new Set();
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i] === b[j]) {
      found.add(i++);
      j++;
    } else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return found;
}
