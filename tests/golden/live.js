// What the live page's program finds for sentences: {data, sentences} in, a list out.
const page = JSON.parse(require("fs").readFileSync(0, "utf8"));
const model = readModel(page.data), {eosId, bosId} = model.vocab;
const found = page.sentences.map(text => {
  const src = [...model.vocab.encode(text), eosId];
  const {ids, score} = beamSearch(model, src).hypotheses[0];
  const logits = decode(model, [bosId, ...ids], encode(model, src));
  return {text: model.vocab.decode(ids), score, src, ids, logits: [...logits.data]};
});
console.log(JSON.stringify(found));
