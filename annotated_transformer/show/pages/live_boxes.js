// The boxes of Figure 1, and the tensors that each of them shows.

// The path of a tensor is a function of the layer. `axes` names what its rows and
// columns are: "src" and "tgt" tokens, "feature", or "vocab" tokens; `perHead` tensors
// have one matrix per head.
const ATTENTION = [
  ["q", "Q", "feature", "The queries of this head, x·W^Q."],
  ["k", "K", "feature", "The keys of this head, x·W^K."],
  ["v", "V", "feature", "The values of this head, x·W^V."],
  ["scores", "QKᵀ", "key", "A score for each query and key: their dot product."],
  ["scaled", "÷ √d_k", "key", "The scores divided by √d_k."],
  ["masked", "mask", "key", "Scores of later positions become −∞."],
  ["weights", "softmax", "key", "The attention weights: each row sums to 1."],
  ["mixed", "× V", "feature", "The mean of the values with these weights."],
  ["merged", "concat", "feature", "The heads side by side."],
  ["output", "W^O", "feature", "The output of the sub-layer: concat·W^O."],
];

// What a stage does while a switch is off, instead.
const WHILE_OFF = {
  scaled: ["scale", "The division is switched off: these are the scores themselves."],
  masked: ["causal", "The mask is switched off: the scores stay."],
  position: ["positions", "The positional encoding is switched off: 0 is added."],
  residual: ["residual", "The residual connection is off: the output alone."],
};

function attentionStages(stack, kind) {
  const [queries, keys] = {
    "encoder.self": ["src", "src"],
    "decoder.self": ["tgt", "tgt"],
    "decoder.cross": ["tgt", "src"],
  }[`${stack}.${kind}`];
  const isMasked = stack === "decoder" && kind === "self";
  return ATTENTION.filter(([key]) => key !== "masked" || isMasked).map(
    ([key, symbol, columns, text]) => ({
      key,
      symbol,
      text,
      path: layer => `${stack}.${layer}.${kind}.${key}`,
      axes: ["kv".includes(key) ? keys : queries, columns === "key" ? keys : columns],
      perHead: key !== "merged" && key !== "output",
    }));
}

// Stages of a tensor of tokens × features: [key, symbol, text].
function plainStages(tokens, path, list) {
  return list.map(([key, symbol, text]) => ({
    key, symbol, text, path: layer => path(layer, key), axes: [tokens, "feature"],
  }));
}

const NORM = [
  ["residual", "x + sublayer(x)", "The input of the sub-layer plus its output."],
  ["norm", "LayerNorm", "Each row with mean 0 and variance 1, then times γ plus β."],
];
const FEED_FORWARD = [
  ["hidden", "max(0, xW₁ + b₁)", "The hidden units of each position; many are 0."],
  ["output", "hidden·W₂ + b₂", "The output of the sub-layer."],
];

const NOTEBOOKS = {
  attention: ["§3.2.2", "multi_head.html"],
  mask: ["§3.2.3", "masking.html#teacher-forcing-and-the-causal-mask"],
  cross: ["§3.2.3", "masking.html#the-three-uses-of-attention"],
  norm: ["§3.1", "stack.html#post-norm-as-in-the-paper"],
  feedForward: ["§3.3", "feed_forward.html"],
  embedding: ["§3.4", "embedding.html"],
  logits: ["§3.4", "embedding.html#lookup-and-logits"],
  position: ["§3.5", "position.html"],
  tokens: ["§5.1", "vocab.html"],
  shifted: ["§3.1", "batch.html#bos-eos-and-the-shifted-target"],
  memory: ["§3.1", "transformer.html"],
  decode: ["§6.1", "decode.html"],
};

// --- The boxes of one stack; the other boxes follow

function boxesOf(stack, tokens, side) {
  const sublayer = kind => (layer, key) => `${stack}.${layer}.${kind}.${key}`;
  const input = (_layer, key) => `${stack}.${key}`;
  const box = (title, notebook, text, stages, isLayer = false) =>
    ({stack, title, notebook, text, stages, isLayer});
  const norm = (title, kind) => box(`Add & Norm after ${title}`, "norm",
    "A residual connection around the sub-layer, then layer normalisation.",
    plainStages(tokens, sublayer(kind), NORM), true);
  return {
    [`${stack}.embedding`]: box(`Embedding of the ${side} tokens`, "embedding",
      "The row of each token in the embedding matrix, times √d_model.",
      plainStages(tokens, input, [["embedding", "Embedding", "One row per token."]])),
    [`${stack}.position`]: box(`Positional encoding of the ${side}`, "position",
      "Sines and cosines of the position. A pair of features has one wavelength.",
      plainStages(tokens, input, [["position", "Position", "One row per position."]])),
    [`${stack}.input`]: box(`Input of the ${stack}`, "position",
      "Embedding plus positional encoding: the input of layer 1.",
      plainStages(tokens, input, [["input", "Sum", "One row per token."]])),
    [`${stack}.self`]: stack === "encoder"
      ? box("Encoder self-attention", "attention",
        "Every source position attends to all source positions.",
        attentionStages(stack, "self"), true)
      : box("Masked decoder self-attention", "mask",
        "Every target position attends to itself and to earlier positions.",
        attentionStages(stack, "self"), true),
    [`${stack}.selfNorm`]: norm("self-attention", "self"),
    [`${stack}.feedForward`]: box(`Feed-forward network of the ${stack}`, "feedForward",
      "The same two-layer network is applied to each position separately.",
      plainStages(tokens, sublayer("feedForward"), FEED_FORWARD), true),
    [`${stack}.feedForwardNorm`]: norm("the feed-forward network", "feedForward"),
  };
}

const lastNorm = () => `encoder.${N_LAYERS.encoder - 1}.feedForward.norm`;
const BOXES = {
  "encoder.tokens": {
    title: "Source tokens",
    notebook: "tokens",
    text: "The sentence as subword tokens with their ids. EOS marks its end.",
    tokens: () => run.srcIds,
    stages: [],
  },
  ...boxesOf("encoder", "src", "source"),
  "encoder.memory": {
    title: "Memory",
    notebook: "memory",
    text: "The output of the last encoder layer. Each decoder layer computes the keys "
      + "and values of its cross-attention from it.",
    stages: plainStages("src", lastNorm, [["memory", "Memory", "One row per token."]]),
  },
  "decoder.tokens": {
    title: "Target tokens, shifted right",
    notebook: "shifted",
    text: "The decoder input: BOS and the tokens before the one that is predicted.",
    tokens: () => run.tgtIds,
    stages: [],
  },
  ...boxesOf("decoder", "tgt", "target"),
  "decoder.cross": {
    stack: "decoder",
    isLayer: true,
    title: "Cross-attention",
    notebook: "cross",
    text: "Every target position attends to all source positions: queries come from "
      + "the decoder, keys and values from the memory.",
    stages: attentionStages("decoder", "cross"),
  },
  "decoder.crossNorm": {
    stack: "decoder",
    isLayer: true,
    title: "Add & Norm after cross-attention",
    notebook: "norm",
    text: "A residual connection around the sub-layer, then layer normalisation.",
    stages: plainStages("tgt", (layer, key) => `decoder.${layer}.cross.${key}`, NORM),
  },
  "decoder.logits": {
    title: "Linear",
    notebook: "logits",
    text: "The logits of the next token: the dot product of each hidden state with "
      + "every row of the embedding matrix.",
    stages: [{
      key: "logits",
      symbol: "Logits",
      text: "Shown are the most probable tokens of each position.",
      path: () => "decoder.logits",
      axes: ["tgt", "vocab"],
    }],
  },
  "decoder.softmax": {
    title: "Softmax",
    notebook: "decode",
    text: "The probabilities of the next token, after each position of the prefix.",
    stages: [{
      key: "logProbs",
      symbol: "Probabilities",
      text: "Shown are the most probable tokens of each position.",
      path: () => "decoder.logProbs",
      convert: Math.exp,
      axes: ["tgt", "vocab"],
    }],
  },
};

// --- Choosing a box

const mapBoxes = () => [...byId("map").querySelectorAll("[data-box]")];

function chooseBox(name) {
  const {stages} = BOXES[name];
  const stage = stages.find(({key}) => key === state.stage) ?? stages.at(-1);
  const isAttention = stages.length > 2;
  const first = isAttention ? "weights" : stage?.key ?? "";
  const key = isAttention && stage.key === state.stage ? state.stage : first;
  change({box: name, stage: key, row: -1, column: -1});
}

function markBox() {
  for (const each of mapBoxes()) {
    const isChosen = each.dataset.box === state.box;
    each.setAttribute("aria-pressed", isChosen);
    each.setAttribute("tabindex", isChosen ? 0 : -1);
  }
}

byId("map").addEventListener("click", event => {
  const found = event.target.closest("[data-box]");
  if (found) chooseBox(found.dataset.box);
});
byId("map").addEventListener("keydown", event => {
  const found = event.target.closest("[data-box]");
  if (!found || event.key !== "Enter" && event.key !== " ") return;
  event.preventDefault();
  chooseBox(found.dataset.box);
});

// A link to a notebook: on the site next to this page, otherwise the published one.
function notebookLink(text, href) {
  return element("a", {href: about.site + href, target: "_top"}, ...typeset(text));
}
