// The search of the pages. Quarto's finds letters anywhere ("RoPE" in "properties"); this one puts whole words first, then beginnings of
// words, then letters inside, and headings before text. A hyphen, a dash or an apostrophe makes no difference, nor do accents.
// pages.py writes the entries (search.json); Quarto's script draws the results.
"use strict";
const search = (() => {
  const MARKS = "[-\u2010-\u2015\u2019']";
  const ALSO = {  // what readers type: what the pages call it
    bidirectional: ["encoder-only"], byte: ["bytes"], chatgpt: ["gpt", "decoder-only"], compile: ["torch.compile", "export"], crash: ["resume"],
    debug: ["does not learn", "bug hunt"], debugging: ["does not learn", "bug hunt"], emoji: ["byte"], eos: ["end of sequence"], fast: ["speed"],
    finetune: ["fine-tuning"], finetuning: ["fine-tune"], fp16: ["float16", "half precision", "bf16"], gpu: ["gpus", "cuda"], huggingface: ["hugging face"],
    inference: ["translate"], jax: ["pytorch"], learningrate: ["learning rate"], lr: ["learning rate"], multigpu: ["data-parallel", "many gpus"],
    nan: ["not a number"], onnx: ["export"], oom: ["memory"], overfit: ["overfitted"], pickle: ["safetensors"], prenorm: ["pre-norm"],
    rope: ["rotary"], slow: ["speed"], softmaxed: ["softmax"], sqrt: ["√", "square root"], summarisation: ["summarization"], tokenizer: ["vocabulary", "sentencepiece"],
    tokeniser: ["vocabulary", "sentencepiece"], tying: ["tied"], unk: ["unknown"], windows: ["posix"],
  };
  const plain = text => (text ?? "").normalize("NFKD").replace(/\p{M}/gu, "");
  const bare = term => plain(term).replace(new RegExp(MARKS, "gu"), "").toLowerCase();
  const escaped = c => c.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const LETTER = "[\\p{L}\\p{N}_]";

  // A term as patterns, best first: a whole word, the beginning of one, letters inside one.
  const patterns = term => {
    const letters = [...bare(term)].map(c => c === " " ? "\\s+" : escaped(c)).join(`${MARKS}?`);
    const word = /^[\p{L}\p{N}_]/u.test(term) ? `(?<!${LETTER})` : "", end = /[\p{L}\p{N}_]$/u.test(term) ? `(?!${LETTER})` : "";
    return [word + letters + end, word + letters, letters].map(p => new RegExp(p, "iu"));
  };
  const asked = query => {
    const whole = bare(query.trim()).replace(/\s+/gu, " ");
    const terms = ALSO[whole.replaceAll(" ", "")] ? [query.trim()] : query.trim().split(/\s+/u);
    return terms.filter(bare).map(term => [term, ...(ALSO[bare(term).replaceAll(" ", "")] ?? [])].map(patterns));
  };
  const WORTH = [[900, 300, 100], [90, 30, 10], [9, 3, 1]];  // of a match: rows as `patterns`, columns heading, title, text
  const matches = (kinds, fields) => {
    let best = 0;
    kinds.forEach((pattern, kind) => fields.forEach((field, at) => {
      if (WORTH[kind][at] > best && pattern.test(field)) best = WORTH[kind][at];
    }));
    return best;
  };

  // The entries that have all terms, best first; if none has, those that have most of them.
  function rank(query, entries) {
    const terms = asked(query), name = bare(query.trim());
    const scored = entries.map(entry => {
      const fields = entry.fields ??= [entry.section || entry.title, entry.title, entry.text].map(plain);
      const found = terms.map(also => Math.max(...also.map((kinds, i) => matches(kinds, fields) * (i ? 0.6 : 1))));
      const heading = fields[0].replace(/^\d+\w? /, "");
      const exact = heading === query.trim() ? 2000 : bare(heading) === name ? 1000 : 0;
      return {entry, terms: found.filter(Boolean).length, score: exact + found.reduce((a, b) => a + b, 0)};
    }).filter(hit => hit.terms);
    const most = Math.max(...scored.map(hit => hit.terms));
    return scored.filter(hit => hit.terms === most).sort((a, b) => b.score - a.score).map(hit => hit.entry);
  }

  // The letters of a text that the query found, for Quarto to mark.
  function part(query, text) {
    const kinds = asked(query).flat();
    for (const kind of [0, 1, 2])
      for (const term of kinds) {
        const found = term[kind].exec(text);
        if (found?.[0]) return found[0];
      }
    return "";
  }
  return {rank, part};
})();

addEventListener("DOMContentLoaded", () => {
  if (!window.fuseSearch) return;
  let entries;
  window.readSearchData = () => entries ??= fetch(offsetURL("search.json")).then(answer => answer.json());
  window.fuseSearch = (query, all, {limit}) => search.rank(query, all).slice(0, limit).map(({title, section, href, text, crumbs}) => {
    const [page, place] = href.split("#"), found = search.part(query, text);
    const address = `${page}?q=${encodeURIComponent(found || query)}${place ? "#" + place : ""}`;
    return {title, section, href: address, text: found ? highlightMatch(found, text) : text.slice(0, 250).replace(/&[^;]*$/, ""), crumbs};
  });
});
