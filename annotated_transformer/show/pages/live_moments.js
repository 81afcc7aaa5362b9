// The moments of training: the weights that the slider chooses, and the curve of the loss.

const weightsRead = new Map([[START.moment, model.weights]]);  // by moment

function weightsAt(moment) {
  if (!weightsRead.has(moment)) weightsRead.set(moment, readTensors(moments[moment]));
  return weightsRead.get(moment);
}

// The steps of the moments are roughly doubled from one to the next, so the axis of the
// curve is logarithmic from the second on.
const CURVE = {width: 320, height: 80};
const scaled = step => Math.log2(1 + step / past.steps[1]);
const curveX = step => CURVE.width * scaled(step) / scaled(past.steps.at(-1));
const highest = past && Math.max(...past.curve.map(([_step, loss]) => loss));
const curveY = loss => CURVE.height * (1 - loss / highest);

// The loss that was measured last at this step.
const lossAt = step => past.curve.findLast(([each]) => each <= step)[1];

function drawMoment() {
  if (!past) return;
  const step = past.steps[state.moment];
  const format = number => number.toLocaleString(document.documentElement.lang);
  const values = {step: format(step), n: format(past.steps.at(-1))};
  byId("moment").value = state.moment;
  byId("moment").setAttribute("aria-valuetext", say("learning.step", values));
  byId("moment-value").textContent = say("learning.step", values);
  const mark = byId("curve").lastChild;
  mark.setAttribute("cx", curveX(step));
  mark.setAttribute("cy", curveY(lossAt(step)));
  byId("curve-text").textContent = say("learning.loss", {
    loss: lossAt(step).toFixed(2), nats: Math.log(config.n_vocab).toFixed(2)});
}

byId("learning").hidden = !past;
byId("moment").max = START.moment;
byId("moment-text").replaceChildren(...rich("learning.text"));
if (past) {
  byId("curve").firstChild.setAttribute("d", past.curve.map(([step, loss], i) =>
    `${i ? "L" : "M"}${curveX(step).toFixed(1)} ${curveY(loss).toFixed(1)}`).join(""));
}
