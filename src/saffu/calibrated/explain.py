"""Explain the predictions of a calibrated model, in plain NumPy: also a reference for its arithmetic.

Every view is shown relative to the prior f: what it adds to a token is evidence for it if positive, against it if
negative. An uninformative view adds nothing. Both levels, class and token, are in one number per token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from saffu.calibrated.kernels import AGES, CACHES, EVIDENCE
from saffu.calibrated.layout import exponent_slices, log_prior
from saffu.calibrated.views import MEMORY, View
from saffu.format import plural
from saffu.interface import Explanation, Floats, Term
from saffu.text.tokenizer import EOD, PAD

HALF_LIVES, STRENGTH = (30, 200, 1500), 5.0  # as in native/cache.h

if TYPE_CHECKING:
    from saffu.calibrated.model import CalibratedModel


def explain(model: CalibratedModel, context: Sequence[int]) -> Explanation:
    """The prediction of the token after a context, which begins its document."""
    layout, first = model.ranks, model.ranks.first
    widths = np.diff(first)

    def split(log_shares: Floats) -> tuple[Floats, Floats]:
        """By rank to log-shares of classes (K,) and of tokens within their class, by rank."""
        of_classes = np.log(np.add.reduceat(np.exp(log_shares), first[:-1]))
        return of_classes, log_shares - np.repeat(of_classes, widths)

    def joined(of_classes: Floats, of_tokens: Floats, unseen: float = 0.0) -> Floats:
        """Both levels as one number per token, (N,)."""
        values = np.full(model.vocabulary, unseen)
        values[layout.tokens[: layout.predicted]] = np.repeat(of_classes, widths) + of_tokens
        return values

    exponents = model.encoder.cached if model.config.cache else model.encoder.plain
    chosen = exponents[:, chosen_exponents(model, context)]  # (2, 1 + views)
    log_f = log_prior(model.frequencies, layout)[: layout.predicted]
    prior = split(log_f)
    is_plain = [not view.is_slot for view in model.views]  # its share is not divided by the prior
    gamma = [float(e[0] + e[1:][is_plain].sum()) for e in chosen]
    parts: list[tuple[str, tuple[int, ...], float, tuple[Floats, Floats]]] = []
    for number, view in enumerate(model.views):
        shares, (a, b) = split(np.log(view_shares(model, number, context))), chosen[:, number + 1]
        evidence = a * (shares[0] - prior[0]), b * (shares[1] - prior[1])
        parts.append((view.name, tuple(reversed(tokens_seen(view, context))), float(a), evidence))
    if model.config.cache:
        where = exponent_slices(model.views, with_cache=True)[-len(CACHES) :]
        matched = ((), (), (), tuple(context[-1:]), tuple(context[-2:]))  # the last tokens, searched for further back
        shares_of = cache_shares(model, context, log_f)
        for name, last, place, (share, below, seen) in zip(CACHES, matched, where, shares_of, strict=True):
            (a, b), over, under = exponents[:, place.start + seen], split(np.log(share)), split(np.log(below))
            parts.append((name, last, float(a), (a * (over[0] - under[0]), b * (over[1] - under[1]))))
    scores = gamma[0] * prior[0], gamma[1] * prior[1]
    flat = np.zeros(layout.predicted)
    terms = [Term("prior", joined(*scores), weight=gamma[0], of_class=joined(scores[0], flat))]
    for name, seen_tokens, weight, evidence in parts:
        scores = scores[0] + evidence[0], scores[1] + evidence[1]
        terms.append(Term(name, joined(*evidence), seen_tokens, weight, of_class=joined(evidence[0], flat)))
    normalizers = (
        -np.full(layout.number, np.logaddexp.reduce(scores[0])),
        -np.repeat(np.logaddexp.reduceat(scores[1], first[:-1]), widths),
    )
    terms.append(Term("normalizer", joined(*normalizers), of_class=joined(normalizers[0], flat)))
    log_p = joined(scores[0] + normalizers[0], scores[1] + normalizers[1], -np.inf)
    if model.config.cache:
        log_p, correction = mixed(model, context, log_p)
        terms.append(Term("without the cache", correction))
    return Explanation(tuple(context), terms, log_p, {"memory share": memory_shares(model, context)})


def mixed(model: CalibratedModel, context: Sequence[int], cached: Floats) -> tuple[Floats, Floats]:
    """ln p of the mixture with the model without its cache, and what that mixing adds to `cached`, both (N,)."""
    weight = float(np.clip(model.trust_after(context), 1e-12, 1 - 1e-12))
    plain = explain(model.without_cache(), context).log_probabilities
    log_p = np.logaddexp(np.log(weight) + cached, np.log1p(-weight) + plain)
    return log_p, np.where(np.isfinite(cached), log_p - np.where(np.isfinite(cached), cached, 0), 0)


def cache_shares(model: CalibratedModel, context: Sequence[int], log_f: Floats) -> Iterator[tuple[Floats, Floats, int]]:
    """For each cache: its shares by rank, those it is divided by, and which exponent it gets; see native/cache.h."""
    f, rank = np.exp(log_f), model.ranks.ranks
    window = np.array(context[-model.config.cache :], dtype=np.int64)
    decayed = []
    for half_life in HALF_LIVES:
        weights = np.exp2(-np.arange(len(window) - 1, -1, -1) / half_life)
        counts = np.bincount(rank[window], weights, len(f))
        decayed.append((counts + STRENGTH * f) / (counts.sum() + STRENGTH))
        yield decayed[-1], f, int(np.searchsorted(AGES, len(context), side="right"))
    below = decayed[1]
    for length in (1, 2):
        recent = window[-length:] if len(context) > length else window[:0]
        ends = range(length - 1, len(window) - 1) if len(recent) else ()
        followers = [window[i + 1] for i in ends if (window[i - length + 1 : i + 1] == recent).all()]
        share = (np.bincount(rank[np.array(followers, dtype=np.int64)], minlength=len(f)) + below) / (
            len(followers) + 1
        )
        yield share, below, int(np.searchsorted([0, 1, 4], len(followers)))
        below = share


def tokens_seen(view: View, context: Sequence[int]) -> list[int]:
    """The tokens at a view's distances, nearest first; EOD before the document, PAD before that."""
    padded = [*[PAD] * max(view.distances), EOD, *context]
    return [padded[-distance] for distance in view.distances]


def matches(model: CalibratedModel, number: int, context: Sequence[int]) -> list[int]:
    """The contexts of a view that were seen, one number per level, shortest first."""
    view, table = model.views[number], model.tables[number]
    found: list[int] = []
    for place, token in enumerate(tokens_seen(view, context)):
        if token == PAD and place:
            break
        if view.classes and place >= view.exact:
            token = int(model.encoder.context_classes[view.classes][token])
        if not place:
            found.append(token)
            continue
        begin, end = (int(x) for x in table.levels[place - 1]["child"][found[-1] : found[-1] + 2])
        child = begin + int(np.searchsorted(table.levels[place]["token"][begin:end], token))
        if child == end or table.levels[place]["token"][child] != token:
            break
        found.append(child)
    return found


def level_shares(model: CalibratedModel, number: int, context: Sequence[int]) -> list[Floats]:
    """What each level of a view adds to p_v(n | c), by rank, longest context first and unigrams last."""
    table, weight, shares = model.tables[number], 1.0, []
    found = matches(model, number, context)
    for level, at in zip(reversed(table.levels[: len(found)]), reversed(found), strict=True):
        mass = np.zeros(model.vocabulary)
        followers = slice(int(level["begin"][at]), int(level["begin"][at + 1]))
        mass[level["follow"][followers]] = level["mass"][followers]
        shares.append(weight * mass[: model.ranks.predicted])
        weight *= float(level["backoff"][at])
    return [*shares, weight * table.unigram[: model.ranks.predicted].astype(np.float64)]


def view_shares(model: CalibratedModel, number: int, context: Sequence[int]) -> Floats:
    """p_v(n | c) of one view, by rank: (predicted tokens,)."""
    return np.asarray(np.sum(level_shares(model, number, context), axis=0))


def chosen_exponents(model: CalibratedModel, context: Sequence[int]) -> list[int]:
    """The numbers of the exponents that this context selects, for the prior and each view: (1 + views)."""
    chosen = [0]
    for number, where in enumerate(exponent_slices(model.views)[1:]):
        found = matches(model, number, context)
        begin = model.tables[number].levels[len(found) - 1]["begin"]
        evidence = int(np.searchsorted([1, 8, 64], int(begin[found[-1] + 1]) - int(begin[found[-1]])))
        chosen.append(where.start + EVIDENCE * (len(found) - 1) + evidence)
    return chosen


def memory_shares(model: CalibratedModel, context: Sequence[int]) -> list[Term]:
    """How much of the memory's probability of each token comes from contexts of each length, longest first."""
    number = [view.name for view in model.views].index(MEMORY)
    shares = level_shares(model, number, context)
    seen = list(reversed(tokens_seen(model.views[number], context)))
    total, terms = np.sum(shares, axis=0), []
    for length, share in zip(range(len(shares) - 1, -1, -1), shares, strict=True):
        values = np.zeros(model.vocabulary)
        values[model.ranks.tokens[: model.ranks.predicted]] = share / total
        name = plural(length, "token") if length else "none"
        terms.append(Term(name, values, tuple(seen[len(seen) - length :])))
    return terms
