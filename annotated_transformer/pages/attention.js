// --- State: the examples, and what is selected

const examples = JSON.parse(byId("data").textContent);
const KINDS = {
  encoder: {
    name: "Encoder",
    q: "src",
    k: "src",
    rule: "Each source token attends to every source token.",
  },
  decoder: {
    name: "Decoder",
    q: "tgt",
    k: "tgt",
    rule: "Each target token attends to itself and to the target tokens before it.",
  },
  cross: {
    name: "Cross",
    q: "tgt",
    k: "src",
    rule: "Each target token attends to every source token, to predict the next one.",
  },
};
const SIDES = {src: "Source", tgt: "Translation"};
const ROLES = {q: "queries", k: "keys"};

// `heads` holds the selected heads, the newest last. A token is {role: "q" or "k", i}.
const state = {sentence: 0, kind: "", heads: [{layer: 0, head: 0}], pinned: null};

const example = () => examples[state.sentence];
const maps = () => example().maps[state.kind];  // [layer][head][query][key]
const weightsOf = ({layer, head}) => maps()[layer][head];
const headName = ({layer, head}) => `layer ${layer + 1}, head ${head + 1}`;
const sideOf = role => KINDS[state.kind][role];
const tokensOf = role => example()[sideOf(role)];
const otherRole = role => role === "q" ? "k" : "q";
const isSame = (a, b) => a && b && a.role === b.role && a.i === b.i;

// --- Selecting: a sentence has kinds, a kind has heads and tokens, a head has weights

function selectSentence(i) {
  state.sentence = i;
  const kinds = Object.keys(KINDS).filter(kind => kind in example().maps);
  if (!kinds.includes(state.kind)) state.kind = kinds[0];
  byId("kind").replaceChildren(...kinds.map(kindButton));
  const {src, tgt} = example();
  byId("pair").textContent = `${src.join(" ")}  →  ${tgt.join(" ")}`;
  selectKind(state.kind);
}

function kindButton(kind) {
  const checked = kind === state.kind;
  const input = element("input", {type: "radio", name: "kind", value: kind, checked});
  input.addEventListener("change", () => selectKind(kind));
  return element("label", {}, input, element("span", {textContent: KINDS[kind].name}));
}

function selectKind(kind) {
  Object.assign(state, {kind, pinned: null});
  state.heads = state.heads.filter(({layer, head}) => maps()[layer]?.[head]);
  if (!state.heads.length) state.heads = [{layer: 0, head: 0}];
  fillOptions("layer", maps().length);
  fillOptions("head", maps()[0].length);
  drawHeatmaps();
  drawTokens();
  updateHeads();
}

function fillOptions(id, n) {
  const option = (_, i) => element("option", {value: i, textContent: i + 1});
  byId(id).replaceChildren(...Array.from({length: n}, option));
}

function selectHead(layer, head) {
  const others = state.heads.filter(at => at.layer !== layer || at.head !== head);
  const wasSelected = others.length < state.heads.length;
  if (!byId("compare").checked) {
    state.heads = [{layer, head}];
  } else if (!wasSelected) {
    state.heads = [...others, {layer, head}].slice(-DASHES.length);
  } else if (others.length) {
    state.heads = others;
  }
  updateHeads();
}

function updateHeads() {
  const newest = state.heads.at(-1);
  const {name} = KINDS[state.kind];
  const n = state.heads.length;
  byId("layer").value = newest.layer;
  byId("head").value = newest.head;
  for (const button of byId("heads").querySelectorAll("button")) {
    const {layer, head} = button.dataset;
    const i = state.heads.findIndex(at => at.layer === +layer && at.head === +head);
    button.setAttribute("aria-pressed", i >= 0);
    button.tabIndex = i === n - 1 ? 0 : -1;
    setColour(button, Math.max(i, 0));
  }
  byId("selection").textContent = `${name}, ${n > 1 ? `${n} heads` : headName(newest)}`;
  drawCurves();
  reserveHeight();
  highlight(state.pinned);
}

// --- Heatmaps of all heads: a row of heatmaps per layer

function drawHeatmaps() {
  const label = (textContent, className = "") =>
    element("span", {textContent, className, ariaHidden: "true"});
  const numbers = maps()[0].map((_, head) => label(head + 1));
  const rows = maps().flatMap((heads, layer) => [
    label(`Layer ${layer + 1}`, "layer"),
    ...heads.map((_, head) => heatmapButton(layer, head)),
  ]);
  byId("heads").style.setProperty("--n-heads", numbers.length);
  byId("heads").replaceChildren(label("Head", "layer"), ...numbers, ...rows);
}

function heatmapButton(layer, head) {
  const name = headName({layer, head});
  const {color} = getComputedStyle(byId("heads"));
  const properties = {type: "button", ariaLabel: name, title: name};
  const image = heatmap(weightsOf({layer, head}), color);
  const button = element("button", properties, image);
  Object.assign(button.dataset, {layer, head});
  button.addEventListener("click", event => {
    selectHead(layer, head);
    if (event.detail) scrollToTokens();  // a pointer's click; a key's has detail 0
  });
  return button;
}

function scrollToTokens() {  // on a phone the tokens are below the heatmaps
  const figure = document.querySelector("figure");
  if (figure.getBoundingClientRect().top > innerHeight / 2) figure.scrollIntoView();
}

// --- Tokens and the curves between them: opacity is the weight

function drawTokens() {
  for (const role of ["q", "k"]) {
    byId(`${role}-label`).textContent = `${SIDES[sideOf(role)]} (${ROLES[role]})`;
    byId(role).replaceChildren(...tokensOf(role).map(
      (text, i) => element("li", {}, tokenButton(text, {role, i}))));
  }
}

function tokenButton(text, token) {
  const bars = element("span", {className: "bars"});
  const tabIndex = token.i ? -1 : 0;
  const properties = {type: "button", title: text, dir: "auto", tabIndex};
  const button = element("button", properties, text, bars);
  button.addEventListener("pointerenter", event => {
    if (event.pointerType === "mouse") highlight(token);
  });
  button.addEventListener("pointerleave", event => {
    if (event.pointerType === "mouse") highlight(state.pinned);
  });
  button.addEventListener("focus", () => highlight(token));
  button.addEventListener("blur", () => highlight(state.pinned));
  button.addEventListener("click", () => {
    state.pinned = isSame(state.pinned, token) ? null : token;
    highlight(state.pinned);
  });
  return button;
}

function drawCurves() {
  const n = Math.max(tokensOf("q").length, tokensOf("k").length);
  const svg = byId("curves");
  byId("tokens").style.setProperty("--n-rows", n);
  svg.setAttribute("viewBox", `0 0 100 ${n}`);
  svg.replaceChildren(
    ...state.heads.flatMap((at, i) => curves(svg, weightsOf(at), i)));
}

// --- Highlighting one token: its row or column of weights (null: all weights)

function highlight(token) {
  const weights = weightsByHead(token);
  highlightCurves(token);
  for (const role of ["q", "k"]) showWeights(role, token, weights);
  highlightRows(token);
  byId("description").replaceChildren(...describe(token, weights));
}

function weightsByHead(token) {
  if (!token) return [];
  return state.heads.map(weightsOf).map(
    map => token.role === "q" ? map[token.i] : map.map(row => row[token.i]));
}

function colourOf(token, i) {  // of a single head, a key has the second colour
  return state.heads.length === 1 && token?.role === "k" ? 1 : i;
}

function highlightCurves(token) {
  for (const path of byId("curves").children) {
    const isShown = !token || +path.dataset[token.role] === token.i;
    path.style.display = isShown ? "" : "none";
    setColour(path, colourOf(token, +path.dataset.head));
  }
}

// Bars behind the tokens of the other role; for a single head, a number next to them.
function showWeights(role, token, weights) {
  const isOther = token && role !== token.role;
  const shown = isOther ? weights : [];
  [...byId(role).children].forEach((item, i) => {
    const button = item.firstChild;
    button.setAttribute("aria-pressed", Boolean(isSame(state.pinned, {role, i})));
    button.lastChild.replaceChildren(...shown.map((row, head) => {
      const bar = setColour(element("i"), colourOf(token, head));
      bar.style.setProperty("--weight", row[i]);
      return bar;
    }));
    const isNumber = shown.length === 1 && shown[0][i] >= MIN_WEIGHT;
    item.dataset.weight = isNumber ? shown[0][i].toFixed(2) : "";
  });
}

function highlightRows(token) {  // the style sheet fades all other rows or columns
  const heads = byId("heads");
  heads.dataset.role = token ? token.role : "";
  if (!token) return;
  const n = tokensOf(token.role).length;
  heads.style.setProperty("--start", `${100 * token.i / n}%`);
  heads.style.setProperty("--end", `${100 * (token.i + 1) / n}%`);
}

// --- The description above the tokens, which screen readers read out

function describe(token, weights = weightsByHead(token)) {
  if (!token) return instructions();
  const relation = token.role === "q" ? " attends to " : " is attended to by ";
  const name = element("b", {textContent: tokenName(token)});
  const subject = element("span", {}, name, relation);
  const role = otherRole(token.role);
  if (weights.length === 1) {
    return [element("p", {}, subject, ...largest(weights[0], role, 5))];
  }
  const lines = weights.map((row, i) => {
    const label = headLabel(state.heads[i], i);
    return element("p", {}, label, ...largest(row, role, 3));
  });
  return [element("p", {}, subject), ...lines];
}

function instructions() {
  const hint = "Point at a token, or tap it, to see its weights alone.";
  const text = element("p", {textContent: `${KINDS[state.kind].rule} ${hint}`});
  if (state.heads.length === 1) return [text];
  return [text, ...state.heads.map((at, i) => element("p", {}, headLabel(at, i)))];
}

function headLabel(at, i) {
  return setColour(element("span", {className: "head", textContent: headName(at)}), i);
}

function tokenName({role, i}) {  // with its number where the text occurs twice
  const text = tokensOf(role)[i];
  const isUnique = tokensOf(role).filter(other => other === text).length === 1;
  return isUnique ? text : `${text} (token ${i + 1})`;
}

function largest(weights, role, n) {
  const found = weights.map((weight, i) => ({weight, i}))
    .filter(({weight}) => weight >= .01)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, n);
  if (!found.length) return ["no token with a weight of 0.01 or more"];
  return found.map(({weight, i}) => {
    const number = element("b", {textContent: weight.toFixed(2)});
    return element("span", {className: "weight"}, `${tokenName({role, i})} `, number);
  });
}

// Reserves the height of the longest description: no token moves when it changes.
function reserveHeight() {
  const tokens = ["q", "k"].flatMap(role => tokensOf(role).map((_, i) => ({role, i})));
  const all = [null, ...tokens].map(token => element("div", {}, ...describe(token)));
  const trial = element("div", {className: "trial"}, ...all);
  byId("details").append(trial);
  const height = Math.max(...all.map(({offsetHeight}) => offsetHeight));
  byId("description").style.minHeight = `min(45vh, ${height}px)`;
  trial.remove();
}

// --- Keys: Tab moves between the groups, the arrow keys within a group

const ARROWS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};
const groupOf = target => target.closest("#heads, #q, #k");

function moveFocus(group, button, [down, right]) {
  const buttons = [...group.querySelectorAll("button")];
  const [at, n] = [buttons.indexOf(button), buttons.length];
  if (group.id === "heads") {
    buttons[(at + down * maps()[0].length + right + n) % n].focus();
  } else if (down) {
    buttons[(at + down + n) % n].focus();
  } else {
    const others = byId(right > 0 ? "k" : "q").querySelectorAll("button");
    others[Math.min(at, others.length - 1)].focus();
  }
}

document.addEventListener("keydown", event => {
  if (event.key === "Escape") {
    state.pinned = null;
    highlight(null);
  }
  const group = groupOf(event.target);
  if (!group || !(event.key in ARROWS)) return;
  event.preventDefault();
  moveFocus(group, event.target, ARROWS[event.key]);
});

// Tab returns to the button of a group that had the focus last.
document.addEventListener("focusin", event => {
  const group = groupOf(event.target);
  if (!group || event.target === group) return;
  for (const button of group.querySelectorAll("button")) {
    button.tabIndex = button === event.target ? 0 : -1;
  }
});

// --- Start

examples.forEach((each, i) => {
  const textContent = `${i + 1}. ${each.src.join(" ")}`;
  byId("sentence").append(element("option", {value: i, textContent}));
});
byId("sentence-field").hidden = examples.length < 2;
byId("sentence").addEventListener("change", event => {
  selectSentence(+event.target.value);
});
for (const id of ["layer", "head"]) {
  byId(id).addEventListener("change", () => {
    selectHead(+byId("layer").value, +byId("head").value);
  });
}
byId("compare").addEventListener("change", event => {
  if (event.target.checked) return;
  state.heads = state.heads.slice(-1);
  updateHeads();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawHeatmaps();
  updateHeads();
});
addEventListener("resize", reserveHeight);
selectSentence(0);
