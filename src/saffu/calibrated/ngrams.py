"""N-gram counts: exact, additive, compact.

Every token of a corpus gives one row: its context, nearest token first, then the token itself. A context ends at the
start of its document, marked EOD as the end of a line before it would be; PAD fills the rest. A document `a b <eod>` at
order 3 gives

    EOD PAD a,   a EOD b,   b a <eod>.

The counts of these rows hold the counts of every shorter n-gram too (drop the oldest tokens), so they are all that is
stored. Rows are sorted, in buckets by their nearest token, c1; within its bucket a row is one integer, its key. What
counts, regroups, and merges rows works on a range of buckets, so that the work can be divided among threads, machines,
and parts that fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from saffu.calibrated import storage
from saffu.calibrated.kernels import TOKEN, TOO_OFTEN, Array, Buffer, library, pointer
from saffu.calibrated.storage import CHUNK
from saffu.errors import SaffuError
from saffu.files import require
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, PAD
from saffu.workers import in_parallel

MAX_VOCABULARY = np.iinfo(TOKEN).max + 1
MAX_ORDER = 9
COUNT = 4  # bytes of a count


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

    def target_counts(self, vocabulary: int) -> Array:
        """How often each token is a target in these buckets: (vocabulary,) int64."""
        lowest = self.keys if self.keys.ndim == 1 else self.keys[:, 0]
        total = np.zeros(vocabulary, dtype=np.int64)
        for begin in range(0, len(lowest), CHUNK):
            some = slice(begin, begin + CHUNK)
            targets = lowest[some].astype(np.int64) & 0xFFFF
            total += np.bincount(targets, self.counts[some], vocabulary).astype(np.int64)
        return total


class NgramCounts(Rows):
    """The rows of all buckets; equal counts have equal arrays."""

    @classmethod
    def count(
        cls,
        corpus: TokenCorpus,
        order: int,
        vocabulary: int,
        distances: Sequence[int] | None = None,
        ranges: Array | None = None,
    ) -> NgramCounts:
        """Count all targets of a corpus, or those within some `ranges` (n, 2) of positions.

        A context is the `order − 1` tokens before its target, or those at other `distances`, nearest first.
        """
        if not 1 <= order <= MAX_ORDER or not EOD < vocabulary <= MAX_VOCABULARY:
            raise SaffuError(
                f"order {order} with a vocabulary of {vocabulary:,} cannot be counted; use at most order {MAX_ORDER} "
                f"and {MAX_VOCABULARY:,} tokens: lower `bpe_kept_words` (4096 by default) or `bpe_words`"
            )
        ids = checked_ids(corpus, vocabulary)
        corpus = TokenCorpus(ids, corpus.starts, corpus.sizes)
        sizes = bucket_sizes(corpus, vocabulary, order, (distances or [1])[0])
        width = key_width(order)

        def work(buckets: tuple[int, int]) -> Rows:
            return count_rows(corpus, order, vocabulary, buckets, distances, ranges)

        return cls.joined(order, vocabulary, in_parts(work, sizes, 2 * (width + COUNT), width))

    @classmethod
    def joined(cls, order: int, vocabulary: int, pieces: Iterable[Rows]) -> NgramCounts:
        """The counts whose rows these are, given in ascending ranges of buckets from 0 on."""
        dtype, shape = key_type(order)
        sizes = np.zeros(vocabulary, dtype=np.int64)
        with storage.Growing(dtype, shape[1:]) as keys, storage.Growing(np.uint32) as counts:
            for piece in pieces:
                sizes[piece.first : piece.last] = np.diff(piece.offsets)
                keys.append(piece.keys)
                counts.append(piece.counts)
                del piece
            whole = cls(order, 0, np.concatenate([[0], sizes.cumsum()]), keys.array(), counts.array())
        library.saffu_trim()
        return whole

    @property
    def vocabulary(self) -> int:
        """The number of token ids, specials included."""
        return self.last

    def rows(self) -> Array:
        """Every row as its tokens, (rows, order) uint16: the context, nearest token first, and then the target."""
        digits = tokens_of(self.keys)[:, : max(1, self.order - 1)]
        nearest = np.repeat(np.arange(self.vocabulary, dtype=TOKEN), np.diff(self.offsets))
        return np.column_stack([nearest, digits[:, ::-1]]) if self.order > 1 else digits

    def marginal(self, columns: Sequence[int], classes: Array | None = None, exact: int = 0) -> NgramCounts:
        """Marginal counts: only the context tokens at these places (1: nearest), as their class if given.

        `marginal([1])` of trigrams gives bigrams; `marginal([2])` pairs of tokens two apart. The first `exact` columns
        keep their tokens.
        """
        if not columns:
            return NgramCounts.of_tokens(self.frequencies())
        if classes is not None:
            require_by_token(classes, self.vocabulary)
        order = len(columns) + 1
        width = key_width(order) + COUNT

        def work(buckets: tuple[int, int]) -> Rows:
            return regroup_rows(self, columns, buckets, classes, exact)

        sizes = regrouped_sizes(self, columns[0], self.vocabulary, None if exact else classes)
        return self.joined(order, self.vocabulary, in_parts(work, sizes, 2 * width, width))

    @classmethod
    def of_tokens(cls, frequencies: Array) -> NgramCounts:
        """Counts of order 1, from how often each token occurs."""
        if int(frequencies.max()) > np.iinfo(np.uint32).max:
            raise SaffuError(TOO_OFTEN)
        tokens = np.flatnonzero(frequencies)
        offsets = np.full(len(frequencies) + 1, len(tokens), dtype=np.int64)
        offsets[0] = 0
        return cls(1, 0, offsets, tokens.astype(TOKEN), frequencies[tokens].astype(np.uint32))

    def lower_order(self, order: int) -> NgramCounts:
        """The counts of shorter n-grams: the oldest tokens of every row dropped."""
        if not 1 <= order <= self.order:
            raise SaffuError(f"order {order} is not within 1 to {self.order}, the orders counted; count again")
        return self if order == self.order else self.marginal(range(1, order))

    def holds(self, other: NgramCounts) -> bool:
        """Whether every row of other counts, of the same order up to 5, is counted here, however often."""
        for bucket in np.flatnonzero(np.diff(other.offsets)).tolist():
            own, wanted = (counts.keys[counts.offsets[bucket] : counts.offsets[bucket + 1]] for counts in (self, other))
            if not len(own) or (own[np.minimum(np.searchsorted(own, wanted), len(own) - 1)] != wanted).any():
                return False
        return True

    def frequencies(self) -> Array:
        """How often each token is a target: (vocabulary,) int64."""
        return self.target_counts(self.vocabulary)

    def __add__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, 1)

    def __sub__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, -1)

    def _merged(self, other: NgramCounts, sign: int) -> NgramCounts:
        if (self.order, self.vocabulary) != (other.order, other.vocabulary):
            raise SaffuError("n-gram counts of different order or vocabulary do not mix; count both alike")

        def work(buckets: tuple[int, int]) -> Rows:
            return merged(self.slice(*buckets), other.slice(*buckets), sign)

        sizes = np.diff(self.offsets) + np.diff(other.offsets)
        pieces = in_parts(work, sizes, 2 * (key_width(self.order) + COUNT))
        return self.joined(self.order, self.vocabulary, pieces)

    def arrays(self) -> dict[str, Array]:
        """What to store; the counts in the smallest type that holds them."""
        most = int(self.counts.max()) if self.distinct else 0
        smallest = next(t for t in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(t).max)
        shape = np.array([self.order, self.vocabulary], dtype=np.int64)
        stored = storage.converted(self.counts, smallest)
        return {"shape": shape, "offsets": self.offsets, "keys": self.keys, "counts": stored}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], vocabulary: int) -> NgramCounts:
        """The counts of this vocabulary whose `arrays()` these are; raises SaffuError if they cannot be."""
        damaged = "n-gram counts are damaged; restore the folder or train again"
        try:
            order, stored = (int(number) for number in arrays["shape"])
            offsets, keys, counts = (np.ascontiguousarray(arrays[name]) for name in ("offsets", "keys", "counts"))
        except (KeyError, ValueError, TypeError, OverflowError):
            raise SaffuError(damaged) from None
        require(1 <= order <= MAX_ORDER and EOD < stored == vocabulary <= MAX_VOCABULARY, damaged)
        require(offsets.dtype == np.int64 and offsets.shape == (vocabulary + 1,) and offsets[0] == 0, damaged)
        require(bool((offsets[1:] >= offsets[:-1]).all()), damaged)
        require(offsets[-1] == len(counts) == len(keys) and counts.ndim == 1, damaged)
        require(counts.dtype in (np.uint8, np.uint16, np.uint32) and bool((counts > 0).all()), damaged)
        require(keys.dtype == key_type(order)[0] and keys.shape[1:] == tuple(key_type(order)[1][1:]), damaged)
        require(keys_are_sound(order, vocabulary, offsets, keys), damaged)
        return cls(order, 0, offsets, keys, storage.converted(counts, np.uint32))


def require_by_token(numbers: Array, vocabulary: int) -> None:
    """Raise ValueError unless kernels can look up tokens in these numbers, and tokens by them."""
    if numbers.shape != (vocabulary,) or not 0 <= int(numbers.min()) <= int(numbers.max()) < vocabulary:
        raise ValueError(f"expected numbers below {vocabulary} for as many tokens")


def in_parts(
    work: Callable[[tuple[int, int]], Rows], sizes: Array, bytes_per_row: int, scratch: int = 0
) -> Iterator[Rows]:
    """Yield `work` of ranges of buckets, in order; as many at a time as memory allows."""
    cuts, workers = storage.plan(sizes, bytes_per_row, scratch)
    ranges = list(pairwise(cuts))
    for begin in range(0, len(ranges), workers):
        pieces = in_parallel(work, ranges[begin : begin + workers])[::-1]
        while pieces:
            yield pieces.pop()


def keys_are_sound(order: int, vocabulary: int, offsets: Array, keys: Array) -> bool:
    """Whether every token of every row is in the vocabulary, no marker is a target, and the rows of a bucket ascend."""
    words = keys if keys.ndim == 2 else keys[:, None]  # the lowest word first
    digits = tokens_of(keys)
    used = max(1, order - 1)
    if len(keys) and (digits[:, used:].any() or int(digits[:, :used].max()) >= vocabulary):
        return False
    if len(keys) and int(digits[:, 0].min()) < EOD:
        return False
    above = np.zeros(max(0, len(keys) - 1), dtype=bool)
    equal = np.ones_like(above)
    for word in reversed(range(words.shape[1])):
        above |= equal & (words[1:, word] > words[:-1, word])
        equal &= words[1:, word] == words[:-1, word]
    begins = offsets[1:-1]
    above[begins[(begins > 0) & (begins < len(keys))] - 1] = True  # where another bucket begins
    return bool(above.all())


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
    places = np.array(range(1, order) if distances is None else distances, dtype=np.int32)
    ranges = np.array([[0, corpus.targets]]) if ranges is None else ranges
    ranges = np.ascontiguousarray(ranges, dtype=np.int64).reshape(-1, 2)
    if len(places) != order - 1 or (places < 1).any():
        raise ValueError(f"order {order} needs {order - 1} positive distances, not {places.tolist()}")
    if len(ranges) and not (ranges.min() >= 0 and ranges.max() <= corpus.targets):
        raise ValueError(f"ranges reach beyond the {corpus.targets} targets of the corpus")
    (lo, hi), keys, counts = buckets, Buffer(), Buffer()
    if not 0 <= lo <= hi <= vocabulary:
        raise ValueError(f"buckets {buckets} of a vocabulary of {vocabulary}")
    offsets = np.empty(hi - lo + 1, dtype=np.int64)
    library.saffu_count_rows(
        pointer(ids, TOKEN), pointer(starts, np.int64), corpus.documents, pointer(ranges, np.int64), len(ranges),
        pointer(places, np.int32), order, key_width(order), lo, hi, pointer(offsets, np.int64), keys, counts,
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
    places = np.array(columns, dtype=np.int32)
    if not columns or any(not 1 <= column < rows.order for column in columns):
        raise ValueError(f"columns {list(columns)} of rows of order {rows.order}")
    classes = None if classes is None else np.ascontiguousarray(classes, dtype=TOKEN)
    (lo, hi), keys, counts = buckets, Buffer(), Buffer()
    offsets = np.empty(hi - lo + 1, dtype=np.int64)
    library.saffu_regroup_rows(
        pointer(rows.offsets, np.int64), pointer(rows.keys, rows.keys.dtype), pointer(rows.counts, np.uint32),
        rows.first, rows.last - rows.first, rows.order, key_width(rows.order), pointer(places, np.int32), order,
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
    capacity = rows.distinct + (other.distinct if sign > 0 else 0)
    dtype, shape = key_type(rows.order)
    keys = np.empty((capacity, *shape[1:]), dtype=dtype)
    counts = np.empty(capacity, dtype=np.uint32)
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
