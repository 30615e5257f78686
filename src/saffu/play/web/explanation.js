// Why a word, as in play/why.py: the exact contributions of all parts of the model, in bits, and the counts behind them.

import { wordCompletions } from "./completions.js";
import { classMembers, countsBehind } from "./evidence.js";
import { EOD, bytesOf, joined, strip, textOf } from "./tokenizer.js";
import { listed, splitAt, withoutOpenSpace } from "./typist.js";

const SPACES = /^[ \t\r\x0b\x0c]+|[ \t\r\x0b\x0c]+$/g;
const unspaced = (text) => text.replace(SPACES, "");
const sum = (values) => values.reduce((a, b) => a + b, 0);

// The tokens before the unfinished word of a text, the tokens of the chosen word, and the letters typed so far.
export function wordAfter(tokenizer, text, word, ending) {
  const [before, typed] = splitAt(text, ending);
  const space = typed.match(/^[ \t\r\x0b\x0c]*/)[0];
  const tokens = tokenizer.encode(space + word);
  if (!tokens.length || !strip(word) || word.includes("\n")) throw new Error("there is no word to explain; choose one of the suggestions");
  return { context: tokenizer.encodePrompt(before), tokens, typed };
}

export function why(model, tokenizer, text, word, ending) {
  const { context, tokens, typed } = wordAfter(tokenizer, text, word, ending);
  const parts = tokens.map((token, place) => part(model, tokenizer, [...context, ...tokens.slice(0, place)], token));
  const after = model.next(model.start([...context, ...tokens]));
  let ends = 0;
  for (let token = EOD; token < after.length; token += 1) if (!tokenizer.continues[token]) ends += Math.exp(after[token]);
  const ended = Math.log2(ends);
  let bits = sum(parts.map((each) => each.bits)) + ended;
  const rows = [...summed(parts), plainRow("the word ends", ended)];
  const share = wordCompletions(model, tokenizer, model.start(context), typed).get(word);
  if (share !== undefined) {
    const name = unspaced(typed) ? "letters typed" : typed ? "a word begins" : "other spellings";
    rows.push(plainRow(name, Math.log2(share) - bits));
    bits = Math.log2(share);
  }
  return { word, typed: unspaced(typed), p: 2 ** bits, bits, rows, parts };
}

// The same for the word that is written around a place, between a text and its rest, and its alternatives.
export function whyTyped(model, tokenizer, text, rest) {
  const whole = withoutOpenSpace(text + rest);
  const ids = tokenizer.encodePrompt(whole);
  const pieces = ids.map((id) => tokenizer.bytes([id]));
  let size = 0;
  const ends = pieces.map((piece) => (size += piece.length));
  if (!ids.length || size !== bytesOf(whole).length) throw new Error("there is no word here; click on a word that the model has read");
  const length = bytesOf(text).length;
  const place = Math.min(ends.filter((end) => end <= length).length, ids.length - 1);
  const isInside = (at) => ids[at] !== EOD && tokenizer.continues[ids[at]] && endsInWord(pieces[at - 1]);
  let first = place;
  let last = place + 1;
  while (first > 0 && isInside(first)) first -= 1;
  const isAlone = first > 0 && pieces[first - 1].length === 1 && pieces[first - 1][0] === 32;
  if (isAlone && !isSpace(pieces[first][0])) first -= 1; // a space that is a token of its own belongs to the word after it
  while (last < ids.length && isInside(last)) last += 1;
  const parts = ids.slice(first, last).map((id, at) => part(model, tokenizer, ids.slice(0, first + at), id));
  const before = textOf(joined(pieces.slice(0, first)));
  const word = textOf(joined(pieces.slice(first, last)));
  const space = word.startsWith(" ") ? " " : "";
  const shares = strip(word) ? wordCompletions(model, tokenizer, model.start(ids.slice(0, first)), space) : new Map();
  const bits = sum(parts.map((each) => each.bits));
  return {
    word: unspaced(word), typed: "", p: 2 ** bits, bits, rows: summed(parts), parts, before: before + space, start: (before + space).length, end: (before + word).length, words: listed(shares),
  };
}

const isSpace = (byte) => byte === 32 || (byte >= 9 && byte <= 13);
const endsInWord = (piece) => piece.some((byte) => byte > 127) || /[\p{L}\p{N}]$/u.test(textOf(piece));

// The rows of one token; they add up to its bits.
function part(model, tokenizer, context, token) {
  const { terms, total } = model.explain(context, token);
  const counts = countsBehind(model, tokenizer, context, token);
  const rows = terms.map(({ name, value, of_class, weight, seen }) => ({
    name,
    bits: value / Math.LN2,
    class_bits: of_class / Math.LN2,
    weight,
    seen: seen.slice(-8).map((each) => tokenizer.token(each)),
    counts: counts[name] ?? null,
  }));
  const classes = model.arrays.get("output_classes");
  return { token: tokenizer.token(token), bits: total / Math.LN2, class: classMembers(model, tokenizer, classes, classes[token]), rows, sides: null };
}

// The rows of several tokens added up by name; what a part saw is shown for the first token only.
function summed(parts) {
  return parts[0].rows.map((first, place) => {
    const same = parts.map(({ rows }) => rows[place]);
    return { ...first, bits: sum(same.map((row) => row.bits)), class_bits: sum(same.map((row) => row.class_bits)) };
  });
}

const plainRow = (name, bits) => ({ name, bits, class_bits: null, weight: null, seen: [], counts: null });
