// What is selected, the address that reproduces it, and what the model computes.

// The data are in the page; on a site they may be in a file next to it, for several pages.
const packed = globalThis.liveData ?? JSON.parse(byId("data").textContent);
const about = packed.page;
site = about.site;
const model = readModel(packed);
const {config, vocab} = model;

// The weights at some moments of training, the last ones at its end; most runs have
// these alone.
const past = packed.moments;  // null without them
const moments = [...past?.tensors ?? [], packed.tensors];

const N_LAYERS = {
  encoder: config.n_encoder_layers,
  decoder: config.n_decoder_layers,
};
const [MAX_BEAM, MAX_TEMPERATURE] = [8, 3];
const MAX_TOKENS = maxTokens();

// `part` is the sentence that is shown of a text of several, counted from 0; `step` is
// the number of generated tokens, 0 for all of them; `moment` is an index into the
// moments of training; `row` and `column` are those of the chosen number, -1 for a good
// first choice; `off` names switches and `headsOff` heads; `seed` 0 means no sampling,
// `topK` 0 all tokens; `tour` is the step of the tour, 0 for none.
const EXAMPLES = about.examples;
const START = {
  text: EXAMPLES[0],
  part: 0,
  box: "decoder.cross",
  stage: "weights",
  layer: 0,
  head: 0,
  row: -1,
  column: -1,
  drawing: "matrix",
  step: 0,
  moment: moments.length - 1,
  off: [],
  headsOff: [],
  temperature: 1,
  topK: 0,
  topP: 1,
  beam: 4,
  seed: 0,
  tour: 0,
};
const state = {...START};

// --- The address: what differs from START

const isList = value => Array.isArray(value);
const asText = value => isList(value) ? value.join(",") : String(value);

function writeAddress() {
  const changed = Object.keys(START).filter(
    key => asText(state[key]) !== asText(START[key]));
  const query = new URLSearchParams(changed.map(key => [key, asText(state[key])]));
  const isInNotebook = location.protocol === "about:";  // a frame without an address
  const [here] = location.href.split("#");
  byId("link").href = `${isInNotebook ? site + about.file : here}#${query}`;
  byId("copied").textContent = "";
  showAddress(query);
}

// The state that an address names; what is unknown or out of range stays as in START,
// and what it leaves out is as in the step of the tour that it names.
function readAddress(address) {
  const query = new URLSearchParams(address.slice(1));
  const found = {...START, ...tourState(Math.floor(query.get("tour")))};
  for (const [key, text] of query) {
    if (!(key in START)) continue;
    if (isList(START[key])) {
      found[key] = text.split(",").filter(isSwitch);
    } else if (typeof START[key] !== "number") {
      found[key] = text;
    } else if (text.trim() && Number(text) >= 0 && Number(text) < 1e6) {
      found[key] = Number(text);
    }
  }
  for (const key of ["part", "layer", "head", "row", "column", "step", "seed", "beam",
    "topK", "tour", "moment"]) {
    found[key] = Math.floor(found[key]);
  }
  found.beam = Math.min(Math.max(found.beam, 1), MAX_BEAM);
  found.temperature = Math.min(Math.max(found.temperature, .1), MAX_TEMPERATURE);
  found.topP = Math.min(Math.max(found.topP, .05), 1);
  found.tour = Math.min(found.tour, TOUR.length);
  found.moment = Math.min(found.moment, START.moment);
  return found;
}

const isSwitch = name => typeof SWITCHES[name] === "boolean"
  || /^(encoder\.\d+\.self|decoder\.\d+\.(self|cross)):\d+$/.test(name);

// --- The model: `run` holds what it computes for the state

const run = {};

function switches() {
  if (!isChanged()) return SWITCHES;
  const on = Object.keys(SWITCHES).map(name => [name, !state.off.includes(name)]);
  return {...Object.fromEntries(on), headsOff: state.headsOff};
}

const isChanged = () => state.off.length + state.headsOff.length > 0;

// Every change is compared with a search like this, with all parts on.
const PLAIN = {temperature: START.temperature, seed: START.seed};
const isPlain = () =>
  !isChanged() && Object.keys(PLAIN).every(key => state[key] === PLAIN[key]);

const sentencesOf = text => partsOf(text, about.sentences, vocab);

function searchTranslation(text, changes, settings = state) {
  const {temperature, seed, topK, topP, beam} = settings;
  const srcIds = sourceIds(text);
  const isIntact = changes === SWITCHES;
  // a model with parts switched off may never generate EOS
  const maxLen = isIntact ? lengthLimit(srcIds) : srcIds.length + 10;
  const options = {switches: changes, temperature, maxLen};
  if (seed) return sample(srcIds, {...options, seed, topK, topP});
  return beam === 1 ? greedy(model, srcIds, changes, options)
    : beamSearch(model, srcIds, {...options, beamSize: beam});
}

function runModel() {
  model.weights = weightsAt(state.moment);
  run.trace = new Map();
  run.parts = sentencesOf(state.text);
  run.part = Math.min(state.part, run.parts.length - 1);
  run.text = run.parts[run.part].text;
  run.srcIds = sourceIds(run.text);
  run.memory = encode(model, run.srcIds, switches(), run.trace);
  run.search = searchTranslation(run.text, switches());
  run.ids = generatedIds(run.search);
  run.logProbs = run.search.hypotheses[0].tokenLogProbs;
  run.intactIds = isPlain() ? run.ids
    : generatedIds(searchTranslation(run.text, SWITCHES, {...state, ...PLAIN}));
  runDecoder();
}

// The tensors of the decoder when it predicts the token of the chosen step.
function runDecoder() {
  run.step = Math.min(state.step || Infinity, run.ids.length);
  run.tgtIds = [vocab.bosId, ...run.ids.slice(0, run.step - 1)];
  decode(model, run.tgtIds, run.memory, switches(), run.trace);
}

// The probabilities of the next token, after the last token of the prefix.
function nextProbabilities(logits = run.trace.get("decoder.logits")) {
  const last = rowAt(logits, logits.shape[0] - 1);
  const data = last.map(logit => logit / state.temperature);
  return softmax({shape: [1, data.length], data}).data;
}

// --- Sampling: each token is drawn with its probability

function sample(srcIds, options) {
  const {switches: changes, temperature, maxLen, seed, topK, topP} = options;
  const cache = startCache(model, encode(model, srcIds, changes), changes);
  const random = randomNumbers(seed);
  const found = {ids: [], tokenLogProbs: [], logProb: 0};
  let id = vocab.bosId;
  while (found.ids.length < maxLen) {
    const logProbs = nextLogProbs(model, id, cache, changes, temperature);
    id = drawId(truncated(logProbs.map(Math.exp), topK, topP), random());
    found.tokenLogProbs.push(logProbs[id]);
    found.logProb += logProbs[id];
    if (id === vocab.eosId) break;
    found.ids.push(id);
  }
  return {hypotheses: [found], tree: []};
}

// The probabilities with 0 for what is cut off: all but the k most probable tokens, and
// of these all but the fewest that have the probability p together. k = 0 is all.
function truncated(probabilities, k, p) {
  if (!k && p === 1) return probabilities;
  const kept = probabilities.map(() => 0);
  let total = 0;
  const ids = Array.from(probabilities.keys()).sort(
    (a, b) => probabilities[b] - probabilities[a]);
  for (const id of ids.slice(0, k || ids.length)) {
    if (total >= p) break;
    total += kept[id] = probabilities[id];
  }
  return kept;
}

// The id at this number from 0 to 1, when the ids share that interval in proportion.
function drawId(probabilities, number) {
  const end = number * sum(probabilities);
  let total = 0;
  const id = probabilities.findIndex(probability => (total += probability) > end);
  return id < 0 ? vocab.eosId : id;  // rounding: the total may end below
}

// Numbers from 0 to 1 that are the same for the same seed (mulberry32).
function randomNumbers(seed) {
  return () => {
    seed = seed + 0x6D2B79F5 | 0;
    let bits = Math.imul(seed ^ seed >>> 15, seed | 1);
    bits ^= bits + Math.imul(bits ^ bits >>> 7, bits | 61);
    return ((bits ^ bits >>> 14) >>> 0) / 2 ** 32;
  };
}

// --- Every change of the state goes through here

const SEARCHED = ["text", "part", "moment", "off", "headsOff", "temperature", "beam", "seed"];

function change(changes) {
  const isNew = key => key in changes && asText(changes[key]) !== asText(state[key]);
  const mustSearch = SEARCHED.some(isNew)
    || state.seed > 0 && ["topK", "topP"].some(isNew);
  const mustDecode = isNew("step");
  Object.assign(state, changes);
  if (mustSearch) runModel();
  else if (mustDecode) runDecoder();
  draw();
}

function draw() {
  keepFocus(() => {
    drawMoment();
    drawSentence();
    drawView();
    drawBreak();
    drawBeam();
    drawTour();
  });
  writeAddress();
}

// The element with the focus may be made anew; it is found again by its data-key.
function keepFocus(redraw) {
  const key = document.activeElement?.dataset.key;
  redraw();
  if (key) document.querySelector(`[data-key="${key}"]`)?.focus({preventScroll: true});
}
