"""Sorted rows of n-grams, range by range: what counting, regrouping, and merging work on.

A row is a context, nearest token first, and the token that followed it: c1 c2 … t. Rows lie in buckets by c1; within
its bucket a row is one integer, its key. All functions take and give the rows of a range of buckets, so that the
work can be divided among threads, machines, and parts that fit into memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saffu.calibrated.kernels import TOKEN, Array, Buffer, library, pointer
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, PAD

CHUNK = 1 << 20  # rows converted at a time


@dataclass(frozen=True, eq=False)
class Rows:
    """Distinct rows of a range of buckets, sorted, and their counts."""

    order: int
    first: int  # bucket
    offsets: Array  # (buckets + 1,) int64, from 0: where each bucket begins
    keys: Array  # (rows,) unsigned integers; of two words of 64 bits, as (rows, 2), beyond order 5
    counts: Array  # (rows,) uint32, all positive

    @property
    def last(self) -> int:
        """The bucket after the last."""
        return self.first + len(self.offsets) - 1

    @property
    def distinct(self) -> int:
        return len(self.counts)

    def slice(self, lo: int, hi: int) -> Rows:
        """The rows of some of these buckets, sharing storage."""
        offsets = self.offsets[lo - self.first : hi - self.first + 1]
        some = slice(int(offsets[0]), int(offsets[-1]))
        return Rows(self.order, lo, offsets - offsets[0], self.keys[some], self.counts[some])

    def frequencies(self, vocabulary: int) -> Array:
        """How often each token is a target: (vocabulary,) int64."""
        lowest = self.keys if self.keys.ndim == 1 else self.keys[:, 0]
        total = np.zeros(vocabulary, dtype=np.int64)
        for begin in range(0, len(lowest), CHUNK):
            some = slice(begin, begin + CHUNK)
            targets = lowest[some].astype(np.int64) & 0xFFFF
            total += np.bincount(targets, self.counts[some], vocabulary).astype(np.int64)
        return total


def count_rows(
    corpus: TokenCorpus,
    order: int,
    vocabulary: int,
    buckets: tuple[int, int],
    distances: Sequence[int] | None = None,
    ranges: Array | None = None,
) -> Rows:
    """Count the targets of a corpus, or those within some `ranges` (n, 2) of positions, whose c1 lies in the buckets.

    A context is the `order − 1` tokens before its target, or those at other `distances`, nearest first. Ids must have
    been checked (`checked_ids`).
    """
    ids = np.ascontiguousarray(corpus.ids, TOKEN)
    starts = np.ascontiguousarray(corpus.starts, np.int64)
    chosen = np.array(range(1, order) if distances is None else distances, dtype=np.int32)
    ranges = np.array([[0, corpus.targets]]) if ranges is None else ranges
    ranges = np.ascontiguousarray(ranges, dtype=np.int64).reshape(-1, 2)
    if len(chosen) != order - 1 or (chosen < 1).any():
        raise ValueError(f"order {order} needs {order - 1} positive distances, not {chosen.tolist()}")
    if len(ranges) and not (ranges.min() >= 0 and ranges.max() <= corpus.targets):
        raise ValueError(f"ranges reach beyond the {corpus.targets} targets of the corpus")
    (lo, hi), keys, counts = checked_buckets(buckets, vocabulary), Buffer(), Buffer()
    offsets = np.empty(hi - lo + 1, dtype=np.int64)
    library.saffu_count_rows(
        pointer(ids, TOKEN), pointer(starts, np.int64), corpus.documents, pointer(ranges, np.int64), len(ranges),
        pointer(chosen, np.int32), order, key_width(order), lo, hi, pointer(offsets, np.int64), keys, counts,
    )  # fmt: skip
    return Rows(order, lo, offsets, keys.array(*key_type(order)), counts.array(np.uint32))


def bucket_sizes(corpus: TokenCorpus, vocabulary: int, order: int, distance: int = 1) -> Array:
    """The maximum number of rows in each bucket, (buckets,), if c1 is at this distance."""
    if order == 1:
        return np.array([corpus.targets])
    sizes = corpus.frequencies(vocabulary)
    sizes[EOD] += corpus.documents  # before its start, a document has EOD, and PAD before that
    sizes[PAD] += (distance - 1) * corpus.documents
    return sizes


def regroup_rows(
    rows: Rows, columns: Sequence[int], buckets: tuple[int, int], classes: Array | None = None, exact: int = 0
) -> Rows:
    """The rows of a coarser view: only the context tokens at these places (1: nearest), as their class if given.

    The first `exact` columns keep their tokens. Only what falls into the given buckets; the results of several ranges
    of source buckets add up (`merge_rows`).
    """
    order = len(columns) + 1
    chosen = np.array(columns, dtype=np.int32)
    if not columns or any(not 1 <= column < rows.order for column in columns):
        raise ValueError(f"columns {list(columns)} of rows of order {rows.order}")
    classes = None if classes is None else np.ascontiguousarray(classes, dtype=TOKEN)
    (lo, hi), keys, counts = buckets, Buffer(), Buffer()
    offsets = np.empty(hi - lo + 1, dtype=np.int64)
    library.saffu_regroup_rows(
        pointer(rows.offsets, np.int64), pointer(rows.keys, rows.keys.dtype), pointer(rows.counts, np.uint32),
        rows.first, rows.last - rows.first, rows.order, key_width(rows.order), pointer(chosen, np.int32), order,
        key_width(order), pointer(classes, TOKEN), exact, lo, hi, pointer(offsets, np.int64), keys, counts,
    )  # fmt: skip
    return Rows(order, lo, offsets, keys.array(*key_type(order)), counts.array(np.uint32))


def regrouped_sizes(rows: Rows, column: int, vocabulary: int, classes: Array | None = None) -> Array:
    """The number of rows in each bucket, (vocabulary,), before equal ones are added up, if this column becomes c1."""
    sizes = np.zeros(vocabulary, dtype=np.int64)
    if column == 1:
        sizes[rows.first : rows.last] = np.diff(rows.offsets)
    else:
        place = rows.order - column  # of its 16 bits, from the lowest
        words = rows.keys if rows.keys.ndim == 1 else rows.keys[:, place // 4]
        for begin in range(0, len(words), CHUNK):
            tokens = (words[begin : begin + CHUNK] >> np.uint64(16 * (place % 4))).astype(np.int64) & 0xFFFF
            sizes += np.bincount(tokens, minlength=vocabulary)
    return sizes if classes is None else np.bincount(classes, sizes, vocabulary).astype(np.int64)


def merge_rows(runs: Sequence[Rows]) -> Rows:
    """The sum of rows of the same range, two by two."""
    runs = list(runs)
    while len(runs) > 1:
        pairs = zip(runs[::2], runs[1::2], strict=False)
        runs = [*(merged(one, other) for one, other in pairs), *runs[len(runs) // 2 * 2 :]]
    return runs[0]


def merged(rows: Rows, other: Rows, sign: int = 1) -> Rows:
    """The sum of two sets of rows of the same range; with sign −1, their difference, which must not be negative."""
    if (rows.order, rows.first, rows.last) != (other.order, other.first, other.last):
        raise ValueError("rows of different order or buckets")
    room = rows.distinct + (other.distinct if sign > 0 else 0)
    dtype, shape = key_type(rows.order)
    keys = np.empty((room, *shape[1:]), dtype=dtype)
    counts = np.empty(room, dtype=np.uint32)
    offsets = np.empty_like(rows.offsets)
    number = library.saffu_merge_rows(
        pointer(rows.offsets, np.int64), pointer(rows.keys, dtype), pointer(rows.counts, np.uint32),
        pointer(other.offsets, np.int64), pointer(other.keys, dtype), pointer(other.counts, np.uint32),
        rows.last - rows.first, key_width(rows.order), sign, pointer(offsets, np.int64), pointer(keys, dtype),
        pointer(counts, np.uint32),
    )  # fmt: skip
    if number < 0:
        raise SaffuError("cannot forget what was never counted: a count would fall below zero; nothing was changed")
    return Rows(rows.order, rows.first, offsets, keys[:number].copy(), counts[:number].copy())


def even_cuts(weights: Array, parts: int) -> list[int]:
    """Bounds of at most `parts` contiguous ranges of about equal weight.

    >>> even_cuts(np.array([1, 1, 1, 1]), 2)
    [0, 2, 4]
    """
    ends = np.cumsum(weights, dtype=np.float64)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts, side="left") + 1
    return sorted({0, *(int(cut) for cut in cuts if cut < len(weights)), len(weights)})


def key_width(order: int) -> int:
    """Bytes of a row's key: all of its tokens but the nearest."""
    return 2 if order <= 2 else 8 if order <= 5 else 16


def key_type(order: int) -> tuple[Any, tuple[int, ...]]:
    """Type and shape of an array of keys."""
    return {2: (np.uint16, (-1,)), 8: (np.uint64, (-1,)), 16: (np.uint64, (-1, 2))}[key_width(order)]


def tokens_of(keys: Array) -> Array:
    """The digits of keys, (rows, tokens) uint16: the target first, and zeros after the oldest token.

    >>> tokens_of(np.array([5 << 16 | 7], dtype=np.uint64)).tolist()
    [[7, 5, 0, 0]]
    """
    words = keys if keys.ndim == 2 else keys[:, None]  # the lowest first
    return np.ascontiguousarray(words, dtype=words.dtype.newbyteorder("<")).view("<u2")


def checked_buckets(buckets: tuple[int, int], vocabulary: int) -> tuple[int, int]:
    if not 0 <= buckets[0] <= buckets[1] <= vocabulary:
        raise ValueError(f"buckets {buckets} of a vocabulary of {vocabulary}")
    return buckets


def checked_ids(corpus: TokenCorpus, vocabulary: int) -> Array:
    """Token ids of a corpus as kernels take them; raises SaffuError if one is a marker or beyond the vocabulary."""
    starts = corpus.starts
    if int(starts[0]) != 0 or int(starts[-1]) != len(corpus.ids) or not bool((starts[1:] >= starts[:-1]).all()):
        raise ValueError("a corpus must start at 0 and end with its last token")
    if len(corpus.ids) and not (int(corpus.ids.min()) >= EOD and int(corpus.ids.max()) < vocabulary):
        raise SaffuError(
            f"the corpus holds ids outside {EOD} to {vocabulary - 1}; tokenize it with this model's tokenizer"
        )
    return np.ascontiguousarray(corpus.ids, dtype=TOKEN)
