// Byte-level byte-pair encoding, as in text/tokenizer.py, and what completing words needs to know about tokens.

export const EOD = 3;
const SPECIAL = ["<pad>", "<sod>", "<frg>", "<eod>"];
const WORDS = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const BLANK = /^[\p{White_Space}\x1c-\x1f]+$/u;
const CONTINUES = /^_*(?:[\p{L}\p{N}\p{M}]|$)/u;
const MOST_KNOWN = 50_000; // words whose tokens are remembered

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
export const bytesOf = (text) => encoder.encode(text);
export const textOf = (bytes) => decoder.decode(bytes);

// One character for each byte: itself if it is visible, or one from U+0100 on.
const CHARACTERS = (() => {
  const isVisible = (byte) => (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
  let hidden = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCharCode(isVisible(byte) ? byte : hidden++));
})();
const BYTES = new Map(CHARACTERS.map((character, byte) => [character, byte]));

export class Tokenizer {
  constructor(merges) {
    this.ranks = new Map(merges.map((merge, rank) => [merge, rank])); // merges are written "left right"
    this.names = [...new Set([...SPECIAL, ...CHARACTERS, ...merges.map((merge) => merge.replace(" ", ""))])];
    this.ids = new Map(this.names.map((name, id) => [name, id]));
    this.pieces = this.names.map((name, id) => Uint8Array.from(id <= EOD ? [] : name, (character) => BYTES.get(character)));
    this.continues = this.pieces.map(continuesWord);
    this.known = new Map();
  }

  get size() {
    return this.names.length;
  }

  encode(text) {
    return (text.match(WORDS) ?? []).flatMap((word) => this.encodeWord(word));
  }

  encodeWord(word) {
    const known = this.known.get(word);
    if (known) return known;
    const parts = Array.from(bytesOf(word), (byte) => CHARACTERS[byte]);
    for (;;) {
      let best = Infinity;
      let place = -1;
      for (let at = 0; at + 1 < parts.length; at += 1) {
        const rank = this.ranks.get(`${parts[at]} ${parts[at + 1]}`) ?? Infinity;
        if (rank < best) [best, place] = [rank, at];
      }
      if (place < 0) break;
      parts.splice(place, 2, parts[place] + parts[place + 1]);
    }
    const ids = parts.map((part) => this.ids.get(part));
    if (this.known.size >= MOST_KNOWN) this.known.clear();
    this.known.set(word, ids);
    return ids;
  }

  // As in a corpus, <eod> stands for a newline, and blank lines between others are empty.
  encodePrompt(prompt) {
    const lines = prompt.replaceAll("\r\n", "\n").split("\n");
    return lines.flatMap((line, place) => {
      const isInner = place > 0 && place < lines.length - 1;
      const ids = isInner && BLANK.test(line) ? [] : this.encode(line);
      return place ? [EOD, ...ids] : ids;
    });
  }

  // The bytes that some tokens stand for; a newline for <eod>.
  bytes(ids) {
    return joined(Array.from(ids, (id) => (id === EOD ? NEWLINE : this.pieces[id])));
  }

  // A token as people read it: " the", or <eod>.
  token(id) {
    return textOf(this.pieces[id]) || this.names[id];
  }
}

const NEWLINE = Uint8Array.of(10);

export function joined(pieces) {
  const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

// Whether a token continues a word: with a letter, a digit, a mark, or underscores, after an apostrophe or hyphen at most.
function continuesWord(piece) {
  let text = textOf(piece);
  if (String(bytesOf(text)) !== String(piece)) text = text.replaceAll("\ufffd", ""); // parts of characters
  if ([...text].length > 1 && "'’-".includes(text[0])) text = text.slice(1);
  return text ? CONTINUES.test(text) : piece.length > 0;
}

export const isInsideWord = (tokenizer, context, place) => place > 0 && context[place - 1] !== EOD && tokenizer.continues[context[place]];

// What Python's str.strip removes.
export const strip = (text) => text.replace(/^[\p{White_Space}\x1c-\x1f]+|[\p{White_Space}\x1c-\x1f]+$/gu, "");
