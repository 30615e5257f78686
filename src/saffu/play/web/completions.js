// The words that an unfinished word may become, as in tools/decoding.py.

import { EOD, bytesOf, joined, textOf } from "./tokenizer.js";

const LEAST_SHARE = 1e-4; // of all completions: less likely beginnings of words are not followed further
const MOST_STEPS = 500; // distributions computed for one completion
const MOST_TOKENS = 200; // followed from each
const UNFINISHED = /[ \t\r\x0b\x0c]?[^ \t\n\r\x0b\x0c]*$/;

// A text without its last, unfinished word, and that word with the space before it.
export function unfinished(text) {
  const [typed] = text.match(UNFINISHED);
  return [text.slice(0, text.length - typed.length), typed];
}

const spellings = new WeakMap();

// Tokens by their bytes, to find those that spell something.
class Spelling {
  constructor(tokenizer) {
    const tokens = [...tokenizer.pieces.keys()];
    this.pieces = tokenizer.pieces;
    this.ordered = tokens.filter((token) => this.pieces[token].length).sort((a, b) => compare(this.pieces[a], this.pieces[b]));
    this.byPiece = new Map(this.ordered.map((token) => [key(this.pieces[token]), token]));
    this.continuing = Uint16Array.from(tokens.filter((token) => tokenizer.continues[token]));
    this.ending = Uint16Array.from(tokens.filter((token) => token >= EOD && !tokenizer.continues[token]));
    this.tails = new Map(); // tokens that end a word after underscores, such as __(
    for (const token of this.ending) {
      const [underscores] = key(this.pieces[token]).match(/^_*/);
      if (underscores) this.tails.set(token, underscores);
    }
  }

  static of(tokenizer) {
    if (!spellings.has(tokenizer)) spellings.set(tokenizer, new Spelling(tokenizer));
    return spellings.get(tokenizer);
  }

  // The tokens that begin with some bytes, then those that these begin with.
  spelling(rest) {
    let low = 0;
    let high = this.ordered.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (compare(this.pieces[this.ordered[middle]], rest) < 0) low = middle + 1;
      else high = middle;
    }
    const found = [];
    for (; low < this.ordered.length && begins(this.pieces[this.ordered[low]], rest); low += 1) found.push(this.ordered[low]);
    for (let length = 1; length < rest.length; length += 1) {
      const token = this.byPiece.get(key(rest.subarray(0, length)));
      if (token !== undefined) found.push(token);
    }
    return found;
  }
}

const SPACELESS = "\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u3005-\\u3007\\u3040-\\u30ff\\u31f0-\\u31ff\\uff66-\\uff9f\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff";
const BEGINS_WORD = new RegExp(`^(?![${SPACELESS}\\u{20000}-\\u{3ffff}])[\\p{L}\\p{N}]`, "u");
const joints = new WeakMap();

// Which tokens the text joins, as in tools/generate.py.
class Joints {
  constructor(model, pieces) {
    const texts = pieces.map((piece) => textOf(piece).replaceAll("\ufffd", ""));
    this.endsWord = texts.map((text, token) => token > EOD && (!text || /[\p{L}\p{N}]$/u.test(text)));
    this.beginsWord = texts.map((text) => BEGINS_WORD.test(text));
    this.inWords = new Set(); // what follows a letter or digit
    this.elsewhere = new Set(); // what follows anything else but a line start
    for (let token = EOD + 1; token < pieces.length; token += 1) {
      const seen = this.endsWord[token] ? this.inWords : this.elsewhere;
      for (const next of model.followers(token)) seen.add(next);
    }
  }

  static of(model, pieces) {
    if (!joints.has(model)) joints.set(model, new Joints(model, pieces));
    return joints.get(model);
  }

  // Whether a token may follow another.
  after(token) {
    const seen = this.endsWord[token] ? this.inWords : this.elsewhere;
    return (next) => !this.beginsWord[next] || seen.has(next);
  }
}

function compare(a, b) {
  for (let place = 0; place < Math.min(a.length, b.length); place += 1) if (a[place] !== b[place]) return a[place] - b[place];
  return a.length - b.length;
}

const begins = (whole, start) => start.length <= whole.length && start.every((byte, place) => whole[place] === byte);

// The most likely words after a state, before what was typed of a word: a map from words to probabilities.
export function wordCompletions(model, tokenizer, state, typed, number = 10) {
  const words = [...completions(model, Spelling.of(tokenizer), state, bytesOf(typed), number)];
  words.sort(([a, p], [b, q]) => q - p || compare(latin(a), latin(b)));
  return new Map(words.slice(0, number).map(([word, p]) => [textOf(latin(word)), p]));
}

// Words are known by their bytes, one character each.
const key = (bytes) => String.fromCharCode(...bytes);
const latin = (word) => Uint8Array.from(word, (character) => character.charCodeAt(0));
const isSpace = (byte) => byte === 32 || (byte >= 9 && byte <= 13);

function stripped(bytes) {
  let first = 0;
  let last = bytes.length;
  while (first < last && isSpace(bytes[first])) first += 1;
  while (last > first && isSpace(bytes[last - 1])) last -= 1;
  return bytes.subarray(first, last);
}

// Best-first search over sequences of tokens; the share of each finished word among all that spell the prefix.
function completions(model, spelling, start, prefix, number) {
  const found = new Map();
  const paths = new Heap();
  let covered = 0; // the probability of all sequences that spell the prefix
  let least = 0; // the probability of the last word among the best
  const joints = Joints.of(model, spelling.pieces);
  const never = model.never.filter((token) => spelling.pieces[token].length > 1); // bytes spell what was typed
  const total = Math.max(1, model.frequencies.reduce((sum, each) => sum + each, 0));
  paths.push({ cost: 0, state: start, last: null, spelled: new Uint8Array(0) });
  for (let step = 0; step < MOST_STEPS; step += 1) {
    if (!paths.size || Math.exp(-paths.top.cost) < Math.max(LEAST_SHARE * covered, least)) break;
    const { cost, state: before, last, spelled } = paths.pop();
    const state = last === null ? before : model.advance(before, last);
    const logP = model.next(state);
    for (const token of never) logP[token] = -Infinity;
    const rest = prefix.subarray(spelled.length);
    let tokens = spelling.continuing;
    if (rest.length || !spelled.length) {
      tokens = spelling.spelling(rest);
      for (const token of tokens) if (spelling.pieces[token].length >= rest.length) covered += Math.exp(logP[token] - cost);
    } else {
      const isJoined = joints.after(last);
      const isLikely = (token) => model.frequencies[token] && isJoined(token) && Math.exp(logP[token]) >= model.frequencies[token] / total;
      tokens = spelling.continuing.filter(isLikely); // what is rarer here than anywhere is noise
      const word = key(stripped(spelled));
      if (word) {
        const add = (ended, share) => found.set(ended, (found.get(ended) ?? 0) + share);
        let ends = 0;
        for (const token of spelling.ending) ends += Math.exp(logP[token] - cost);
        for (const token of spelling.continuing) if (!isLikely(token)) ends += Math.exp(logP[token] - cost);
        for (const [token, underscores] of spelling.tails) {
          if (!isLikely(token)) continue;
          add(word + underscores, Math.exp(logP[token] - cost));
          ends -= Math.exp(logP[token] - cost);
        }
        add(word, ends);
        if (found.size >= number) least = [...found.values()].sort((a, b) => b - a)[number - 1];
      }
    }
    for (const token of likely(tokens, logP, cost + Math.log(Math.max((LEAST_SHARE * covered) / 10, least)))) {
      paths.push({ cost: cost - logP[token], state, last: token, spelled: joined([spelled, spelling.pieces[token]]) });
    }
  }
  return new Map([...found].map(([word, share]) => [word, share / covered]));
}

// The tokens above a limit of ln p, the most likely first.
function likely(tokens, logP, limit) {
  const found = [];
  for (const token of tokens) if (logP[token] > limit) found.push(token);
  return found.sort((a, b) => logP[b] - logP[a]).slice(0, MOST_TOKENS);
}

// Paths by cost, and among equals by age.
class Heap {
  constructor() {
    this.items = [];
    this.made = 0;
  }

  get size() {
    return this.items.length;
  }

  get top() {
    return this.items[0];
  }

  push(item) {
    const { items } = this;
    let place = items.length;
    items.push({ ...item, order: this.made++ });
    while (place && isBefore(items[place], items[(place - 1) >> 1])) place = swapped(items, place, (place - 1) >> 1);
  }

  pop() {
    const { items } = this;
    const top = items[0];
    const last = items.pop();
    if (items.length) items[0] = last;
    for (let place = 0; ; ) {
      let first = place;
      for (const child of [2 * place + 1, 2 * place + 2]) if (child < items.length && isBefore(items[child], items[first])) first = child;
      if (first === place) return top;
      place = swapped(items, place, first);
    }
  }
}

const isBefore = (a, b) => a.cost < b.cost || (a.cost === b.cost && a.order < b.order);

function swapped(items, one, other) {
  [items[one], items[other]] = [items[other], items[one]];
  return other;
}
