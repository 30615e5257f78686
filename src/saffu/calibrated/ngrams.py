"""N-gram counts: exact, additive, compact.

Every token of a corpus gives one row: its context, nearest token first, then the token itself. A context ends at the
start of its document, marked EOD as the end of a line before it would be; PAD fills the rest. A document `a b <eod>` at
order 3 gives

    EOD PAD a,   a EOD b,   b a <eod>.

The counts of these rows hold the counts of every shorter n-gram too (drop the oldest tokens), so they are all that is
stored. Rows are sorted, in buckets by their nearest token; within its bucket a row is one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saffu.calibrated.kernels import Array, Buffer, library, pointer
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.threads import cores, run_in_threads

MAX_VOCABULARY = 1 << 16  # a token id takes two bytes of a row
MAX_ORDER = 9
PARTS = 4  # ranges of buckets for each thread: they bound memory, and even out the work


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
                f"order {order} with a vocabulary of {vocabulary:,} cannot be counted; "
                f"use at most order {MAX_ORDER} and {MAX_VOCABULARY:,} tokens"
            )
        ids, starts = checked_ids(corpus, vocabulary), np.ascontiguousarray(corpus.starts, dtype=np.int64)
        chosen = np.array(range(1, order) if distances is None else distances, dtype=np.int32)
        if ranges is None:
            ranges = np.array([[0, corpus.targets]])
        ranges = np.ascontiguousarray(ranges, dtype=np.int64).reshape(-1, 2)
        if len(chosen) != order - 1 or (chosen < 1).any():
            raise ValueError(f"order {order} needs {order - 1} positive distances, not {chosen.tolist()}")
        if len(ranges) and not (ranges.min() >= 0 and ranges.max() <= corpus.targets):
            raise ValueError(f"ranges reach beyond the {corpus.targets} targets of the corpus")
        width = key_width(order)

        def kernel(lo: int, hi: int, offsets: Array, keys: Buffer, counts: Buffer) -> None:
            library.saffu_count_rows(
                pointer(ids, np.uint16), pointer(starts, np.int64), corpus.documents, pointer(ranges, np.int64),
                len(ranges), pointer(chosen, np.int32), order, width, lo, hi, pointer(offsets, np.int64), keys, counts,
            )  # fmt: skip

        weights = corpus.frequencies(vocabulary) + 1 if order > 1 else np.ones(1)
        return cls._in_parts(kernel, order, vocabulary, weights)

    @classmethod
    def _in_parts(cls, kernel: Callable[..., None], order: int, vocabulary: int, weights: Array) -> NgramCounts:
        """Run a kernel over ranges of buckets, several at a time, and join what it gives."""
        cuts = even_cuts(weights, PARTS * cores())
        pieces: list[Any] = [None] * (len(cuts) - 1)

        def work(number: int, stopped: Callable[[], bool]) -> None:
            for part in range(number, len(pieces), workers):
                if stopped():
                    return
                lo, hi = cuts[part], cuts[part + 1]
                offsets, keys, counts = np.empty(hi - lo + 1, dtype=np.int64), Buffer(), Buffer()
                kernel(lo, hi, offsets, keys, counts)
                pieces[part] = offsets, keys.array(*key_type(order)), counts.array(np.uint32)

        workers = min(cores(), len(pieces))
        run_in_threads(work, workers)
        sizes = np.concatenate([np.diff(offsets) for offsets, _, _ in pieces])
        sizes = np.concatenate([sizes, np.zeros(vocabulary - len(sizes), dtype=np.int64)])
        offsets = np.concatenate([[0], sizes.cumsum()])
        dtype, shape = key_type(order)
        keys, counts, end = np.empty((offsets[-1], *shape[1:]), dtype=dtype), np.empty(offsets[-1], dtype=np.uint32), 0
        for number, (_, some_keys, some_counts) in enumerate(pieces):
            begin, end = end, end + len(some_keys)
            keys[begin:end], counts[begin:end] = some_keys, some_counts
            pieces[number] = None  # so that no two copies of everything exist
            del some_keys, some_counts
        return cls(order, vocabulary, offsets, keys, counts)

    @property
    def distinct(self) -> int:
        """How many different rows there are."""
        return len(self.counts)

    def rows(self) -> Array:
        """Every row as its tokens, (rows, order) uint16: the context, nearest token first, and then the target."""
        words = self.keys if self.keys.ndim == 2 else self.keys[:, None]
        digits = np.ascontiguousarray(words).view(np.uint16)[:, : max(1, self.order - 1)]  # the target first
        nearest = np.repeat(np.arange(self.vocabulary, dtype=np.uint16), np.diff(self.offsets))
        return np.column_stack([nearest, digits[:, ::-1]]) if self.order > 1 else digits

    def marginal(self, columns: Sequence[int], classes: Array | None = None, exact: int = 0) -> NgramCounts:
        """The counts of a poorer view: only the context tokens at these places (1: nearest), as their class if given.

        `marginal([1])` of trigrams gives bigrams; `marginal([2])` pairs of tokens two apart. The
        first `exact` columns keep their tokens.
        """
        order, width = len(columns) + 1, key_width(len(columns) + 1)
        chosen = np.array(columns, dtype=np.int32)
        if any(not 1 <= column < self.order for column in columns):
            raise ValueError(f"columns {list(columns)} of rows of order {self.order}")
        classes = None if classes is None else np.ascontiguousarray(classes, dtype=np.uint16)

        def kernel(lo: int, hi: int, offsets: Array, keys: Buffer, counts: Buffer) -> None:
            library.saffu_regroup_rows(
                pointer(self.offsets, np.int64), pointer(self.keys, self.keys.dtype), pointer(self.counts, np.uint32),
                self.vocabulary, self.order, key_width(self.order), pointer(chosen, np.int32), order, width,
                pointer(classes, np.uint16), exact, lo, hi, pointer(offsets, np.int64), keys, counts,
            )  # fmt: skip

        if not columns:
            targets = (self.keys if self.keys.ndim == 1 else self.keys[:, 0]) & 0xFFFF
            return NgramCounts.of_tokens(summed(targets, self.counts, self.vocabulary))
        weights = np.diff(self.offsets) + 1
        if classes is not None and not exact:
            weights = np.bincount(classes, weights, self.vocabulary)
        return self._in_parts(kernel, order, self.vocabulary, weights)

    @classmethod
    def of_tokens(cls, frequencies: Array) -> NgramCounts:
        """Counts of order 1, from how often each token occurs."""
        tokens = np.flatnonzero(frequencies)
        offsets = np.full(len(frequencies) + 1, len(tokens), dtype=np.int64)
        offsets[0] = 0
        return cls(1, len(frequencies), offsets, tokens.astype(np.uint16), frequencies[tokens].astype(np.uint32))

    def without(self, token: int) -> NgramCounts:
        """The same without the rows whose nearest token this is."""
        begin, end = int(self.offsets[token]), int(self.offsets[token + 1])
        offsets = np.where(np.arange(self.vocabulary + 1) > token, self.offsets - (end - begin), self.offsets)
        keys, counts = (np.concatenate([a[:begin], a[end:]]) for a in (self.keys, self.counts))
        return NgramCounts(self.order, self.vocabulary, offsets, keys, counts)

    def lower_order(self, order: int) -> NgramCounts:
        """The counts of shorter n-grams: the oldest tokens of every row dropped."""
        if not 1 <= order <= self.order:
            raise SaffuError(f"order {order} is not within 1 to {self.order}, the orders counted; count again")
        return self if order == self.order else self.marginal(range(1, order))

    def frequencies(self) -> Array:
        """How often each token is a target: (vocabulary,) int64."""
        return self.marginal([])._dense() if self.order > 1 else self._dense()

    def _dense(self) -> Array:
        return summed(self.keys, self.counts, self.vocabulary)

    def __add__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, 1)

    def __sub__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, -1)

    def _merged(self, other: NgramCounts, sign: int) -> NgramCounts:
        if (self.order, self.vocabulary) != (other.order, other.vocabulary):
            raise SaffuError("n-gram counts of different order or vocabulary do not mix; count both alike")
        room = self.distinct + (other.distinct if sign > 0 else 0)
        dtype, shape = key_type(self.order)
        keys, counts = np.empty((room, *shape[1:]), dtype=dtype), np.empty(room, dtype=np.uint32)
        offsets = np.empty(self.vocabulary + 1, dtype=np.int64)
        rows = library.saffu_merge_rows(
            pointer(self.offsets, np.int64), pointer(self.keys, dtype), pointer(self.counts, np.uint32),
            pointer(other.offsets, np.int64), pointer(other.keys, dtype), pointer(other.counts, np.uint32),
            self.vocabulary, key_width(self.order), sign, pointer(offsets, np.int64), pointer(keys, dtype),
            pointer(counts, np.uint32),
        )  # fmt: skip
        if rows < 0:
            raise SaffuError("cannot forget what was never counted: a count would fall below zero; nothing was changed")
        return NgramCounts(self.order, self.vocabulary, offsets, keys[:rows].copy(), counts[:rows].copy())

    def arrays(self) -> dict[str, Array]:
        """What to store; the counts in the smallest type that holds them."""
        most = int(self.counts.max()) if self.distinct else 0
        smallest = next(t for t in (np.uint8, np.uint16, np.uint32) if most <= np.iinfo(t).max)
        shape = np.array([self.order, self.vocabulary], dtype=np.int64)
        return {"shape": shape, "offsets": self.offsets, "keys": self.keys, "counts": self.counts.astype(smallest)}

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
        return cls(order, vocabulary, offsets, keys, counts.astype(np.uint32))


def summed(places: Array, counts: Array, size: int) -> Array:
    """Counts added up by place: (size,) int64."""
    return np.bincount(places.astype(np.int64), counts, size).astype(np.int64)


def key_width(order: int) -> int:
    """Bytes of a row's key: all of its tokens but the nearest."""
    return 2 if order <= 2 else 8 if order <= 5 else 16


def key_type(order: int) -> tuple[Any, tuple[int, ...]]:
    """Type and shape of an array of keys."""
    return {2: (np.uint16, (-1,)), 8: (np.uint64, (-1,)), 16: (np.uint64, (-1, 2))}[key_width(order)]


def keys_are_sound(order: int, vocabulary: int, offsets: Array, keys: Array) -> bool:
    """Whether every token of every row is in the vocabulary, and the rows of a bucket ascend."""
    words = keys if keys.ndim == 2 else keys[:, None]  # the lowest word first
    digits = np.ascontiguousarray(words).view(np.uint16)  # (rows, tokens), the target first
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


def checked_ids(corpus: TokenCorpus, vocabulary: int) -> Array:
    """Token ids of a corpus as kernels take them; raises SaffuError if one is a marker or beyond the vocabulary."""
    starts = corpus.starts
    if int(starts[0]) != 0 or int(starts[-1]) != len(corpus.ids) or not bool((starts[1:] >= starts[:-1]).all()):
        raise ValueError("a corpus must start at 0 and end with its last token")
    if len(corpus.ids) and not (int(corpus.ids.min()) >= EOD and int(corpus.ids.max()) < vocabulary):
        raise SaffuError(
            f"the corpus holds ids outside {EOD} to {vocabulary - 1}; tokenize it with this model's tokenizer"
        )
    return np.ascontiguousarray(corpus.ids, dtype=np.uint16)


def even_cuts(weights: Array, parts: int) -> list[int]:
    """Bounds of at most `parts` contiguous ranges of about equal weight.

    >>> even_cuts(np.array([1, 1, 1, 1]), 2)
    [0, 2, 4]
    """
    ends = np.cumsum(weights, dtype=np.float64)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts, side="left") + 1
    return sorted({0, *(int(cut) for cut in cuts if cut < len(weights)), len(weights)})
