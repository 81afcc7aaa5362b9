"use strict";
const find = id => document.getElementById(id);
const make = (tag, props, ...inside) => { const e = Object.assign(document.createElement(tag), props); e.append(...inside); return e; };
const examples = JSON.parse(find("data").textContent);
const KINDS = {
  encoder: ["Encoder", "src", "src", "Each source word looks at the whole source."],
  decoder: ["Decoder", "tgt", "tgt", "Each word read so far looks at itself and at those before it."],
  cross: ["Cross", "tgt", "src", "Each word read so far looks at the source, to choose what is written after it."]};
const SIDES = {src: "source", tgt: "translation"};
const DASHES = ["", "7 4", "1 4", "9 4 1 4", "4 3"];  // one a head, as there is one colour a head
const view = {sentence: 0, kind: "", heads: [{layer: 0, head: 0}], pinned: null};
const example = () => examples[view.sentence];
const maps = () => example().maps[view.kind];  // by layer, head, word that looks, word looked at
const mapOf = ({layer, head}) => maps()[layer][head];
const nameOf = ({layer, head}) => `layer ${layer + 1}, head ${head + 1}`;
const sideOf = side => KINDS[view.kind][side === "q" ? 1 : 2];
const wordsOf = side => example()[sideOf(side)];
const other = side => side === "q" ? "k" : "q";
const same = (a, b) => a && b && a.side === b.side && a.i === b.i;
const coloured = (e, i) => { e.style.setProperty("--colour", `var(--head${i})`); return e; };

function showSentence(i) {
  view.sentence = i;
  const kinds = Object.keys(KINDS).filter(kind => kind in example().maps);
  if (!kinds.includes(view.kind)) view.kind = kinds[0];
  find("kind").replaceChildren(...kinds.map(kind => {
    const input = make("input", {type: "radio", name: "kind", value: kind, checked: kind === view.kind});
    input.addEventListener("change", () => showKind(kind));
    return make("label", {}, input, make("span", {textContent: KINDS[kind][0]}));
  }));
  find("pair").textContent = example().src.join(" ") + "  →  " + example().tgt.join(" ");
  showKind(view.kind);
}
function showKind(kind) {
  Object.assign(view, {kind, pinned: null});
  view.heads = view.heads.filter(at => maps()[at.layer]?.[at.head]);
  if (!view.heads.length) view.heads = [{layer: 0, head: 0}];
  fill("layer", maps().length);
  fill("head", maps()[0].length);
  drawHeads();
  drawWords();
  showHeads();
}
function fill(id, n) { find(id).replaceChildren(...Array.from({length: n}, (_, i) => make("option", {value: i, textContent: i + 1}))); }
function choose(layer, head) {
  const kept = view.heads.filter(at => at.layer !== layer || at.head !== head);
  if (!find("compare").checked) view.heads = [{layer, head}];
  else if (kept.length === view.heads.length) view.heads = [...kept, {layer, head}].slice(-DASHES.length);
  else if (kept.length) view.heads = kept;  // it was chosen already: let it go
  showHeads();
}
function showHeads() {
  const newest = view.heads.at(-1);
  find("layer").value = newest.layer;
  find("head").value = newest.head;
  for (const button of find("heads").querySelectorAll("button")) {
    const i = view.heads.findIndex(at => at.layer === +button.dataset.layer && at.head === +button.dataset.head);
    button.setAttribute("aria-pressed", i >= 0);
    button.tabIndex = i === view.heads.length - 1 ? 0 : -1;
    coloured(button, Math.max(i, 0));
  }
  find("shown").textContent = KINDS[view.kind][0] + ", " + (view.heads.length > 1 ? view.heads.length + " heads" : nameOf(newest));
  drawLines();
  makeRoom();
  point(view.pinned);
}

function drawHeads() {
  const layers = maps(), n = layers[0].length, label = (textContent, className) => make("span", {textContent, className, ariaHidden: "true"});
  find("heads").style.setProperty("--n", n);
  find("heads").replaceChildren(label("Head", "layer"), ...layers[0].map((_, head) => label(head + 1, "")),
    ...layers.flatMap((heads, layer) => [label("Layer " + (layer + 1), "layer"), ...heads.map((map, head) => {
      const button = make("button", {type: "button", ariaLabel: nameOf({layer, head}), title: nameOf({layer, head})}, smallPicture(map));
      Object.assign(button.dataset, {layer, head});
      button.addEventListener("click", event => { choose(layer, head); if (event.detail) comeIntoSight(); });
      return button;
    })]));
}
function smallPicture(map) {
  const canvas = make("canvas", {width: map[0].length, height: map.length}), draw = canvas.getContext("2d");
  const [r, g, b] = getComputedStyle(find("heads")).color.match(/\d+/g), image = draw.createImageData(canvas.width, canvas.height);
  map.flat().forEach((weight, i) => image.data.set([r, g, b, 255 * Math.min(1, weight)], 4 * i));
  draw.putImageData(image, 0, 0);
  return canvas;
}
function comeIntoSight() {  // on a phone the words are below the pictures
  const figure = document.querySelector("figure");
  if (figure.getBoundingClientRect().top > innerHeight / 2) figure.scrollIntoView();
}

function drawWords() {
  for (const side of ["q", "k"]) {
    find("of-" + side).textContent = SIDES[sideOf(side)] + (side === "q" ? " looks" : " is looked at");
    find(side).replaceChildren(...wordsOf(side).map((text, i) => {
      const word = {side, i}, bars = make("span", {className: "bars"});
      const button = make("button", {type: "button", title: text, dir: "auto", tabIndex: i ? -1 : 0}, text, bars);
      button.addEventListener("pointerenter", event => { if (event.pointerType === "mouse") point(word); });
      button.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") point(view.pinned); });
      button.addEventListener("focus", () => point(word));
      button.addEventListener("blur", () => point(view.pinned));
      button.addEventListener("click", () => { view.pinned = same(view.pinned, word) ? null : word; point(view.pinned); });
      return make("li", {}, button);
    }));
  }
}
function drawLines() {
  const svg = find("lines"), n = Math.max(wordsOf("q").length, wordsOf("k").length);
  find("words").style.setProperty("--rows", n);
  svg.setAttribute("viewBox", `0 0 100 ${n}`);
  svg.replaceChildren(...view.heads.flatMap((at, i) => mapOf(at).flatMap((row, q) => row.flatMap((weight, k) => {
    if (weight < .005) return [];
    const path = document.createElementNS(svg.namespaceURI, "path");
    const props = {d: `M1 ${q + .5}C35 ${q + .5} 65 ${k + .5} 99 ${k + .5}`, "stroke-opacity": weight, "vector-effect": "non-scaling-stroke",
      "stroke-dasharray": DASHES[i], "data-q": q, "data-k": k, "data-head": i};
    for (const [name, value] of Object.entries(props)) path.setAttribute(name, value);
    return [coloured(path, i)];
  }))));
}

function point(word) {
  const from = word ? word.side : "", seen = seenFrom(word);
  const colour = i => view.heads.length === 1 && from === "k" ? 1 : i;  // a second colour for "is looked at by"
  for (const path of find("lines").children) {
    path.style.display = word && +path.dataset[from] !== word.i ? "none" : "";
    coloured(path, colour(+path.dataset.head));
  }
  for (const side of ["q", "k"]) [...find(side).children].forEach((item, i) => {
    const [button, shown] = [item.firstChild, word && side !== from];
    button.setAttribute("aria-pressed", Boolean(same(view.pinned, {side, i})));
    button.lastChild.replaceChildren(...(shown ? seen : []).map((weights, h) => {
      const bar = coloured(make("i", {}), colour(h));
      bar.style.setProperty("--weight", weights[i]);
      return bar;
    }));
    item.dataset.weight = shown && seen.length === 1 && seen[0][i] >= .005 ? seen[0][i].toFixed(2) : "";
  });
  dim(word);
  find("reading").replaceChildren(...inWords(word, seen));
}
function seenFrom(word) {  // by head chosen
  return word ? view.heads.map(mapOf).map(map => word.side === "q" ? map[word.i] : map.map(row => row[word.i])) : [];
}
function dim(word) {
  const heads = find("heads"), n = word ? wordsOf(word.side).length : 1;
  heads.dataset.from = word ? word.side : "";
  if (word) [["--a", word.i], ["--b", word.i + 1]].forEach(([name, i]) => heads.style.setProperty(name, `${100 * i / n}%`));
}
function label(at, i) { return coloured(make("span", {className: "head", textContent: nameOf(at)}), i); }
function hint() {
  const says = make("p", {textContent: KINDS[view.kind][3] + " Point at a word, or tap it, to see it alone."});
  return view.heads.length > 1 ? [says, ...view.heads.map((at, i) => make("p", {}, label(at, i)))] : [says];
}
function inWords(word, seen = seenFrom(word)) {
  if (!word) return hint();
  const {side, i} = word, n = seen.length > 1 ? 3 : 5;
  const name = (side, i) => wordsOf(side)[i] + (wordsOf(side).filter(w => w === wordsOf(side)[i]).length > 1 ? ` (word ${i + 1})` : "");
  const says = make("span", {}, make("b", {textContent: name(side, i)}), side === "q" ? " looks at " : " is looked at by ");
  const most = weights => {
    const top = weights.map((weight, j) => [weight, j]).filter(([weight]) => weight >= .01).sort((a, b) => b[0] - a[0]).slice(0, n);
    if (!top.length) return ["no word with a weight of 0.01 or more"];
    return top.map(([weight, j]) => make("span", {className: "weight"}, name(other(side), j) + " ", make("b", {textContent: weight.toFixed(2)})));
  };
  if (seen.length === 1) return [make("p", {}, says, ...most(seen[0]))];
  return [make("p", {}, says), ...seen.map((weights, h) => make("p", {}, label(view.heads[h], h), ...most(weights)))];
}
function makeRoom() {
  const words = ["q", "k"].flatMap(side => wordsOf(side).map((_, i) => ({side, i})));
  const all = make("div", {}, ...[null, ...words].map(word => make("div", {}, ...inWords(word))));
  find("told").append(all);
  find("reading").style.minHeight = `min(45vh, ${Math.max(...[...all.children].map(e => e.offsetHeight))}px)`;
  all.remove();
}

document.addEventListener("keydown", event => {
  if (event.key === "Escape") { view.pinned = null; point(null); }
  const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  const group = event.target.closest("#heads, #q, #k");
  if (!move || !group) return;
  event.preventDefault();
  const all = [...group.querySelectorAll("button")], at = all.indexOf(event.target), [down, right] = move;
  if (group.id === "heads") all[(at + down * maps()[0].length + right + all.length) % all.length].focus();
  else if (down) all[(at + down + all.length) % all.length].focus();
  else { const there = find(right > 0 ? "k" : "q").querySelectorAll("button"); there[Math.min(at, there.length - 1)].focus(); }
});
document.addEventListener("focusin", event => {  // Tab comes back to where the arrows left
  const group = event.target.closest("#heads, #q, #k");
  if (group && event.target !== group) for (const button of group.querySelectorAll("button")) button.tabIndex = button === event.target ? 0 : -1;
});
examples.forEach((e, i) => find("sentence").append(make("option", {value: i, textContent: `${i + 1}. ${e.src.join(" ")}`})));
find("sentence").addEventListener("change", event => showSentence(+event.target.value));
for (const id of ["layer", "head"]) find(id).addEventListener("change", () => choose(+find("layer").value, +find("head").value));
find("compare").addEventListener("change", event => { if (!event.target.checked) { view.heads = view.heads.slice(-1); showHeads(); } });
find("choice").hidden = examples.length < 2;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawHeads(); showHeads(); });
addEventListener("resize", makeRoom);
showSentence(0);
