// What test_site.py asks of a page; each function gives a list of complaints.
const page = (() => {
  const short = text => text.trim().replace(/\s+/g, " ").slice(0, 60);
  const textNodes = (root = document.body) => {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT), found = [];
    while (walk.nextNode()) {
      const parent = walk.currentNode.parentElement;
      if (walk.currentNode.data.trim() && !parent.closest("script, style, annotation, noscript, template, option, [hidden]")) found.push(walk.currentNode);
    }
    return found;
  };

  // Any colour of CSS to [r, g, b, alpha], by painting it.
  const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1}).getContext("2d", {willReadFrequently: true});
  const known = new Map();
  const rgba = colour => {
    if (!known.has(colour)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = c => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const part = c[i] / 255;
    return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ratio = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };

  const grounds = new Map();
  const ground = element => {  // the colour behind an element's text
    if (!element) return rgba(matchMedia("(prefers-color-scheme: dark)").matches ? "#121212" : "#fff");
    if (!grounds.has(element)) {
      const own = rgba(getComputedStyle(element).backgroundColor);
      grounds.set(element, own[3] === 1 ? own : over(own, ground(element.parentElement)));
    }
    return grounds.get(element);
  };
  const behindDrawn = text => {  // in a drawing: the last shape below the text that holds its middle; nothing is known of an image
    const svg = text.closest("svg"), box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    let colour = ground(svg);
    for (const shape of svg.querySelectorAll("rect, circle, ellipse, path, polygon, use, image")) {
      if (shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_PRECEDING) break;
      if (shape.closest("defs, clipPath, marker, mask")) continue;
      const style = getComputedStyle(shape), s = shape.getBoundingClientRect();
      if (shape.tagName !== "image" && style.fill === "none" || style.fill.startsWith("url") || x < s.left || x > s.right || y < s.top || y > s.bottom) continue;
      const clip = svg.querySelector(`${/#[^)"]+/.exec(shape.getAttribute("clip-path") ?? "")?.[0] ?? "none"} rect`);
      if (clip) {  // as a bar on a logarithmic axis, which begins far outside
        const left = new DOMPoint(+clip.getAttribute("x"), 0).matrixTransform(svg.getScreenCTM()).x;
        if (x < left) continue;
      }
      if (shape.tagName === "image") return null;
      const fill = rgba(style.fill);
      colour = over([...fill.slice(0, 3), fill[3] * style.fillOpacity * style.opacity], colour);
    }
    return colour;
  };

  const boxes = (node, from = 0, to = node.length) => {  // where a part of a text is seen
    const range = document.createRange();
    range.setStart(node, from);
    range.setEnd(node, to);
    return [...range.getClientRects()];
  };

  return {
    open: () => {
      document.querySelectorAll("details").forEach(d => d.open = true);
      document.documentElement.classList.add("with-original");  // both languages of a translated page
      const back = document.getElementById("quarto-back-to-top");
      if (back) back.style.display = "inline-block";  // else only on the way up
    },

    rawTex: () => textNodes().filter(n => !n.parentElement.closest("code, pre, kbd, textarea") && /\$[^$]*\$|\\[a-zA-Z(\[]/.test(n.data))
      .map(n => `raw TeX: ${short(n.data)}`),

    pictures: () => [...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => `no picture: ${i.getAttribute("src")}`)
      .concat([...document.images].filter(i => !i.alt.trim()).map(i => `no alternative text: ${i.getAttribute("src")}`))
      .concat([...document.querySelectorAll("figure, main svg")].filter(f => !f.closest(".chart") && !f.querySelector("img, .chart, iframe[title]")
        && !(f.closest("svg") || f.querySelector("svg"))?.getAttribute("aria-label")?.trim()).map(f => `no alternative text: ${f.id || f.outerHTML.slice(0, 60)}`))
      .concat([...document.querySelectorAll("figure")].filter(f => { const said = f.querySelector("img, svg"), below = f.querySelector("figcaption");
        return said && below && (said.alt ?? said.getAttribute("aria-label"))?.trim() === below.textContent.trim(); })
        .map(f => `caption repeats the alternative text: ${short(f.textContent)}`))
      .concat([...document.querySelectorAll(".chart")].filter(c => !c.getAttribute("aria-label")).map(() => "no alternative text: a chart")),

    faint: (within = "body") => {
      grounds.clear();
      const found = new Map(), root = document.querySelector(within);
      for (const node of root ? textNodes(root) : []) {
        const element = node.parentElement, drawn = element.closest("svg text");
        if (found.has(element) || !element.checkVisibility({visibilityProperty: true})) continue;
        const style = getComputedStyle(element), behind = drawn ? behindDrawn(drawn) : ground(element);
        if (!behind) continue;
        let opacity = 1;
        for (let e = element; e; e = e.parentElement) opacity *= getComputedStyle(e).opacity;
        const colour = rgba(drawn ? style.fill : style.color), seen = over([...colour.slice(0, 3), colour[3] * opacity], behind);
        const r = ratio(seen, behind);
        if (r < 4.5) found.set(element, `contrast ${r.toFixed(2)}: ${short(node.data)} (${style.color} on ${behind.slice(0, 3)})`);
      }
      return [...found.values()];
    },

    split: () => textNodes().filter(n => n.parentElement.closest("td, th")).flatMap(n => [...n.data.matchAll(/(?:(?!\p{Script=Han})[\p{L}\p{N}_])+/gu)]
      .filter(word => new Set(boxes(n, word.index, word.index + word[0].length).map(box => Math.round(box.top))).size > 1)
      .map(word => `breaks inside a word: ${word[0]}`)),

    squeezed: () => [...document.querySelectorAll("td")].map(cell => [cell.clientWidth, textNodes(cell).map(n => n.data).join("")])
      .filter(([width, text]) => short(text).length > 50 && width < 110).map(([width, text]) => `a sentence in ${width} px: ${short(text)}`),

    tiny: () => [...document.querySelectorAll("main svg text")].map(t => {
      const {a, b} = t.getScreenCTM();
      return [t, parseFloat(getComputedStyle(t).fontSize) * Math.hypot(a, b)];
    }).filter(([, size]) => size < 9).map(([t, size]) => `${size.toFixed(1)} px: ${short(t.textContent)}`),

    covered: () => [...document.querySelectorAll(".code-copy-button")].filter(button => {
      const b = button.getBoundingClientRect(), pre = button.closest("pre");
      const edge = Math.min(...[pre.parentElement, pre, pre.firstElementChild].filter(e => getComputedStyle(e).overflowX !== "visible")
        .map(e => e.getBoundingClientRect().right));
      return textNodes(pre).some(n => boxes(n).some(box => box.left < b.right && Math.min(box.right, edge) > b.left && box.top < b.bottom && box.bottom > b.top));
    }).map(button => `a button covers code: ${short(button.closest("pre").textContent)}`),

    wide: () => {
      const root = document.documentElement;
      if (root.scrollWidth <= innerWidth) return [];
      const out = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1);
      return [`${root.scrollWidth} px wide in ${innerWidth}: ${out.slice(0, 3).map(e => e.outerHTML.slice(0, 80)).join(" … ")}`];
    },
  };
})();
