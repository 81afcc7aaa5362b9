// Altair's charts are drawn again, so that they answer to a pointer. publish.py writes this with Vega-Embed in it.
for (const box of document.querySelectorAll(".chart")) {
  const spec = JSON.parse(box.querySelector("script").textContent);
  delete spec.$schema;  // of an older Vega-Lite, which the newer reads
  vegaEmbed(box.querySelector("div"), spec, {mode: "vega-lite", actions: false, renderer: "svg"});
}
