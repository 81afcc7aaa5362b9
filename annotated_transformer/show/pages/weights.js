// From the text in the page to the model: the weights, the sizes and the vocabulary.

// The bytes that a text in base64 encodes.
function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

// A tensor is {shape, data}: its numbers row after row, as in PyTorch. Packed in 8
// bits, a row has integers from -127 to 127 and one scale, which they are multiplied by
// (97b).
function readTensor({shape, data, scale}) {
  if (!scale) return {shape, data: new Float32Array(bytesOf(data))};
  const integers = new Int8Array(bytesOf(data));
  const scales = new Float32Array(bytesOf(scale));
  const width = integers.length / scales.length;
  const numbers = new Float32Array(integers.length);
  for (let i = 0; i < numbers.length; i++) {
    numbers[i] = integers[i] * scales[Math.floor(i / width)];
  }
  return {shape, data: numbers};
}

// The weights keep the names that they have in PyTorch.
const readTensors = tensors => Object.fromEntries(
  Object.entries(tensors).map(([name, packed]) => [name, readTensor(packed)]));

// `packed` is what `pack_model` of 81_live wrote: {config, vocab, tensors}.
function readModel({config, vocab, tensors}) {
  return {config, weights: readTensors(tensors), vocab: new Vocab(vocab)};
}
