// The arithmetic of one number of a tensor: the numbers that it was computed from.

const N_TERMS = 6;  // of a long sum, those with the largest absolute values

// --- Numbers as text

const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
const minus = text => text.replace("-", "−");

function show(number, nDigits = 4) {  // significant digits
  if (number === -Infinity) return "−∞";
  const size = Math.abs(number);
  if (size === 0) return "0";
  if (size >= 1e-4 && size < 1e6) return minus(String(+number.toPrecision(nDigits)));
  const nDecimals = Math.min(2, nDigits - 1);
  const [digits, exponent] = number.toExponential(nDecimals).split("e");
  const raised = Array.from(String(Math.abs(exponent)), digit => SUPERSCRIPTS[digit]);
  return `${minus(digits)}·10${exponent < 0 ? "⁻" : ""}${raised.join("")}`;
}

function short(number) {  // two decimals, or one digit of a small positive number
  return number > 0 && number < .005 ? show(number, 1) : minus(number.toFixed(2));
}

const plusOf = (a, b) => `${show(a)} ${b < 0 ? "−" : "+"} ${show(Math.abs(b))}`;
const minusOf = (a, b) => plusOf(a, -b);

// --- Rows of tensors

// The numbers along the last axis, at these indices of the other axes.
function rowAt({shape, data}, ...indices) {
  const start = indices.reduce((sum, index, axis) => sum * shape[axis] + index, 0);
  return data.subarray(start * shape.at(-1), (start + 1) * shape.at(-1));
}
const tracedRow = (path, ...indices) => rowAt(run.trace.get(path), ...indices);
const sum = numbers => numbers.reduce((total, number) => total + number, 0);

// The path of the tensor that a sub-layer receives.
function inputOf(path) {
  const [stack, layer, kind] = path.split(".");
  const kinds = SUBLAYERS[stack];
  const i = kinds.indexOf(kind);
  if (i > 0) return `${stack}.${layer}.${kinds[i - 1]}.norm`;
  return +layer ? `${stack}.${layer - 1}.feedForward.norm` : `${stack}.input`;
}

// --- Sums of products

// Terms are {name, text, value}; a formula is a text, or a list of nodes.
function dotProduct(formula, left, right, nameOf, bias = 0) {
  const terms = Array.from(left, (a, i) => ({
    name: nameOf(i), text: `${show(a)} × ${show(right[i])}`, value: a * right[i],
  }));
  if (bias) terms.unshift({name: say("term.bias"), text: "", value: bias});
  const total = sum(terms.map(({value}) => value));
  return {formula, terms, total, lines: [], result: total};
}

const feature = i => say("term.feature", {i});

function linearMap(formula, x, path, name, column, biasName = "") {
  const weight = rowAt(weightOf({model}, path, `${name}.weight`), column);
  const bias = biasName ? weightOf({model}, path, biasName).data[column] : 0;
  return dotProduct(formula, x, weight, feature, bias);
}

// --- Attention (§3.2): `at` is {path, head, row, column, rowNames, columnNames}

function project({path, head, row, column}, letter) {
  const isCross = path.endsWith("cross") && letter !== "q";
  const input = isCross ? lastNorm() : inputOf(path);
  const d = run.trace.get(`${path}.${letter}`).shape[2];
  const formula = isCross ? say(`formula.${letter}.memory`) : say(`formula.${letter}`);
  return linearMap(
    formula, tracedRow(input, row), path, `w_${letter}`, head * d + column);
}

function scoreOf({path, head, row, column}) {
  return dotProduct("q · k = Σ qᵢ kᵢ", tracedRow(`${path}.q`, head, row),
    tracedRow(`${path}.k`, head, column), feature);
}

function scaledScore({path, head, row, column}) {
  const score = tracedRow(`${path}.scores`, head, row)[column];
  const d = run.trace.get(`${path}.q`).shape[2];
  if (state.off.includes("scale")) {
    return {formula: say("formula.scaled.off"), result: score};
  }
  const lines = [`${show(score)} / √${d} = ${show(score)} / ${show(Math.sqrt(d))}`];
  return {formula: "q · k / √d_k", lines, result: score / Math.sqrt(d)};
}

function maskedScore({path, head, row, column, rowNames, columnNames}) {
  const score = tracedRow(`${path}.scaled`, head, row)[column];
  if (state.off.includes("causal")) {
    return {formula: say("formula.masked.off"), result: score};
  }
  const isLater = column > row;
  const [query, key] = [rowNames[row], columnNames[column]];
  const formula = rich(`formula.masked.${isLater ? "later" : "earlier"}`,
    {row, column, query, key});
  return {formula, result: isLater ? -Infinity : score};
}

// exp(x - max) / Σ exp(x - max): the maximum cancels, and keeps exp from overflowing.
function softmaxOf(scores, column, nameOf) {
  const max = scores.reduce((a, b) => Math.max(a, b));
  const numbers = Array.from(scores, score => Math.exp(score - max));
  const texts = Array.from(scores, score => `exp(${minusOf(score, max)})`);
  const terms = numbers.map((value, i) => ({name: nameOf(i), text: texts[i], value}));
  const total = sum(numbers);
  const lines = [`${texts[column]} / Σ = ${show(numbers[column])} / ${show(total, 6)}`];
  const formula = say("formula.softmax");
  return {formula, terms, total, lines, result: numbers[column] / total};
}

function mixedValue({path, head, row, column, keyNames}) {
  if (state.headsOff.includes(`${path}:${head}`)) {
    return {formula: say("formula.mixed.off"), result: 0};
  }
  const weights = tracedRow(`${path}.weights`, head, row);
  const values = Array.from(
    weights, (_, key) => tracedRow(`${path}.v`, head, key)[column]);
  return dotProduct(say("formula.mixed"), weights, values, i => keyNames[i]);
}

function mergedValue({path, row, column}) {
  const mixed = run.trace.get(`${path}.mixed`);
  const d = mixed.shape[2];
  const [head, i] = [Math.floor(column / d), column % d];
  const formula = say("formula.merged", {column, i, head: head + 1});
  return {formula, result: rowAt(mixed, head, row)[i]};
}

// --- The other boxes

function residualSum({path, row, column}) {
  const [x, output] = [inputOf(path), `${path}.output`].map(
    each => tracedRow(each, row)[column]);
  if (state.off.includes("residual")) {
    return {formula: say("formula.residual.off"), result: output};
  }
  const lines = [plusOf(x, output)];
  return {formula: say("formula.residual"), lines, result: x + output};
}

function normalised({path, row, column}) {
  const values = tracedRow(`${path}.residual`, row);
  const mean = sum(values) / values.length;
  const variance = sum(values.map(value => (value - mean) ** 2)) / values.length;
  const [gain, bias] = ["weight", "bias"].map(
    name => normOf({model}, path, name).data[column]);
  const normal = (values[column] - mean) / Math.sqrt(variance + config.eps);
  const lines = [
    say("formula.norm.row", {mean: show(mean), variance: show(variance)}),
    `(${minusOf(values[column], mean)}) / √(${plusOf(variance, config.eps)}) = ${
      show(normal)}`,
    `γ = ${show(gain)}, β = ${show(bias)}`,
    `${show(normal)} × ${plusOf(gain, bias)}`,
  ];
  const formula = say("formula.norm");
  return {formula, lines, result: normal * gain + bias};
}

function hiddenUnit({path, row, column}) {
  const found = linearMap("max(0, Σ xᵢ W₁ᵢ + b₁)", tracedRow(inputOf(path), row), path,
    "w_1", column, "w_1.bias");
  const result = Math.max(0, found.total);
  return {...found, lines: [...found.lines, `max(0, ${show(found.total)})`], result};
}

function embedded({stack, row, column}) {
  const id = (stack === "encoder" ? run.srcIds : run.tgtIds)[row];
  const weight = rowAt(model.weights["embedding.weight"], id)[column];
  const d = config.d_model;
  const root = Math.sqrt(d);
  const lines = [`√${d} × ${show(weight)} = ${show(root)} × ${show(weight)}`];
  const formula = say("formula.embedding", {column, id});
  return {formula, lines, result: root * weight};
}

function positionValue({row, column}) {
  if (state.off.includes("positions")) {
    return {formula: say("formula.position.off"), result: 0};
  }
  const [name, f] = column % 2 ? ["cos", Math.cos] : ["sin", Math.sin];
  const [exponent, d] = [column - column % 2, config.d_model];
  const length = 10000 ** (exponent / d);
  return {
    formula: say("formula.position", {function: name, exponent, d}),
    lines: [`${name}(${row} / ${show(length)}) = ${name}(${show(row / length)})`],
    result: f(row / length),
  };
}

function inputSum({stack, row, column}) {
  const [x, position] = ["embedding", "position"].map(
    key => tracedRow(`${stack}.${key}`, row)[column]);
  const lines = [plusOf(x, position)];
  return {formula: say("formula.input"), lines, result: x + position};
}

function logitOf({row, id}) {
  const hidden = tracedRow(`decoder.${N_LAYERS.decoder - 1}.feedForward.norm`, row);
  return dotProduct(rich("formula.logits", {token: shownToken(id)}), hidden,
    rowAt(model.weights["embedding.weight"], id), feature);
}

function sublayerOutput({path, row, column}) {
  if (path.endsWith("feedForward")) {
    const hidden = tracedRow(`${path}.hidden`, row);
    return linearMap(
      say("formula.forward"), hidden, path, "w_2", column, "w_2.bias");
  }
  const concat = tracedRow(`${path}.merged`, row);
  return linearMap(say("formula.output"), concat, path, "w_o", column);
}

// --- One function per stage: {formula, terms, total, lines, result}

const ARITHMETIC = {
  q: at => project(at, "q"),
  k: at => project(at, "k"),
  v: at => project(at, "v"),
  scores: scoreOf,
  scaled: scaledScore,
  masked: maskedScore,
  weights: at => softmaxOf(tracedRow(`${at.path}.masked`, at.head, at.row), at.column,
    i => at.keyNames[i]),
  mixed: mixedValue,
  merged: mergedValue,
  output: sublayerOutput,
  residual: residualSum,
  norm: normalised,
  memory: normalised,
  hidden: hiddenUnit,
  embedding: embedded,
  position: positionValue,
  input: inputSum,
  logits: logitOf,
  logProbs: at => softmaxOf(tracedRow("decoder.logits", at.row), at.id, shownToken),
};
