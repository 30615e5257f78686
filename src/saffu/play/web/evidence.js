// The counts behind each part of a prediction, as in play/evidence.py: how often a token followed what that part saw.

import { EOD, isInsideWord } from "./tokenizer.js";

const PAD = 0;
const MEMBERS = 3; // tokens shown for a class

const counted = (seen, count, total, more = {}) => ({ seen, count, total, here: false, gap: 0, partial: false, shorter: null, ...more });

// By name; parts that do not follow from counts are left out.
export function countsBehind(model, tokenizer, context, token) {
  const { sums, about } = model;
  const found = { prior: counted([], model.frequencies[token], model.frequencies.reduce((sum, each) => sum + each, 0)) };
  model.views.forEach((view, number) => {
    const seen = model.tokensSeen(view, context).slice(0, model.matched(number, context));
    if (view.is_slot && seen[0] === PAD) return;
    const [distance] = view.distances;
    const often = distance >= sums.memory.order ? [pair(sums.pairs.get(distance), seen[0], token)] : followed(model, view, seen, token);
    const shown = seen.map((each, place) => shownAs(model, tokenizer, view, place, each));
    const behind = often.map(([count, total], place) => {
      const length = Math.min(place + 1, seen.length);
      const first = context.length - view.distances.at(length - 1);
      return counted(shown.slice(0, length).reverse(), count, total, { gap: distance - 1, partial: isInsideWord(tokenizer, context, first) });
    });
    found[view.name] = behind.at(-1);
    if (!behind.at(-1).count) behind.at(-1).shorter = behind.findLast(({ count }) => count) ?? null;
  });
  return model.cache ? { ...found, ...remembered(model, about, tokenizer, context.slice(model.firstRemembered(context.length)), token) } : found;
}

// The most frequent tokens of a class, without those that are not counted any longer.
export function classMembers(model, tokenizer, classes, number) {
  const members = [];
  for (let token = EOD; token < classes.length; token += 1) if (classes[token] === number && model.frequencies[token]) members.push(token);
  members.sort((a, b) => model.frequencies[b] - model.frequencies[a]);
  return members.slice(0, MEMBERS).map((token) => tokenizer.token(token));
}

function pair({ offsets, keys, counts }, seen, token) {
  let count = 0;
  let total = 0;
  for (let row = Number(offsets[seen]); row < Number(offsets[seen + 1]); row += 1) {
    total += counts[row];
    if (keys[row] === token) count += counts[row];
  }
  return [count, total];
}

// Of the rows whose context a view cannot distinguish from the last token it saw, the last two, …, or of all if none: those that
// end with a token, and all.
function followed(model, view, seen, token) {
  const { order, offsets, keys, counts, digits, vocabulary } = model.sums.memory;
  const classes = view.classes ? model.arrays.get(`context_classes.${view.classes}`) : null;
  const distances = view.distances.slice(0, seen.length);
  const isSame = (place, other) => (classes && place >= view.exact ? classes[other] === classes[seen[place]] : other === seen[place]);
  const often = distances.length ? distances.map(() => [0, 0]) : [[0, 0]];
  for (let nearest = 0; nearest < vocabulary; nearest += 1) {
    if (distances[0] === 1 && !isSame(0, nearest)) continue;
    const end = Number(offsets[nearest + 1]);
    for (let row = Number(offsets[nearest]); row < end; row += 1) {
      let place = distances[0] === 1 ? 1 : 0;
      while (place < distances.length && isSame(place, keys[row * digits + order - distances[place]])) place += 1;
      for (const each of distances.length ? often.slice(0, place) : often) {
        if (keys[row * digits] === token) each[0] += counts[row];
        each[1] += counts[row];
      }
    }
  }
  return often;
}

function shownAs(model, tokenizer, view, place, token) {
  if (!view.classes || place < view.exact || token < EOD) return [tokenizer.token(token)];
  const classes = model.arrays.get(`context_classes.${view.classes}`);
  return [...new Set([tokenizer.token(token), ...classMembers(model, tokenizer, classes, classes[token])])];
}

// What the memory holds: the text so far.
function remembered(model, { memory_parts: names, half_lives: decayed, contexts }, tokenizer, past, token) {
  const found = {};
  const often = past.filter((each) => each === token).length;
  for (const name of names.slice(0, decayed)) found[name] = counted([], often, past.length, { here: true });
  for (const context of contexts) {
    const { distances } = context;
    const reach = distances.at(-1) <= past.length ? [...distances].reverse() : [];
    const places = placesAfter(model, context, past);
    found[context.name] = counted(reach.map((distance) => [tokenizer.token(past.at(-distance))]), places.filter((place) => past[place] === token).length, places.length, { here: true });
  }
  return found;
}

// The places of the past that followed the same context as the next token will.
function placesAfter(model, { distances, classes, exact }, past) {
  const known = classes ? model.arrays.get(`context_classes.${classes}`) : null;
  const as = (token, number) => (known && number >= exact ? known[token] : token);
  const places = [];
  for (let place = distances.at(-1); place < past.length; place += 1) {
    if (distances.every((distance, number) => as(past[place - distance], number) === as(past.at(-distance), number))) places.push(place);
  }
  return places;
}
