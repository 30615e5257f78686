// Generated text: tokens drawn from the model's distribution, as in tools/generate.py, from random numbers of this page's own.

import { EOD, textOf } from "./tokenizer.js";
import { completed } from "./typist.js";

const COLDEST = 1e-5; // a temperature below which only the most likely token is left
const TOP = 40; // most likely tokens, from which one is drawn
const LINES = 3; // of generated text, if documents have several

// Numbers in [0, 1) that follow from a seed (mulberry32).
function random(seed) {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function draw(logP, never, { temperature, top_p: topP }, uniform) {
  const scores = Array.from(logP, (nats, token) => (token < EOD || never.has(token) ? -Infinity : nats / Math.max(temperature, COLDEST)));
  const top = scores.reduce((a, b) => Math.max(a, b), -Infinity);
  const order = [...scores.keys()].filter((token) => scores[token] > top - 100).sort((a, b) => scores[b] - scores[a]);
  if (temperature < COLDEST) return order[0];
  const p = order.map((token) => Math.exp(scores[token] - top));
  const all = p.reduce((a, b) => a + b, 0);
  let kept = 0;
  let total = 0;
  while (kept < Math.min(TOP, p.length) && total < topP * all) total += p[kept++];
  let point = uniform() * total;
  for (let place = 0; place < kept; place += 1) if ((point -= p[place]) < 0) return order[place];
  return order[0];
}

// What follows a text, up to the end of its line or of a few lines.
export function sampled({ model, tokenizer, about }, text, settings) {
  const whole = completed(model, tokenizer, text);
  const uniform = random(settings.seed);
  const never = new Set(model.never);
  let left = about.trained_on.lines > about.trained_on.documents ? LINES : 1;
  let state = model.start(tokenizer.encodePrompt(whole));
  const ids = [];
  while (left && ids.length < settings.max_tokens) {
    const token = draw(model.next(state), never, settings, uniform);
    if (token === EOD) left -= 1;
    if (left) ids.push(token);
    state = model.advance(state, token);
  }
  return whole.slice(text.length) + textOf(tokenizer.bytes(ids));
}
