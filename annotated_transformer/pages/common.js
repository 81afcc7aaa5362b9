// What the pages share: elements, colours, and two ways to draw attention weights.
"use strict";

const byId = id => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// As many dash patterns as common.css has colours of heads: colour is not the only cue.
const DASHES = ["", "7 4", "1 4", "9 4 1 4", "4 3"];
const MIN_WEIGHT = .005;  // smaller weights are 0.00 when rounded, and are not shown

function setColour(target, i) {
  target.style.setProperty("--colour", `var(--head${i})`);
  return target;
}

// One pixel per weight, as opaque as the weight; a row of `weights` is a query.
function heatmap(weights, colour) {
  const [width, height] = [weights[0].length, weights.length];
  const canvas = element("canvas", {className: "heatmap", width, height});
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const rgb = colour.match(/\d+/g).slice(0, 3);
  weights.flat().forEach((weight, i) => {
    image.data.set([...rgb, 255 * Math.min(1, weight)], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

// A path from query q to key k, as opaque as the weight; i is the number of the colour.
function curve(svg, weight, q, k, i) {
  const path = document.createElementNS(svg.namespaceURI, "path");
  const attributes = {
    "d": `M1 ${q + .5}C35 ${q + .5} 65 ${k + .5} 99 ${k + .5}`,
    "stroke-opacity": weight,
    "vector-effect": "non-scaling-stroke",
    "stroke-dasharray": DASHES[i],
    "data-q": q,
    "data-k": k,
    "data-head": i,
  };
  for (const [name, value] of Object.entries(attributes)) {
    path.setAttribute(name, value);
  }
  return setColour(path, i);
}

function curves(svg, weights, i) {
  return weights.flatMap((row, q) => row.flatMap(
    (weight, k) => weight < MIN_WEIGHT ? [] : [curve(svg, weight, q, k, i)]));
}
