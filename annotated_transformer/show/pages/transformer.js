// "Attention Is All You Need" in plain JavaScript: §3 and §6.1 a second time, in the
// order of the notebooks 321 to 36 and 61a. The model translates one sentence at a
// time, so no tensor has a batch axis and nothing is padded. Axes: n positions (n_q of
// queries, n_k of keys), h heads, d features.

// --- Tensors: {shape, data}, the numbers row after row

function tensor(shape) {
  return {shape, data: new Float32Array(shape.reduce((a, b) => a * b))};
}

// The tensor of f(number, its index).
function map(x, f) {
  const y = tensor(x.shape);
  for (let i = 0; i < y.data.length; i++) y.data[i] = f(x.data[i], i);
  return y;
}

const add = (x, y) => map(x, (value, i) => value + y.data[i]);

// xWᵀ + b for each row of x (n, d_in), where W is (d_out, d_in).
function linear(x, weight, bias = null) {
  const [n, dIn] = x.shape;
  const [dOut] = weight.shape;
  const [xs, ws] = [x.data, weight.data];
  const y = tensor([n, dOut]);
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < dOut; j++) {
      let sum = bias ? bias.data[j] : 0;
      for (let k = 0; k < dIn; k++) sum += xs[i * dIn + k] * ws[j * dIn + k];
      y.data[i * dOut + j] = sum;
    }
  }
  return y;
}

// f(row, its result) for each row, the numbers along the last axis.
function mapRows(x, f) {
  const y = tensor(x.shape);
  const width = x.shape.at(-1);
  for (let i = 0; i < x.data.length; i += width) {
    f(x.data.subarray(i, i + width), y.data.subarray(i, i + width));
  }
  return y;
}

// Each row becomes the logarithm of a distribution: of positive numbers that sum to 1.
const logSoftmax = x => mapRows(x, (row, result) => {
  const max = row.reduce((a, b) => Math.max(a, b));  // keeps exp from overflowing
  const sum = row.reduce((total, value) => total + Math.exp(value - max), 0);
  const logSum = max + Math.log(sum);
  row.forEach((value, j) => result[j] = value - logSum);
});

const softmax = x => map(logSoftmax(x), Math.exp);

// --- One run of the model: its weights, what is switched off, and what is recorded

// `headsOff` names heads by their sub-layer and number, from 0: "encoder.0.self:2".
const SWITCHES = {
  scale: true,
  causal: true,
  positions: true,
  residual: true,
  headsOff: [],
};

// A sub-layer is named by stack, layer and kind: "encoder.0.self". These are the names
// of the kinds in PyTorch, and their order in a layer.
const MODULES = {self: "self_attn", cross: "cross_attn", feedForward: "feed_forward"};
const SUBLAYERS = {
  encoder: ["self", "feedForward"],
  decoder: ["self", "cross", "feedForward"],
};

// A weight of a sub-layer, and of the layer normalisation that follows it.
function weightOf({model}, path, name) {
  const [stack, layer, kind] = path.split(".");
  return model.weights[`${stack}.layers.${layer}.${MODULES[kind]}.${name}`];
}

function normOf({model}, path, name) {
  const [stack, layer, kind] = path.split(".");
  const i = SUBLAYERS[stack].indexOf(kind);
  return model.weights[`${stack}.layers.${layer}.residuals.${i}.norm.${name}`];
}

// `trace` is a Map from paths to tensors, or null to record nothing.
function record({trace}, path, result) {
  trace?.set(path, result);
  return result;
}

// --- Scaled dot-product attention (§3.2.1)

// QKᵀ: q·k for each head, each query and each key.
function dotProducts(q, k) {
  const [h, nQ, d] = q.shape;
  const nK = k.shape[1];
  return map(tensor([h, nQ, nK]), (_, i) => {
    const head = Math.floor(i / (nQ * nK));
    const query = Math.floor(i / nK) * d;
    const key = (head * nK + i % nK) * d;
    let sum = 0;
    for (let j = 0; j < d; j++) sum += q.data[query + j] * k.data[key + j];
    return sum;
  });
}

// The sum of the values of each head (h, n_k, d_v), weighted by (h, n_q, n_k).
function weightedSums(weights, v) {
  const [h, nQ, nK] = weights.shape;
  const d = v.shape[2];
  return map(tensor([h, nQ, d]), (_, i) => {
    const head = Math.floor(i / (nQ * d));
    const row = Math.floor(i / d) * nK;
    let sum = 0;
    for (let j = 0; j < nK; j++) {
      sum += weights.data[row + j] * v.data[(head * nK + j) * d + i % d];
    }
    return sum;
  });
}

// Scores of later positions become -∞, so that softmax gives them the weight 0
// (§3.2.3). The last query is at the position of the last key.
function maskLater(scores) {
  const [, nQ, nK] = scores.shape;
  return map(scores, (score, i) => {
    const [query, key] = [Math.floor(i / nK) % nQ, i % nK];
    return key > query + nK - nQ ? -Infinity : score;
  });
}

// softmax(QKᵀ/√d_k)V for each head (equation 1).
function attention(run, path, q, k, v, isCausal) {
  const scores = record(run, `${path}.scores`, dotProducts(q, k));
  const divisor = run.switches.scale ? Math.sqrt(q.shape[2]) : 1;
  const scaled = record(run, `${path}.scaled`, map(scores, score => score / divisor));
  const masked = record(run, `${path}.masked`, isCausal ? maskLater(scaled) : scaled);
  const weights = record(run, `${path}.weights`, softmax(masked));
  return weightedSums(weights, v);
}

// --- Multi-head attention (§3.2.2)

// (n, h·d) → (h, n, d): head i has the features from i·d on.
function splitHeads(x, h) {
  const [n, d] = [x.shape[0], x.shape[1] / h];
  return map(tensor([h, n, d]), (_, i) => {
    const [head, row] = [Math.floor(i / (n * d)), Math.floor(i / d) % n];
    return x.data[(row * h + head) * d + i % d];
  });
}

// (h, n, d) → (n, h·d): the heads side by side.
function mergeHeads(x) {
  const [h, n, d] = x.shape;
  return map(tensor([n, h * d]), (_, i) => {
    const [row, head] = [Math.floor(i / (h * d)), Math.floor(i / d) % h];
    return x.data[(head * n + row) * d + i % d];
  });
}

// A head that is switched off gives 0, which is the same as zeros in its columns of
// W^O.
function withoutHeads({switches}, path, mixed) {
  const [h, n, d] = mixed.shape;
  const isOff = Array.from(
    {length: h}, (_, head) => switches.headsOff.includes(`${path}:${head}`));
  return map(mixed, (x, i) => isOff[Math.floor(i / (n * d))] ? 0 : x);
}

// Keys and values of all heads, side by side, which is what a cache keeps.
function keysValues(run, path, x) {
  const project = w => linear(x, weightOf(run, path, `${w}.weight`));
  return {k: project("w_k"), v: project("w_v")};
}

// Concat(head_1, …, head_h)W^O for the queries of x.
function multiHeadAttention(run, path, x, {k, v}, isCausal) {
  const project = (y, w) => linear(y, weightOf(run, path, `${w}.weight`));
  const split = (y, name) =>
    record(run, `${path}.${name}`, splitHeads(y, run.model.config.n_heads));
  const qkv = [split(project(x, "w_q"), "q"), split(k, "k"), split(v, "v")];
  const heads = withoutHeads(run, path, attention(run, path, ...qkv, isCausal));
  const mixed = record(run, `${path}.mixed`, heads);
  const merged = record(run, `${path}.merged`, mergeHeads(mixed));
  return record(run, `${path}.output`, project(merged, "w_o"));
}

// --- Position-wise feed-forward network (§3.3)

// max(0, xW₁ + b₁)W₂ + b₂ (equation 2).
function feedForward(run, path, x) {
  const layer = (y, i) => linear(
    y, weightOf(run, path, `w_${i}.weight`), weightOf(run, path, `w_${i}.bias`));
  const hidden = map(layer(x, 1), value => Math.max(0, value));
  record(run, `${path}.hidden`, hidden);
  return record(run, `${path}.output`, layer(hidden, 2));
}

// --- Embedding and positions (§3.4, §3.5)

// Sines in even features, cosines in odd ones, of n positions from `start` on.
function positionalEncoding(n, d, start) {
  return map(tensor([n, d]), (_, i) => {
    const [position, feature] = [start + Math.floor(i / d), i % d];
    const angle = position * 10000 ** -((feature - feature % 2) / d);
    return feature % 2 ? Math.cos(angle) : Math.sin(angle);
  });
}

// The rows of the tokens times √d_model, plus the positional encoding.
function embed(run, stack, ids, start = 0) {
  const {weights, config: {d_model: d}} = run.model;
  const rows = weights["embedding.weight"].data;
  const embedding = map(tensor([ids.length, d]), (_, i) =>
    rows[ids[Math.floor(i / d)] * d + i % d] * Math.sqrt(d));
  const position = run.switches.positions
    ? positionalEncoding(ids.length, d, start) : tensor(embedding.shape);
  record(run, `${stack}.embedding`, embedding);
  record(run, `${stack}.position`, position);
  return record(run, `${stack}.input`, add(embedding, position));
}

// --- Residual connections, layer normalisation and layers (§3.1)

// Each row with mean 0 and variance 1, then scaled and shifted feature by feature.
function layerNorm(x, gain, bias, eps) {
  return mapRows(x, (row, result) => {
    const mean = row.reduce((sum, value) => sum + value, 0) / row.length;
    const squares = row.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    const deviation = Math.sqrt(squares / row.length + eps);
    row.forEach((value, j) => {
      result[j] = (value - mean) / deviation * gain.data[j] + bias.data[j];
    });
  });
}

// LayerNorm(x + Sublayer(x)), given both terms of the sum.
function addAndNorm(run, path, x, output) {
  const sum = run.switches.residual ? add(x, output) : output;
  record(run, `${path}.residual`, sum);
  const [gain, bias] = [normOf(run, path, "weight"), normOf(run, path, "bias")];
  return record(run, `${path}.norm`, layerNorm(sum, gain, bias, run.model.config.eps));
}

// Self-attention, then feed-forward.
function encoderLayer(run, i, x) {
  const [self, forward] = [`encoder.${i}.self`, `encoder.${i}.feedForward`];
  const kv = keysValues(run, self, x);
  x = addAndNorm(run, self, x, multiHeadAttention(run, self, x, kv, false));
  return addAndNorm(run, forward, x, feedForward(run, forward, x));
}

// Masked self-attention, cross-attention, feed-forward. Keys and values are given:
// those of the prefix, and those of the memory.
function decoderLayer(run, i, x, prefix, memory) {
  const [self, cross, forward] = SUBLAYERS.decoder.map(kind => `decoder.${i}.${kind}`);
  const {causal} = run.switches;
  x = addAndNorm(run, self, x, multiHeadAttention(run, self, x, prefix, causal));
  x = addAndNorm(run, cross, x, multiHeadAttention(run, cross, x, memory, false));
  return addAndNorm(run, forward, x, feedForward(run, forward, x));
}

// --- The encoder–decoder of Figure 1 (§3)

// The memory (s, d_model) of a source sentence; its ids end with EOS.
function encode(model, srcIds, switches = SWITCHES, trace = null) {
  const run = {model, switches, trace};
  let x = embed(run, "encoder", srcIds);
  for (let i = 0; i < model.config.n_encoder_layers; i++) x = encoderLayer(run, i, x);
  return x;
}

// The logits (t, n_vocab) for the token after each position of a prefix; its ids begin
// with BOS. The output matrix is the embedding's (§3.4).
function decode(model, tgtIds, memory, switches = SWITCHES, trace = null) {
  const run = {model, switches, trace};
  let x = embed(run, "decoder", tgtIds);
  for (let i = 0; i < model.config.n_decoder_layers; i++) {
    const prefix = keysValues(run, `decoder.${i}.self`, x);
    x = decoderLayer(run, i, x, prefix, keysValues(run, `decoder.${i}.cross`, memory));
  }
  const logits = linear(x, model.weights["embedding.weight"]);
  if (trace) record(run, "decoder.logProbs", logSoftmax(logits));
  return record(run, "decoder.logits", logits);
}

// --- One token at a time: the keys and values of earlier positions are kept (90e)

function startCache(model, memory, switches = SWITCHES) {
  const run = {model, switches, trace: null};
  const layers = Array.from({length: model.config.n_decoder_layers}, (_, i) => i);
  const cross = layers.map(i => keysValues(run, `decoder.${i}.cross`, memory));
  return {ids: [], memory, cross, self: layers.map(() => null)};
}

// A cache that grows apart from this one: what it holds is replaced, never changed.
const copyCache = cache => ({...cache, ids: [...cache.ids], self: [...cache.self]});

// The rows of y after those of x, or y alone.
function appendRows(x, y) {
  if (!x) return y;
  const joined = tensor([x.shape[0] + y.shape[0], x.shape[1]]);
  joined.data.set(x.data);
  joined.data.set(y.data, x.data.length);
  return joined;
}

// The logits (1, n_vocab) after one more token. Without the causal mask the earlier
// positions attend to the new one and change, so all of them are computed again.
function decodeStep(model, id, cache, switches = SWITCHES) {
  const run = {model, switches, trace: null};
  const start = cache.ids.length;
  cache.ids.push(id);
  if (!switches.causal) {
    const {shape: [, nVocab], data} = decode(model, cache.ids, cache.memory, switches);
    return {shape: [1, nVocab], data: data.slice(-nVocab)};
  }
  let x = embed(run, "decoder", [id], start);
  for (let i = 0; i < model.config.n_decoder_layers; i++) {
    const {k, v} = keysValues(run, `decoder.${i}.self`, x);
    const past = cache.self[i];
    cache.self[i] = {k: appendRows(past?.k, k), v: appendRows(past?.v, v)};
    x = decoderLayer(run, i, x, cache.self[i], cache.cross[i]);
  }
  return linear(x, model.weights["embedding.weight"]);
}

// --- Greedy search and beam search (§6.1)

// The log-probabilities of the next token; a temperature below 1 sharpens them.
function nextLogProbs(model, id, cache, switches, temperature) {
  const logits = decodeStep(model, id, cache, switches);
  const row = logSoftmax(map(logits, logit => logit / temperature)).data;
  row[model.vocab.padId] = -Infinity;  // no token of a sentence (61a)
  return row;
}

// The ids of the n largest numbers, largest first; of equal ones the smaller id first.
function largest(row, n) {
  const ids = [];
  row.forEach((value, id) => {
    if (ids.length === n && value <= row[ids[n - 1]]) return;
    const place = ids.findIndex(other => value > row[other]);
    ids.splice(place < 0 ? ids.length : place, 0, id);
    ids.length = Math.min(ids.length, n);
  });
  return ids;
}

// At most 50 tokens more than the source has, EOS not counted.
const lengthLimit = srcIds => srcIds.length - 1 + 50;

// ((5 + |Y|) / 6)^α, where |Y| counts EOS (Wu et al. 2016, equation 14).
const lengthPenalty = (n, alpha) => ((5 + n) / 6) ** alpha;

// A candidate is a hypothesis with one more token: {id, before, cache, …}, where
// `before` is the candidate that it continues. These are the n most probable
// continuations of one.
function continuations(model, before, n, {switches, temperature}) {
  const cache = copyCache(before.cache);
  const row = nextLogProbs(model, before.id, cache, switches, temperature);
  return largest(row, n).map(id => (
    {id, before, cache, tokenLogProb: row[id], logProb: before.logProb + row[id]}));
}

// What becomes of the candidates, most probable first: an EOS among the `beamSize` best
// is finished, as many of the others are kept.
function decide(candidates, beamSize, eosId) {
  const kept = candidates.filter(({id}) => id !== eosId).slice(0, beamSize);
  candidates.forEach((candidate, i) => {
    const isFinished = candidate.id === eosId && i < beamSize;
    const isKept = kept.includes(candidate);
    candidate.why = isFinished ? "finished" : isKept ? "kept" : "pruned";
  });
}

// The candidates from the first token to this one.
const pathTo = candidate =>
  candidate.before ? [...pathTo(candidate.before), candidate] : [];

function hypothesisOf(candidate, eosId) {
  const {logProb, penalty, score, step, index} = candidate;
  const path = pathTo(candidate);
  const ids = path.map(({id}) => id).filter(id => id !== eosId);
  const tokenLogProbs = path.map(({tokenLogProb}) => tokenLogProb);
  return {ids, tokenLogProbs, logProb, penalty, score, end: {step, index}};
}

// At each step the `beamSize` most probable hypotheses are kept; finished ones are
// ranked by their score, log-probability over length penalty. The result is
// {hypotheses, tree}: the finished hypotheses, best first, and for each step a list of
// candidates, most probable first. A candidate's `parent` is its index in the list
// before, or -1.
function beamSearch(model, srcIds, options = {}) {
  const {beamSize = 4, alpha = 0.6, temperature = 1, switches = SWITCHES} = options;
  const {maxLen = lengthLimit(srcIds)} = options;
  const {bosId, eosId} = model.vocab;
  const cache = startCache(model, encode(model, srcIds, switches), switches);
  let live = [{id: bosId, before: null, cache, logProb: 0, index: -1}];
  const finished = [];
  const tree = [];
  for (let step = 0; step < maxLen; step++) {
    const penalty = lengthPenalty(step + 1, alpha);
    const candidates = live
      .flatMap(one => continuations(model, one, beamSize + 1, {switches, temperature}))
      .sort((a, b) => b.logProb - a.logProb)
      .slice(0, 2 * beamSize);  // at most half of them are EOS
    candidates.forEach((candidate, index) => {
      const score = candidate.logProb / penalty;
      Object.assign(candidate, {step, index, penalty, score});
    });
    decide(candidates, beamSize, eosId);
    tree.push(candidates.map(({id, before, tokenLogProb, logProb, score, why}) => (
      {id, parent: before.index, tokenLogProb, logProb, score, why})));
    live = candidates.filter(({why}) => why === "kept");
    finished.push(...candidates.filter(({why}) => why === "finished"));
    if (step === maxLen - 1) finished.push(...live);  // cut off
    finished.sort((a, b) => b.score - a.score);
    // the best score that a live hypothesis can still reach
    const bound = live[0].logProb / lengthPenalty(maxLen, alpha);
    if (finished.length && (beamSize === 1 || finished[0].score >= bound)) break;
  }
  const hypotheses = finished.map(candidate => hypothesisOf(candidate, eosId));
  return {hypotheses, tree};
}

// Greedy search: the most probable token at each step, until that is EOS.
function greedy(model, srcIds, switches = SWITCHES, options = {}) {
  return beamSearch(model, srcIds, {alpha: 0, ...options, switches, beamSize: 1});
}
