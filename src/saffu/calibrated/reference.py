"""The calibrated model in plain Python dictionaries: its readable definition, which tests compare the kernels with.

Everything here is slow and follows from the documents alone. The fast path is the rest of this folder.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.views import View, views_of
from saffu.interface import Floats
from saffu.text.tokenizer import EOD, PAD

if TYPE_CHECKING:
    from saffu.calibrated.model import Encoder

Row = tuple[int, ...]
"""A context, nearest token first, and the token that follows it."""

Counts = Mapping[Row, int]
FALLBACK = (0.5, 1.0, 1.5)
HALF_LIVES, STRENGTH = (30, 200, 1500), 5
RECENT, FEW_STARTS = 128, 64


def seen(context: Sequence[int], distances: Iterable[int]) -> Row:
    """The tokens at some distances before the end of a context that begins its document: EOD before it, then PAD.

    >>> seen([7, 8], [1, 2, 3, 4])
    (8, 7, 3, 0)
    """
    before = [*reversed(context), EOD]
    return tuple(before[d - 1] if d <= len(before) else PAD for d in distances)


def rows(documents: Iterable[Sequence[int]], distances: Sequence[int]) -> Counter[Row]:
    """One row per token: its context and the token itself.

    >>> list(rows([[7, 8, 3]], [1, 2]))
    [(3, 0, 7), (7, 3, 8), (8, 7, 3)]
    """
    places = ((document, place) for document in documents for place in range(len(document)))
    return Counter((*seen(document[:place], distances), document[place]) for document, place in places)


def marginal(
    counts: Counts, columns: Sequence[int], classes: Sequence[int] | None = None, exact: int = 0
) -> Counter[Row]:
    """Counts of the context tokens at these places only (1: nearest), the places after `exact` as classes, if given.

    >>> marginal({(8, 7, 3): 2, (8, 9, 3): 1}, [1])
    Counter({(8, 3): 3})
    """
    grouped: Counter[Row] = Counter()
    for row, count in counts.items():
        tokens = [row[column - 1] for column in columns]
        if classes is not None:
            tokens = [*tokens[:exact], *(int(classes[token]) for token in tokens[exact:])]
        grouped[(*tokens, row[-1])] += count
    return grouped


def discounts(adjusted: Iterable[int]) -> tuple[tuple[float, float, float], bool]:
    """Discounts of counts of 1, 2, and 3 or more (Chen & Goodman 1998, eq. 26), and whether they were estimated.

    With y = n1/(n1 + 2 n2), where n_k n-grams are counted k times: D_k = k − (k + 1) y n_{k+1}/n_k.

    >>> discounts([1] * 6 + [2] * 3 + [3] * 2 + [4])
    ((0.5, 1.0, 2.0), True)
    >>> discounts([1, 1, 2])
    ((0.5, 1.0, 1.5), False)
    """
    n = Counter(adjusted)
    if not (n[1] and n[2] and n[3]):
        return FALLBACK, False
    y = n[1] / (n[1] + 2 * n[2])
    d1, d2, d3 = (k - (k + 1) * y * n[k + 1] / n[k] for k in (1, 2, 3))
    usable = 0 < d1 <= 1 and 0 < d2 <= 2 and 0 < d3 <= 3
    return ((d1, d2, d3), True) if usable else (FALLBACK, False)


class KneserNey:
    """Interpolated modified Kneser–Ney over rows.

    `adjusted[L]` maps a context of L tokens to the adjusted counts of its followers. For the longest contexts these are
    counts. For others, they are the number of distinct tokens that stand before context and follower; where a document
    begins right before the context, no token does, and every occurrence counts.

    >>> model = KneserNey(rows([[7, 8, 3], [9, 8, 3]], [1, 2]), vocabulary=10)
    >>> model.adjusted[1][(8,)], model.adjusted[1][(3,)]  # 8 3 follows 7 and 9; 7 and 9 each begin a document once
    ({3: 2}, {7: 1, 9: 1})
    >>> round(sum(model.probability((8, 5), token) for token in range(3, 10)), 12)
    1.0
    """

    def __init__(
        self, counts: Counts, vocabulary: int, prune: int = 0, unigram: Mapping[int, float] | None = None
    ):  # `unigram` takes the place of the unigram distribution
        self.depth, self.unigram = len(next(iter(counts), (PAD, PAD))) - 1, unigram
        self.predicted = vocabulary - EOD  # the markers before EOD are never predicted
        self.adjusted: list[dict[Row, dict[int, int]]] = [{} for _ in range(self.depth + 1)]
        for row, count in counts.items():
            for level in range(self.depth + 1):
                context, token = row[:level], row[-1]
                if PAD in context[1:]:  # the document begins within it: a shorter context says the same
                    break
                followers = self.adjusted[level].setdefault(context, {})
                begins = level > 0 and level < self.depth and row[level] == PAD
                followers[token] = followers.get(token, 0) + (count if level == self.depth or begins else 0)
        for level in range(self.depth, 0, -1):
            for context, followers in self.adjusted[level].items():
                for token in followers:
                    self.adjusted[level - 1][context[:-1]][token] += 1
        found = [
            discounts(count for followers in level.values() for count in followers.values()) for level in self.adjusted
        ]
        self.discounts, self.estimated = [d for d, _ in found], [estimated for _, estimated in found]
        self.mass: list[dict[Row, dict[int, float]]] = []
        for level, contexts in enumerate(self.adjusted):
            limit = prune if level > 1 else 0
            self.mass.append({c: self._shares(level, followers, limit) for c, followers in contexts.items()})
        for level in range(self.depth, 1, -1):  # contexts that pruning left empty are not stored
            stored = {context[:-1] for context in self.mass[level + 1]} if level < self.depth else set()
            self.mass[level] = {c: shares for c, shares in self.mass[level].items() if shares or c in stored}

    def _shares(self, level: int, followers: dict[int, int], limit: int) -> dict[int, float]:
        total = sum(followers.values())
        return {
            token: (count - self.discounts[level][min(count, 3) - 1]) / total
            for token, count in followers.items()
            if count > limit
        }

    def length(self, context: Row) -> int:
        """How many tokens of a context were seen together, nearest first."""
        longest = 0
        while longest < self.depth and context[: longest + 1] in self.mass[longest + 1]:
            longest += 1
        return longest

    def probability(self, context: Row, token: int) -> float:
        """p(t | c1 … cL) = mass(c1 … cL, t) + (1 − Σ_n mass(c1 … cL, n)) · p(t | c1 … cL−1)."""
        context = context[: self.length(context)]
        if self.unigram and not context:
            return self.unigram[token]
        lower = self.probability(context[:-1], token) if context else 1 / self.predicted
        mass = self.mass[len(context)][context]
        return mass.get(token, 0.0) + (1 - math.fsum(mass.values())) * lower


class RecencyCache:
    """What the last tokens of a document say about the next: three decayed unigram caches, a bigram, a trigram cache.

    p_h = (c_h + 5 f)/(Σ c_h + 5), where a token's weight in c_h halves every h tokens; p_b = (m_b + p_200)/(Σ m_b + 1),
    where m_b counts what followed the last token before; p_t = (m_t + p_b)/(Σ m_t + 1), the same for the last two.
    """

    def __init__(self, context: Sequence[int], window: int):
        self.age, self.past = len(context), list(context[-window:])
        last, past = self.past[-1:], self.past
        self.bigrams = [past[i + 1] for i in range(len(past) - 1) if past[i : i + 1] == last]
        self.trigrams = [past[i + 1] for i in range(1, len(past) - 1) if past[i - 1 : i + 1] == past[-2:]]

    def shares(self, half_life: float, prior: Mapping[int, float], output: Mapping[int, int]) -> dict[int, float]:
        """p_h of outputs with prior f; `output` maps tokens to outputs."""
        weights: defaultdict[int, float] = defaultdict(float)
        for since, token in enumerate(reversed(self.past)):
            weights[output[token]] += 0.5 ** (since / half_life)
        total = sum(weights.values()) + STRENGTH
        return {o: (weights[o] + STRENGTH * f) / total for o, f in prior.items()}

    def evidence(self) -> list[int]:
        """Which of four exponents each cache gets: by the age of the document, or by the number of matches."""
        of_age = sum(self.age >= limit for limit in HALF_LIVES)
        matches = (sum(len(found) > limit for limit in (0, 1, 4)) for found in (self.bigrams, self.trigrams))
        return [of_age, of_age, of_age, *matches]

    def ratios(self, prior: Mapping[int, float], output: Mapping[int, int]) -> list[dict[int, float]]:
        """p_h/f of the three, p_b/p_200, and p_t/p_b."""
        decayed = [self.shares(half_life, prior, output) for half_life in HALF_LIVES]
        ratios, lower = [{o: p / prior[o] for o, p in shares.items()} for shares in decayed], decayed[1]
        for followers in (self.bigrams, self.trigrams):
            counts = Counter(output[token] for token in followers)
            upper = {o: (counts[o] + p) / (len(followers) + 1) for o, p in lower.items()}
            ratios.append({o: p / lower[o] for o, p in upper.items()})
            lower = upper
        return ratios


class CalibratedReference:
    """A calibrated model counted from documents, with the classes and exponents of an encoder.

    log p(k | c)    = γ log f_k + Σ_slots a_v log(p_v(k | c)/f_k) + Σ_others a_v log p_v(k | c) − log Z
    log p(n | k, c) = the same with p_v(n | c), f_n, its own exponents, and a normalizer over the tokens of class k

    With a recency cache there are two such models, one of which has the cache's ratios as further factors, and

    p = w p_cached + (1 − w) p_plain,   w = σ(trust + Σ ln p_cached − ln p_plain), summed over the last 128 tokens.
    """

    def __init__(self, documents: Sequence[Sequence[int]], vocabulary: int, config: CalibratedConfig, encoder: Encoder):
        self.encoder, self.views, self.window = encoder, views_of(config), config.cache
        frequencies = Counter(token for document in documents for token in document)
        total = sum(frequencies.values()) + 0.5 * (vocabulary - EOD)
        self.prior = {token: (frequencies[token] + 0.5) / total for token in range(EOD, vocabulary)}
        self.tables: list[KneserNey] = []
        self.known: dict[tuple[Row, bool], dict[int, float]] = {}
        for view in self.views:
            classes = encoder.context_classes[view.classes].tolist() if view.classes else None
            counts = marginal(rows(documents, view.distances), range(1, len(view.distances) + 1), classes, view.exact)
            unigram = self.prior if view.is_slot else None  # so that an unseen slot is uninformative
            at_start = [row for row in counts if row[0] == PAD]
            if view.is_slot and len(at_start) <= FEW_STARTS:  # too few to learn what stands near a start
                counts = Counter({row: n for row, n in counts.items() if row[0] != PAD})
            self.tables.append(KneserNey(counts, vocabulary, config.prune, unigram))
        self.class_of = {token: int(encoder.output_classes[token]) for token in self.prior}

    def context(self, view: View, context: Sequence[int]) -> Row:
        """What a view sees of a context."""
        tokens = seen(context, view.distances)
        if not view.classes:
            return tokens
        classes = self.encoder.context_classes[view.classes]
        return (*tokens[: view.exact], *(int(classes[token]) for token in tokens[view.exact :]))

    def exponents(self, context: Sequence[int], cache: RecencyCache | None) -> Floats:
        """Those of the prior, of each view, and of each cache, (2, parts): of classes and of tokens.

        A view has four for each length of context it has seen: for at most 1, 8, 64, and more followers.
        """
        chosen, first = [0], 1
        for view, table in zip(self.views, self.tables, strict=True):
            looked_up = self.context(view, context)
            length = max(1, table.length(looked_up))
            followers = len(table.mass[length].get(looked_up[:length], {}))
            chosen.append(first + 4 * (length - 1) + sum(followers > limit for limit in (1, 8, 64)))
            first += 4 * len(view.distances)
        if cache:
            chosen += [first + 4 * number + evidence for number, evidence in enumerate(cache.evidence())]
        return (self.encoder.cached if cache else self.encoder.plain)[:, chosen]

    def log_probabilities(self, context: Sequence[int]) -> dict[int, float]:
        """ln p of every token that can follow a context, which begins its document."""
        plain = self.predicted(context, False)
        if not self.window:
            return plain
        of_age = sum(len(context) >= limit for limit in HALF_LIVES)
        trust = float(self.encoder.trust[of_age]) + sum(
            self.predicted(context[:place], True)[token] - self.predicted(context[:place], False)[token]
            for place, token in list(enumerate(context))[-RECENT:]
        )
        cached, log_w, log_rest = self.predicted(context, True), -np.logaddexp(0, -trust), -np.logaddexp(0, trust)
        return {n: float(np.logaddexp(log_w + cached[n], log_rest + p)) for n, p in plain.items()}

    def predicted(self, context: Sequence[int], with_cache: bool) -> dict[int, float]:
        """ln p without the recency cache, or with it."""
        if (tuple(context), with_cache) in self.known:
            return self.known[tuple(context), with_cache]
        cache = RecencyCache(context, self.window) if with_cache else None
        class_exponents, token_exponents = self.exponents(context, cache)
        class_prior = self.by_class(self.prior)
        class_factors: list[dict[int, float]] = []
        token_factors: list[dict[int, float]] = []
        for view, table in zip(self.views, self.tables, strict=True):
            looked_up = self.context(view, context)
            shares = {token: table.probability(looked_up, token) for token in self.prior}
            for factors, share, f in (
                (class_factors, self.by_class(shares), class_prior), (token_factors, shares, self.prior)
            ):  # fmt: skip
                factors.append({o: p / f[o] for o, p in share.items()} if view.is_slot else share)
        if cache:
            class_factors += cache.ratios(class_prior, self.class_of)
            token_factors += cache.ratios(self.prior, {token: token for token in self.prior})
        log_classes = product(class_exponents, [class_prior, *class_factors], class_prior)
        log_p = self.known[tuple(context), with_cache] = {}
        for k in class_prior:
            members = [token for token in self.prior if self.class_of[token] == k]
            within = product(token_exponents, [self.prior, *token_factors], members)
            log_p |= {token: log_classes[k] + within[token] for token in members}
        return log_p

    def by_class(self, shares: Mapping[int, float]) -> dict[int, float]:
        """Shares of classes from shares of tokens."""
        return {
            k: math.fsum(share for token, share in shares.items() if self.class_of[token] == k)
            for k in set(self.class_of.values())
        }


def product(exponents: Floats, factors: Sequence[Mapping[int, float]], outputs: Iterable[int]) -> dict[int, float]:
    """ln of the product of powers of factors, normalized over some outputs."""
    scores = {o: math.fsum(e * math.log(f[o]) for e, f in zip(exponents, factors, strict=True)) for o in outputs}
    normalizer = float(np.logaddexp.reduce(list(scores.values())))
    return {output: score - normalizer for output, score in scores.items()}
