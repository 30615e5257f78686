"""Explain the predictions of a calibrated model, from the shares and exponents that its kernels use.

Every view is shown relative to the prior f: what it adds to a token is evidence for it if positive, against it if
negative. An uninformative view adds nothing. Both levels, class and token, are in one number per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from saffu.calibrated.kernels import MAX_LEVELS, TOKEN, Array, library, pointer
from saffu.calibrated.views import HALF_LIVES, NGRAM, View, memory_contexts, memory_parts
from saffu.format import plural
from saffu.interface import Explanation, Floats, Term
from saffu.text.tokenizer import EOD, PAD

if TYPE_CHECKING:
    from saffu.calibrated.model import CalibratedModel


def explain(model: CalibratedModel, context: Sequence[int]) -> Explanation:
    """The prediction of the token after a context, which begins its document."""
    features, exponents = parts_of(model, context)
    views = len(model.views)
    level = Levels(model)
    prior = features[0]
    plain_scores = np.zeros(features.shape[1])
    terms = []
    gamma = level.spread(exponents[1 + views]) if model.config.cache else np.ones_like(prior)

    def add_term(
        name: str, values: Floats, seen: Sequence[int] = (), weight: float | None = None, reason: str = ""
    ) -> None:
        of_class = level.class_part(values)
        terms.append(Term(name, level.joined(values), tuple(seen), weight, of_class=of_class, reason=reason))

    is_slot = np.array([view.is_slot for view in model.views])
    others = exponents[1 : 1 + views][~is_slot]  # of shares that are not divided by f, as those of slots are
    of_prior = exponents[0] + others.sum(0)  # (2,)
    plain_scores += level.spread(of_prior) * prior
    add_term("prior", gamma * plain_scores, weight=float(of_prior[0] * gamma[0]))
    for view, shares, weights in zip(model.views, features[1:], exponents[1:], strict=False):
        evidence = level.spread(weights) * (shares - prior)
        plain_scores += evidence
        weight = float(weights[0] * gamma[0])
        add_term(view.name, gamma * evidence, tokens_seen(view, context)[::-1], weight, reason_of(view))
    scores = gamma * plain_scores
    normalizers = np.zeros_like(prior)
    if model.config.cache:
        plain = features[1 + views]
        normalizers += gamma * (plain - plain_scores)
        scores = gamma * plain
        for name, seen, values, weights in zip(
            memory_parts(model.config), matched_tokens(model, context), features[2 + views :], exponents[2 + views :],
            strict=True,
        ):  # fmt: skip
            scores = scores + values
            add_term(name, values, seen, float(weights[0]), "what the document has said so far")
    last = level.normalizers(scores)
    add_term("normalizer", normalizers + last)
    log_p = np.where(np.arange(model.vocabulary) < EOD, -np.inf, level.joined(scores + last))
    return Explanation(tuple(context), terms, log_p, {"n-gram share": ngram_shares(model, context)})


def reason_of(view: View) -> str:
    """What a view sees, in words; {} stands for its text."""
    if view.classes:
        return "words like those right before it"
    return "{} right before it" if view.distances[0] == 1 else "{} farther back"


class Levels:
    """Arrays over the classes (K) and then the predicted tokens by rank, (K + tokens)."""

    def __init__(self, model: CalibratedModel):
        self.ranks = model.ranks
        self.vocabulary = model.vocabulary

    def spread(self, weights: Array) -> Floats:
        """Of two numbers, the first for each class and the second for each token."""
        return np.repeat(weights.astype(np.float64), [self.ranks.number, self.ranks.predicted])

    def joined(self, values: Floats) -> Floats:
        """Both levels as one number per token, (N,)."""
        out = np.zeros(self.vocabulary)
        of_classes, of_tokens = np.split(values, [self.ranks.number])
        out[self.ranks.tokens[: self.ranks.predicted]] = np.repeat(of_classes, self.ranks.sizes) + of_tokens
        return out

    def class_part(self, values: Floats) -> Floats:
        """What the classes alone contribute to that, (N,)."""
        return self.joined(np.where(np.arange(len(values)) < self.ranks.number, values, 0))

    def normalizers(self, scores: Floats) -> Floats:
        """What makes the classes, and the tokens of each class, add up to one: (K + tokens)."""
        of_classes, of_tokens = np.split(scores, [self.ranks.number])
        totals = np.logaddexp.reduceat(of_tokens, self.ranks.first[:-1])
        whole = np.full(self.ranks.number, np.logaddexp.reduce(of_classes))
        return -np.concatenate([whole, np.repeat(totals, self.ranks.sizes)])


def parts_of(model: CalibratedModel, context: Sequence[int]) -> tuple[Floats, Floats]:
    """From the kernel: what each part says (parts, K + tokens), and its exponents of classes and of tokens (parts, 2).

    The parts: ln of the shares of prior and views; ln p without the memory; what the parts of the memory add.
    """
    width = model.ranks.number + model.ranks.predicted
    parts = 1 + len(model.views)
    parts += 1 + len(memory_parts(model.config)) if model.config.cache else 0
    features = np.empty((parts, width), dtype=np.float32)
    exponents = np.empty((parts, 2), dtype=np.float32)
    with model._readers.at(model.start(context).document) as (reader, *document):
        library.saffu_explain(reader.handle, *document, pointer(features, np.float32), pointer(exponents, np.float32))
    return features.astype(np.float64), exponents.astype(np.float64)


def matched_tokens(model: CalibratedModel, context: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens that each part of the memory looks for further back, oldest first."""
    tokens: list[tuple[int, ...]] = [()] * len(HALF_LIVES)
    for part in memory_contexts(model.config):
        known = part.distances[-1] <= len(context)
        tokens.append(tuple(context[-distance] for distance in reversed(part.distances)) if known else ())
    return tokens


def tokens_seen(view: View, context: Sequence[int]) -> list[int]:
    """The tokens at a view's distances, nearest first; EOD before the document, PAD before that."""
    padded = [*[PAD] * max(view.distances), EOD, *context]
    return [padded[-distance] for distance in view.distances]


def matches(model: CalibratedModel, number: int, context: Sequence[int]) -> list[int]:
    """The contexts of a view that were seen, one number per level, shortest first."""
    tail = np.array(context[-model.lookback :], dtype=TOKEN)
    contexts = np.empty(MAX_LEVELS, dtype=np.uint32)
    levels = library.saffu_match(
        model.native, number, pointer(tail, TOKEN), len(tail), len(context), pointer(contexts, np.uint32)
    )
    return [int(at) for at in contexts[:levels]]


def level_shares(model: CalibratedModel, number: int, context: Sequence[int]) -> list[Floats]:
    """What each level of a view adds to p_v(n | c), by rank, longest context first and unigrams last."""
    table = model.tables[number]
    weight = 1.0
    shares = []
    contexts = matches(model, number, context)
    for level, at in zip(reversed(table.levels[: len(contexts)]), reversed(contexts), strict=True):
        mass = np.zeros(model.vocabulary)
        followers = slice(int(level["begin"][at]), int(level["begin"][at + 1]))
        mass[level["follow"][followers]] = level["mass"][followers]
        shares.append(weight * mass[: model.ranks.predicted])
        weight *= float(level["backoff"][at])
    return [*shares, weight * table.unigram[: model.ranks.predicted].astype(np.float64)]


def ngram_shares(model: CalibratedModel, context: Sequence[int]) -> list[Term]:
    """How much of the n-grams' probability of each token comes from contexts of each length, longest first."""
    number = [view.name for view in model.views].index(NGRAM)
    shares = level_shares(model, number, context)
    seen = list(reversed(tokens_seen(model.views[number], context)))
    total = np.sum(shares, axis=0)
    terms = []
    for length, share in zip(range(len(shares) - 1, -1, -1), shares, strict=True):
        values = np.zeros(model.vocabulary)
        values[model.ranks.tokens[: model.ranks.predicted]] = share / total
        name = plural(length, "token") if length else "none"
        terms.append(Term(name, values, tuple(seen[len(seen) - length :])))
    return terms
