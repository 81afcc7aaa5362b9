// The search of the pages. Quarto's finds letters anywhere ("RoPE" in "properties") and wants every word of a question; this one puts whole
// words first, then other forms of them, beginnings and letters inside, headings before text, and rare words before frequent ones. The page
// whose title is asked for comes before sections of other pages, and a lesson before exercises and lists.
// A hyphen, a dash or an apostrophe makes no difference, nor do accents.
// publish.py writes the entries (search.json); Quarto's script draws the results.
"use strict";
const search = (() => {
  const MARKS = "[-\u2010-\u2015\u2019']";
  const ALSO = {  // what readers type: what the pages call it
    __proto__: null, "<unk>": ["unknown"], batchnorm: ["batch normalisation"], bidirectional: ["encoder-only"], bpe: ["byte-pair encoding"],
    byte: ["bytes"], chatgpt: ["gpt", "decoder-only"], compile: ["torch.compile", "export"], constant: ["stuck", "same"], crash: ["resume"],
    custom: ["own"], dataset: ["data set"], debug: ["does not learn", "bug hunt"], debugging: ["does not learn", "bug hunt"], emoji: ["byte"],
    eos: ["end of sequence"], fast: ["speed"], finetune: ["fine-tuning"], finetuning: ["fine-tune"], flashattention: ["flashattention"],
    fp16: ["float16", "half precision", "bf16"], garbage: ["nonsense"], glossary: ["terms, in english and chinese", "terms"], gpu: ["gpus", "cuda"],
    huggingface: ["hugging face"], inference: ["translate"], jax: ["pytorch"], k: ["keys"], layernorm: ["layer normalisation"],
    learningrate: ["learning rate"], longer: ["beyond"], loop: ["repeats"], lr: ["learning rate"], memory: ["out of memory"],
    multigpu: ["data-parallel", "many gpus"], multiple: ["more than one", "multi-head", "many"], nan: ["not a number"], onnx: ["export"],
    oom: ["memory"], overfit: ["overfitted"], pickle: ["safetensors"], postln: ["post-norm"], preln: ["pre-norm"], prenorm: ["pre-norm"],
    q: ["queries"], repeated: ["repeats"], repetition: ["repeats"], rope: ["rotary"], sequence: ["text", "sentence"], sequences: ["texts", "lengths"],
    significant: ["significance"], slow: ["speed"], softmaxed: ["softmax"], sqrt: ["√", "square root"], summarisation: ["summarization"],
    tokenizer: ["shared vocabulary", "vocabulary", "sentencepiece"], tokeniser: ["shared vocabulary", "vocabulary", "sentencepiece"], tying: ["tied"],
    unk: ["unknown"], useless: ["nonsense"], v: ["values"], visualization: ["visualising"], visualize: ["visualising"], vocab: ["vocabulary"],
    windows: ["posix"],
  };
  const KNOWN = [], MORE = {};  // of another language: its terms, and what else readers call them; publish.py writes them
  Object.assign(ALSO, MORE);
  const COMMON = new Set((  // words of questions that say nothing of what is asked
    "a about all also am an and any are as at be because been better but by can cannot change changes changing choose could did do does doesnt doing done dont explain explained for from gets getting give " +
    "gives go goes had handle has have her his how i if im in instead into is isnt it its just like made make makes many me mean means mine more most much " +
    "must my need needs no not of often on one only or other our out possible really shall should show so some such than that the their them then there " +
    "these they thing this type those to too up us use used uses using very want was way we were what whatever whats when where which while who why will with " +
    "without wont work works would wrong you your").split(" "));
  const GAPS = new RegExp((  // of a question in Chinese, likewise
    "为什么 怎么办 怎么样 什么样 什么 怎么 怎样 如何 为何 哪个 哪些 哪里 多少 是否 可以 应该 需要 没有 这个 那个 一个 时候 意思 的 了 吗 呢 是 在 把 被 要 会 和 与 或 才").replaceAll(" ", "|"), "gu");
  const LISTS = /^(map|words|reference|symbols|reading)\./;  // pages that name everything and explain little of it
  const PRACTICE = /^(workbook|tasks|known_mistakes|teaching|teaching_answers)\./;  // pages that ask for what a lesson explains
  const plain = text => (text ?? "").normalize("NFKD").replace(/\p{M}/gu, "");
  const bare = term => plain(term).replace(new RegExp(MARKS, "gu"), "").toLowerCase();
  const escaped = c => c.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
  const LETTER = "(?!\\p{Script=Han})[\\p{L}\\p{N}_]";  // of a word with gaps around it

  // A term as patterns, best first: a whole word, another form of it, the beginning of a word, letters inside one.
  const patterns = term => {
    const spelt = text => [...text].map(c => c === " " ? "\\s+" : escaped(c)).join(`${MARKS}?`);
    const letters = spelt(bare(term)), stem = bare(term).replace(/(?<=\p{L}{3})(e|es|s|ed|ing|ion|ions)$/u, "");
    // Chinese has no gaps between words
    const word = /^(?!\p{Script=Han})[\p{L}\p{N}_]/u.test(term) ? `(?<!${LETTER})` : "";
    const end = /(?!\p{Script=Han})[\p{L}\p{N}_]$/u.test(term) ? `(?!${LETTER})` : "";
    const forms = word + spelt(stem) + "(e|es|s|ed|ing|ion|ions)?" + end;
    return [word + letters + end, forms, word + letters, letters].map(p => new RegExp(p, "iu"));
  };
  // Chinese has no gaps: known terms, then what stands between words of no meaning, and each pair of its characters, are looked for.
  const HAN = /\p{Script=Han}/u;
  const TERMS = new RegExp(KNOWN.map(escaped).join("|") || "$.", "giu");
  const pieces = word => {
    if (!HAN.test(word)) return [word];
    const known = word.match(TERMS) ?? [];
    const runs = word.replace(TERMS, " ").replace(GAPS, " ").match(/\p{Script=Han}{2,}|[^\p{Script=Han}\s]{2,}/gu) ?? [];
    const pairs = run => HAN.test(run) ? Array.from({length: run.length - 1}, (_, i) => run.slice(i, i + 2)) : [];
    return [...new Set([word, ...known, ...runs, ...runs.flatMap(pairs)])];
  };
  const asked = query => {
    const split = query.split(/[\s?!,;:"“”„()[\]，。？！、；：（）「」]+/u).filter(bare).flatMap(pieces);
    const words = split.length ? split : [query.trim()].filter(bare);
    const whole = bare(words.join(" "));
    const meant = words.filter(word => !COMMON.has(bare(word)));
    const terms = ALSO[whole.replaceAll(" ", "")] ? [words.join(" ")] : meant.length ? meant : words;
    return terms.map(term => [term, ...(ALSO[bare(term).replaceAll(" ", "")] ?? [])].map(patterns));
  };
  // Of a match: rows as `patterns`, columns heading, sentence below the title, title, text.
  const WORTH = [[9, 7, 4, 2], [6, 4, 3, 1.5], [1, 0.9, 0.8, 0.6], [0.1, 0.06, 0.06, 0.04]];
  const matches = (kinds, fields) => {
    let best = 0;
    const long = Math.min(1, 2000 / (1000 + fields[3].length));  // a long text has every word once
    kinds.forEach((pattern, kind) => fields.forEach((field, at) => {
      const worth = WORTH[kind][at] * (at === 3 ? long : 1);
      if (worth > best && pattern.test(field)) best = worth;
    }));
    return best;
  };

  // What a page is about: its title without number and article, what comes before a colon, and the parts that “and” joins.
  const topics = title => {
    const [whole, ...rest] = [title, title.split(/[:：]/u)[0]].map(text => text.replace(/^\d+[a-z]? /u, "").replace(/^(the|an?) /iu, "").trim());
    return [[whole, ...rest], rest[0].split(/, | and |与|、/u)];
  };
  // What a heading is worth if the query names it. A heading of many pages (“Deviations”) is nothing that one looks for.
  function worthOfNames(query) {
    const asks = topics(query)[0][0], name = bare(asks), [, form] = patterns(asks), also = (ALSO[name.replaceAll(" ", "")] ?? []).map(bare);
    const is = text => bare(text) === name, isForm = text => form.exec(text)?.[0] === text, isAlso = text => also.includes(bare(text));
    const isCode = /\p{Ll}\p{Lu}|\p{Lu}{2}\p{Ll}/u.test(query);  // RDrop, which is not R-Drop
    const ofSection = heading => heading === query ? 2000 : is(heading) ? 1000 : isForm(heading) ? 500 : isAlso(heading) ? 400 : 0;
    const ofPage = (title, file) => {
      const [whole, parts] = topics(title);
      if (whole.some(text => isCode ? text === asks : is(text))) return 3000;
      if (isForm(file) && !isCode) return 2500;
      if (whole.some(isAlso)) return 2200;
      return [...whole, ...parts].some(text => isForm(text) || isAlso(text)) ? 1500 : 0;
    };
    return ({href, section, fields: [heading]}, often) => {
      if (!section) return ofPage(heading, href.split("/").at(-1).split(".")[0].replaceAll("_", " "));
      return often || PRACTICE.test(href) ? 0 : ofSection(heading);
    };
  }

  // The entries that have a term, best first: those that the query names, then those with many terms, rare ones, in headings. A heading that
  // has the whole query counts twice; a page that has it in its title, or in the sentence below it, three times.
  function rank(query, entries) {
    const asks = query.trim(), terms = asked(query), name = bare(asks), [phrase] = patterns(asks), named = worthOfNames(asks);
    const found = entries.map(entry => {
      const fields = entry.fields ??= [entry.section || entry.title, entry.about, entry.title, entry.text].map(plain);
      return terms.map(also => Math.max(...also.map((kinds, i) => matches(kinds, fields) * (i ? 0.6 : 1))));
    });
    const rarity = terms.map((_, t) => Math.log(1 + entries.length / (1 + found.filter(worth => worth[t] > 0.5).length)));
    const all = rarity.reduce((a, b) => a + b, 0), pages = new Map();
    for (const {section} of entries) pages.set(section, 1 + (pages.get(section) ?? 0));
    const scored = entries.map((entry, i) => {
      const sum = weights => weights.reduce((a, b) => a + b, 0), [heading, about] = entry.fields;
      const often = entry.section && pages.get(entry.section) > 9;
      const kind = PRACTICE.test(entry.href) ? 0.3 : LISTS.test(entry.href) ? 0.4 : often ? 0.5 : 1;
      const whole = !entry.section && [heading, about].some(text => phrase.test(text)) ? 3 : name.includes(" ") && phrase.test(heading) ? 2 : 1;
      const share = sum(rarity.map((weight, t) => found[i][t] ? weight : 0)) / all;
      const score = kind * whole * share ** 1.5 * sum(rarity.map((weight, t) => weight * found[i][t]));
      return {entry, score: score + named(entry, often)};
    });
    return scored.filter(hit => hit.score).sort((a, b) => b.score - a.score).map(hit => hit.entry);
  }

  // The letters of a text that the query found.
  function part(query, text) {
    const kinds = asked(query).flat();
    for (const kind of [0, 1, 2, 3])
      for (const term of kinds) {
        const found = term[kind].exec(text);
        if (found?.[0]) return found[0];
      }
    return "";
  }
  // A piece of a text (HTML) around what was found in it, which is marked. Quarto's own begins at the mark, even if it is the last word.
  function excerpt(found, text) {
    const at = text.indexOf(found), end = at + found.length, start = 1 + text.lastIndexOf(" ", Math.min(at - 40, text.length - 160));
    const mark = found && `<mark class="search-match">${found}</mark>`;
    const piece = text.slice(start, at) + mark + text.slice(end, start + 250);
    return (start ? "… " : "") + piece.replace(/&[^;\s]*$/, "");  // no half of a character
  }
  return {rank, part, excerpt};
})();

addEventListener("DOMContentLoaded", () => {
  if (!window.fuseSearch) return;
  let entries;
  // null where no file can be read, as from a page that was opened from a folder
  window.readSearchData = () => entries ??= fetch(offsetURL("search.json")).then(answer => answer.json()).catch(() => null);
  const NO_ENTRIES = {
    title: "The search needs a web server", section: "", href: "", crumbs: [],
    text: "A page that was opened from a folder can read no other file. In that folder: python -m http.server, then open http://localhost:8000",
  };
  window.fuseSearch = (query, all, {limit}) => !all ? [NO_ENTRIES] : search.rank(query, all).slice(0, limit).map(({title, section, href, text, crumbs}) => {
    const [page, place] = href.split("#"), found = search.part(query, text);
    const address = `${page}?q=${encodeURIComponent(found || query)}${place ? "#" + place : ""}`;
    return {title, section, href: address, text: search.excerpt(found, text), crumbs};
  });
});
