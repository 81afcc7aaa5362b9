// While a sentence is typed: a greedy translation of it after each pause. It is
// computed a layer or a token at a time, and the next key ends it.

const PAUSE_MS = 300;
let pause = 0;
let draft = null;  // the steps of the translation under way

function stopTyping() {
  clearTimeout(pause);
  draft = null;
  byId("draft").textContent = "";
}

function* translateDraft(text) {
  let before = "";
  for (const part of sentencesOf(text)) {
    before += part.gap;
    if (hasLetter(part.text)) before += yield* draftSentence(part.text, before);
    else before += part.text;
  }
  byId("draft").textContent = say("draft", {text: before});
}

function* draftSentence(text, before) {
  const srcIds = sourceIds(text);
  const part = {model, switches: switches(), trace: null};
  let memory = embed(part, "encoder", srcIds);
  for (let i = 0; i < config.n_encoder_layers; i++) {
    memory = encoderLayer(part, i, memory);
    yield;
  }
  const cache = startCache(model, memory, part.switches);
  const ids = [];
  for (let id = vocab.bosId; ids.length < lengthLimit(srcIds); ids.push(id)) {
    [id] = largest(nextLogProbs(model, id, cache, part.switches, 1), 1);
    if (id === vocab.eosId) break;
    byId("draft").textContent = say("draft", {text: before + textOf([...ids, id])});
    yield;
  }
  return textOf(ids);
}

byId("sentence").addEventListener("input", () => {
  stopTyping();
  const text = byId("sentence").value;
  if (!text.trim() || text === state.text) return;
  pause = setTimeout(() => {
    const steps = translateDraft(text);
    draft = steps;
    inSlices(steps, () => draft === steps);
  }, PAUSE_MS);
});
