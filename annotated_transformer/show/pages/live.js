// The start: what is filled in once, and what the controls do.

const {lang} = document.documentElement;
byId("n-encoder").textContent = say("map.encoder", {n: N_LAYERS.encoder});
byId("n-decoder").textContent = say("map.decoder", {n: N_LAYERS.decoder});
byId("presets").replaceChildren(...EXAMPLES.map(presetButton));
if (about.label_smoothing) {
  const epsilon = about.label_smoothing;
  byId("smoothing").replaceChildren(
    ...rich("smoothing", {epsilon, certain: show(1 - epsilon)}));
}
for (const name of ["temperature", "beam", "heads"]) {
  byId(`${name}-text`).replaceChildren(...rich(`${name}.text`));
}
if (about.text) byId("attribution").textContent = say("attribution", about.text);

// The name of a language code in the page's language; the code itself where the browser
// has no name.
function languageName(code) {
  try {
    return new Intl.DisplayNames(lang, {type: "language"}).of(code);
  } catch {
    return code;
  }
}

if (about.src_lang && about.tgt_lang) {
  const [source, target] = [about.src_lang, about.tgt_lang].map(languageName);
  byId("sentence-label").textContent = say("sentence.of", {source, target});
}

if (about.words) {
  byId("known-title").textContent = say("known", {n: knownWords.size});
  byId("known-words").textContent = [...knownWords].sort().join(", ");
}
byId("known").hidden = !about.words;

byId("form").addEventListener("submit", event => {
  event.preventDefault();
  submit(byId("sentence").value);
});
byId("sentence").addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  byId("form").requestSubmit();
});
byId("back").addEventListener("click", () => chooseStep(Math.max(1, run.step - 1)));
byId("forward").addEventListener(
  "click", () => chooseStep(Math.min(run.ids.length, run.step + 1)));
byId("play").addEventListener("click", togglePlaying);
byId("step").addEventListener("input", () => chooseStep(+byId("step").value));
for (const id of ["moment", "temperature", "topK", "topP"]) {
  byId(id).addEventListener("input", () => change({[id]: +byId(id).value}));
}
byId("try").addEventListener("click", tryEachHead);
byId("draw").addEventListener("click", () => change({seed: state.seed + 1}));
byId("search").addEventListener("click", () => change({seed: 0}));
byId("beam").addEventListener("input", () => {
  change({beam: +byId("beam").value, seed: 0});
});

async function copyText(text, status, failed) {
  try {
    await navigator.clipboard.writeText(text);
    byId(status).textContent = say("copied");
  } catch {
    byId(status).textContent = failed;
  }
}

// The browser's own answer, going to the address, would compute the state again.
byId("link").addEventListener("click", event => {
  if (location.protocol === "about:") return;
  event.preventDefault();
  copyText(byId("link").href, "copied", say("link.failed"));
});
byId("copy").addEventListener("click", () => {
  getSelection().selectAllChildren(byId("result"));
  copyText(byId("result").textContent, "copied-text", say("copy.failed"));
});

// The page opens at a pronoun of the translation, in the head that the run names, or that
// attends most to the noun of “it”, which was measured when the page was written.
function openingState() {
  const {kind, layer, head} = about.opening;
  if (!kind) return {};
  const box = kind === "encoder" ? "encoder.self" : "decoder.cross";
  return {box, step: pronounAt(run.ids) + 1, layer, head};
}

function start() {
  Object.assign(state, readAddress(location.hash));
  byId("sentence").value = state.text;
  byId("message").textContent = remarkOn(state.text);
  runModel();
  if (location.hash.length < 2) change(openingState());
  else draw();
}

const {value: typed, defaultValue: example} = byId("sentence");
byId("loading").remove();
document.querySelector("main").ariaBusy = "false";
keepRoomFor(byId("effect"));
addEventListener("hashchange", start);
start();
followTheme(draw);
if (typed !== example && typed !== state.text) {  // while the model was loading
  byId("sentence").value = typed;
  submit(typed);
}
onerror = null;  // the page has begun: this browser has what it needs
