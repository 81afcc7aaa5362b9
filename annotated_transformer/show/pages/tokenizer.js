// Byte-pair encoding (§5.1): text to token ids and back, with the ids of SentencePiece.

const SPACE = "\u2581";  // a space inside a token

class Vocab {
  // `pieces` are the tokens in the order of their ids: the special tokens, the 256
  // bytes (from `first_byte_id`), then merged pieces and characters (from
  // `first_piece_id`).
  constructor({pieces, first_byte_id, first_piece_id, pad_id, bos_id, eos_id,
    unknown_apostrophes}) {
    Object.assign(this, {pieces, padId: pad_id, bosId: bos_id, eosId: eos_id});
    this.apostrophes = new Set(unknown_apostrophes);
    this.firstByteId = first_byte_id;
    this.firstPieceId = first_piece_id;
    this.ids = new Map(pieces.slice(first_piece_id).map(
      (piece, i) => [piece, first_piece_id + i]));
  }

  // The token ids of a sentence, without BOS and EOS.
  encode(text) {
    const [first, ...rest] = ` ${text}`.split(SPACE);
    const ofSign = this.byteIds(SPACE);  // a real U+2581 is written as its bytes
    const others = rest.flatMap(part => [...ofSign, ...this.merge(part)]);
    return [...this.merge(first), ...others];
  }

  // A sentence to translate: an apostrophe for which no token was learned becomes '.
  source(text) {
    return [...text].map(sign => this.apostrophes.has(sign) ? "'" : sign).join("");
  }

  // The characters of a text, merged pair by pair. The pair whose union was learned
  // first has the smallest id, and is merged first; of equal pairs the leftmost one.
  merge(text) {
    const symbols = [...text.replaceAll(" ", SPACE)];
    const union = i => i + 1 < symbols.length
      ? this.ids.get(symbols[i] + symbols[i + 1]) ?? Infinity : Infinity;
    const unions = symbols.map((_, i) => union(i));
    for (;;) {
      const best = unions.reduce((min, id, i) => id < unions[min] ? i : min, 0);
      if (!(unions[best] < Infinity)) break;
      symbols.splice(best, 2, symbols[best] + symbols[best + 1]);
      unions.splice(best, 1);
      unions[best] = union(best);
      if (best > 0) unions[best - 1] = union(best - 1);
    }
    return symbols.flatMap(symbol => this.ids.get(symbol) ?? this.byteIds(symbol));
  }

  // The ids of the bytes of a character that is no piece.
  byteIds(character) {
    const bytes = new TextEncoder().encode(character);
    return Array.from(bytes, byte => this.firstByteId + byte);
  }

  // The text of these tokens; special tokens are left out.
  decode(ids) {
    let text = "";
    let bytes = [];
    for (const id of ids) {
      if (id >= this.firstPieceId) {
        text += decodeUtf8(bytes) + this.pieces[id].replaceAll(SPACE, " ");
        bytes = [];
      } else if (id >= this.firstByteId) {
        bytes.push(id - this.firstByteId);
      }
    }
    text += decodeUtf8(bytes);
    return text.startsWith(" ") ? text.slice(1) : text;
  }

  // The tokens as text.
  tokens(ids) {
    return ids.map(id => this.pieces[id]);
  }
}

// The text of bytes in UTF-8, in which each byte that is part of no character becomes
// U+FFFD, as in SentencePiece.
function decodeUtf8(bytes) {
  const decoder = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true});
  let text = "";
  for (let i = 0; i < bytes.length;) {
    let n = bytes[i] < 0x80 ? 1 : bytes[i] < 0xe0 ? 2 : bytes[i] < 0xf0 ? 3 : 4;
    try {
      text += decoder.decode(Uint8Array.from(bytes.slice(i, i + n)));
    } catch {
      text += "\ufffd";
      n = 1;
    }
    i += n;
  }
  return text;
}
