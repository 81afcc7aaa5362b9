// Switching heads off, and finding those that change the translation.

const KINDS = ["encoder.self", "decoder.self", "decoder.cross"];

let trials = {key: "", found: []};  // what is known of single heads
const trialKey = () => SEARCHED.map(key => state[key]).join("|");

const allHeads = kind => {
  const [stack, name] = kind.split(".");
  return Array.from({length: N_LAYERS[stack] * config.n_heads}, (_, i) => {
    const [layer, head] = [Math.floor(i / config.n_heads), i % config.n_heads];
    return {layer, head, name: `${stack}.${layer}.${name}:${head}`};
  });
};

function headTitle(name) {
  const [path, head] = name.split(":");
  const [stack, layer, kind] = path.split(".");
  return say(`heads.${stack}.${kind}.one`, {head: `${+layer + 1}.${+head + 1}`});
}

const allHeadNames = () => KINDS.flatMap(allHeads).map(({name}) => name);

function drawHeadSwitches() {
  const rows = KINDS.map(kind => {
    const title = say(`heads.${kind}`);
    const properties = {className: "head-row", role: "group", ariaLabel: title};
    const layers = Object.values(Object.groupBy(allHeads(kind), ({layer}) => layer));
    return element("div", properties, element("span", {textContent: title}),
      element("div", {}, ...layers.map(heads =>
        element("div", {className: "layer"}, ...heads.map(headSwitch)))));
  });
  byId("head-switches").replaceChildren(...rows);
  setTabStop(byId("head-switches"), byId("head-switches").querySelector("button"));
  byId("findings").replaceChildren(...trials.key === trialKey() ? findings() : []);
}

function headSwitch({layer, head, name}) {
  const isOn = !state.headsOff.includes(name);
  const text = `${layer + 1}.${head + 1}`;
  const button = element("button", {type: "button", textContent: text});
  button.dataset.key = `off:${name}`;
  button.setAttribute("aria-pressed", !isOn);
  const matters = trials.key === trialKey() && trials.found.some(
    one => one.name === name && one.isChanged);
  button.classList.toggle("matters", matters);
  const names = {number: text, head: headName({layer, head})};
  button.title = isOn ? say("heads.on.title", names) : say("heads.off.title", names);
  button.ariaLabel = matters ? say("heads.switch.matters", names)
    : say("heads.switch", names);
  button.addEventListener("click",
    () => change({headsOff: toggled(state.headsOff, name)}));
  return button;
}

// --- Trying each head

// Translates without each head in turn, and keeps the page responsive meanwhile. The
// probability is that of the token of the chosen step, after the same prefix.
function tryEachHead() {
  const names = allHeadNames().filter(name => !state.headsOff.includes(name));
  const {tgtIds, step} = run;
  trials = {key: trialKey(), found: [], left: names.length, ids: run.ids, step};
  const probability = changes => {
    const logits = decode(model, tgtIds, encode(model, run.srcIds, changes), changes);
    return nextProbabilities(logits)[trials.ids[step - 1]];
  };
  trials.probability = probability(switches());
  const next = () => {
    if (trials.key !== trialKey()) return;
    const name = names[names.length - trials.left];
    const changes = {...switches(), headsOff: [...state.headsOff, name]};
    const ids = generatedIds(searchTranslation(run.text, changes));
    const isChanged = String(ids) !== String(trials.ids);
    trials.found.push({name, ids, isChanged, probability: probability(changes)});
    trials.left -= 1;
    if (trials.left) setTimeout(next);
    keepFocus(drawBreak);
  };
  if (names.length) next();
}

const tokenOfTrials = () => shownToken(trials.ids[trials.step - 1]);
const MIN_EFFECT = .01;  // a smaller change of the probability is not listed
const effectOf = ({probability}) => Math.abs(probability - trials.probability);

// The heads that change the translation or the probability, the largest effect first.
function findings() {
  if (trials.left) {
    return [say("heads.left", {n: trials.left})];
  }
  const n = trials.found.filter(({isChanged}) => isChanged).length;
  const shown = trials.found.filter(
    one => one.isChanged || effectOf(one) >= MIN_EFFECT);
  const rest = trials.found.length - shown.length;
  const all = trials.found.length;
  const values = {n, all, token: tokenOfTrials(), step: trials.step};
  const texts = [
    n === 1 ? say("heads.found.one", values) : say("heads.found.other", values),
    rest ? say("heads.rest", {n: rest, min: MIN_EFFECT}) : "",
  ];
  const [first, last] = texts.map(textContent => element("p", {textContent}));
  const sorted = shown.toSorted((a, b) => effectOf(b) - effectOf(a));
  return [first, ...sorted.map(finding), last];
}

// A button that leads to the head, at the first token that changes; the change.
function finding({name, ids, isChanged, probability}) {
  const [path, number] = name.split(":");
  const [stack, layer, kind] = path.split(".");
  const place = {box: `${stack}.${kind}`, layer: +layer, head: +number};
  const step = isChanged
    ? ids.findIndex((id, i) => id !== trials.ids[i]) + 1 : trials.step;
  const button = actionButton(name, headTitle(name), () => {
    change({...place, step, stage: "weights", row: -1, column: -1});
    byId("view").scrollIntoView();
  });
  const [before, after] = [trials.probability, probability].map(p => p.toFixed(2));
  const isSmall = effectOf({probability}) < MIN_EFFECT;
  const text = isSmall ? " " : ` p(${tokenOfTrials()}) ${before} → ${after} `;
  return element("p", {}, button, element("span", {className: "value"}, text),
    ...isChanged ? marked(ids, trials.ids) : []);
}
