// Switching heads off, and finding those that change the translation.

const KINDS = {
  "encoder.self": "Encoder",
  "decoder.self": "Decoder",
  "decoder.cross": "Cross-attention",
};
const HEADS_TEXT = "A head that is off adds nothing to its sub-layer. Most heads can "
  + "be missed one at a time; “Try each head” finds those that change this "
  + "translation.";

let trials = {key: "", changed: new Map()};  // what is known of single heads, by name
const trialKey = () => [state.text, state.off, state.beam, state.temperature].join("|");

const allHeads = kind => {
  const [stack, name] = kind.split(".");
  return Array.from({length: N_LAYERS[stack] * config.n_heads}, (_, i) => {
    const [layer, head] = [Math.floor(i / config.n_heads), i % config.n_heads];
    return {layer, head, name: `${stack}.${layer}.${name}:${head}`};
  });
};

const allHeadNames = () => Object.keys(KINDS).flatMap(allHeads).map(({name}) => name);

function drawHeadSwitches() {
  const rows = Object.entries(KINDS).map(([kind, title]) => element("div",
    {className: "head-row", role: "group", ariaLabel: title},
    element("span", {textContent: title}),
    ...allHeads(kind).map(headSwitch)));
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
  const matters = trials.key === trialKey() && trials.changed.has(name);
  button.classList.toggle("matters", matters);
  button.title = `${headName({layer, head})}: ${isOn ? "on" : "off"}`;
  button.ariaLabel = `Switch off ${headName({layer, head})}${
    matters ? ", changes the translation" : ""}`;
  button.addEventListener("click",
    () => change({headsOff: toggled(state.headsOff, name), step: 0}));
  return button;
}

// --- Trying each head

// Translates without each head in turn, and keeps the page responsive meanwhile.
function tryEachHead() {
  const names = allHeadNames();
  const base = {...switches(), headsOff: []};
  const intact = generatedIds(searchTranslation(state.text, base));
  trials = {key: trialKey(), changed: new Map(), left: names.length, intact};
  const next = () => {
    if (trials.key !== trialKey()) return;
    const name = names[names.length - trials.left];
    const ids = generatedIds(
      searchTranslation(state.text, {...base, headsOff: [name]}));
    if (String(ids) !== String(trials.intact)) trials.changed.set(name, ids);
    trials.left -= 1;
    if (trials.left) setTimeout(next);
    keepFocus(drawBreak);
  };
  next();
}

function findings() {
  if (trials.left) return [`${trials.left} heads are left to try.`];
  const n = trials.changed.size;
  const textContent = n
    ? `${n} of ${allHeadNames().length} heads change this translation when off:`
    : "No single head changes this translation.";
  return [element("p", {textContent}), ...[...trials.changed].map(finding)];
}

// A button that leads to the head, at the first token that changes; the translation.
function finding([name, ids]) {
  const [path, number] = name.split(":");
  const [stack, layer, kind] = path.split(".");
  const place = {box: `${stack}.${kind}`, layer: +layer, head: +number};
  const step = ids.findIndex((id, i) => id !== trials.intact[i]) + 1;
  const title = `${KINDS[place.box]} ${place.layer + 1}.${place.head + 1}`;
  const button = actionButton(title, () => {
    change({...place, step, stage: "weights", row: -1, column: -1});
    byId("view").scrollIntoView();
  });
  return element("p", {}, button, " ", ...marked(ids, trials.intact));
}
