// Which language the reader has: that of the translated page seen last, or of the link followed to another. To whom has not English, a page in
// English says where a translation is, and its links lead to translated pages. Before this publish.py writes LANGUAGES: what each folder has.
"use strict";
(() => {
  const folder = address => new URL(address).pathname.split("/").at(-2), here = folder(location.href);
  const keep = folder => { try { localStorage.setItem("language", folder); } catch {} };  // a browser may refuse
  const kept = () => { try { return localStorage.getItem("language"); } catch { return null; } };
  const row = document.querySelector(".page-links");
  if (here in LANGUAGES) keep(here);
  for (const link of row?.querySelectorAll("a[lang]") ?? []) link.addEventListener("click", () => keep(folder(link.href)));
  const language = LANGUAGES[kept()];
  if (here in LANGUAGES || !language || !row) return;
  const address = file => `${kept()}/${file}`, file = location.pathname.split("/").pop() || "index.html";
  for (const link of document.querySelectorAll("a[href]:not([lang])")) {
    const [, to, rest] = /^(?:\.\/)?([\w-]+\.html)((?:[?#].*)?)$/.exec(link.getAttribute("href")) ?? [];
    if (language.pages.includes(to)) link.setAttribute("href", address(to) + rest);
  }
  const isThere = language.pages.includes(file), note = document.createElement("p"), link = document.createElement("a");
  Object.assign(note, {className: "way", lang: language.lang});
  Object.assign(link, {href: address(isThere ? file : "index.html"), textContent: isThere ? language.there : language.contents});
  note.append(isThere ? "" : language.none, link);
  row.after(note);
})();
