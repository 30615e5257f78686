// Tables: Kneser–Ney models solved from rows, as in calibrated/kneser_ney.py.

import { Region } from "./kernels.js";
import { keyWidth } from "./ngrams.js";

const FALLBACK = [0.5, 1.0, 1.5];
const LEVEL_ARRAYS = ["token", "child", "begin", "backoff", "follow", "mass"]; // in the order of saffu_build_levels
const MARKERS = 3; // <pad>, <sod>, and <frg> are never predicted

// The discounts of counts of 1, 2, and 3 or more, from the numbers of n-grams with count 1, 2, 3, and 4.
function discounts([n1, n2, n3, n4]) {
  if (!n1 || !n2 || !n3) return FALLBACK;
  const y = n1 / (n1 + 2 * n2);
  const found = [1 - (2 * y * n2) / n1, 2 - (3 * y * n3) / n2, 3 - (4 * y * n4) / n3];
  return found.every((discount, place) => discount > 0 && discount <= place + 1) ? found : FALLBACK;
}

// A table of placed rows: where the arrays of its levels are, and its unigrams by rank, which are those given if any are.
export function solveTable(kernels, region, rows, ranks, prune, given) {
  const { vocabulary, order } = rows;
  const depth = order - 1;
  const scratch = new Region(kernels);
  const limits = scratch.put(Uint32Array.from({ length: 10 }, (_, level) => (level < 2 ? 0 : prune)));
  const statistics = scratch.put(new BigInt64Array(5 * order));
  const sizes = scratch.put(new BigInt64Array(2 * order));
  const build = (discount, gathered, places, arrays) =>
    kernels.call.saffu_build_levels(rows.offsets, rows.keys, rows.counts, BigInt(vocabulary), order, keyWidth(order), ranks, BigInt(vocabulary), limits, discount, gathered, places, arrays);
  build(0, statistics, sizes, 0);
  const counted = Array.from(kernels.view(BigInt64Array, statistics, 5 * order), Number);
  const size = Array.from(kernels.view(BigInt64Array, sizes, 2 * order), Number);
  const discount = new Float64Array(4 * order);
  for (let level = 1; level <= depth; level += 1) discount.set(discounts(counted.slice(5 * level, 5 * level + 4)), 4 * level + 1);
  const levels = [];
  for (let level = 1; level <= depth; level += 1) {
    const [contexts, followers] = size.slice(2 * level, 2 * level + 2);
    const place = (type, length) => ({ type, length, address: region.allocate(Number(type[1]) * length) });
    const arrays = { begin: place("u4", contexts + 1), backoff: place("f4", contexts), follow: place("u2", followers), mass: place("f4", followers) };
    if (level > 1) arrays.token = place("u2", contexts);
    if (level < depth) arrays.child = place("u4", contexts + 1);
    levels.push({ arrays, contexts, followers });
  }
  const addresses = levels.flatMap(({ arrays }) => LEVEL_ARRAYS.map((name) => arrays[name]?.address ?? 0));
  build(scratch.put(discount), 0, scratch.put(new BigInt64Array(2 * order)), scratch.put(Uint32Array.from(addresses)));
  levels.forEach(({ arrays: { begin, child }, contexts, followers }, place) => {
    kernels.view(Uint32Array, begin.address, begin.length)[contexts] = followers;
    if (child) kernels.view(Uint32Array, child.address, child.length)[contexts] = levels[place + 1].contexts;
  });
  const unigram = given ?? unigrams(kernels.view(Uint16Array, levels[0].arrays.follow.address, levels[0].followers), vocabulary);
  scratch.free();
  return { levels, unigram };
}

// Unigrams by rank, from the number of distinct tokens before each token.
function unigrams(followers, vocabulary) {
  const adjusted = new Float64Array(vocabulary);
  for (const rank of followers) adjusted[rank] += 1;
  const often = [0, 0, 0, 0];
  for (const count of adjusted) if (count >= 1 && count <= 4) often[count - 1] += 1;
  const discount = [0, ...discounts(often)];
  const predicted = vocabulary - MARKERS;
  let total = 0;
  let taken = 0;
  for (const count of adjusted) {
    total += count;
    taken += discount[Math.min(count, 3)];
  }
  return Float32Array.from(adjusted, (count, rank) => (rank < predicted ? (count - discount[Math.min(count, 3)]) / total + taken / total / predicted : 0));
}
