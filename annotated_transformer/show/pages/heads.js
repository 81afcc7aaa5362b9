// A heat map per head: a row of buttons per layer, in the element #heads.

const headName = ({layer, head}) =>
  say("head.name", {layer: layer + 1, head: head + 1});

// `paint({layer, head})` gives a head's heat map, and `select({layer, head}, event)` is
// called when a head is chosen.
function drawHeads(nLayers, nHeads, paint, select) {
  const label = (textContent, className = "") =>
    element("span", {textContent, className, ariaHidden: "true"});
  const heads = Array.from({length: nHeads}, (_, head) => head);
  const rows = Array.from({length: nLayers}, (_, layer) => [
    label(say("layer.n", {n: layer + 1}), "layer"),
    ...heads.map(head => headButton({layer, head}, paint, select)),
  ]);
  byId("heads").style.setProperty("--n-heads", nHeads);
  byId("heads").replaceChildren(
    label(say("head"), "layer"), ...heads.map(head => label(head + 1)), ...rows.flat());
}

function headButton(at, paint, select) {
  const properties = {type: "button", ariaLabel: headName(at), title: headName(at)};
  const button = element("button", properties, paint(at));
  Object.assign(button.dataset, at, {key: `head:${at.layer}:${at.head}`});
  button.addEventListener("click", event => select(at, event));
  return button;
}

// Marks the selected heads, the newest last, each in its colour.
function markHeads(selected) {
  for (const button of byId("heads").querySelectorAll("button")) {
    const {layer, head} = button.dataset;
    const i = selected.findIndex(at => at.layer === +layer && at.head === +head);
    button.setAttribute("aria-pressed", i >= 0);
    button.tabIndex = i === selected.length - 1 ? 0 : -1;
    setColour(button, Math.max(i, 0));
  }
}
