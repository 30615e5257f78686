"""The calibrated model in plain Python dictionaries: its readable definition, which tests compare the kernels with.

Everything here is slow and follows from the documents alone. The fast path is `saffu.calibrated`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.views import (
    AGES,
    ARCHIVE,
    ARCHIVE_CONTEXTS,
    ARCHIVE_HALF_LIVES,
    HALF_LIVES,
    MATCHES,
    MEMORY_EVIDENCE,
    MOST_FOLLOWERS,
    ONE_FOLLOWER,
    RATE,
    SEVERAL_FOLLOWERS,
    SMALLEST_SHARE,
    STRENGTH,
    MemoryContext,
    View,
    first_remembered,
    memory_contexts,
)
from saffu.interface import Floats
from saffu.text.tokenizer import EOD, PAD

if TYPE_CHECKING:
    from saffu.calibrated.model import Encoder

Row = tuple[int, ...]
"""A context, nearest token first, and the token that follows it."""

Counts = Mapping[Row, int]
FALLBACK = (0.5, 1.0, 1.5)
FEW_STARTS = 64


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
        self.depth = len(next(iter(counts), (PAD, PAD))) - 1
        self.unigram = unigram
        self.predicted = vocabulary - EOD  # the markers before EOD are never predicted
        self.adjusted: list[dict[Row, dict[int, int]]] = [{} for _ in range(self.depth + 1)]
        for row, count in counts.items():
            for level in range(self.depth + 1):
                context = row[:level]
                token = row[-1]
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
        self.discounts = [d for d, _ in found]
        self.estimated = [estimated for _, estimated in found]
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


class DocumentMemory:
    """What a document, or all of them so far, said; see `saffu.calibrated.views`."""

    def __init__(
        self,
        encoder: Encoder,
        context: Sequence[int],
        half_lives: Sequence[float],
        contexts: Sequence[MemoryContext],
        window: int,
    ):
        self.encoder = encoder
        self.half_lives = half_lives
        self.contexts = contexts
        self.age = len(context)
        self.past = context[first_remembered(window, self.age) :]
        self.followers: list[dict[int, float]] = []  # of the contexts at the end
        for number, part in enumerate(self.contexts):
            now = self.key(number, len(self.past))
            counts = dict[int, float]()
            if part.longest:
                self.followers.append(self.match(number))
                continue
            for place in range(part.distances[-1], len(self.past)):
                if self.key(number, place) == now:
                    counts = {token: part.keep * count for token, count in counts.items()}
                    token = self.past[place]
                    if token not in counts and len(counts) == MOST_FOLLOWERS:
                        counts.pop(min(counts, key=lambda token: counts[token]))
                    counts[token] = counts.get(token, 0) + 1
            self.followers.append(counts)

    def match(self, number: int) -> dict[int, float]:
        """What followed the latest occurrence of a context, and how many tokens agree there, at most `longest`."""
        length = self.contexts[number].distances[-1]
        end = len(self.past)
        for place in range(end - 1, length - 1, -1):
            if self.key(number, place) == self.key(number, end):
                while length < min(self.contexts[number].longest, place):
                    if self.past[place - length - 1] != self.past[end - length - 1]:
                        break
                    length += 1
                return {self.past[place]: length}
        return {}

    def key(self, number: int, place: int) -> Row | None:
        """What the context of a part is before a place; None near the start."""
        part = self.contexts[number]
        if part.distances[-1] > place:
            return None
        tokens = [self.past[place - distance] for distance in part.distances]
        if not part.classes:
            return tuple(tokens)
        classes = self.encoder.context_classes[part.classes]
        return (*tokens[: part.exact], *(int(classes[token]) for token in tokens[part.exact :]))

    def features(
        self, plain: Mapping[int, float], prior: Mapping[int, float], output: Mapping[int, int]
    ) -> tuple[list[dict[int, float]], list[int]]:
        """For the outputs of a decision: the features of each part, and the numbers of their exponents, from 0 on.

        `plain` and `prior`: their shares without the memory, and f; `output` maps tokens to outputs.
        """
        features: list[dict[int, float]] = []
        numbers: list[int] = []
        for half_life in self.half_lives:
            weights: defaultdict[int, float] = defaultdict(float)
            for since, token in enumerate(reversed(self.past)):
                weights[output.get(token, PAD)] += 0.5 ** (since / half_life)
            total = sum(weights.values()) + STRENGTH
            features.append({o: math.log((weights[o] + STRENGTH * prior[o]) / total / prior[o]) for o in plain})
            numbers.append(sum(self.age >= limit for limit in AGES))
        shares = plain
        for part, followers in zip(self.contexts, self.followers, strict=True):
            counts: defaultdict[int, float] = defaultdict(float)
            for token, count in followers.items():
                if output.get(token, PAD) in plain:
                    counts[output[token]] += count
            shares = shares if part.chained else plain
            s = part.strength
            total = sum(counts.values())
            features.append({o: math.log(1 + counts.get(o, 0) / (s * shares[o])) for o in plain})
            shares = {o: (counts.get(o, 0) + s * p) / (total + s) for o, p in shares.items()}
            if part.longest:
                numbers.append(sum(total >= limit for limit in MATCHES))
            elif len(counts) <= 1:
                numbers.append(sum(total >= limit for limit in ONE_FOLLOWER))
            else:
                numbers.append(len(ONE_FOLLOWER) + 1 + int(total >= SEVERAL_FOLLOWERS))
        return features, [MEMORY_EVIDENCE * part + number for part, number in enumerate(numbers)]


class CalibratedReference:
    """A calibrated model counted from documents, with the classes and exponents of an encoder.

    log p(k | c)    = γ log f_k + Σ_slots a_v log(p_v(k | c)/f_k) + Σ_others a_v log p_v(k | c) − log Z
    log p(n | k, c) = the same with p_v(n | c), f_n, its own exponents, and a normalizer over the tokens of class k

    With a memory this is p_plain, and both levels are further products, whose exponents are learned while reading:

    log p(o) = γ log p_plain(o) + Σ_h a_h log(p_h(o)/f(o)) + Σ_m a_m log(1 + c_m(o)/(s_m p(o))) − log Z
    """

    def __init__(self, documents: Sequence[Sequence[int]], vocabulary: int, config: CalibratedConfig, encoder: Encoder):
        self.config = config
        self.encoder = encoder
        self.views = encoder.views
        frequencies = Counter(token for document in documents for token in document)
        total = sum(frequencies.values()) + 0.5 * (vocabulary - EOD)
        self.prior = {token: (frequencies[token] + 0.5) / total for token in range(EOD, vocabulary)}
        self.tables: list[KneserNey] = []
        self.known: dict[Row, tuple[dict[int, float], dict[int, float]]] = {}
        self.learned: dict[Row, tuple[Floats, Floats]] = {}
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

    def exponents(self, context: Sequence[int]) -> Floats:
        """Those of the prior and of each view, (2, parts): of classes and of tokens.

        A view has four for each length of context it has seen: for at most 1, 8, 64, and more followers.
        """
        chosen = [0]
        first = 1
        for view, table in zip(self.views, self.tables, strict=True):
            looked_up = self.context(view, context)
            length = max(1, table.length(looked_up))
            followers = len(table.mass[length].get(looked_up[:length], {}))
            chosen.append(first + 4 * (length - 1) + sum(followers > limit for limit in (1, 8, 64)))
            first += 4 * len(view.distances)
        return self.encoder.plain[:, chosen]

    def log_probabilities(self, context: Sequence[int]) -> dict[int, float]:
        """ln p of every token that can follow a context, which begins its document."""
        of_classes, of_tokens = self.plain(context)
        if self.config.cache:
            memory, (exponents, _) = [self.memory(context)], self.after(context)
            of_classes = self.remembered(memory, 0, exponents, of_classes)[0]
            of_tokens = {
                token: p
                for k in of_classes
                for token, p in self.remembered(memory, 1, exponents, self.members(of_tokens, k))[0].items()
            }
        return {token: of_classes[self.class_of[token]] + p for token, p in of_tokens.items()}

    def members(self, of_tokens: Mapping[int, float], k: int) -> dict[int, float]:
        """What is given for the tokens of a class."""
        return {token: p for token, p in of_tokens.items() if self.class_of[token] == k}

    def memory(self, context: Sequence[int]) -> DocumentMemory:
        """The memory of a document that began like this."""
        return DocumentMemory(self.encoder, context, HALF_LIVES, memory_contexts(self.config), self.config.cache)

    def archive(self, text: Sequence[int]) -> DocumentMemory:
        """The memory of all text so far, when documents are read online."""
        return DocumentMemory(self.encoder, text, ARCHIVE_HALF_LIVES, ARCHIVE_CONTEXTS, ARCHIVE * self.config.cache)

    def remembered(
        self, memories: Sequence[DocumentMemory], level: int, exponents: Floats, plain: Mapping[int, float]
    ) -> tuple[dict[int, float], list[dict[int, float]], list[int]]:
        """ln p of the outputs of a decision with memories, their features, and the numbers of their exponents."""
        prior = self.prior if level else self.by_class(self.prior)
        output = {token: token for token in self.prior} if level else self.class_of
        shares = {o: max(math.exp(p), SMALLEST_SHARE) for o, p in plain.items()}
        features = [{o: math.log(p) for o, p in shares.items()}]
        numbers = [0]
        first = 1
        for memory in memories:
            more, own = memory.features(shares, prior, output)
            features += more
            numbers += [first + number for number in own]
            first += MEMORY_EVIDENCE * len(more)
        factors = [{o: math.exp(x) for o, x in feature.items()} for feature in features]
        return product(exponents[level, numbers], factors, plain), features, numbers

    def after(self, context: Sequence[int]) -> tuple[Floats, Floats]:
        """The exponents (2, J) learned from a document, and the sums of the squares of their gradients (2, J).

        After each token, a ← a + RATE · g/√(Σ g²), where g are the features of the token minus their expectation.
        """
        if not context:
            return self.encoder.memory, np.ones_like(self.encoder.memory)
        if tuple(context) in self.learned:
            return self.learned[tuple(context)]
        before = context[:-1]
        token = context[-1]
        _, *learned = self.learn([self.memory(before)], before, token, *self.after(before))
        self.learned[tuple(context)] = learned[0], learned[1]
        return self.learned[tuple(context)]

    def learn(
        self, memories: Sequence[DocumentMemory], before: Sequence[int], token: int, exponents: Floats, squares: Floats
    ) -> tuple[float, Floats, Floats]:
        """ln p of a token after a document's start, and the exponents and sums of squares after it."""
        (of_classes, of_tokens), k, total = self.plain(before), self.class_of[token], 0.0
        new = exponents.copy()
        sums = squares.copy()
        for level, target, plain in ((0, k, of_classes), (1, token, self.members(of_tokens, k))):
            log_p, features, numbers = self.remembered(memories, level, exponents, plain)
            total += log_p[target]
            for number, feature in zip(numbers, features, strict=True):
                gradient = feature[target] - sum(math.exp(p) * feature[o] for o, p in log_p.items())
                sums[level, number] += gradient**2
                new[level, number] += RATE * gradient / math.sqrt(sums[level, number])
        return total, new, sums

    def online(self, documents: Sequence[Sequence[int]]) -> list[float]:
        """ln p of every token of documents that are read one after the other."""
        parts = len(ARCHIVE_HALF_LIVES) + len(ARCHIVE_CONTEXTS)
        exponents = np.concatenate([self.encoder.memory, np.zeros((2, MEMORY_EVIDENCE * parts))], axis=1)
        squares = np.ones_like(exponents)
        scores = list[float]()
        text = list[int]()
        for document in documents:
            for place, token in enumerate(document):
                memories = [self.memory(document[:place]), self.archive(text)]
                log_p, exponents, squares = self.learn(memories, document[:place], token, exponents, squares)
                scores.append(log_p)
                text.append(token)
        return scores

    def plain(self, context: Sequence[int]) -> tuple[dict[int, float], dict[int, float]]:
        """ln p of the classes, and of tokens given their class, without a memory."""
        if tuple(context) in self.known:
            return self.known[tuple(context)]
        class_exponents, token_exponents = self.exponents(context)
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
        of_classes = product(class_exponents, [class_prior, *class_factors], class_prior)
        of_tokens: dict[int, float] = {}
        for k in class_prior:
            members = [token for token in self.prior if self.class_of[token] == k]
            of_tokens |= product(token_exponents, [self.prior, *token_factors], members)
        self.known[tuple(context)] = of_classes, of_tokens
        return of_classes, of_tokens

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
