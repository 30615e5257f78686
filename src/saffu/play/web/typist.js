// What the page needs at every keystroke, as in play/typist.py: likely words, and the surprisal of the text so far.

import { unfinished, wordCompletions } from "./completions.js";
import { EOD, bytesOf, strip } from "./tokenizer.js";

const SUGGESTIONS = 10;
const FEW = 32; // new tokens up to which following them one by one is cheaper than scoring the text again
const KNOWN_STATES = 16;

export class Typist {
  constructor(model, tokenizer) {
    Object.assign(this, { model, tokenizer, states: new Map(), ids: [], bits: [] });
  }

  suggest(text, rest, ending) {
    const [before, typed] = splitAt(text, ending);
    const ids = this.tokenizer.encodePrompt(withoutOpenSpace(text + rest));
    const state = this.stateAfter(this.prefix(ids, before));
    const words = wordCompletions(this.model, this.tokenizer, state, typed, SUGGESTIONS);
    const bits = this.surprisals(ids);
    return { typed: strip(typed), words: listed(words), spans: spans(this.tokenizer, ids, bits), bits: bits.reduce((sum, each) => sum + each, 0) };
  }

  // The state after some tokens, advanced from a known state if possible.
  stateAfter(ids) {
    const key = ids.join();
    let known = null;
    for (const each of this.states.values()) {
      if (each.ids.length >= ids.length - FEW && each.ids.length > (known?.ids.length ?? 0) && each.ids.every((id, place) => id === ids[place])) known = each;
    }
    let state = known?.state;
    if (known || ids.length <= FEW) {
      state ??= this.model.start();
      for (const id of ids.slice(known?.ids.length ?? 0)) state = this.model.advance(state, id);
    } else state = this.model.start(ids);
    this.states.delete(key);
    this.states.set(key, { ids, state });
    while (this.states.size > KNOWN_STATES) this.states.delete(this.states.keys().next().value);
    return state;
  }

  // The tokens of the beginning of a text whose tokens are known.
  prefix(ids, before) {
    const length = bytesOf(before).length;
    let size = 0;
    for (const [place, id] of ids.entries()) {
      if (size === length) return ids.slice(0, place);
      size += id === EOD ? 1 : this.tokenizer.pieces[id].length;
    }
    return size === length ? ids : this.tokenizer.encodePrompt(before);
  }

  // −log2 p of each token; only tokens that have changed are scored.
  surprisals(ids) {
    const same = ids.findIndex((id, place) => id !== this.ids[place]);
    const kept = same < 0 ? ids.length : same;
    let bits = this.bits.slice(0, kept);
    if (ids.length - kept <= FEW) {
      let state = kept < ids.length ? this.stateAfter(ids.slice(0, kept)) : null;
      for (const id of ids.slice(kept)) {
        bits.push(-this.model.next(state)[id] / Math.LN2);
        state = this.model.advance(state, id);
      }
    } else bits = Array.from(this.model.score(ids), (nats) => -nats / Math.LN2);
    this.ids = ids;
    this.bits = bits;
    return bits;
  }
}

// A text without its unfinished word, and that word: its `ending`, or else what follows the last space.
export const splitAt = (text, ending) => (ending ? [text.slice(0, text.length - ending.length), ending] : unfinished(text));

// A text without the space at its end, which belongs to the next word.
export function withoutOpenSpace(text) {
  const [before, typed] = unfinished(text);
  return strip(typed) ? text : before;
}

// A text whose last word is finished: as it is, or as the most likely word that begins with it.
export function completed(model, tokenizer, text) {
  const [before, typed] = unfinished(text);
  if (!strip(typed)) return text;
  const [word] = wordCompletions(model, tokenizer, model.start(tokenizer.encodePrompt(before)), typed, 1).keys();
  return before + typed.slice(0, typed.length - typed.trimStart().length) + (word ?? strip(typed));
}

// Words with their probabilities; those that hold parts of characters are left out.
export const listed = (words) => [...words].filter(([word]) => !word.includes("\ufffd")).map(([word, p]) => ({ word, p }));

// The text of some tokens and their surprisal; tokens that share a character stand together.
function spans(tokenizer, ids, bits) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const found = [];
  let waiting = [];
  ids.forEach((id, place) => {
    const text = decoder.decode(tokenizer.bytes([id]), { stream: true });
    waiting.push(bits[place]);
    if (!text) return;
    const sum = waiting.reduce((a, b) => a + b, 0);
    found.push({ text, bits: Math.round(1000 * sum) / 1000, tokens: waiting.length });
    waiting = [];
  });
  return found;
}
