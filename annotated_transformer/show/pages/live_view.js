// The chosen box: its tensors as heat maps, all heads at a glance, and one number.

const MANY_ROWS = 24;  // rows are lower from here on

// What is drawn: the stage, its tensor's matrix for the chosen head, and names.
let view = null;

const idsOf = axis => axis === "src" ? run.srcIds : run.tgtIds;
const isTokens = axis => axis === "src" || axis === "tgt";

// --- The matrix of a stage

function rowsOf(tensorOfStage, head) {
  const n = tensorOfStage.shape.at(-2);
  const before = tensorOfStage.shape.length === 3 ? [head] : [];
  return Array.from({length: n}, (_, i) => rowAt(tensorOfStage, ...before, i));
}

// The columns that are drawn: all, or the most probable tokens of each position.
function columnsOf(stage, rows) {
  if (stage.axes[1] !== "vocab") return Array.from(rows[0], (_, i) => i);
  return [...new Set(rows.flatMap(row => largest(row, N_LIKELIEST)))];
}

function namesOf(axis, columns) {
  if (isTokens(axis)) return shownTokens(idsOf(axis));
  return axis === "vocab" ? columns.map(shownToken) : columns.map(String);
}

const sizeOf = value => value === -Infinity ? 0 : Math.abs(value);

// The number with full colour: weights and probabilities have the scale 0 to 1.
function scaleOf(stage, rows) {
  if (stage.key === "weights" || stage.convert) return 1;
  const sizes = rows.map(
    row => row.reduce((max, value) => Math.max(max, sizeOf(value)), 0));
  return Math.max(...sizes) || 1;
}

function makeView(stage) {
  const path = stage.path(state.layer);
  const tensorOfStage = run.trace.get(path);
  const all = rowsOf(tensorOfStage, state.head);
  const columns = columnsOf(stage, all);
  const convert = stage.convert ?? (value => value);
  const rows = stage.axes[1] === "vocab" || stage.convert
    ? all.map(row => columns.map(column => convert(row[column]))) : all;
  const [rowAxis, columnAxis] = stage.axes;
  const rowNames = namesOf(rowAxis);
  const columnNames = namesOf(columnAxis, columns);
  const {shape} = tensorOfStage;
  const max = scaleOf(stage, rows);
  view = {stage, path, shape, rows, columns, rowNames, columnNames, max};
  const start = stage.axes[0] === "src" ? Math.max(0, rowNames.indexOf("it"))
    : rows.length - 1;
  view.row = state.row >= 0 && state.row < rows.length ? state.row : start;
  const [best] = largest(Float32Array.from(rows[view.row], sizeOf), 1);
  const isColumn = state.column >= 0 && state.column < columns.length;
  view.column = isColumn ? state.column : best;
}

// --- Drawing

function drawView() {
  if (!Object.hasOwn(BOXES, state.box)) state.box = START.box;
  const box = BOXES[state.box];
  const {stages} = box;
  const stage = stages.find(({key}) => key === state.stage) ?? stages[0];
  state.layer = Math.min(state.layer, N_LAYERS[box.stack ?? "encoder"] - 1);
  state.head = Math.min(state.head, config.n_heads - 1);
  state.stage = stage?.key ?? "";
  markBox();
  drawBoxText(box, stage);
  const keys = stages.map(({key, name}) => [key, say(`stage.${name}`)]);
  drawChoices("stages", keys, state.stage, key => change({stage: key, column: -1}));
  const length = box.isLayer && !stage.perHead ? N_LAYERS[box.stack] : 0;
  const layers = Array.from({length}, (_, i) => [i, say("layer.n", {n: i + 1})]);
  drawChoices("layers", layers, state.layer, layer => change({layer: +layer}));
  const drawings = stage?.key === "weights" ? ["matrix", "lines"] : [];
  if (!["matrix", "lines"].includes(state.drawing)) state.drawing = "matrix";
  drawChoices("drawings", drawings.map(name => [name, say(`drawing.${name}`)]),
    state.drawing, drawing => change({drawing}));
  const isLines = drawings.length > 0 && state.drawing === "lines";
  for (const id of ["matrix-figure", "number", "shape", "row-text"]) {
    byId(id).hidden = !stage;
  }
  byId("matrix-figure").hidden ||= isLines;
  byId("save-lines").hidden = !isLines;
  byId("heads").hidden = !stage?.perHead;
  byId("tokens").hidden = !isLines;
  byId("token-table").replaceChildren(...stage ? [] : [tokenTable(box.tokens())]);
  if (!stage) return;
  makeView(stage);
  byId("shape").textContent = shapeText();
  if (stage.perHead) drawAllHeads(stage);
  if (isLines) drawWeightsAsLines(stage);
  else drawMatrix();
  drawNumber();
}

function drawBoxText(box, stage) {
  byId("box-title").textContent = boxTitle(box, stage);
  const isOff = state.off.includes(SWITCH_OF[stage?.key]);
  const stageText = isOff ? rich(`stage.${stage.name}.off`)
    : stage ? rich(`stage.${stage.name}.text`) : [];
  byId("box-text").replaceChildren(
    ...rich(`about.${box.text}`), say("gap"), ...stageText);
}

function boxTitle({isLayer}, stage) {
  const title = say(`box.${state.box}`);
  if (!isLayer) return title;
  const at = {box: title, layer: state.layer + 1, head: state.head + 1};
  return stage.perHead ? say("box.head", at) : say("box.layer", at);
}

function shapeText() {
  const {stage, shape} = view;
  const [rows, columns] = stage.axes.map(axis => say(`axis.${axis}`));
  const values = {shape: shape.join(", "), rows, columns};
  return stage.perHead ? say("shape.heads", values) : say("shape", values);
}

// A group of radio buttons: options are [value, text].
function drawChoices(id, options, chosen, choose) {
  byId(id).hidden = options.length < 2;
  byId(id).replaceChildren(...options.map(([value, text]) => {
    const properties = {type: "radio", name: id, value, checked: value === chosen};
    const input = element("input", properties);
    input.dataset.key = `${id}:${value}`;
    input.addEventListener("change", () => choose(value));
    return element("label", {}, input, element("span", {}, ...typeset(text)));
  }));
}

function drawAllHeads(stage) {
  const colours = coloursOf("head0", "head1", "edge");
  const paint = ({layer, head}) => {
    const rows = rowsOf(run.trace.get(stage.path(layer)), head);
    const image = heatmap(rows, colours, scaleOf(stage, rows));
    image.classList.toggle("dense", rows.length > MANY_ROWS);
    return image;
  };
  const {stack} = BOXES[state.box];
  drawHeads(N_LAYERS[stack], config.n_heads, paint,
    ({layer, head}) => change({layer, head}));
  markHeads([{layer: state.layer, head: state.head}]);
  for (const button of byId("heads").querySelectorAll("button")) {
    const path = stage.path(button.dataset.layer).replace(/\.\w+$/, "");
    if (!state.headsOff.includes(`${path}:${button.dataset.head}`)) continue;
    button.classList.add("off");
    button.ariaLabel = say("heads.off", {head: button.ariaLabel});
  }
}

function drawMatrix() {
  const {rows, rowNames, columnNames, stage, max} = view;
  const isNamed = stage.axes[1] !== "feature";
  const names = isNamed ? columnNames : ["0", String(columnNames.length - 1)];
  const matrix = byId("matrix");
  matrix.className = isNamed ? "named" : "features";
  matrix.style.setProperty("--n-columns", rows[0].length);
  matrix.style.setProperty("--n-rows", rows.length);
  matrix.style.setProperty("--row", rows.length > MANY_ROWS ? "1.1rem" : "1.6rem");
  byId("column-names").replaceChildren(
    ...names.map(textContent => element(
      "span", {textContent, className: textContent.length > 1 ? "" : "upright"})));
  byId("row-names").replaceChildren(
    ...rowNames.map(textContent => element("li", {textContent, title: textContent})));
  const image = heatmap(rows, coloursOf("head0", "head1", "edge"), max);
  byId("plot").replaceChildren(image, byId("cursor"));
  byId("legend").textContent = legend();
}

function legend() {
  const {max, rows} = view;
  const has = test => rows.some(row => row.some(test));
  const isSigned = has(value => value < 0 && value !== -Infinity);
  const values = {max: show(max)};
  const colours = isSigned ? say("legend.signed", values) : say("legend", values);
  const isMasked = has(value => value === -Infinity);
  return isMasked ? colours + say("gap") + say("legend.masked") : colours;
}

function drawWeightsAsLines(stage) {
  const [q, k] = stage.axes;
  lines.tokens = {q: view.rowNames, k: view.columnNames};
  lines.weights = [view.rows];
  if (!lines.tokens[lines.pinned?.role]?.[lines.pinned.i]) lines.pinned = null;
  drawTokens({q: say(`lines.${q}.q`), k: say(`lines.${k}.k`)});
  drawCurves();
  highlight(lines.pinned);
}

function tokenTable(ids) {
  const names = shownTokens(ids);
  const cell = (tag, textContent) => element(tag, {textContent});
  const titles = ["position", "token", "id"].map(
    name => cell("th", say(`table.${name}`)));
  const head = element("tr", {}, ...titles);
  const rows = ids.map((id, i) =>
    element("tr", {}, cell("td", i), cell("td", names[i]), cell("td", id)));
  return element("table", {}, head, ...rows);
}

// --- One number

function chooseNumber(row, column) {
  const clamp = (value, n) => Math.min(Math.max(value, 0), n - 1);
  view.row = state.row = clamp(row, view.rows.length);
  view.column = state.column = clamp(column, view.columns.length);
  drawNumber();
  byId("cursor").scrollIntoView({block: "nearest", inline: "nearest"});
  writeAddress();
}

function drawNumber() {
  const {row, column, rows, columnNames, stage} = view;
  const {style} = byId("cursor");
  const [n, width] = [rows.length, rows[0].length];
  style.inset = `${100 * row / n}% auto auto ${100 * column / width}%`;
  style.width = `${100 / width}%`;
  style.height = `${100 / n}%`;
  [...byId("row-names").children].forEach(
    (name, i) => name.classList.toggle("chosen", i === row));
  [...byId("column-names").children].forEach((name, i) => name.classList.toggle(
    "chosen", stage.axes[1] !== "feature" && i === column));
  fillSelect("row", stage.axes[0], rowTitles(), row);
  byId("row-text").replaceChildren(...rowText(row));
  fillSelect("column", stage.axes[1], columnNames, column);
  const value = element("b", {textContent: show(rows[row][column])});
  byId("number-title").replaceChildren(
    ...numberName(row, column), " = ", value);
  byId("arithmetic").replaceChildren(...arithmeticOf(row, column));
}

// The token that the position of a target token predicts.
const predicted = row => shownTokens(run.ids)[row];

function rowText(row) {
  if (view.stage.axes[0] !== "tgt") return [];
  const [token, next] = [view.rowNames[row], predicted(row)].map(
    textContent => element("b", {textContent}));
  return rich("row.predicts", {token, next});
}

const rowTitles = () => view.stage.axes[0] === "tgt"
  ? view.rowNames.map((name, row) => `${name} → ${predicted(row)}`) : view.rowNames;

function fillSelect(id, axis, names, chosen) {
  const texts = names.map((name, i) => isTokens(axis) ? `${i} ${name}` : name);
  const list = byId(id);
  const key = texts.join("\n");
  if (list.dataset.names !== key) {
    list.dataset.names = key;
    list.replaceChildren(
      ...texts.map((textContent, i) => element("option", {value: i, textContent})));
  }
  list.value = chosen;
  byId(`${id}-label`).textContent = say(`${id}.of`, {axis: say(`axis.${axis}`)});
}

function numberName(row, column) {
  const {stage, rowNames, columnNames} = view;
  const name = columnNames[column];
  const isFeature = stage.axes[1] === "feature";
  const second = isFeature ? feature(name) : `“${name}”`;
  return [...rich(`stage.${stage.name}`), ` (“${rowNames[row]}”, ${second})`];
}

function arithmeticOf(row, column) {
  const {stage, path, columns, rowNames, columnNames} = view;
  const isKeys = stage.key === "weights" || stage.key === "mixed";
  const found = ARITHMETIC[stage.key]({
    path: path.split(".").slice(0, 3).join("."),
    stack: path.split(".")[0],
    head: state.head,
    row,
    column: columns[column],
    id: columns[column],
    rowNames,
    columnNames,
    keyNames: isKeys ? namesOf(keyAxis()) : columnNames,
  });
  const paragraph = (className, text) => element(
    "p", {className}, ...isList(text) ? text : typeset(text));
  const table = found.terms ? [termTable(found.terms, found.total)] : [];
  const number = element("b", {textContent: show(Math.fround(found.result))});
  const result = element("p", {className: "line result"}, "= ", number);
  const texts = found.lines ?? [];
  return [paragraph("formula", found.formula), ...table,
    ...texts.map(text => paragraph("line", text)), result];
}

// What the keys of an attention box are: source or target tokens.
const keyAxis = () =>
  BOXES[state.box].stages.find(({key}) => key === "weights").axes[1];

// The largest terms of a sum, the rest together, and the sum.
function termTable(terms, total) {
  const sorted = terms.toSorted((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const shown = sorted.slice(0, N_TERMS);
  const rest = sorted.slice(N_TERMS);
  const max = Math.abs(shown[0].value) || 1;
  const row = (name, text, value) => {
    const bar = element("span", {className: "bar"});
    bar.classList.toggle("negative", value < 0);
    bar.style.setProperty("--value", Math.min(1, Math.abs(value) / max));
    return element("tr", {}, element("td", {textContent: name}),
      element("td", {textContent: text}), element("td", {}, bar),
      element("td", {className: "value", textContent: show(value)}));
  };
  const others = rest.length ? [row(say("term.others", {n: rest.length}), "",
    sum(rest.map(({value}) => value)))] : [];
  const end = element("td", {className: "value", textContent: show(total, 6)});
  const first = element("td", {textContent: say("term.sum")});
  const last = element("tr", {className: "total"}, first, element("td"),
    element("td"), end);
  return element("table", {className: "terms"},
    ...shown.map(({name, text, value}) => row(name, text, value)), ...others, last);
}

// --- Pointer and keys on the heat map

function cellAt({clientX, clientY}) {
  const box = byId("plot").getBoundingClientRect();
  return [
    Math.floor((clientY - box.top) / box.height * view.rows.length),
    Math.floor((clientX - box.left) / box.width * view.columns.length),
  ];
}

byId("plot").addEventListener("click", event => chooseNumber(...cellAt(event)));
byId("plot").addEventListener("pointermove", event => {
  const [row, column] = cellAt(event);
  const value = view.rows[row]?.[column];
  if (value === undefined) return;
  byId("legend").replaceChildren(
    ...numberName(row, column), `: ${show(value)}`);
});
byId("plot").addEventListener("pointerleave", () => {
  byId("legend").textContent = legend();
});
byId("plot").addEventListener("keydown", event => {
  const {row, column} = view;
  const jumps = {Home: [0, -column], End: [0, Infinity], PageUp: [-row, 0],
    PageDown: [Infinity, 0]};
  const jump = ARROWS[event.key] ?? jumps[event.key];
  if (!jump) return;
  event.preventDefault();
  chooseNumber(row + jump[0], column + jump[1]);
});
for (const id of ["row", "column"]) {
  byId(id).addEventListener(
    "change", () => chooseNumber(+byId("row").value, +byId("column").value));
}
