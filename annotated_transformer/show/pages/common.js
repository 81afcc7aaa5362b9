// What the pages share: elements, colours, keys, and drawings of numbers.
"use strict";

const byId = id => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- Texts: strings.en.json has them all

const STRINGS = JSON.parse(byId("strings").textContent);
const PARTS_OF_TEXT = /(\{\w+\}|\[[^\]]*\]\([^)]*\)|[_^](?:\w+|\([^)]*\)))/;
let site = "";  // where links to notebooks lead

function stringOf(key) {
  if (!Object.hasOwn(STRINGS, key)) throw new Error(`no string ${key}`);
  return STRINGS[key];
}

// The text of this key, with each {name} replaced by its value.
const say = (key, values = {}) =>
  stringOf(key).replace(/\{(\w+)\}/g, (_, name) => values[name]);

// The same as a list of nodes: the text is typeset, the values are not.
const rich = (key, values = {}) => typeset(stringOf(key), values);

// Text with W^O as a superscript, d_k as a subscript and [text](page) as a link to a
// notebook; ^(…) raises all of it.
function typeset(text, values = {}) {
  return text.split(PARTS_OF_TEXT).filter(Boolean).map(part => {
    const [, name] = /^\{(\w+)\}$/.exec(part) ?? [];
    if (name && name in values) return values[name];
    const [, content, page] = /^\[(.*)\]\((.*)\)$/.exec(part) ?? [];
    if (page) return notebookLink(page, typeset(content));
    const tag = {_: "sub", "^": "sup"}[part[0]];
    return tag ? element(tag, {textContent: part.slice(1).replace(/[()]/g, "")}) : part;
  });
}

function drawn(tag, attributes = {}, ...children) {  // an element of a drawing
  const {namespaceURI} = document.querySelector("svg");
  const made = document.createElementNS(namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A link to a notebook: on the site next to this page, otherwise the published one.
const notebookLink = (page, content) =>
  element("a", {href: site + page, target: "_top"}, ...content);

// --- Light or dark

// Calls `redraw` when light turns to dark or back, because a canvas does not follow a
// style sheet. In a frame of the site the page follows the site's switch.
function followTheme(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const site = siteAround();
  if (!site) return;
  const follow = () => {
    const {theme} = document.documentElement.dataset;
    document.documentElement.dataset.theme = themeOf(site);
    if (theme !== themeOf(site)) redraw();
  };
  new MutationObserver(follow).observe(site.body, {attributeFilter: ["class"]});
  follow();
}

function siteAround() {
  try {
    return window.parent === window ? null : window.parent.document;
  } catch {
    return null;  // a page of another host
  }
}

function themeOf({body}) {  // "" is the system's setting
  if (body.classList.contains("quarto-dark")) return "dark";
  if (body.classList.contains("quarto-light")) return "light";
  return "";
}

// --- Colours of numbers

// As many dash patterns as common.css has colours of heads: colour is not the only cue.
const DASHES = ["", "7 4", "1 4", "9 4 1 4", "4 3"];
const MIN_WEIGHT = .005;  // smaller weights are 0.00 when rounded, and are not shown

function setColour(target, i) {
  target.style.setProperty("--colour", `var(--head${i})`);
  return target;
}

// The values of these colours of common.css, as a canvas needs them.
function coloursOf(...names) {
  const probe = element("span");
  document.body.append(probe);
  const found = names.map(name => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return found;
}

// One pixel per number: the larger, the more opaque. Negative numbers have the second
// colour, and masked ones (-Infinity) the third.
function heatmap(rows, [positive, negative = positive, masked = positive], max = 1) {
  const [width, height] = [rows[0].length, rows.length];
  const canvas = element("canvas", {className: "heatmap", width, height});
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const [above, below, none] = [positive, negative, masked].map(
    colour => colour.match(/\d+/g).slice(0, 3));
  rows.forEach((row, i) => row.forEach((value, j) => {
    const rgba = value === -Infinity ? [...none, 90]
      : [...value < 0 ? below : above, 255 * Math.min(1, Math.abs(value) / max)];
    image.data.set(rgba, 4 * (i * width + j));
  }));
  context.putImageData(image, 0, 0);
  return canvas;
}

// --- Long computations

// Takes the steps of a generator one by one, so that the page stays responsive, until
// it ends or is not wanted any more.
function inSlices(steps, isWanted = () => true) {
  if (isWanted() && !steps.next().done) setTimeout(() => inSlices(steps, isWanted));
}

// --- The address: what follows # reproduces the state

let addressTimer = 0;  // browsers refuse many changes of the address within a second

function showAddress(query) {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const [here] = location.href.split("#");
    try {
      history.replaceState(null, "", String(query) ? `${here}#${query}` : here);
    } catch {
      // a frame without an address of its own refuses it
    }
  }, 200);
}

// --- A box that stays at the top of the window

// What gets the focus must not be under the box, whose height changes.
function keepRoomFor(box) {
  const keepRoom = () => {
    const isSticky = getComputedStyle(box).position === "sticky";
    const room = isSticky ? box.offsetHeight + 12 : 0;
    document.documentElement.style.scrollPaddingTop = `${room}px`;
  };
  new ResizeObserver(keepRoom).observe(box);
}

// --- Keys: Tab moves between groups (data-stop), arrow keys within one (data-arrows)

const ARROWS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
};
const targetsIn = group => [...group.querySelectorAll("button, [role=button]")];

// The next button in a direction, in the same line if there is one; after the last one
// of a line comes its first one.
function neighbour(buttons, button, [down, right]) {
  const from = button.getBoundingClientRect();
  const found = buttons.filter(other => other !== button).map(target => {
    const to = target.getBoundingClientRect();
    const [x, y] = [gapBetween(from.left, from.right, to.left, to.right),
      gapBetween(from.top, from.bottom, to.top, to.bottom)];
    const ahead = right ? x * right : y * down;
    const across = Math.abs(right ? y : x);
    return {target, ahead, across, distance: ahead + 3 * across};
  });
  const inLine = found.filter(({across}) => across === 0);
  const nearest = list => list.toSorted((a, b) => a.distance - b.distance)[0]?.target;
  return nearest(inLine.filter(({ahead}) => ahead > 0)) ?? nearest(inLine)
    ?? nearest(found.filter(({ahead}) => ahead > 0));
}

// How far the second interval is after the first, or before it (negative), or 0.
function gapBetween(start, end, otherStart, otherEnd) {
  if (otherStart >= end - 2) return otherStart - end + 3;
  return otherEnd <= start + 2 ? otherEnd - start - 3 : 0;
}

document.addEventListener("keydown", event => {
  const group = event.target.closest("[data-arrows]");
  const target = event.target.closest("button, [role=button]");
  if (!group || !target || !(event.key in ARROWS)) return;
  event.preventDefault();
  neighbour(targetsIn(group), target, ARROWS[event.key])?.focus();
});

// Tab returns to the button of a group that had the focus last.
function setTabStop(group, target) {
  for (const each of targetsIn(group)) each.tabIndex = each === target ? 0 : -1;
}

document.addEventListener("focusin", event => {
  const group = event.target.closest("[data-stop]");
  if (group && group !== event.target) setTabStop(group, event.target);
});
