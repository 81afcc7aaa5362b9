// The tree of a beam search: a column per step, a row per candidate, best first.

function drawBeam() {
  byId("beam").value = state.beam;
  byId("beam-value").textContent = state.beam === 1 ? say("beam.greedy") : state.beam;
  const {tree, hypotheses} = run.search;
  for (const id of ["tree-box", "save-tree"]) byId(id).hidden = !tree.length;
  byId("candidate").textContent = tree.length
    ? say("beam.choose") : say("beam.no.tree");
  byId("hypotheses").hidden = !tree.length;
  if (!tree.length) return;
  byId("hypotheses").replaceChildren(...hypothesisTable(hypotheses));
  const best = pathOf(hypotheses[0].end);
  const nodes = tree.flatMap((candidates, step) => candidates.map(
    (candidate, i) => node(candidate, step, i, best.has(`${step}:${i}`))));
  const start = element("span", {className: "start", textContent: "BOS"});
  byId("tree").replaceChildren(edges(best), start, ...nodes);
  for (const id of ["tree", "hypotheses"]) {
    setTabStop(byId(id), byId(id).querySelector("button"));
  }
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

function node({id, tokenLogProb, logProb, why}, step, i, isBest) {
  const probability = short(Math.exp(tokenLogProb));
  const total = minus(logProb.toFixed(2));
  const numbers = [probability, total].map(
    textContent => element("small", {textContent}));
  const properties = {type: "button", className: why};
  const name = element("span", {textContent: shownToken(id)});
  const button = element("button", properties, name, ...numbers);
  button.classList.toggle("best", isBest);
  button.dataset.key = `node:${step}:${i}`;
  button.style.gridArea = `${i + 1} / ${step + 2}`;
  button.ariaLabel = say(
    `beam.node.${why}`, {token: shownToken(id), probability, total, step: step + 1});
  for (const event of ["focus", "click"]) {
    button.addEventListener(event, () => followPath({step, index: i}));
  }
  return button;
}

function edges(best) {
  const {tree} = run.search;
  const height = Math.max(...tree.map(candidates => candidates.length));
  const edge = ({parent, why}, step, i) => {
    const [x0, x1] = [step + .5, step + 1.5];
    const [y0, y1] = [Math.max(parent, 0) + .5, i + .5];
    return drawn("path", {
      "data-node": `${step}:${i}`,
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

// Marks a candidate, its path and, if it is the end of one, its finished hypothesis.
function followPath(end) {
  const path = pathOf(end);
  const last = `node:${end.step}:${end.index}`;
  for (const each of byId("tree").querySelectorAll("button")) {
    const [, step, i] = each.dataset.key.split(":");
    each.classList.toggle("followed", path.has(`${step}:${i}`));
    each.setAttribute("aria-pressed", each.dataset.key === last);
  }
  for (const each of byId("tree").querySelectorAll("path")) {
    each.classList.toggle("followed", path.has(each.dataset.node));
  }
  for (const each of byId("hypotheses").querySelectorAll("button")) {
    each.setAttribute("aria-pressed", each.dataset.end === last);
  }
  describeCandidate(end.step, end.index);
}

function describeCandidate(step, i) {
  const {logProb, tokenLogProb, why} = run.search.tree[step][i];
  const text = shownTokens(prefixOf(step, i)).join(" ");
  const [last, all] = [tokenLogProb, logProb].map(log => short(Math.exp(log)));
  const found = say("beam.candidate", {text, last, all, log: show(logProb)});
  byId("candidate").textContent = `${found} ${say(`beam.${why}`)}`;
}

function hypothesisTable(hypotheses) {
  const row = (tag, first, numbers) => element("tr", {}, element(tag, {}, first),
    ...numbers.map(textContent => element(tag, {textContent})));
  const rows = hypotheses.slice(0, MAX_BEAM).map(
    ({ids, logProb, penalty, score, tokenLogProbs, end}) => {
      const numbers = [show(logProb), tokenLogProbs.length, show(penalty), show(score)];
      const line = row("td", hypothesisButton(ids, end), numbers);
      line.addEventListener("click", () => followPath(end));
      return line;
    });
  const head = row("th", say("hypotheses.hypothesis"), [say("hypotheses.log"), "|Y|",
    say("hypotheses.penalty"), say("hypotheses.score")]);
  const text = state.beam === 1 ? rich("hypotheses.greedy") : rich("hypotheses.text");
  return [element("p", {className: "expect"}, ...text),
    element("table", {}, head, ...rows)];
}

function hypothesisButton(ids, {step, index}) {
  const button = element("button", {type: "button", textContent: textOf(ids)});
  button.dataset.key = `hypothesis:${step}:${index}`;
  button.dataset.end = `node:${step}:${index}`;
  button.setAttribute("aria-pressed", false);
  return button;
}
