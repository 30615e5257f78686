"""Predictions of the counted model for its own training text, from counts that exclude the target.

The gate learns from the training text, where plain counts look far better than they are, because they include each
target. So the text is divided into ten folds, or three, of short stretches, and each fold is scored by the model made
from all counts except those of the fold: count, subtract, solve. Each stretch is read as a document of its own: its
memory, like that of new text, holds only what was not counted. A tenth of running text is read line by line, so that
the gate sees documents of every age.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.views import CalibratedSums
from saffu.companion.rows import ages_of, gate_inputs
from saffu.format import progress_bar
from saffu.interface import Array, Floats
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.workers import cores, in_parallel

FOLDS = 10
FEW_FOLDS, LARGE = 3, 5_000_000  # for a text this long: ten would take minutes, and two thirds of the counts are enough
STRETCHES = 200  # of a text: many, so that every fold is a sample of all its parts …
STRETCH = 2048  # tokens: … but not shorter than this, so that memory has something to remember
CORES_PER_FOLD = 4  # more of them do not make the counting and solving of a fold faster
LINES_ALONE, PASSAGE = 0.1, 10_000  # this share of every such number of tokens is read line by line


class CrossFit(NamedTuple):
    """What the counts say of their own text."""

    corpus: TokenCorpus  # the text as the network reads it: some of its lines are documents of their own
    log_p: Floats  # ln p of every target (targets,)
    certainty: Array  # what the gate sees of the model (targets, CERTAINTIES)


def cross_fitted(
    model: CalibratedModel,
    corpus: TokenCorpus,
    progress: str | None = None,
    on_share: Callable[[float], None] | None = None,
) -> CrossFit:
    """Score every target by the model without the fold of the target. `on_share` is called with the share that is done.

    `model` must include the counts of all of `corpus` and may include others.
    """
    log_p = np.zeros(corpus.targets)
    certainty = np.zeros((corpus.targets, 2), dtype=np.float32)
    ranges = stretches(corpus)
    folds = FEW_FOLDS if corpus.targets > LARGE else FOLDS
    with_lines = with_lines_alone(corpus)
    divided = replace(with_lines, starts=np.union1d(with_lines.starts, ranges[:, 0]))
    with progress_bar(progress, total=corpus.targets) as bar:

        def score(fold: int) -> None:
            own = ranges[fold::folds]
            seen = CalibratedSums.count(corpus, model.config, model.vocabulary, own)
            parts, where = with_context(divided, own, 0)
            assert model.sums is not None
            log_p[where], certainty[where] = model.solved(model.sums - seen).log_probabilities_and_certainty(parts)
            bar.update(len(where))
            if on_share is not None:
                on_share(bar.n / corpus.targets)

        in_parallel(score, range(min(folds, len(ranges))), at_once=max(1, cores() // CORES_PER_FOLD))
    return CrossFit(with_lines, log_p, gate_inputs(certainty, ages_of(divided)))


def with_lines_alone(corpus: TokenCorpus, passage: int = PASSAGE) -> TokenCorpus:
    """The same text; in every passage of some tokens, the last lines are documents of their own.

    >>> words = TokenCorpus(np.array([7, EOD] * 40), np.array([0, 80]), np.ones(40))
    >>> with_lines_alone(words, 40).starts
    array([ 0, 36, 38, 76, 78, 80])
    """
    lines = corpus.line_starts()
    ends = np.arange(0, corpus.targets, passage) + min(passage, corpus.targets)
    first, last = np.searchsorted(lines, ends - int(passage * LINES_ALONE)), np.searchsorted(lines, ends)
    alone = [lines[a:b] for a, b in zip(first, last, strict=True)]
    return TokenCorpus(corpus.ids, np.union1d(corpus.starts, np.concatenate(alone)), corpus.sizes)


def stretches(corpus: TokenCorpus) -> Array:
    """Consecutive ranges (n, 2) of about equal length, which end with documents or, if those are long, with lines.

    >>> stretches(TokenCorpus(np.full(1200, 3), np.array([0, 150, 1200]), np.ones(1200)))[:4].tolist()
    [[0, 150], [150, 240], [240, 360], [360, 480]]
    """
    length = max(-(-corpus.targets // STRETCHES), min(STRETCH, -(-corpus.targets // FOLDS)))
    cuts = np.arange(length, corpus.targets, length)
    for ends in (corpus.line_starts(), corpus.starts):  # documents take precedence
        following = ends[np.searchsorted(ends, cuts)]
        cuts = np.where(following - cuts <= length, following, cuts)
    bounds = np.unique(np.concatenate([[0], cuts, [corpus.targets]]))
    return np.stack([bounds[:-1], bounds[1:]], axis=1).astype(np.int64)


def with_context(corpus: TokenCorpus, ranges: Array, before: int) -> tuple[TokenCorpus, Array]:
    """A corpus of some ranges of targets and `before` tokens in front of each, and where each target was; −1: context.

    A range that begins within a document stays within it, with as much of it as can affect a prediction.
    """
    pieces = []
    starts = []
    total = 0
    for begin, end in ranges.tolist():
        document = int(corpus.starts[np.searchsorted(corpus.starts, begin, side="right") - 1])
        first = max(document, begin - before)
        inner = corpus.starts[np.searchsorted(corpus.starts, begin, side="right") :]
        inner = inner[inner < end]
        starts.append(np.concatenate([[first], inner]) - first + total)
        pieces.append(np.where(np.arange(first, end) < begin, -1 - np.arange(first, end), np.arange(first, end)))
        total += end - first
    where = np.concatenate(pieces)
    positions = np.where(where < 0, -1 - where, where)
    ids = np.asarray(corpus.ids[positions])
    sizes = np.ones(int((ids == EOD).sum()), dtype=np.int64)
    return TokenCorpus(ids, np.concatenate([*starts, [total]]).astype(np.int64), sizes), where
