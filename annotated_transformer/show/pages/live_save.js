// Drawings as SVG files for papers and slides: they hold all that they need, and have
// the colours of the light page on white.

const [SIZE, LINE, GAP] = [13, 22, 8];  // of the text, of a row, around drawings
const COLUMN = {named: 24, matrix: 640, lines: 220};  // widths
const NODE_HEIGHT = 54;

const pen = element("canvas").getContext("2d");
function widthOf(texts) {
  pen.font = `${SIZE}px sans-serif`;
  return Math.max(0, ...texts.map(text => pen.measureText(text).width));
}

function lightColours(...names) {
  const root = document.documentElement;
  const before = root.style.colorScheme;
  root.style.colorScheme = "light";
  const found = coloursOf(...names);
  root.style.colorScheme = before;
  return found;
}

const written = (text, x, y, more = {}) => {
  const anchor = {x, y, "dominant-baseline": "central", ...more};
  return drawn("text", anchor, String(text));
};
const across = (text, x, y, degrees, more = {}) =>
  written(text, 0, 0, {transform: `translate(${x} ${y}) rotate(${degrees})`, ...more});

function svgText(title, width, height, children) {
  const [ink] = lightColours("ink");
  const size = {width: Math.ceil(width), height: Math.ceil(height)};
  const root = drawn("svg", {
    ...size,
    "viewBox": `0 0 ${size.width} ${size.height}`,
    "font-family": "sans-serif",
    "font-size": SIZE,
    "fill": ink,
  }, drawn("title", {}, title), drawn("rect", {...size, fill: "#ffffff"}), ...children);
  return new XMLSerializer().serializeToString(root);
}

// --- The heat map: a rectangle per number, with the names of its rows and columns

function matrixSvg() {
  const {rows, rowNames, columnNames, stage, max} = view;
  const isNamed = stage.axes[1] !== "feature";
  const names = isNamed ? columnNames : columnNames.map(
    (name, i) => i === 0 || i === columnNames.length - 1 ? name : "");
  const width = isNamed ? COLUMN.named : COLUMN.matrix / names.length;
  const left = widthOf(rowNames) + 2 * GAP + LINE;
  const top = isNamed ? widthOf(names) + 2 * GAP : LINE;
  const [right, bottom] = [left + width * names.length, top + LINE * rows.length];
  const [above, below, none, muted] = lightColours("head0", "head1", "edge", "muted");
  const middle = {"text-anchor": "middle"};
  const cells = rows.flatMap((row, i) => Array.from(row).flatMap((value, j) => {
    const opacity = value === -Infinity ? .35 : Math.min(1, Math.abs(value) / max);
    if (opacity < MIN_WEIGHT) return [];
    const fill = value === -Infinity ? none : value < 0 ? below : above;
    const at = {x: left + j * width, y: top + i * LINE, width, height: LINE};
    return [drawn("rect", {...at, fill, "fill-opacity": +opacity.toFixed(3)})];
  }));
  const frame = {x: left, y: top, width: right - left, height: bottom - top};
  const [rowAxis, columnAxis] = stage.axes.map(axis => say(`axis.${axis}`));
  const axis = {...middle, fill: muted};
  return svgText(drawingTitle(), Math.max(right, left + widthOf([legend()])) + GAP,
    bottom + 2 * LINE + GAP, [
      ...cells,
      drawn("rect", {...frame, fill: "none", stroke: none}),
      ...rowNames.map((name, i) =>
        written(name, left - GAP, top + (i + .5) * LINE, {"text-anchor": "end"})),
      ...names.map((name, j) => isNamed
        ? across(name, left + (j + .5) * width, top - GAP, -90)
        : written(name, left + (j + .5) * width, top - SIZE, middle)),
      across(rowAxis, SIZE, (top + bottom) / 2, -90, axis),
      written(columnAxis, (left + right) / 2, bottom + LINE / 2, axis),
      written(legend(), left, bottom + 1.5 * LINE, {fill: muted}),
    ]);
}

function drawingTitle() {
  const title = byId("box-title").textContent;
  return `${title}: ${view.shape.join(" × ")}, “${run.text}”`;
}

// --- The lines: queries on the left, keys on the right

function linesSvg() {
  const {q, k} = lines.tokens;
  const [left, top] = [widthOf(q) + 2 * GAP, 1.5 * LINE];
  const right = left + COLUMN.lines;
  const yOf = i => top + (i + .5) * LINE;
  const [stroke, muted] = lightColours("head0", "muted");
  const shown = lines.pinned;
  const paths = lines.weights[0].flatMap((row, i) => Array.from(row).flatMap(
    (weight, j) => {
      const isShown = !shown || shown.i === {q: i, k: j}[shown.role];
      if (weight < MIN_WEIGHT || !isShown) return [];
      const [y0, y1, third] = [yOf(i), yOf(j), COLUMN.lines / 3];
      const [x0, x1] = [left + third, right - third];
      const d = `M${left} ${y0}C${x0} ${y0} ${x1} ${y1} ${right} ${y1}`;
      return [drawn("path", {d, "stroke-opacity": +weight.toFixed(3)})];
    }));
  const group = {fill: "none", stroke, "stroke-width": 2.2, "stroke-linecap": "round"};
  const end = {"text-anchor": "end"};
  const titles = ["q", "k"].map(role => byId(`${role}-label`).textContent);
  const start = Math.max(0, widthOf([titles[0]]) + 2 * GAP - left);
  return svgText(drawingTitle(),
    start + right + Math.max(widthOf(k), widthOf([titles[1]])) + 2 * GAP,
    top + Math.max(q.length, k.length) * LINE + GAP,
    [drawn("g", {transform: `translate(${start} 0)`},
      drawn("g", group, ...paths),
      written(titles[0], left - GAP, LINE / 2 + GAP, {...end, fill: muted}),
      written(titles[1], right + GAP, LINE / 2 + GAP, {fill: muted}),
      ...q.map((text, i) => written(text, left - GAP, yOf(i), end)),
      ...k.map((text, i) => written(text, right + GAP, yOf(i))))]);
}

// --- The tree of the beam

function treeSvg() {
  const {tree, hypotheses} = run.search;
  const best = pathOf(hypotheses[0].end);
  const [strong, edge, end, muted, fill] = lightColours(
    "head0", "edge", "head2", "muted", "attention");
  const names = tree.flat().map(({id}) => shownToken(id));
  const width = Math.max(84, widthOf(names) + 2 * GAP);
  const node = {width, height: NODE_HEIGHT - 16};
  const step = width + 44;
  const xOf = i => GAP + (i + 1) * step;
  const yOf = i => GAP + (i + .5) * NODE_HEIGHT;
  const lookOf = (why, isBest) => ({
    "stroke": isBest ? strong : why === "finished" ? end : edge,
    "stroke-width": isBest || why === "finished" ? 2.5 : 1.2,
    "stroke-dasharray": why === "pruned" ? "3 4" : "none",
  });
  const parts = tree.flatMap((candidates, i) => candidates.flatMap((candidate, j) => {
    const {parent, id, tokenLogProb, logProb, why} = candidate;
    const look = lookOf(why, best.has(`${i}:${j}`));
    const [x0, y0] = [xOf(i - 1) + node.width, yOf(Math.max(parent, 0))];
    const [x, y] = [xOf(i), yOf(j)];
    const d = `M${x0} ${y0}C${x0 + 22} ${y0} ${x - 22} ${y} ${x} ${y}`;
    const box = {...node, x, y: y - node.height / 2, rx: 6};
    const numbers = `${short(Math.exp(tokenLogProb))}   ${minus(logProb.toFixed(2))}`;
    const middle = {"text-anchor": "middle"};
    const background = best.has(`${i}:${j}`) ? fill : "#ffffff";
    return [
      drawn("path", {d, fill: "none", ...look}),
      drawn("rect", {...box, fill: background, ...look}),
      written(shownToken(id), x + node.width / 2, y - 8, middle),
      written(numbers, x + node.width / 2, y + 9,
        {...middle, "font-size": 11, "fill": muted}),
    ];
  }));
  const first = written("BOS", xOf(-1) + width - GAP, yOf(0), {"text-anchor": "end"});
  const height = Math.max(...tree.map(candidates => candidates.length));
  const title = `${say("beam")}: “${run.text}”`;
  return svgText(title, xOf(tree.length - 1) + node.width + GAP,
    2 * GAP + height * NODE_HEIGHT, [first, ...parts]);
}

// --- Saving

const DRAWERS = {matrix: matrixSvg, lines: linesSvg, tree: treeSvg};

function save(name) {
  const text = DRAWERS[name]();
  const at = name === "tree" ? `beam-${state.beam}`
    : [state.box, state.stage, state.layer + 1, state.head + 1].join("-");
  const url = URL.createObjectURL(new Blob([text], {type: "image/svg+xml"}));
  element("a", {href: url, download: `${at}.svg`}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

for (const button of document.querySelectorAll("[data-save]")) {
  button.addEventListener("click", () => save(button.dataset.save));
}
