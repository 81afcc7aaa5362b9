// The tour: steps over states of the page, each with a text about what to look for.

const CROSS = {box: "decoder.cross", drawing: "lines", ...openingHead("cross")};

// The name of a step, that of its texts "tour.NAME"; the element that it is about; and
// what differs from START, the sentence excepted.
const TOUR = [
  ["tokens", "view", {box: "encoder.tokens", stage: ""}],
  ["embedding", "view", {box: "encoder.embedding", stage: "embedding"}],
  ["position", "view", {box: "encoder.position", stage: "position"}],
  ["query", "view", {box: "encoder.self"}],
  ["heads", "view", {box: "encoder.self"}],
  ["mask", "view", {box: "decoder.self", stage: "masked"}],
  ["cross", "view", CROSS],
  ["softmax", "generated", {box: "decoder.softmax", stage: "logProbs", step: 1}],
  ["beam", "beam-search", {}],
  ...past ? [["learning", "learning", {moment: Math.ceil(moments.length / 2)}]] : [],
  ["break", "break", {off: ["positions"]}],
];

function openingHead(kind) {
  const {layer, head} = about.opening;
  return about.opening.kind === kind ? {layer, head} : {};
}

// What the texts name of this model.
const TOUR_VALUES = {
  n_vocab: config.n_vocab.toLocaleString(document.documentElement.lang),
  d_model: config.d_model,
  n_waves: config.d_model / 2,
  n_heads: config.n_heads,
  d_k: config.d_k,
  beam: START.beam,
  wide: START.beam + 1,
  last: TOUR.length,
};

// The state of a step; nothing for a number that no step has.
function tourState(tour) {
  const [, , changes] = TOUR[tour - 1] ?? [];
  return changes ? {...changes, tour} : {};
}

const isTouring = () => byId("tour").contains(document.activeElement);

function goTo(tour) {
  const wasTouring = isTouring();
  stopPlaying();
  change({...START, text: state.text, part: state.part, ...tourState(tour)});
  if (!wasTouring) byId("tour-title").focus({preventScroll: true});
  else if (!isTouring() || document.activeElement.disabled) {
    byId(tour === 1 ? "tour-next" : "tour-end").focus();
  }
}

function leaveTour() {
  const wasTouring = isTouring();
  change({tour: 0});
  if (wasTouring) byId("tour-start").focus({preventScroll: true});
}

function drawTour() {
  const {tour} = state;
  const box = byId("tour");
  const [name, target] = TOUR[tour - 1] ?? [];
  box.hidden = !tour;
  document.body.dataset.tour = name ?? "";
  if (box.dataset.step === String(tour)) return;  // nothing new to read out
  box.dataset.step = tour;
  document.querySelector(".toured")?.classList.remove("toured");
  if (!tour) return;
  byId("tour-count").textContent = say("tour.count", {step: tour, n: TOUR.length});
  byId("tour-title").textContent = say(`tour.${name}`);
  byId("tour-text").replaceChildren(...rich(`tour.${name}.text`, TOUR_VALUES));
  byId("tour-look").replaceChildren(...rich(`tour.${name}.look`, TOUR_VALUES));
  byId("tour-back").disabled = tour === 1;
  byId("tour-next").disabled = tour === TOUR.length;
  byId(target).classList.add("toured");
  byId(target).scrollIntoView();
}

byId("tour-start").textContent = say("tour.start", {n: TOUR.length});
byId("tour-start").addEventListener("click", () => goTo(1));
byId("tour-back").addEventListener("click", () => goTo(state.tour - 1));
byId("tour-next").addEventListener("click", () => goTo(state.tour + 1));
byId("tour-end").addEventListener("click", leaveTour);
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && state.tour) leaveTour();
});

// The page can be scrolled until nothing of it is under the tour.
new ResizeObserver(() => {
  const height = `${byId("tour").offsetHeight}px`;
  document.documentElement.style.setProperty("--tour-height", height);
}).observe(byId("tour"));
