// Queries on the left, keys on the right, and a curve per weight between them.
// The page has the elements #tokens, #q-label, #q, #curves, #k-label and #k.

// `weights` is [head][query][key]; a token is {role: "q" or "k", i}. `onHighlight` is
// called with the token that is highlighted, or with null.
const lines = {
  tokens: {q: [], k: []},
  weights: [],
  pinned: null,
  onHighlight: () => {},
};
const isSame = (a, b) => a && b && a.role === b.role && a.i === b.i;

// --- Tokens

function drawTokens(labels) {
  for (const role of ["q", "k"]) {
    byId(`${role}-label`).textContent = labels[role];
    byId(role).replaceChildren(...lines.tokens[role].map(
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
    if (event.pointerType === "mouse") highlight(lines.pinned);
  });
  button.addEventListener("focus", () => highlight(token));
  button.addEventListener("blur", () => highlight(lines.pinned));
  button.addEventListener("click", () => {
    lines.pinned = isSame(lines.pinned, token) ? null : token;
    highlight(lines.pinned);
  });
  return button;
}

// --- Curves: opacity is the weight

function drawCurves() {
  const n = Math.max(lines.tokens.q.length, lines.tokens.k.length);
  byId("tokens").style.setProperty("--n-rows", n);
  byId("curves").setAttribute("viewBox", `0 0 100 ${n}`);
  byId("curves").replaceChildren(...lines.weights.flatMap(curves));
}

function curves(weights, head) {
  return weights.flatMap((row, q) => Array.from(row).flatMap(
    (weight, k) => weight < MIN_WEIGHT ? [] : [curve(weight, q, k, head)]));
}

function curve(weight, q, k, head) {
  return setColour(drawn("path", {
    "d": `M1 ${q + .5}C35 ${q + .5} 65 ${k + .5} 99 ${k + .5}`,
    "stroke-opacity": weight,
    "vector-effect": "non-scaling-stroke",
    "stroke-dasharray": DASHES[head],
    "data-q": q,
    "data-k": k,
    "data-head": head,
  }), head);
}

// --- Highlighting one token: its row or column of weights (null: all weights)

function highlight(token) {
  const weights = weightsByHead(token);
  highlightCurves(token);
  for (const role of ["q", "k"]) showWeights(role, token, weights);
  lines.onHighlight(token);
}

function weightsByHead(token) {
  if (!token) return [];
  return lines.weights.map(
    map => token.role === "q" ? map[token.i] : map.map(row => row[token.i]));
}

function colourOf(token, i) {  // of a single head, a key has the second colour
  return lines.weights.length === 1 && token?.role === "k" ? 1 : i;
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
    button.setAttribute("aria-pressed", Boolean(isSame(lines.pinned, {role, i})));
    button.lastChild.replaceChildren(...shown.map((row, head) => {
      const bar = setColour(element("i"), colourOf(token, head));
      bar.style.setProperty("--weight", row[i]);
      return bar;
    }));
    const isNumber = shown.length === 1 && shown[0][i] >= MIN_WEIGHT;
    item.dataset.weight = isNumber ? shown[0][i].toFixed(2) : "";
  });
}

document.addEventListener("keydown", event => {
  if (event.key !== "Escape") return;
  lines.pinned = null;
  highlight(null);
});
