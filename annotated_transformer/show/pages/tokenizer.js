// Byte-pair encoding (§5.1): text to token ids and back, with the ids of SentencePiece.

const SPACE = "\u2581";  // a space inside a token

class Vocab {
  // `pieces` are the tokens in the order of their ids: the special tokens, the 256
  // bytes (from `first_byte_id`), then merged pieces and characters (from
  // `first_piece_id`). `plain_forms` are the characters that the model replaces after
  // NFC, and their forms; null if it leaves a text as it is.
  constructor({pieces, first_byte_id, first_piece_id, pad_id, bos_id, eos_id,
    plain_forms}) {
    Object.assign(this, {pieces, padId: pad_id, bosId: bos_id, eosId: eos_id});
    this.plainForms = plain_forms;
    this.firstByteId = first_byte_id;
    this.firstPieceId = first_piece_id;
    this.ids = new Map(pieces.slice(first_piece_id).map(
      (piece, i) => [piece, first_piece_id + i]));
  }

  // The token ids of a sentence, without BOS and EOS.
  encode(text) {
    const plain = this.normalize(text);
    return plain ? this.merge(` ${plain}`) : [];
  }

  // The text whose tokens are looked up: NFC, plain forms, single spaces.
  normalize(text) {
    if (!this.plainForms) return text;
    const signs = [...text.normalize("NFC")].map(sign => this.plainForms[sign] ?? sign);
    return signs.join("").split(" ").filter(word => word).join(" ");
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
    return text.replace(/^ +/, "");
  }

  // The tokens as text.
  tokens(ids) {
    return ids.map(id => this.pieces[id]);
  }
}

// The text of bytes in UTF-8, without those that are part of no character.
function decodeUtf8(bytes) {
  const decoder = new TextDecoder("utf-8", {ignoreBOM: true});
  return decoder.decode(Uint8Array.from(bytes)).replaceAll("\ufffd", "");
}
