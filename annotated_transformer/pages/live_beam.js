// The tree of a beam search: a column per step, a row per candidate, best first.

const BEAM_TEXT = "The number of hypotheses that are kept at each step. Dashed "
  + "candidates were pruned; the bold path is the translation.";
const WHY = {
  kept: "kept: it is among the most probable hypotheses",
  pruned: "pruned: other hypotheses were more probable",
  finished: "finished: it ends in EOS",
};

function drawBeam() {
  byId("beam").value = state.beam;
  byId("beam-value").textContent = state.beam === 1 ? "1, greedy search" : state.beam;
  const {tree, hypotheses} = run.search;
  byId("tree-box").hidden = !tree.length;
  byId("candidate").textContent = tree.length
    ? "Choose a candidate to read its probability." : "Sampling has no tree.";
  byId("hypotheses").hidden = !tree.length;
  if (!tree.length) return;
  byId("hypotheses").replaceChildren(...hypothesisTable(hypotheses));
  const best = pathOf(hypotheses[0].end);
  const nodes = tree.flatMap((candidates, step) => candidates.map(
    (candidate, i) => node(candidate, step, i, best.has(`${step}:${i}`))));
  const start = element("span", {className: "start", textContent: "BOS"});
  byId("tree").replaceChildren(edges(best), start, ...nodes);
  setTabStop(byId("tree"), byId("tree").querySelector("button"));
}

// The candidates of a hypothesis, as "step:index".
function pathOf({step, index}) {
  const found = new Set();
  for (let [i, at] = [step, index]; i >= 0; i--) {
    found.add(`${i}:${at}`);
    at = run.search.tree[i][at].parent;
  }
  return found;
}

function prefixOf(step, index) {
  const ids = [];
  for (let [i, at] = [step, index]; i >= 0; i--) {
    ids.unshift(run.search.tree[i][at].id);
    at = run.search.tree[i][at].parent;
  }
  return ids;
}

function node({id, tokenLogProb, why}, step, i, isBest) {
  const probability = Math.exp(tokenLogProb).toFixed(2);
  const number = element("small", {textContent: probability});
  const properties = {type: "button", className: why};
  const button = element("button", properties, shownToken(id), number);
  button.classList.toggle("best", isBest);
  button.dataset.key = `node:${step}:${i}`;
  button.style.gridArea = `${i + 1} / ${step + 2}`;
  button.ariaLabel = `Step ${step + 1}: ${shownToken(id)}, ${probability}, ${why}`;
  button.addEventListener("focus", () => describeCandidate(step, i));
  button.addEventListener("click", () => describeCandidate(step, i));
  return button;
}

function edges(best) {
  const {tree} = run.search;
  const height = Math.max(...tree.map(candidates => candidates.length));
  const edge = ({parent, why}, step, i) => {
    const [x0, x1] = [step + .5, step + 1.5];
    const [y0, y1] = [Math.max(parent, 0) + .5, i + .5];
    return drawn("path", {
      "d": `M${x0} ${y0}C${x0 + .6} ${y0} ${x1 - .6} ${y1} ${x1} ${y1}`,
      "vector-effect": "non-scaling-stroke",
      "class": best.has(`${step}:${i}`) ? "best" : why,
    });
  };
  const paths = tree.flatMap((candidates, step) =>
    candidates.map((candidate, i) => edge(candidate, step, i)));
  return drawn("svg", {
    "viewBox": `0 0 ${tree.length + 1} ${height}`,
    "preserveAspectRatio": "none",
    "aria-hidden": "true",
  }, ...paths);
}

function describeCandidate(step, i) {
  const {logProb, tokenLogProb, why} = run.search.tree[step][i];
  const text = shownTokens(prefixOf(step, i)).join(" ");
  byId("candidate").textContent = `“${text}”: probability of the last token ${
    short(Math.exp(tokenLogProb))}, of the hypothesis ${
    short(Math.exp(logProb))} (log-probability ${show(logProb)}). ${WHY[why]}.`;
}

function hypothesisTable(hypotheses) {
  const cells = (tag, values) =>
    element("tr", {}, ...values.map(textContent => element(tag, {textContent})));
  const rows = hypotheses.slice(0, MAX_BEAM).map(
    ({ids, logProb, penalty, score, tokenLogProbs}) => cells("td", [textOf(ids),
      show(logProb), tokenLogProbs.length, show(penalty), show(score)]));
  const head = cells("th",
    ["Finished hypothesis", "Log-probability", "|Y|", "Length penalty", "Score"]);
  const text = state.beam === 1
    ? "Greedy search keeps the most probable token at each step."
    : "The highest score wins. It is the log-probability divided by the length penalty "
      + "((5 + |Y|) / 6)^(0.6), where |Y| counts the tokens and EOS.";
  return [element("p", {className: "expect"}, ...typeset(text)),
    element("table", {}, head, ...rows)];
}
