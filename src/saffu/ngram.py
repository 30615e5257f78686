"""Interpolated modified Kneser–Ney n-gram models over token ids (Chen & Goodman 1998, as KenLM's `lmplz`).

Every token of a corpus gives one row: its context, newest token first, then the token itself. A context ends
at the start of its document, marked SOD; PAD fills the rest. A document `a b <eod>` at order 3 gives

    SOD PAD a,   a SOD b,   b a <eod>.

The counts of these rows hold the counts of every shorter n-gram too (drop the oldest tokens), so they are all
that is stored. And since contexts come newest first, sorted rows are a trie of contexts: dropping the oldest
token of a context leads to its parent, which is what backing off needs.

The unigram reference is `KneserNey(counts, order=1)`: discounted relative frequencies, the discounted mass
spread evenly over the vocabulary, so that unseen tokens keep a finite log-probability and no second kind of
smoothing is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.tokenizer import EOD, PAD, SOD

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CHUNK = 1 << 20  # tokens counted at a time
NEVER = np.iinfo(np.int64).max  # a key that no look-up asks for


def context_windows(ids: Array, starts: Array, lo: int, hi: int, width: int) -> Ints:
    """The `width` tokens before each flat position lo..hi−1, newest last: (hi − lo, width).

    A window never leaves its document: SOD stands before the document's first token, PAD before SOD.
    """
    positions = np.arange(lo, hi)
    ages = positions - starts[np.searchsorted(starts, positions, side="right") - 1]  # tokens since the start
    windows = np.empty((width, hi - lo), dtype=np.int64)
    for row, distance in enumerate(range(width, 0, -1)):
        windows[row] = ids[np.maximum(positions - distance, 0)]
        windows[row, ages < distance] = PAD
        windows[row, ages == distance - 1] = SOD
    return windows.T


def _ids_per_word(vocabulary: int) -> int:
    """How many token ids fit a 64-bit word, as digits of a number in base `vocabulary`: 5 up to 7,131 tokens."""
    fitting = 1
    while vocabulary ** (fitting + 1) <= 2**64:
        fitting += 1
    return fitting


def _sum_by_key(keys: Array, counts: Ints) -> tuple[Array, Ints]:
    """Sort the columns of keys (words, m), add the counts of equal ones, and drop those that come to zero."""
    by_key = np.argsort(keys[0]) if len(keys) == 1 else np.lexsort(keys[::-1])
    keys, counts = keys.take(by_key, axis=1), counts[by_key]
    first = np.ones(counts.size, dtype=np.bool_)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    begins = np.flatnonzero(first)
    totals = np.add.reduceat(counts, begins)
    kept = totals != 0
    return keys.take(begins[kept], axis=1), totals[kept]


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """Exact, additive counts of rows of `order` tokens; equal counts have equal arrays."""

    order: int
    vocabulary: int  # number of token ids, specials included
    keys: Array  # (words, m) uint64: the distinct rows, packed and sorted
    counts: Ints  # (m,) all positive

    @classmethod
    def count(
        cls, ids: Array, starts: Array, order: int, vocabulary: int, distances: Sequence[int] | None = None
    ) -> NgramCounts:
        """Count the documents between starts[0] and starts[−1]; to count a shard, pass a slice of starts.

        A context is the `order − 1` tokens before its target, or those at other `distances`, nearest first.
        """
        if order < 1 or vocabulary <= EOD:
            raise SaffuError(f"order {order}, vocabulary {vocabulary}: choose at least 1 and {EOD + 1}")
        distances = range(1, order) if distances is None else distances
        none, end = np.zeros(0, dtype=np.int64), int(starts[-1])
        parts = [cls._from_rows([none] * order, none, vocabulary)]
        for lo in range(int(starts[0]), end, CHUNK):
            hi = min(lo + CHUNK, end)
            targets = np.asarray(ids[lo:hi], dtype=np.int64)
            if targets.min() < EOD or targets.max() >= vocabulary:
                raise SaffuError(f"the corpus holds ids outside {EOD}..{vocabulary - 1}; tokenise it again")
            windows = context_windows(ids, starts, lo, hi, max(distances, default=0))
            columns = [windows[:, -distance] for distance in distances]
            parts.append(cls._from_rows([*columns, targets], np.ones_like(targets), vocabulary))
            # Merging only parts of like size keeps the whole near-linear, in memory for the distinct rows.
            while len(parts) > 1 and parts[-2].counts.size < 2 * parts[-1].counts.size:
                parts.append(parts.pop() + parts.pop())
        return sum(parts[1:], start=parts[0])

    @classmethod
    def _from_rows(cls, columns: list[Ints], counts: Ints, vocabulary: int) -> NgramCounts:
        """Pack each row into as few words as hold it, the first column as the highest digit."""
        per_word = _ids_per_word(vocabulary)
        words = []
        for first in range(0, len(columns), per_word):
            word = np.zeros(len(counts), dtype=np.uint64)
            for column in columns[first : first + per_word]:
                word *= np.uint64(vocabulary)
                word += column.astype(np.uint64)
            words.append(word)
        return cls(len(columns), vocabulary, *_sum_by_key(np.stack(words), counts))

    def column(self, index: int) -> Ints:
        """One token of every row: index 0 is the newest of the context, order − 1 the predicted token."""
        per_word = _ids_per_word(self.vocabulary)
        word, place = divmod(index, per_word)
        held = min(per_word, self.order - word * per_word)
        lower_digits = np.uint64(self.vocabulary ** (held - 1 - place))
        tokens: Ints = (self.keys[word] // lower_digits % np.uint64(self.vocabulary)).astype(np.int64)
        return tokens

    def shortened(self, order: int) -> NgramCounts:
        """The counts of a lower order: the oldest tokens of every row dropped."""
        if not 1 <= order <= self.order:
            raise SaffuError(f"order {order} is not within 1..{self.order}, the orders counted; count again")
        return self if order == self.order else self.seen_at(range(1, order))

    def seen_at(self, distances: Sequence[int], classes: Ints | None = None) -> NgramCounts:
        """The counts of a poorer view: only the context tokens at these distances, each as its class if given."""
        context = [self.column(distance - 1) for distance in distances]
        if classes is not None:
            context = [classes[column] for column in context]
        return self._from_rows([*context, self.column(self.order - 1)], self.counts, self.vocabulary)

    def __add__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, other.counts)

    def __sub__(self, other: NgramCounts) -> NgramCounts:
        difference = self._merged(other, -other.counts)
        if (difference.counts < 0).any():
            raise SaffuError("cannot forget n-grams that were never counted; subtract only data added before")
        return difference

    def _merged(self, other: NgramCounts, counts: Ints) -> NgramCounts:
        if (self.order, self.vocabulary) != (other.order, other.vocabulary):
            raise SaffuError("n-gram counts of different order or vocabulary do not mix; count both alike")
        keys = np.concatenate([self.keys, other.keys], axis=1)
        merged = _sum_by_key(keys, np.concatenate([self.counts, counts]))
        return NgramCounts(self.order, self.vocabulary, *merged)

    def tensors(self) -> dict[str, Array]:
        """Arrays to store; the counts in the smallest type that holds them."""
        smallest = np.min_scalar_type(self.counts.max(initial=0))
        return {
            "shape": np.array([self.order, self.vocabulary]),
            "keys": np.ascontiguousarray(self.keys),  # safetensors writes memory as it lies
            "counts": self.counts.astype(smallest),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Array]) -> NgramCounts:
        """The counts whose `tensors()` these are."""
        order, vocabulary = tensors["shape"].tolist()
        return cls(order, vocabulary, tensors["keys"], tensors["counts"].astype(np.int64))


def discounts(counts: Ints) -> Floats:
    """What to take off a count of 0, 1, 2, and 3 or more: from counts of counts (Chen & Goodman, eq. 26)."""
    n = np.bincount(np.minimum(counts, 5), minlength=5)[:5].astype(np.float64)
    k = np.arange(1, 4)
    fallback = np.array([0.0, 0.5, 1.0, 1.5])  # for too little data, as lmplz --discount_fallback
    if (n[k] == 0).any():
        return fallback
    d = k - (k + 1) * n[1] / (n[1] + 2 * n[2]) * n[k + 1] / n[k]
    # A discount of zero would leave nothing to the shorter contexts, and unseen tokens impossible.
    return np.array([0.0, *d]) if ((d > 0) & (d <= k)).all() else fallback


@dataclass(frozen=True)
class Level:
    """The n-grams with contexts of one length. The last element of each array stands for all unseen ones."""

    contexts: Ints  # sorted: number of the parent context · vocabulary + oldest token
    backoff: Floats  # of each context: the weight of its parent's distribution
    offsets: Ints  # where the n-grams of each context begin
    ngrams: Ints  # sorted: number of the context · vocabulary + predicted token
    mass: Floats  # of each n-gram: its discounted relative frequency


def _find(keys: Ints, wanted: Ints) -> Ints:
    """The index of each wanted key; of the last key, which is `NEVER`, if it is not there."""
    index = np.searchsorted(keys, wanted)
    index[keys[index] != wanted] = keys.size - 1
    return index


def _level(contexts: Ints, ngrams: Ints, counts: Ints, discount: Floats, vocabulary: int) -> Level:
    """Discount and normalise the counts within each context; the share taken off is the backoff."""
    context = ngrams // vocabulary
    total = np.bincount(context, weights=counts)
    taken = discount[np.minimum(counts, 3)]
    begins = np.searchsorted(context, np.arange(contexts.size + 1))
    return Level(
        contexts=np.append(contexts, NEVER),
        backoff=np.append(np.bincount(context, weights=taken) / total, 1.0),
        offsets=np.append(begins, ngrams.size),
        ngrams=np.append(ngrams, NEVER),
        mass=np.append((counts - taken) / total[context], 0.0),
    )


def _adjusted_counts(counts: NgramCounts) -> list[tuple[Ints, Ints, Ints]]:
    """For each context length from 0: the sorted keys of contexts and of n-grams, and the n-grams' counts.

    The longest n-grams, and those at the start of a document, which nothing precedes, keep their raw counts;
    any other counts the distinct tokens that precede it.
    """
    vocabulary, order = counts.vocabulary, counts.order
    targets = counts.column(order - 1)
    lengths = sum((counts.column(k) != PAD for k in range(order - 1)), start=np.zeros_like(targets))
    context = np.zeros_like(targets)  # of each row: the number of its context among those of this length
    contexts, raw = [np.zeros(1, dtype=np.int64)], []
    for length in range(order):
        if length:
            key = context * vocabulary + counts.column(length - 1)
            first = lengths >= length
            first[1:] &= key[1:] != key[:-1]
            contexts.append(key[first])
            context = np.cumsum(first) - 1
        whole = lengths == length
        raw.append((context[whole] * vocabulary + targets[whole], counts.counts[whole]))
    ngrams, totals = raw[-1]
    adjusted = [(contexts[-1], ngrams, totals)]
    for length in reversed(range(order - 1)):
        parents = contexts[length + 1] // vocabulary
        preceded = parents[ngrams // vocabulary] * vocabulary + ngrams % vocabulary
        keys = np.concatenate([raw[length][0], preceded])
        values = np.concatenate([raw[length][1], np.ones_like(preceded)])
        (ngrams,), totals = _sum_by_key(keys[None], values)
        adjusted.insert(0, (contexts[length], ngrams, totals))
    return adjusted


class KneserNey:
    """p(w | context) = mass(context, w) + backoff(context) · p(w | the context less its oldest token).

    The unigrams back off to the uniform distribution over the tokens that can be predicted: EOD and above.
    """

    def __init__(self, counts: NgramCounts, order: int | None = None) -> None:
        counts = counts.shortened(counts.order if order is None else order)
        if not counts.counts.size:
            raise SaffuError("no n-gram has been counted; count some documents first")
        self.order, self.vocabulary = counts.order, counts.vocabulary
        adjusted = _adjusted_counts(counts)
        self.discounts = np.stack([discounts(totals) for _, _, totals in adjusted])  # (order, 4)
        unigrams, *self.levels = [
            _level(*arrays, discount, self.vocabulary)
            for arrays, discount in zip(adjusted, self.discounts, strict=True)
        ]
        self.unigram = np.zeros(self.vocabulary)
        self.unigram[EOD:] = unigrams.backoff[0] / (self.vocabulary - EOD)
        self.unigram[unigrams.ngrams[:-1]] += unigrams.mass[:-1]

    def log_probabilities(self, contexts: Array, targets: Array) -> Floats:
        """ln p(target | context) of contexts (m, ≥ order − 1), newest token last, and targets (m,)."""
        targets = np.asarray(targets, dtype=np.int64)
        if targets.size and not EOD <= targets.min() <= targets.max() < self.vocabulary:
            raise SaffuError(f"targets hold ids outside {EOD}..{self.vocabulary - 1}; tokenise the text again")
        total, weight = np.zeros(len(targets)), np.ones(len(targets))
        for level, context in self.matches(contexts):
            total += weight * level.mass[_find(level.ngrams, context * self.vocabulary + targets)]
            weight *= level.backoff[context]
        total += weight * self.unigram[targets]
        return np.log(total)

    def distribution(self, contexts: Array) -> Floats:
        """p(· | context) of contexts (m, ≥ order − 1): (m, vocabulary), zero below EOD; rows sum to 1."""
        matches, weights = self.matches(contexts), [np.ones(len(contexts))]
        for level, context in matches:
            weights.append(weights[-1] * level.backoff[context])
        probabilities = np.outer(weights[-1], self.unigram)
        flat = probabilities.reshape(-1)
        for (level, context), weight in zip(matches, weights[:-1], strict=True):
            begins, sizes = level.offsets[context], level.offsets[context + 1] - level.offsets[context]
            skipped = begins - (np.cumsum(sizes) - sizes)
            ngrams = np.arange(sizes.sum()) + np.repeat(skipped, sizes)  # of one row after another
            # The key of an n-gram is context · vocabulary + token; its place is row · vocabulary + token.
            shift = (np.arange(len(context)) - context) * self.vocabulary
            places = level.ngrams[ngrams] + np.repeat(shift, sizes)
            flat[places] += level.mass[ngrams] * np.repeat(weight, sizes)
        return probabilities

    def matches(self, contexts: Array) -> list[tuple[Level, Ints]]:
        """Each level, longest contexts first, with the number there of every row's context."""
        contexts = np.asarray(contexts, dtype=np.int64)
        if contexts.shape[1] < self.order - 1:
            raise SaffuError(f"contexts are shorter than {self.order - 1} tokens; widen their windows")
        if contexts.size and not 0 <= contexts.min() <= contexts.max() < self.vocabulary:
            raise SaffuError(f"contexts hold ids outside 0..{self.vocabulary - 1}; tokenise the text again")
        matches: list[tuple[Level, Ints]] = []
        context = np.zeros(len(contexts), dtype=np.int64)
        for length, level in enumerate(self.levels, start=1):
            context = _find(level.contexts, context * self.vocabulary + contexts[:, -length])
            matches.insert(0, (level, context))
        return matches
