// The box on the home page. The scripts of the live page come before this one, in one function: publish.py puts them together. The model comes when a
// reader types or presses; until then the box shows what PyTorch computed, and each generated token shows its line.
const box = document.querySelector(".live"), {model: address, page: livePage, loading, failed, done, caption} = box.dataset;
const find = (selector, root = box) => root.querySelector(selector), all = (selector, root = box) => [...root.querySelectorAll(selector)];
const field = find("textarea"), form = find("form"), first = JSON.parse(find("script").textContent);
let view = first, model, config, vocab, arriving, turn = 0, pause = 0;

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// ---- what is shown

const short = number => number >= .01 ? number.toFixed(2) : number >= .0005 ? number.toFixed(3) : "0.000";
const largestAt = row => row.indexOf(Math.max(...row));

function draw() {
  find(".result").textContent = view.translation;
  find(".source").replaceChildren(...view.source.map(textContent => element("li", {textContent})));
  find(".target").replaceChildren(...view.target.map(({token, p}, i) => {
    const button = element("button", {type: "button"}, `${token} `, element("span", {textContent: p.toFixed(2)}));
    button.addEventListener("click", () => choose(i));
    return element("li", {}, button);
  }));
  choose(view.step);
}

function choose(step) {
  view.step = step;
  const {token, weights, likeliest} = view.target[step], best = largestAt(weights), svg = find(".lines svg");
  const rows = Math.max(view.source.length, view.target.length);
  svg.setAttribute("viewBox", `0 0 100 ${rows}`);
  svg.style.setProperty("--rows", rows);
  svg.replaceChildren(...weights.map((weight, i) => {
    const path = document.createElementNS(svg.namespaceURI, "path");
    path.setAttribute("d", `M100 ${step + .5}L0 ${i + .5}`);
    path.setAttribute("stroke-width", (14 * weight).toFixed(1));
    return path;
  }));
  all(".source li").forEach((item, i) => item.classList.toggle("best", i === best));
  all(".target button").forEach((button, i) => {
    button.ariaPressed = i === step;
    button.tabIndex = i === step ? 0 : -1;
  });
  const values = {token, source: view.source[best], weight: weights[best].toFixed(2), layer: first.layer + 1, head: first.head + 1};
  svg.ariaLabel = find(".caption").textContent = caption.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  const names = all(".map text.right:not(.small)"), bars = all(".map .bar"), numbers = all(".map text.small.right");
  likeliest.slice(0, names.length).forEach(([name, p], i) => {
    names[i].textContent = name;
    bars[i].setAttribute("width", Math.max(1, 80 * p).toFixed(1));
    numbers[i].textContent = short(p);
  });
  for (const a of all("a[data-box]")) a.setAttribute("href", door(a.dataset.box));
}

// The live page at this sentence, with the numbers of a box.
function door(name) {
  const query = new URLSearchParams({...view.text === first.text ? {} : {text: view.text}, box: name});
  if (name === "decoder.cross") for (const [key, value] of Object.entries({layer: first.layer, head: first.head, step: view.step + 1})) query.set(key, value);
  return `${livePage}#${query}`;
}

// Arrow keys lead from one generated token to the next.
find(".target").addEventListener("keydown", event => {
  const by = {ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1}[event.key];
  const step = view.step + by;
  if (!by || !view.target[step]) return;
  event.preventDefault();
  choose(step);
  find("[aria-pressed=true]").focus();
});

// ---- the model

function load() {
  arriving ??= new Promise((onload, onerror) => {
    document.head.append(element("script", {src: address, onload, onerror}));
  }).then(() => {
    model = readModel(liveData);
    ({config, vocab} = model);
  });
  return arriving;
}

// A text of several sentences is translated one by one; the tokens are those of the first that has a letter.
function compute(text) {
  const parts = partsOf(text, liveData.page.sentences, vocab);
  const shown = parts.find(part => hasLetter(part.text));
  if (!shown) return {...view, text, translation: text};
  const searched = new Map(parts.filter(part => hasLetter(part.text)).map(part => [part, generatedIds(beamSearch(model, sourceIds(part.text)))]));
  const translation = parts.map(part => part.gap + (searched.has(part) ? vocab.decode(searched.get(part)) : part.text)).join("");
  const srcIds = sourceIds(shown.text), ids = searched.get(shown), trace = new Map(), n = srcIds.length;
  decode(model, [vocab.bosId, ...ids.slice(0, -1)], encode(model, srcIds), SWITCHES, trace);
  const weights = trace.get(`decoder.${first.layer}.cross.weights`), logProbs = trace.get("decoder.logProbs"), width = logProbs.shape[1];
  const rowsOf = (data, from, size) => ids.map((_, i) => data.slice(from + i * size, from + (i + 1) * size));
  const heads = rowsOf(weights.data, first.head * ids.length * n, n), next = rowsOf(logProbs.data, 0, width);
  const target = shownTokens(ids).map((token, i) => ({
    token,
    p: Math.exp(next[i][ids[i]]),
    weights: [...heads[i]],
    likeliest: largest(next[i], 3).map(id => [shownToken(id), Math.exp(next[i][id])]),
  }));
  return {text, translation, source: shownTokens(srcIds), target, step: Math.max(0, pronounAt(ids))};
}

async function translate(text) {
  clearTimeout(pause);
  const mine = ++turn, state = find(".state");
  if (!text.trim()) return;
  try {
    if (!model) state.textContent = loading;
    await load();
  } catch {
    arriving = null;
    state.textContent = failed;
    return;
  }
  if (mine !== turn) return;
  const start = performance.now();
  view = compute(text);
  draw();
  state.textContent = done.replace("{s}", ((performance.now() - start) / 1000).toFixed(1));
}

form.addEventListener("submit", () => translate(field.value));
field.addEventListener("keydown", event => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
field.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => field.value !== view.text && translate(field.value), 600);
});
for (const button of all(".examples button")) {
  button.addEventListener("click", () => {
    field.value = button.textContent;
    translate(field.value);
  });
}
draw();
