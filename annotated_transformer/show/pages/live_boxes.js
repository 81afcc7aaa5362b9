// The boxes of Figure 1, and the tensors that each of them shows.

// The path of a tensor is a function of the layer. `axes` names what its rows and
// columns are: "src" and "tgt" tokens, "feature", or "vocab" tokens; `perHead` tensors
// have one matrix per head. `name` is that of its texts, "stage.NAME".
const ATTENTION = {
  q: "feature",
  k: "feature",
  v: "feature",
  scores: "key",
  scaled: "key",
  masked: "key",
  weights: "key",
  mixed: "feature",
  merged: "feature",
  output: "feature",
};

// The switch that changes what a stage does.
const SWITCH_OF = {
  scaled: "scale",
  masked: "causal",
  position: "positions",
  residual: "residual",
};

function attentionStages(stack, kind) {
  const [queries, keys] = {
    "encoder.self": ["src", "src"],
    "decoder.self": ["tgt", "tgt"],
    "decoder.cross": ["tgt", "src"],
  }[`${stack}.${kind}`];
  const isMasked = stack === "decoder" && kind === "self";
  const list = Object.entries(ATTENTION);
  return list.filter(([key]) => key !== "masked" || isMasked).map(([key, columns]) => ({
    key,
    name: key,
    path: layer => `${stack}.${layer}.${kind}.${key}`,
    axes: ["kv".includes(key) ? keys : queries, columns === "key" ? keys : columns],
    perHead: key !== "merged" && key !== "output",
  }));
}

// A stage of a tensor of tokens × features.
const plainStage = (tokens, path, key, name = key) =>
  ({key, name, path: layer => path(layer, key), axes: [tokens, "feature"]});

const vocabStage = (key, convert) =>
  ({key, name: key, path: () => `decoder.${key}`, convert, axes: ["tgt", "vocab"]});

// --- The boxes of one stack; the other boxes follow

// `text` is the name of the box's text, "about.TEXT"; its title is "box.BOX".
function boxesOf(stack, tokens) {
  const sublayer = kind => (layer, key) => `${stack}.${layer}.${kind}.${key}`;
  const box = (text, stages, isLayer = true) => ({stack, text, stages, isLayer});
  const input = key =>
    box(key, [plainStage(tokens, () => `${stack}.${key}`, key)], false);
  const norm = kind => box("norm",
    ["residual", "norm"].map(key => plainStage(tokens, sublayer(kind), key)));
  const forward = sublayer("feedForward");
  return {
    [`${stack}.embedding`]: input("embedding"),
    [`${stack}.position`]: input("position"),
    [`${stack}.input`]: input("input"),
    [`${stack}.self`]: box(`${stack}Self`, attentionStages(stack, "self")),
    [`${stack}.selfNorm`]: norm("self"),
    [`${stack}.feedForward`]: box("feedForward", [plainStage(tokens, forward, "hidden"),
      plainStage(tokens, forward, "output", "forward")]),
    [`${stack}.feedForwardNorm`]: norm("feedForward"),
    ...stack === "decoder" && {
      "decoder.cross": box("cross", attentionStages("decoder", "cross")),
      "decoder.crossNorm": norm("cross"),
    },
  };
}

const lastNorm = () => `encoder.${N_LAYERS.encoder - 1}.feedForward.norm`;
const BOXES = {
  "encoder.tokens": {text: "source", tokens: () => run.srcIds, stages: []},
  ...boxesOf("encoder", "src"),
  "encoder.memory": {text: "memory", stages: [plainStage("src", lastNorm, "memory")]},
  "decoder.tokens": {text: "target", tokens: () => run.tgtIds, stages: []},
  ...boxesOf("decoder", "tgt"),
  "decoder.logits": {text: "logits", stages: [vocabStage("logits")]},
  "decoder.softmax": {text: "softmax", stages: [vocabStage("logProbs", Math.exp)]},
};

// --- Choosing a box

const mapBoxes = () => [...byId("map").querySelectorAll("[data-box]")];
for (const each of mapBoxes()) {  // its name begins with what is written in the box
  const texts = [...each.querySelectorAll("text")].map(({textContent}) => textContent);
  each.ariaLabel = `${texts.join(" ")}: ${say(`box.${each.dataset.box}`)}`;
}

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
