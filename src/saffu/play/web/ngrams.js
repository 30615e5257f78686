// Counts of n-grams, as in calibrated/ngrams.py: rows in buckets by their nearest token, sorted, with their counts.

import { Region } from "./kernels.js";

const BUFFER = 16; // bytes of native/kernels.h:Buffer

export const keyWidth = (order) => (order <= 2 ? 2 : order <= 5 ? 8 : 16);

export class Ngrams {
  // keys: the digits of each row, (rows, width / 2): the target first, then the context from its oldest token on.
  constructor(order, vocabulary, offsets, keys, counts) {
    Object.assign(this, { order, vocabulary, offsets, keys, counts });
    this.digits = keyWidth(order) / 2;
  }

  static count(kernels, ids, starts, order, vocabulary, distances) {
    const scratch = new Region(kernels);
    const offsets = scratch.allocate(8 * (vocabulary + 1));
    const buffers = scratch.allocate(2 * BUFFER);
    kernels.call.saffu_count_rows(
      scratch.put(ids), scratch.put(BigInt64Array.from(starts, BigInt)), BigInt(starts.length - 1), scratch.put(new BigInt64Array([0n, BigInt(ids.length)])), 1n,
      scratch.put(Int32Array.from(distances)), order, keyWidth(order), 0n, BigInt(vocabulary), offsets, buffers, buffers + BUFFER,
    );
    const placed = placedRows(kernels, scratch, order, vocabulary, offsets, buffers);
    const counted = copied(kernels, placed);
    scratch.free();
    return counted;
  }

  // The sum with other counts or, with sign −1, the difference; null if a count would fall below zero.
  merged(kernels, other, sign) {
    const scratch = new Region(kernels);
    const [one, two] = [this, other].map((each) => each.placed(kernels, scratch));
    const room = this.counts.length + (sign > 0 ? other.counts.length : 0);
    const width = keyWidth(this.order);
    const made = { order: this.order, vocabulary: this.vocabulary, offsets: scratch.allocate(8 * (this.vocabulary + 1)), keys: scratch.allocate(width * room), counts: scratch.allocate(4 * room) };
    const rows = kernels.call.saffu_merge_rows(
      one.offsets, one.keys, one.counts, two.offsets, two.keys, two.counts, BigInt(this.vocabulary), width, sign, made.offsets, made.keys, made.counts,
    );
    const merged = rows < 0n ? null : copied(kernels, { ...made, rows: Number(rows) });
    scratch.free();
    return merged;
  }

  // These counts in the kernels' memory, while a region lasts.
  placed(kernels, region) {
    const { order, vocabulary } = this;
    return { order, vocabulary, rows: this.counts.length, offsets: region.put(this.offsets), keys: region.put(this.keys), counts: region.put(this.counts) };
  }

  // How often each token is a target.
  frequencies() {
    const total = new Float64Array(this.vocabulary);
    this.counts.forEach((count, row) => (total[this.keys[row * this.digits]] += count));
    return total;
  }
}

// Of placed counts: only the context tokens at these places (1: nearest), as their class if given, except for the first `exact`.
export function marginal(kernels, region, rows, columns, classes, exact) {
  const scratch = new Region(kernels);
  const order = columns.length + 1;
  const offsets = region.allocate(8 * (rows.vocabulary + 1));
  const buffers = scratch.allocate(2 * BUFFER);
  kernels.call.saffu_regroup_rows(
    rows.offsets, rows.keys, rows.counts, 0n, BigInt(rows.vocabulary), rows.order, keyWidth(rows.order), scratch.put(Int32Array.from(columns)), order,
    keyWidth(order), classes, exact, 0n, BigInt(rows.vocabulary), offsets, buffers, buffers + BUFFER,
  );
  const made = placedRows(kernels, region, order, rows.vocabulary, offsets, buffers);
  scratch.free();
  return made;
}

function placedRows(kernels, region, order, vocabulary, offsets, buffers) {
  const [keys, , , , counts, , bytes] = kernels.copy(Uint32Array, buffers, 8);
  region.keep(keys);
  region.keep(counts);
  return { order, vocabulary, rows: bytes / 4, offsets, keys, counts };
}

function copied(kernels, { order, vocabulary, rows, offsets, keys, counts }) {
  const digits = keyWidth(order) / 2;
  return new Ngrams(order, vocabulary, kernels.copy(BigInt64Array, offsets, vocabulary + 1), kernels.copy(Uint16Array, keys, digits * rows), kernels.copy(Uint32Array, counts, rows));
}
