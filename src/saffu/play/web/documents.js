// The documents that a model has counted, as in play/texts.py, by number; a changed collection is a new one.

import { EOD, isInsideWord, textOf } from "./tokenizer.js";

const REACH = 8; // tokens of a context that are compared with those before a word in a document
const EXCERPT = 160; // characters shown on each side of a word
const MOST_SHOWN = 6;
const WORD = /[\p{L}\p{N}\p{M}_]+(?:['’-][\p{L}\p{N}\p{M}_]+)*/gu;

export class Documents {
  constructor(tokenizer, ids) {
    this.tokenizer = tokenizer;
    this.ids = ids; // a map from numbers to tokens, <eod> after each line
    const size = [...ids.values()].reduce((sum, each) => sum + each.length, 0);
    this.flat = new Uint16Array(size);
    this.numbers = new Int32Array(size); // by place: the number of its document, and where that begins
    this.begins = new Int32Array(size);
    this.starts = [0];
    for (const [number, each] of ids) {
      const start = this.starts.at(-1);
      this.flat.set(each, start);
      this.numbers.fill(number, start, start + each.length);
      this.begins.fill(start, start, start + each.length);
      this.starts.push(start + each.length);
    }
  }

  without(number) {
    return new Documents(this.tokenizer, new Map([...this.ids].filter(([other]) => other !== number)));
  }

  withAdded(ids) {
    return new Documents(this.tokenizer, new Map([...this.ids, [Math.max(-1, ...this.ids.keys()) + 1, ids]]));
  }

  text(number) {
    return textOf(this.tokenizer.bytes(this.ids.get(number).slice(0, -1)));
  }

  // The words of a text that none of these documents contains.
  wordsMissing(text) {
    const missing = new Set(text.match(WORD) ?? []);
    for (const number of this.ids.keys()) {
      const other = this.text(number);
      if ([...missing].some((word) => other.includes(word))) for (const word of other.match(WORD) ?? []) missing.delete(word);
    }
    return [...missing];
  }

  // How often a word follows the longest end of a context that it ever follows, of whole words; null if never.
  said(context, word) {
    const found = this.matches(context, word);
    const length = this.wholeWords(context, Math.max(0, ...found.map(({ together }) => together)));
    if (!length) return null;
    const end = context.slice(-length);
    const pieces = this.tokenizer.bytes(end.filter((id) => id !== EOD));
    return { context: textOf(pieces), count: found.filter(({ together }) => together >= length).length, total: this.matches([], end).length };
  }

  // How many of the last `length` tokens of a context are left without those of a word that begins before them.
  wholeWords(context, length) {
    let whole = length;
    while (whole && isInsideWord(this.tokenizer, context, context.length - whole)) whole -= 1;
    return whole;
  }

  // The places of a word, and how many tokens before each are those at the end of the context.
  matches(context, word) {
    const { flat, numbers, begins } = this;
    const found = [];
    for (let place = 0; place + word.length <= flat.length; place += 1) {
      if (!word.every((id, at) => flat[place + at] === id && numbers[place + at] === numbers[place])) continue;
      const same = context.slice(-REACH).reverse().map((id, at) => place - at - 1 >= begins[place] && flat[place - at - 1] === id);
      const other = same.indexOf(false);
      found.push({ place, together: other < 0 ? same.length : other, alike: same.filter(Boolean).length });
    }
    return found;
  }

  // The documents in which a word follows the end of a context, those with the longest such end first.
  speakingFor(context, word) {
    const found = this.matches(context, word).sort((a, b) => b.together - a.together || b.alike - a.alike || a.place - b.place);
    const shown = new Map();
    for (const { place, together } of found) {
      const number = this.numbers[place];
      if (!shown.has(number) && shown.size < MOST_SHOWN) {
        const length = this.wholeWords(context, together);
        const matched = context.slice(context.length - length).map((id) => this.tokenizer.token(id));
        shown.set(number, { number, matched, ...this.excerpt(this.ids.get(number), place - this.begins[place], length, word.length) });
      }
    }
    return { documents: [...shown.values()], holding: new Set(found.map(({ place }) => this.numbers[place])).size };
  }

  // What stands before, in, and after a match of `length` tokens of context and a word of `width` tokens.
  excerpt(ids, at, length, width) {
    const text = (low, high) => textOf(this.tokenizer.bytes(ids.slice(Math.max(0, low), Math.max(0, high))));
    const before = [...text(at - length - EXCERPT, at - length)];
    const after = [...text(at + width, Math.min(at + width + EXCERPT, ids.length - 1))];
    return {
      before: (before.length > EXCERPT ? "…" : "") + before.slice(-EXCERPT).join(""),
      context: text(at - length, at),
      word: text(at, at + width),
      after: after.slice(0, EXCERPT).join("") + (after.length > EXCERPT ? "…" : ""),
    };
  }
}

// The tokens of a document that is typed: its lines, blank ones only between others, each with <eod>.
export function encodeDocument(tokenizer, text) {
  const lines = text.split("\n").map((line) => line.replace(/\r$/, "")).map((line) => (/^[\p{White_Space}\x1c-\x1f]*$/u.test(line) ? "" : line));
  while (lines.length && !lines[0]) lines.shift();
  while (lines.length && !lines.at(-1)) lines.pop();
  return Uint16Array.from(lines.flatMap((line) => [...tokenizer.encode(line), EOD]));
}
