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

import numpy as np
import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.tokenizer import EOD, PAD, SOD

CHUNK = {"cpu": 1 << 20, "cuda": 1 << 25}  # tokens counted at a time
NEVER = torch.iinfo(torch.int64).max  # a key that no look-up asks for
TOP_BIT = torch.iinfo(torch.int64).min


def context_windows(ids: Tensor, starts: Tensor, lo: int, hi: int, width: int) -> Tensor:
    """The `width` tokens before each flat position lo..hi−1, newest last: (hi − lo, width), int64.

    A window never leaves its document: SOD stands before the document's first token, PAD before SOD.
    """
    positions = torch.arange(lo, hi, device=ids.device)
    ages = positions - starts[torch.searchsorted(starts, positions, right=True) - 1]  # tokens since the start
    begin = max(0, lo - width)
    past = torch.nn.functional.pad(ids[begin:hi].long(), (width - (lo - begin), 0), value=PAD)
    windows = past.new_empty(width, hi - lo)
    for row, distance in enumerate(range(width, 0, -1)):
        windows[row] = past[row : row + hi - lo]
        windows[row].masked_fill_(ages < distance, PAD).masked_fill_(ages == distance - 1, SOD)
    return windows.T


def _ids_per_word(vocabulary: int) -> int:
    """How many token ids fit a 64-bit word, as digits of a number in base `vocabulary`: 5 up to 7,131 tokens."""
    fitting = 1
    while vocabulary ** (fitting + 1) <= 2**64:
        fitting += 1
    return fitting


def _divided(words: Tensor, divisor: int) -> Tensor:
    """words // divisor, where words are unsigned numbers of 64 bits."""
    half = _quotient(words >> 1 & NEVER, divisor) * 2  # of numbers below 2⁶³, then corrected
    return half + (words - half * divisor >= divisor)


def _quotient(numbers: Tensor, divisor: int) -> Tensor:
    """numbers // divisor, for none below zero: quicker than with an eye on the sign."""
    return torch.div(numbers, divisor, rounding_mode="trunc")


def _order(keys: Tensor) -> Tensor:
    """What sorts the columns of keys (words, m), the first word first. On a CPU, numpy sorts several times faster."""
    if not keys.is_cuda:
        words = keys.numpy()
        return torch.from_numpy(np.argsort(words[0]) if len(words) == 1 else np.lexsort(words[::-1]))
    order = keys[-1].argsort(stable=True)
    for word in reversed(keys[:-1]):
        order = order[word[order].argsort(stable=True)]
    return order


def _sum_by_key(keys: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Sort the columns of keys (words, m), add the counts of equal ones, and drop those that come to zero."""
    order = _order(keys)
    keys, counts = keys[:, order], counts[order]
    first = torch.ones_like(counts, dtype=torch.bool)
    first[1:] = (keys[:, 1:] != keys[:, :-1]).any(0)
    begins = first.nonzero().squeeze(1)
    totals = _sums_between(counts, torch.cat([begins, begins.new_tensor([counts.numel()])]))
    kept = (totals != 0).nonzero().squeeze(1)
    return keys[:, begins[kept]], totals[kept]


def _sums_between(values: Tensor, bounds: Tensor) -> Tensor:
    """The sums of integers between each bound and the next."""
    running = torch.nn.functional.pad(values.cumsum(0), (1, 0))
    return torch.diff(running[bounds])


@dataclass(frozen=True, eq=False)
class NgramCounts:
    """Exact, additive counts of rows of `order` tokens; equal counts have equal tensors."""

    order: int
    vocabulary: int  # number of token ids, specials included
    keys: Tensor  # (words, m) the distinct rows, packed and sorted; int64, the top bit flipped to sort as unsigned
    counts: Tensor  # (m,) int64, all positive

    @classmethod
    def count(
        cls, ids: Tensor, starts: Tensor, order: int, vocabulary: int, distances: Sequence[int] | None = None
    ) -> NgramCounts:
        """Count the documents between starts[0] and starts[−1]; to count a shard, pass a slice of starts.

        A context is the `order − 1` tokens before its target, or those at other `distances`, nearest first.
        """
        if order < 1 or vocabulary <= EOD:
            raise SaffuError(f"order {order}, vocabulary {vocabulary}: choose at least 1 and {EOD + 1}")
        distances = range(1, order) if distances is None else distances
        none, end, chunk = starts[:0], int(starts[-1]), CHUNK[ids.device.type]
        parts = [cls._from_rows([none] * order, none, vocabulary)]
        for lo in range(int(starts[0]), end, chunk):
            hi = min(lo + chunk, end)
            targets = ids[lo:hi].long()
            if targets.min() < EOD or targets.max() >= vocabulary:
                raise SaffuError(f"the corpus holds ids outside {EOD}..{vocabulary - 1}; tokenise it again")
            windows = context_windows(ids, starts, lo, hi, max(distances, default=0))
            columns = [windows[:, -distance] for distance in distances]
            parts.append(cls._from_rows([*columns, targets], torch.ones_like(targets), vocabulary))
            # Merging only parts of like size keeps the whole near-linear, in memory for the distinct rows.
            while len(parts) > 1 and parts[-2].distinct < 2 * parts[-1].distinct:
                parts.append(parts.pop() + parts.pop())
        return sum(parts[1:], start=parts[0])

    @classmethod
    def _from_rows(cls, columns: list[Tensor], counts: Tensor, vocabulary: int) -> NgramCounts:
        """Pack each row into as few words as hold it, the first column as the highest digit."""
        per_word = _ids_per_word(vocabulary)
        words = []
        for first in range(0, len(columns), per_word):
            word = torch.zeros_like(counts)
            for column in columns[first : first + per_word]:
                word.mul_(vocabulary).add_(column)
            words.append(word ^ TOP_BIT)
        return cls(len(columns), vocabulary, *_sum_by_key(torch.stack(words), counts))

    @property
    def distinct(self) -> int:
        """How many rows were met at all."""
        return self.counts.numel()

    def to(self, device: torch.device | str) -> NgramCounts:
        return NgramCounts(self.order, self.vocabulary, self.keys.to(device), self.counts.to(device))

    def columns(self) -> list[Tensor]:
        """The tokens of every row: the context's, newest first, and at last the predicted ones."""
        per_word, columns = _ids_per_word(self.vocabulary), []
        for word, first in zip(self.keys ^ TOP_BIT, range(0, self.order, per_word), strict=True):
            digits = []
            for place in range(min(per_word, self.order - first)):
                higher = (_quotient if place else _divided)(word, self.vocabulary)
                digits.append(word - higher * self.vocabulary)
                word = higher
            columns += reversed(digits)
        return columns

    def shortened(self, order: int) -> NgramCounts:
        """The counts of a lower order: the oldest tokens of every row dropped."""
        if not 1 <= order <= self.order:
            raise SaffuError(f"order {order} is not within 1..{self.order}, the orders counted; count again")
        return self if order == self.order else self.seen_at(range(1, order))

    def seen_at(self, distances: Sequence[int], classes: Tensor | None = None) -> NgramCounts:
        """The counts of a poorer view: only the context tokens at these distances, each as its class if given."""
        columns = self.columns()
        context = [columns[distance - 1] for distance in distances]
        if classes is not None:
            context = [classes[column] for column in context]
        return self._from_rows([*context, columns[-1]], self.counts, self.vocabulary)

    def __add__(self, other: NgramCounts) -> NgramCounts:
        return self._merged(other, other.counts)

    def __sub__(self, other: NgramCounts) -> NgramCounts:
        difference = self._merged(other, -other.counts)
        if (difference.counts < 0).any():
            raise SaffuError("cannot forget n-grams that were never counted; subtract only data added before")
        return difference

    def _merged(self, other: NgramCounts, counts: Tensor) -> NgramCounts:
        if (self.order, self.vocabulary) != (other.order, other.vocabulary):
            raise SaffuError("n-gram counts of different order or vocabulary do not mix; count both alike")
        keys = torch.cat([self.keys, other.keys.to(self.keys.device)], dim=1)
        merged = _sum_by_key(keys, torch.cat([self.counts, counts.to(self.keys.device)]))
        return NgramCounts(self.order, self.vocabulary, *merged)

    def tensors(self) -> dict[str, Tensor]:
        """What to store; the counts in the smallest type that holds them."""
        kinds = (torch.uint8, torch.uint16, torch.int32, torch.int64)
        most = int(self.counts.max()) if self.distinct else 0
        smallest = next(kind for kind in kinds if most <= torch.iinfo(kind).max)
        shape = torch.tensor([self.order, self.vocabulary])
        keys = (self.keys ^ TOP_BIT).view(torch.uint64)
        return {"shape": shape, "keys": keys, "counts": self.counts.cpu().to(smallest)}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> NgramCounts:
        """The counts whose `tensors()` these are."""
        order, vocabulary = tensors["shape"].tolist()
        keys = tensors["keys"].view(torch.int64) ^ TOP_BIT
        return cls(order, vocabulary, keys, tensors["counts"].long())


def discounts(counts: Tensor) -> Tensor:
    """What to take off a count of 0, 1, 2, and 3 or more: from counts of counts (Chen & Goodman, eq. 26)."""
    n = torch.bincount(counts.clamp(max=5), minlength=5)[:5].tolist()
    if 0 not in n[1:4]:
        d = [k - (k + 1) * n[1] / (n[1] + 2 * n[2]) * n[k + 1] / n[k] for k in (1, 2, 3)]
        # A discount of zero would leave nothing to the shorter contexts, and unseen tokens impossible.
        if all(0 < discount <= k for k, discount in enumerate(d, 1)):
            return torch.tensor([0.0, *d], dtype=torch.float64, device=counts.device)
    # For too little data, as lmplz --discount_fallback.
    return torch.tensor([0.0, 0.5, 1.0, 1.5], dtype=torch.float64, device=counts.device)


@dataclass(frozen=True)
class Level:
    """The n-grams with contexts of one length. The last element of each tensor stands for all unseen ones."""

    contexts: Tensor  # sorted: number of the parent context · vocabulary + oldest token
    backoff: Tensor  # of each context: the weight of its parent's distribution
    offsets: Tensor  # where the n-grams of each context begin
    ngrams: Tensor  # sorted: number of the context · vocabulary + predicted token
    mass: Tensor  # of each n-gram: its discounted relative frequency


def _find(keys: Tensor, wanted: Tensor) -> Tensor:
    """The index of each wanted key; of the last key, which is `NEVER`, if it is not there."""
    index = torch.searchsorted(keys, wanted.contiguous())
    return index.masked_fill_(keys.index_select(0, index) != wanted, keys.numel() - 1)


def _append(values: Tensor, last: float) -> Tensor:
    return torch.cat([values, values.new_full((1,), last)])


def _level(contexts: Tensor, ngrams: Tensor, counts: Tensor, discount: Tensor, vocabulary: int) -> Level:
    """Discount and normalise the counts within each context; the share taken off is the backoff."""
    context = _quotient(ngrams, vocabulary)
    begins = torch.searchsorted(context, torch.arange(contexts.numel() + 1, device=context.device))
    total = _sums_between(counts, begins)
    kind = counts.clamp(max=3)
    taken = sum(discount[k] * _sums_between((kind == k).long(), begins) for k in (1, 2, 3))
    return Level(
        contexts=_append(contexts, NEVER),
        backoff=_append(taken / total, 1.0),
        offsets=_append(begins, ngrams.numel()),
        ngrams=_append(ngrams, NEVER),
        mass=_append((counts - discount[kind]) / total[context], 0.0),
    )


def _adjusted_counts(counts: NgramCounts) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each context length from 0: the sorted keys of contexts and of n-grams, and the n-grams' counts.

    The longest n-grams, and those at the start of a document, which nothing precedes, keep their raw counts;
    any other counts the distinct tokens that precede it.
    """
    vocabulary, order = counts.vocabulary, counts.order
    *tokens, targets = counts.columns()
    lengths = sum((column != PAD for column in tokens), start=torch.zeros_like(targets))
    context = torch.zeros_like(targets)  # of each row: the number of its context among those of this length
    contexts, raw = [context.new_zeros(1)], []
    for length in range(order):
        if length:
            key = context * vocabulary + tokens[length - 1]
            first = lengths >= length
            first[1:] &= key[1:] != key[:-1]
            contexts.append(key[first])
            context = first.cumsum(0) - 1
        whole = lengths == length
        raw.append((context[whole] * vocabulary + targets[whole], counts.counts[whole]))
    ngrams, totals = raw[-1]
    adjusted = [(contexts[-1], ngrams, totals)]
    for length in reversed(range(order - 1)):
        parents, owner = _quotient(contexts[length + 1], vocabulary), _quotient(ngrams, vocabulary)
        preceded = ngrams + (parents[owner] - owner) * vocabulary
        keys = torch.cat([raw[length][0], preceded])
        values = torch.cat([raw[length][1], torch.ones_like(preceded)])
        (ngrams,), totals = _sum_by_key(keys[None], values)
        adjusted.insert(0, (contexts[length], ngrams, totals))
    return adjusted


class KneserNey:
    """p(w | context) = mass(context, w) + backoff(context) · p(w | the context less its oldest token).

    The unigrams back off to the uniform distribution over the tokens that can be predicted: EOD and above.
    """

    def __init__(self, counts: NgramCounts, order: int | None = None) -> None:
        counts = counts.shortened(counts.order if order is None else order)
        if not counts.distinct:
            raise SaffuError("no n-gram has been counted; count some documents first")
        self.order, self.vocabulary = counts.order, counts.vocabulary
        adjusted = _adjusted_counts(counts)
        self.discounts = torch.stack([discounts(totals) for _, _, totals in adjusted])  # (order, 4)
        unigrams, *self.levels = [
            _level(*tensors, discount, self.vocabulary)
            for tensors, discount in zip(adjusted, self.discounts, strict=True)
        ]
        self.unigram = unigrams.mass.new_zeros(self.vocabulary)
        self.unigram[EOD:] = unigrams.backoff[0] / (self.vocabulary - EOD)
        self.unigram[unigrams.ngrams[:-1]] += unigrams.mass[:-1]

    def log_probabilities(self, contexts: Tensor, targets: Tensor) -> Tensor:
        """ln p(target | context) of contexts (m, ≥ order − 1), newest token last, and targets (m,)."""
        targets = targets.long()
        if targets.numel() and not EOD <= targets.min() <= targets.max() < self.vocabulary:
            raise SaffuError(f"targets hold ids outside {EOD}..{self.vocabulary - 1}; tokenise the text again")
        total, weight = self.unigram.new_zeros(len(targets)), self.unigram.new_ones(len(targets))
        for level, context in self.matches(self._checked(contexts)):
            total += weight * level.mass[_find(level.ngrams, context * self.vocabulary + targets)]
            weight *= level.backoff[context]
        total += weight * self.unigram[targets]
        return total.log_()

    def distribution(self, contexts: Tensor) -> Tensor:
        """p(· | context) of contexts (m, ≥ order − 1): (m, vocabulary), zero below EOD; rows sum to 1."""
        matches, weights = self.matches(self._checked(contexts)), [self.unigram.new_ones(len(contexts))]
        for level, context in matches:
            weights.append(weights[-1] * level.backoff[context])
        probabilities = torch.outer(weights[-1], self.unigram)
        rows = torch.arange(len(contexts), device=contexts.device)
        for (level, context), weight in zip(matches, weights[:-1], strict=True):
            begins, sizes = level.offsets[context], level.offsets[context + 1] - level.offsets[context]
            row = rows.repeat_interleave(sizes)  # of one row's n-grams after another's
            ngrams = torch.arange(len(row), device=row.device) + (begins - (sizes.cumsum(0) - sizes))[row]
            # The key of an n-gram is context · vocabulary + token; its place is row · vocabulary + token.
            places = level.ngrams[ngrams] + ((rows - context) * self.vocabulary)[row]
            probabilities.view(-1).index_add_(0, places, level.mass[ngrams] * weight[row])
        return probabilities

    def _checked(self, contexts: Tensor) -> list[Tensor]:
        """The tokens of contexts (m, ≥ order − 1), newest first."""
        if contexts.shape[1] < self.order - 1:
            raise SaffuError(f"contexts are shorter than {self.order - 1} tokens; widen their windows")
        if contexts.numel() and not 0 <= contexts.min() <= contexts.max() < self.vocabulary:
            raise SaffuError(f"contexts hold ids outside 0..{self.vocabulary - 1}; tokenise the text again")
        return [contexts[:, -length].long() for length in range(1, self.order)]

    def matches(self, tokens: Sequence[Tensor]) -> list[tuple[Level, Tensor]]:
        """Each level, longest contexts first, with the number there of each row's context (its tokens newest first)."""
        matches: list[tuple[Level, Tensor]] = []
        context: Tensor | None = None
        for level, token in zip(self.levels, tokens, strict=True):
            context = _find(level.contexts, token if context is None else context * self.vocabulary + token)
            matches.insert(0, (level, context))
        return matches
