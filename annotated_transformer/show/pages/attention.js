// --- State: the examples, and what is selected

const examples = JSON.parse(byId("data").textContent);
const KINDS = {
  encoder: {q: "src", k: "src"},
  decoder: {q: "tgt", k: "tgt"},
  cross: {q: "tgt", k: "src"},
};
const kindName = kind => say(`kind.${kind}`);
const sideLabel = role => say(`side.${sideOf(role)}.${role}`);

// `heads` holds the selected heads, the newest last. A token is {role: "q" or "k", i}.
const state = {sentence: 0, kind: "", heads: []};

const example = () => examples[state.sentence];
const maps = () => example().maps[state.kind];  // [layer][head][query][key]
const weightsOf = ({layer, head}) => maps()[layer][head];
const sideOf = role => KINDS[state.kind][role];
const tokensOf = role => example()[sideOf(role)];
const otherRole = role => role === "q" ? "k" : "q";

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
  return element("label", {}, input, element("span", {textContent: kindName(kind)}));
}

function selectKind(kind) {
  state.kind = kind;
  lines.pinned = null;
  lines.tokens = {q: tokensOf("q"), k: tokensOf("k")};
  state.heads = state.heads.filter(({layer, head}) => maps()[layer]?.[head]);
  if (!state.heads.length) state.heads = [{layer: 0, head: 0}];
  fillOptions("layer", maps().length);
  fillOptions("head", maps()[0].length);
  drawHeatmaps();
  drawTokens({q: sideLabel("q"), k: sideLabel("k")});
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
  const kind = kindName(state.kind);
  const n = state.heads.length;
  byId("layer").value = newest.layer;
  byId("head").value = newest.head;
  markHeads(state.heads);
  byId("selection").textContent = n > 1 ? say("selected.several", {kind, n})
    : say("selected.one", {kind, head: headName(newest)});
  lines.weights = state.heads.map(weightsOf);
  drawCurves();
  reserveHeight();
  highlight(lines.pinned);
}

// --- Heat maps of all heads

function drawHeatmaps() {
  const {color} = getComputedStyle(byId("heads"));
  const paint = at => heatmap(weightsOf(at), [color]);
  drawHeads(maps().length, maps()[0].length, paint, ({layer, head}, event) => {
    selectHead(layer, head);
    if (event.detail) scrollToTokens();  // a pointer's click; a key's has detail 0
  });
}

function scrollToTokens() {  // on a phone the tokens are below the heatmaps
  const figure = document.querySelector("figure");
  if (figure.getBoundingClientRect().top > innerHeight / 2) figure.scrollIntoView();
}

// --- Highlighting one token: its row or column in all heat maps, and its description

function highlightRows(token) {  // the style sheet fades all other rows or columns
  const heads = byId("heads");
  heads.dataset.role = token ? token.role : "";
  if (!token) return;
  const n = tokensOf(token.role).length;
  heads.style.setProperty("--start", `${100 * token.i / n}%`);
  heads.style.setProperty("--end", `${100 * (token.i + 1) / n}%`);
}

lines.onHighlight = token => {
  writeAddress();
  highlightRows(token);
  byId("description").replaceChildren(...describe(token));
};

// --- The description above the tokens, which screen readers read out

function describe(token, weights = weightsByHead(token)) {
  if (!token) return instructions();
  const name = element("b", {textContent: tokenName(token)});
  const texts = rich(`attends.${token.role}`, {token: name});
  const subject = element("span", {}, ...texts, " ");
  const role = otherRole(token.role);
  if (weights.length === 1) {
    return [element("p", {}, subject, ...largest(weights[0], role, 5))];
  }
  const rows = weights.map((row, i) => {
    const label = headLabel(state.heads[i], i);
    return element("p", {}, label, ...largest(row, role, 3));
  });
  return [element("p", {}, subject), ...rows];
}

function instructions() {
  const texts = [say(`rule.${state.kind}`), say("point")];
  const text = element("p", {textContent: texts.join(" ")});
  if (state.heads.length === 1) return [text];
  return [text, ...state.heads.map((at, i) => element("p", {}, headLabel(at, i)))];
}

function headLabel(at, i) {
  return setColour(element("span", {className: "head", textContent: headName(at)}), i);
}

function tokenName({role, i}) {  // with its number where the text occurs twice
  const text = tokensOf(role)[i];
  const isUnique = tokensOf(role).filter(other => other === text).length === 1;
  return isUnique ? text : say("token.numbered", {token: text, n: i + 1});
}

function largest(weights, role, n) {
  const found = weights.map((weight, i) => ({weight, i}))
    .filter(({weight}) => weight >= .01)
    .sort((a, b) => b.weight - a.weight)
    .slice(0, n);
  if (!found.length) return [say("no.weight")];
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

// --- The address: what differs from START

const opening = JSON.parse(byId("main").dataset.opening);
const START = {
  sentence: "0",
  kind: opening.kind ?? Object.keys(KINDS).find(kind => kind in examples[0].maps),
  heads: `${opening.layer ?? 0}.${opening.head ?? 0}`,
  token: openingToken(),
};

// “it”, or the token after which its translation is predicted.
function openingToken() {
  if (!opening.kind) return "";
  const tokens = examples[0][KINDS[opening.kind].q];
  const i = opening.kind === "encoder" ? tokens.indexOf("it")
    : tokens.findIndex(token => ["er", "sie", "es"].includes(token)) - 1;
  return i < 0 ? "" : `q${i}`;
}

function writeAddress() {
  const now = {
    sentence: String(state.sentence),
    kind: state.kind,
    heads: state.heads.map(({layer, head}) => `${layer}.${head}`).join(","),
    token: lines.pinned ? lines.pinned.role + lines.pinned.i : "",
  };
  const changed = Object.entries(now).filter(([name, text]) => text !== START[name]);
  showAddress(new URLSearchParams(changed));
}

// Selects what the address names; what is unknown or out of range is as at the start.
function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const {sentence, kind, heads, token} = {...START, ...Object.fromEntries(query)};
  state.kind = Object.hasOwn(KINDS, kind) ? kind : START.kind;
  state.heads = [...new Set(heads.split(","))].slice(-DASHES.length).map(text => {
    const [layer, head] = text.split(".").map(Number);
    return {layer, head};
  });
  const i = /^\d+$/.test(sentence) && sentence in examples ? Number(sentence) : 0;
  byId("sentence").value = i;
  selectSentence(i);
  byId("compare").checked = state.heads.length > 1;
  const [, role, position] = /^([qk])(\d{1,4})$/.exec(token) ?? [];
  if (role && position in tokensOf(role)) lines.pinned = {role, i: Number(position)};
  highlight(lines.pinned);
}

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
addEventListener("resize", reserveHeight);
addEventListener("hashchange", readAddress);
keepRoomFor(byId("details"));
readAddress();
followTheme(() => {
  drawHeatmaps();
  updateHeads();
});
onerror = null;  // the page has begun: this browser has what it needs
