// The calibrated model, as in calibrated/model.py: solved from its counts by the library's kernels.

import { Region } from "./kernels.js";
import { Ngrams, marginal } from "./ngrams.js";
import { solveTable } from "./tables.js";
import { explained } from "./terms.js";
import { EOD, bytesOf } from "./tokenizer.js";

const PAD = 0;
const FEW_STARTS = 64; // different tokens near the starts of documents, as in calibrated/views.py
const TYPES = new Map([[Float64Array, "f8"], [Float32Array, "f4"], [BigInt64Array, "i8"], [Int32Array, "i4"], [Uint32Array, "u4"], [Uint16Array, "u2"]]);

// The counts that all tables follow from: those of the memory, and of pairs of tokens farther apart, by distance.
export class Sums {
  constructor(memory, pairs) {
    this.memory = memory;
    this.pairs = pairs;
  }

  static count(kernels, about, ids, starts) {
    const { order, slots } = about.settings;
    const near = Array.from({ length: order - 1 }, (_, place) => place + 1);
    const pairs = new Map();
    for (let distance = order; distance <= slots; distance += 1) pairs.set(distance, Ngrams.count(kernels, ids, starts, 2, about.vocabulary, [distance]));
    return new Sums(Ngrams.count(kernels, ids, starts, order, about.vocabulary, near), pairs);
  }

  // The sum, or with sign −1 the difference; null if a count would fall below zero.
  merged(kernels, other, sign) {
    const memory = this.memory.merged(kernels, other.memory, sign);
    const pairs = [...this.pairs].map(([distance, counts]) => [distance, counts.merged(kernels, other.pairs.get(distance), sign)]);
    return memory && pairs.every(([, counts]) => counts) ? new Sums(memory, new Map(pairs)) : null;
  }
}

export class Model {
  // about: the description of the model in its file; arrays: those that do not follow from counts.
  constructor(kernels, about, arrays, sums) {
    Object.assign(this, { kernels, about, arrays, sums, views: about.views, vocabulary: about.vocabulary, cache: about.settings.cache });
    this.region = new Region(kernels);
    this.ranks = arrays.get("rank");
    this.tokens = arrays.get("token_of_rank");
    this.classes = arrays.get("class_of_rank");
    this.first = arrays.get("class_first");
    this.frequencies = sums.memory.frequencies();
    this.never = Array.from(this.frequencies.keys()).filter((token) => this.frequencies[token] === 0);
    this.lookback = Math.max(...this.views.flatMap((view) => view.distances));
    this.address = kernels.call.saffu_model();
    for (const name of about.given) this.give(name, arrays.get(name));
    this.give("frequencies", BigInt64Array.from(this.frequencies, BigInt));
    this.solve();
    const problem = kernels.call.saffu_ready(this.address);
    if (problem) throw new Error(`the model of this page is damaged (${kernels.text(problem)}); export it again`);
    kernels.call.saffu_fill(this.address, this.region.allocate(Number(kernels.call.saffu_room(this.address))));
    this.reader = kernels.call.saffu_reader(this.address, 0);
    this.learned = this.region.allocate(4 * (about.learned + 2)); // and the certainty, which nothing here needs
    this.tail = this.region.allocate(2 * about.longest);
    this.row = this.region.allocate(4 * Math.max(this.vocabulary, 2));
  }

  free() {
    this.kernels.call.saffu_free_reader(this.reader);
    this.kernels.call.saffu_free_model(this.address);
    this.region.free();
  }

  // Give the kernels an array, by the name that the library stores it by.
  give(name, array) {
    this.giveAt(name, TYPES.get(array.constructor), this.region.put(array), array.length);
  }

  giveAt(name, type, address, length) {
    const [named, typed] = [name, type].map((text) => this.kernels.put(bytesOf(`${text}\0`)));
    this.kernels.call.saffu_put(this.address, named, typed, address, BigInt(length));
    this.kernels.free(named);
    this.kernels.free(typed);
  }

  solve() {
    const { kernels, region, about, sums, views } = this;
    const scratch = new Region(kernels);
    const prior = Float32Array.from(priorOf(this.frequencies, this.tokens));
    const memory = sums.memory.placed(kernels, scratch);
    const ranks = scratch.put(this.ranks);
    views.forEach((view, number) => {
      const own = new Region(kernels);
      const table = solveTable(kernels, region, this.rowsFor(view, memory, own), ranks, about.settings.prune, view.is_slot ? prior : null);
      own.free();
      this.give(`table ${number}.unigram`, table.unigram);
      if (this.isWhole(view)) [this.pairs] = table.levels;
      table.levels.forEach(({ arrays }, place) => {
        for (const [name, { type, address, length }] of Object.entries(arrays)) this.giveAt(`table ${number}.${place + 1}.${name}`, type, address, length);
      });
    });
    scratch.free();
  }

  // Whether a view sees all that is counted together, exactly.
  isWhole(view) {
    return !view.is_slot && !view.classes && view.distances.length === this.sums.memory.order - 1;
  }

  // The tokens that follow one in the text.
  followers(token) {
    const { begin: bounds, follow } = this.pairs.arrays;
    const [begin, end] = this.kernels.copy(Uint32Array, bounds.address + 4 * token, 2);
    return Array.from(this.kernels.copy(Uint16Array, follow.address + 2 * begin, end - begin), (rank) => this.tokens[rank]);
  }

  // What a view saw. With few documents, slots do not see what stands near the start of one.
  rowsFor(view, memory, region) {
    const { kernels, sums } = this;
    const [distance] = view.distances;
    if (!view.is_slot) {
      const classes = view.classes ? region.put(this.arrays.get(`context_classes.${view.classes}`)) : 0;
      return this.isWhole(view) ? memory : marginal(kernels, region, memory, view.distances, classes, view.exact);
    }
    const pairs = distance < sums.memory.order ? marginal(kernels, region, memory, view.distances, 0, 0) : sums.pairs.get(distance).placed(kernels, region);
    const offsets = kernels.copy(BigInt64Array, pairs.offsets, pairs.vocabulary + 1);
    const starts = Number(offsets[PAD + 1]);
    if (!starts || starts > FEW_STARTS) return pairs;
    const rest = offsets.map((offset) => (offset > starts ? offset - BigInt(starts) : 0n));
    return { ...pairs, rows: pairs.rows - starts, offsets: region.put(rest), keys: pairs.keys + 2 * starts, counts: pairs.counts + 4 * starts };
  }

  // The state of a document: how many tokens it has, the last of them, and what was learned from it.

  start(ids = []) {
    return this.read({ age: 0, tail: new Uint16Array(0), learned: this.cache ? this.arrays.get("learned") : new Float32Array(0) }, ids);
  }

  advance(state, token) {
    return this.read(state, [token]);
  }

  read({ age, tail, learned }, ids) {
    const longer = Uint16Array.from([...tail, ...ids]);
    const total = age + ids.length;
    let after = learned;
    if (this.cache && ids.length) {
      this.place(longer, learned);
      this.kernels.call.saffu_read(this.reader, this.tail, BigInt(longer.length), BigInt(total), BigInt(tail.length), this.learned);
      after = this.kernels.copy(Float32Array, this.learned, learned.length);
    }
    const kept = Math.max(this.cache ? total - this.firstRemembered(total) : 0, this.lookback);
    return { age: total, tail: longer.slice(-kept), learned: after };
  }

  firstRemembered(age) {
    const half = Math.max(1, Math.floor(this.cache / 2));
    return age > this.cache ? Math.ceil((age - this.cache) / half) * half : 0;
  }

  place(tail, learned) {
    if (tail.length > this.about.longest) throw new Error("this text is too long for the page; shorten it");
    this.kernels.view(Uint16Array, this.tail, tail.length).set(tail);
    this.kernels.view(Float32Array, this.learned, learned.length).set(learned);
  }

  // ln p of every token after a state; −inf for what is never predicted.
  next({ age, tail, learned }) {
    this.place(tail, learned);
    const certain = this.learned + 4 * learned.length;
    this.kernels.call.saffu_distribution(this.reader, this.tail, BigInt(tail.length), BigInt(age), this.learned, this.row, certain);
    return this.kernels.copy(Float32Array, this.row, this.vocabulary);
  }

  // ln p of each token of a document.
  score(ids) {
    const { kernels } = this;
    const scratch = new Region(kernels);
    const text = [scratch.put(Uint16Array.from(ids)), scratch.put(new BigInt64Array([0n, BigInt(ids.length)])), 1n, 0n, BigInt(ids.length)];
    const out = scratch.allocate(8 * ids.length);
    if (this.cache) {
      const widths = ids.map((id) => this.classes[this.ranks[id]]).map((k) => this.about.classes + this.first[k + 1] - this.first[k]);
      const shares = scratch.allocate(4 * widths.reduce((sum, width) => sum + width, 0));
      const reader = kernels.call.saffu_reader(this.address, 0);
      kernels.call.saffu_plain_shares(this.address, ...text, shares);
      kernels.call.saffu_read_targets(reader, ...text, shares, out, 0);
      kernels.call.saffu_free_reader(reader);
    } else kernels.call.saffu_score(this.address, ...text, out, 0);
    const scores = kernels.copy(Float64Array, out, ids.length);
    scratch.free();
    return scores;
  }

  // How many of a view's nearest tokens, together, were seen in a context.
  matched(number, context) {
    const tail = Uint16Array.from(context.slice(-this.lookback));
    this.place(tail, new Float32Array(0));
    return this.kernels.call.saffu_match(this.address, number, this.tail, BigInt(tail.length), BigInt(context.length), this.row);
  }

  // What each part adds to ln p of a token after a context, {name, value, of_class, weight, seen}; the values add up to `total`.
  explain(context, token) {
    const { about, kernels, views } = this;
    const parts = 1 + views.length + (this.cache ? 1 + about.memory_parts.length : 0);
    const width = about.classes + this.vocabulary - EOD;
    const scratch = new Region(kernels);
    const out = scratch.allocate(4 * parts * width);
    const weights = scratch.allocate(8 * parts);
    const { age, tail, learned } = this.start(context);
    this.place(tail, learned);
    kernels.call.saffu_explain(this.reader, this.tail, BigInt(tail.length), BigInt(age), this.learned, out, weights);
    const features = kernels.copy(Float32Array, out, parts * width);
    const exponents = kernels.copy(Float32Array, weights, 2 * parts);
    scratch.free();
    return explained(this, context, token, (part) => features.subarray(part * width, (part + 1) * width), exponents);
  }

  // The tokens at a view's distances, nearest first; <eod> before the document, <pad> before that.
  tokensSeen(view, context) {
    return view.distances.map((distance) => (distance <= context.length ? context.at(-distance) : distance === context.length + 1 ? EOD : PAD));
  }
}

// Relative frequencies by rank, with half a count for what never occurred.
function priorOf(frequencies, tokens) {
  const predicted = tokens.length - EOD;
  let total = 0;
  for (let rank = 0; rank < predicted; rank += 1) total += frequencies[tokens[rank]] + 0.5;
  return Float64Array.from(tokens, (token, rank) => (rank < predicted ? frequencies[token] + 0.5 : 1e-30) / total);
}
