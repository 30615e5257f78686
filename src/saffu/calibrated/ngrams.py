"""N-gram counts: exact, additive, compact.

Every token of a corpus gives one row: its context, nearest token first, then the token itself. A context ends at the
start of its document, marked EOD as the end of a line before it would be; PAD fills the rest. A document `a b <eod>` at
order 3 gives

    EOD PAD a,   a EOD b,   b a <eod>.

The counts of these rows hold the counts of every shorter n-gram too (drop the oldest tokens), so they are all that is
stored. Rows are sorted, in buckets by their nearest token; within its bucket a row is one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from saffu.calibrated import storage
from saffu.calibrated.kernels import TOKEN, TOO_OFTEN, Array, library
from saffu.calibrated.rows import (
    Rows,
    bucket_sizes,
    checked_ids,
    count_rows,
    key_type,
    key_width,
    merged,
    regroup_rows,
    regrouped_sizes,
    tokens_of,
)
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.threads import in_parallel

MAX_VOCABULARY = np.iinfo(TOKEN).max + 1
MAX_ORDER = 9
COUNT = 4  # bytes of a count


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """Counts of distinct rows; equal counts have equal arrays."""

    order: int
    vocabulary: int  # number of token ids, specials included
    offsets: Array  # (vocabulary + 1,) int64: where the bucket of each nearest token begins
    keys: Array  # (rows,) unsigned integers; of two words of 64 bits, as (rows, 2), beyond order 5
    counts: Array  # (rows,) uint32, all positive

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
            whole = cls(order, vocabulary, np.concatenate([[0], sizes.cumsum()]), keys.array(), counts.array())
        library.saffu_trim()
        return whole

    def in_buckets(self, lo: int = 0, hi: int | None = None) -> Rows:
        """The rows of a range of buckets, or all of them, sharing storage."""
        whole = Rows(self.order, 0, self.offsets, self.keys, self.counts)
        return whole if hi is None else whole.slice(lo, hi)

    @property
    def distinct(self) -> int:
        """The number of distinct rows."""
        return len(self.counts)

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
        whole = self.in_buckets()
        order = len(columns) + 1
        width = key_width(order) + COUNT

        def work(buckets: tuple[int, int]) -> Rows:
            return regroup_rows(whole, columns, buckets, classes, exact)

        sizes = regrouped_sizes(whole, columns[0], self.vocabulary, None if exact else classes)
        return self.joined(order, self.vocabulary, in_parts(work, sizes, 2 * width, width))

    @classmethod
    def of_tokens(cls, frequencies: Array) -> NgramCounts:
        """Counts of order 1, from how often each token occurs."""
        if int(frequencies.max()) > np.iinfo(np.uint32).max:
            raise SaffuError(TOO_OFTEN)
        tokens = np.flatnonzero(frequencies)
        offsets = np.full(len(frequencies) + 1, len(tokens), dtype=np.int64)
        offsets[0] = 0
        return cls(1, len(frequencies), offsets, tokens.astype(TOKEN), frequencies[tokens].astype(np.uint32))

    def lower_order(self, order: int) -> NgramCounts:
        """The counts of shorter n-grams: the oldest tokens of every row dropped."""
        if not 1 <= order <= self.order:
            raise SaffuError(f"order {order} is not within 1 to {self.order}, the orders counted; count again")
        return self if order == self.order else self.marginal(range(1, order))

    def holds(self, other: NgramCounts) -> bool:
        """Whether every row of other counts, of the same order up to 5, is counted here, however often."""
        for bucket in np.flatnonzero(np.diff(other.offsets)).tolist():
            own, asked = (counts.keys[counts.offsets[bucket] : counts.offsets[bucket + 1]] for counts in (self, other))
            if not len(own) or (own[np.minimum(np.searchsorted(own, asked), len(own) - 1)] != asked).any():
                return False
        return True

    def frequencies(self) -> Array:
        """How often each token is a target: (vocabulary,) int64."""
        return self.in_buckets().frequencies(self.vocabulary)

    def __add__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, 1)

    def __sub__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, -1)

    def _merged(self, other: NgramCounts, sign: int) -> NgramCounts:
        if (self.order, self.vocabulary) != (other.order, other.vocabulary):
            raise SaffuError("n-gram counts of different order or vocabulary do not mix; count both alike")

        def work(buckets: tuple[int, int]) -> Rows:
            return merged(self.in_buckets(*buckets), other.in_buckets(*buckets), sign)

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
    def from_arrays(cls, arrays: Mapping[str, Array]) -> NgramCounts:
        """The counts whose `arrays()` these are; raises SaffuError if they cannot be."""
        try:
            order, vocabulary = (int(number) for number in arrays["shape"])
            offsets, keys, counts = (np.ascontiguousarray(arrays[name]) for name in ("offsets", "keys", "counts"))
        except (KeyError, ValueError, TypeError, OverflowError):
            raise SaffuError("n-gram counts are damaged; restore the folder or train again") from None
        fits = 1 <= order <= MAX_ORDER and EOD < vocabulary <= MAX_VOCABULARY and offsets.dtype == np.int64
        fits = fits and offsets.shape == (vocabulary + 1,) and offsets[0] == 0
        fits = fits and bool((offsets[1:] >= offsets[:-1]).all())
        fits = fits and offsets[-1] == len(counts) == len(keys) and counts.dtype in (np.uint8, np.uint16, np.uint32)
        fits = fits and counts.ndim == 1 and bool((counts > 0).all())
        fits = fits and keys.dtype == key_type(order)[0] and keys.shape[1:] == tuple(key_type(order)[1][1:])
        if not fits or not keys_are_sound(order, vocabulary, offsets, keys):
            raise SaffuError("n-gram counts are damaged; restore the folder or train again")
        return cls(order, vocabulary, offsets, keys, storage.converted(counts, np.uint32))


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
    """Whether every token of every row is in the vocabulary, and the rows of a bucket ascend."""
    words = keys if keys.ndim == 2 else keys[:, None]  # the lowest word first
    digits = tokens_of(keys)
    used = max(1, order - 1)
    if len(keys) and (digits[:, used:].any() or int(digits[:, :used].max()) >= vocabulary):
        return False
    above = np.zeros(max(0, len(keys) - 1), dtype=bool)
    equal = np.ones_like(above)
    for word in reversed(range(words.shape[1])):
        above |= equal & (words[1:, word] > words[:-1, word])
        equal &= words[1:, word] == words[:-1, word]
    begins = offsets[1:-1]
    above[begins[(begins > 0) & (begins < len(keys))] - 1] = True  # where another bucket begins
    return bool(above.all())
