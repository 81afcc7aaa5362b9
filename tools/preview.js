// Light or dark by a button; a search over search.js, which is fetched when the field is first used. Works from a folder, without a server.
const remembered = value => {
  try { return value ? localStorage.setItem("theme", value) : localStorage.getItem("theme"); } catch { return null; }
};
if (remembered()) document.documentElement.dataset.theme = remembered();

// Sections that hold every word: words in the title of a page count most, then those in a heading, then how often they are said.
function find(query, sections) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return words.length === 0 ? [] : sections.map(section => {
    const [, title, heading, text] = section, head = (title + " " + heading).toLowerCase(), body = text.toLowerCase();
    const scores = words.map(w => (heading ? 20 : 40) * head.includes(w) + Math.min(body.split(w).length - 1, 5));
    return {section, score: Math.min(...scores) > 0 ? scores.reduce((a, b) => a + b) : 0, at: body.indexOf(words[0])};
  }).filter(hit => hit.score > 0).sort((a, b) => b.score - a.score).slice(0, 12);
}

function show(hits, list) {
  list.replaceChildren(...hits.map(({section: [href, title, heading, text], at}) => {
    const link = Object.assign(document.createElement("a"), {href, textContent: heading ? `${title} › ${heading}` : title});
    link.append(Object.assign(document.createElement("small"), {textContent: text.slice(Math.max(0, at - 40), Math.max(0, at - 40) + 120)}));
    const item = document.createElement("li");
    item.append(link);
    return item;
  }));
  if (!hits.length) list.append(Object.assign(document.createElement("p"), {textContent: "Nothing found."}));
}

addEventListener("DOMContentLoaded", () => {
  const [field, list, button] = ["site-search", "found", "theme"].map(id => document.getElementById(id));
  field.hidden = button.hidden = false;
  button.onclick = () => {
    const dark = getComputedStyle(document.documentElement).getPropertyValue("color-scheme") === "dark"
      || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    remembered(document.documentElement.dataset.theme = dark ? "light" : "dark");
  };
  field.addEventListener("focus", () => {
    const script = Object.assign(document.createElement("script"), {src: "search.js"});
    script.onload = () => field.dispatchEvent(new Event("input"));
    document.head.append(script);
  }, {once: true});
  field.addEventListener("input", () => {
    list.hidden = !field.value.trim();
    if (!list.hidden && window.sections) show(find(field.value, window.sections), list);
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape") list.hidden = true;
    if (event.key === "/" && !event.target.closest("input, textarea")) { event.preventDefault(); field.focus(); }
    if (event.key === "Enter" && event.target === field) list.querySelector("a")?.click();
  });
  document.addEventListener("click", event => { if (!event.target.closest("header")) list.hidden = true; });
  const here = document.querySelector(".menu [aria-current]"), menu = here?.closest("nav");
  if (menu) menu.scrollTop = here.offsetTop - menu.clientHeight / 2;
});
