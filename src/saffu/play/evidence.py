"""The counts behind each part of a counted model's prediction: how often a token followed what that part saw."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from saffu.calibrated.explain import matches, tokens_seen
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.views import HALF_LIVES, MemoryContext, View, first_remembered, memory_contexts, memory_parts
from saffu.interface import Array
from saffu.text.tokenizer import EOD, PAD, Tokenizer
from saffu.tools.decoding import Spelling, is_inside_word

MOST_ROWS = 5_000_000  # distinct n-grams; with more, a lookup would take too long
MEMBERS = 3  # tokens shown for a class

Counts = dict[str, Any]
"""What a part saw, oldest first, each as the tokens it stands for; how often the token followed, and of how many; and
how many tokens stood in between; `partial` if what it saw begins inside a word. If the token never followed all of
it, `shorter` is the same of as many of its last tokens as the token did follow, on which such a part falls back."""


def counts_behind(
    model: CalibratedModel, tokenizer: Tokenizer, context: Sequence[int], token: int
) -> dict[str, Counts]:
    """The counts behind each term, by name; terms that do not follow from counts are left out."""
    total = int(model.frequencies.sum())
    by_term = {"prior": _counts([], int(model.frequencies[token]), total)}
    sums = model.sums
    if sums is not None and sums.ngrams.distinct <= MOST_ROWS:
        rows = rows_of(sums.ngrams)
        counts = sums.ngrams.counts
        for number, view in enumerate(model.views):
            seen = tokens_seen(view, context)[: len(matches(model, number, context))]
            if view.is_slot and seen[0] == PAD:
                continue
            if view.distances[0] >= sums.ngrams.order:
                often = [_pair(sums.pairs[view.distances[0]], seen[0], token)]
            else:
                often = [
                    (int(counts[places][rows[places, -1] == token].sum()), int(counts[places].sum()))
                    for places in _matching(model, view, rows, seen, sums.ngrams.offsets)
                ]
            shown = [_shown(model, tokenizer, view, place, each) for place, each in enumerate(seen)]
            gap = view.distances[0] - 1
            behind = []
            for length, (followed, times) in enumerate(often, min(1, len(seen))):
                first = len(context) - view.distances[length - 1]
                partial = is_inside_word(Spelling.of(tokenizer).continues, context, first)
                behind.append(_counts(shown[:length][::-1], followed, times, gap=gap, partial=partial))
            by_term[view.name] = behind[-1]
            if not behind[-1]["count"]:
                behind[-1]["shorter"] = next((each for each in reversed(behind) if each["count"]), None)
    if model.config.cache:
        first = first_remembered(model.config.cache, len(context))
        by_term |= _remembered(model, tokenizer, np.array(context[first:], dtype=np.int64), token)
    return by_term


def class_members(model: CalibratedModel, tokenizer: Tokenizer, classes: Array, number: int) -> list[str]:
    """The most frequent tokens of a class, without those that are not counted any longer."""
    members = np.flatnonzero((classes == number) & (model.frequencies > 0))
    members = members[members >= EOD]
    best = members[np.argsort(-model.frequencies[members], kind="stable")[:MEMBERS]]
    return [tokenizer.token(member) for member in best.tolist()]


@lru_cache(maxsize=1)
def rows_of(counts: NgramCounts) -> Array:
    return counts.rows()


def _counts(
    seen: list[list[str]], count: int, total: int, here: bool = False, gap: int = 0, partial: bool = False
) -> Counts:
    return {"seen": seen, "count": count, "total": total, "here": here, "gap": gap, "partial": partial, "shorter": None}


def _pair(pairs: NgramCounts, seen: int, token: int) -> tuple[int, int]:
    """How often a token followed another at the distance of some pairs, and how often any token did."""
    bucket = slice(int(pairs.offsets[seen]), int(pairs.offsets[seen + 1]))
    counts = pairs.counts[bucket]
    return int(counts[pairs.keys[bucket] == token].sum()), int(counts.sum())


def _matching(model: CalibratedModel, view: View, rows: Array, seen: Sequence[int], offsets: Array) -> list[Array]:
    """The places of the rows whose context a view cannot distinguish from the last token it saw, the last two, …

    All rows if it saw none.
    """
    exact = view.exact if view.classes else len(seen)
    if view.distances[0] == 1 and exact:
        places = np.arange(int(offsets[seen[0]]), int(offsets[seen[0] + 1]))
    else:
        places = np.arange(len(rows))
    by_length = []
    for place, (distance, token) in enumerate(zip(view.distances, seen, strict=False)):
        column = rows[places, distance - 1]
        if place < exact:
            places = places[column == token]
        else:
            classes = model.encoder.context_classes[view.classes]
            places = places[classes[column] == classes[token]]
        by_length.append(places)
    return by_length or [places]


def _shown(model: CalibratedModel, tokenizer: Tokenizer, view: View, place: int, token: int) -> list[str]:
    if not view.classes or place < view.exact or token < EOD:
        return [tokenizer.token(token)]
    classes = model.encoder.context_classes[view.classes]
    members = class_members(model, tokenizer, classes, int(classes[token]))
    return list(dict.fromkeys([tokenizer.token(token), *members]))


def _remembered(model: CalibratedModel, tokenizer: Tokenizer, past: Array, token: int) -> dict[str, Counts]:
    """What the memory holds: the text so far."""
    decayed = memory_parts(model.config)[: len(HALF_LIVES)]
    by_part = {name: _counts([], int((past == token).sum()), len(past), here=True) for name in decayed}
    for context in memory_contexts(model.config):
        places = _places_after(model, context, past)
        reach = [distance for distance in reversed(context.distances) if context.distances[-1] <= len(past)]
        seen = [[tokenizer.token(int(past[-distance]))] for distance in reach]
        by_part[context.name] = _counts(seen, int((past[places] == token).sum()), len(places), here=True)
    return by_part


def _places_after(model: CalibratedModel, context: MemoryContext, past: Array) -> Array:
    """The places of the past that followed the same context as the next token will."""
    places = np.arange(context.distances[-1], len(past))
    for number, distance in enumerate(context.distances if len(places) else ()):
        is_exact = not context.classes or number < context.exact
        symbols = past if is_exact else model.encoder.context_classes[context.classes][past]
        places = places[symbols[places - distance] == symbols[len(past) - distance]]
    return places
