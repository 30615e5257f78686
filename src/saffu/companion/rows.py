"""Rows of text for the network: cut at random positions for training, laid out with enough context for scoring."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from saffu.interface import Array, Floats
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

Integers = npt.NDArray[np.int64]
OLD = 2048  # tokens: a document of this age, or any greater one, has a memory as good as it gets
YOUNG = 32  # tokens: the scale on which a document stops being a sentence without context
PIECES = 8  # held-out pieces: few and long, so that they are like new text
TYPICAL_FROM = 200  # tokens of a piece, from which on typical ones are chosen


def inputs_of(corpus: TokenCorpus) -> Array:
    """The token that precedes each target, (targets,) int64. A document begins like a line, after EOD.

    >>> inputs_of(TokenCorpus(np.array([7, 8, 3, 9, 3]), np.array([0, 3, 5]), np.array([3, 2])))
    array([3, 7, 8, 3, 9])
    """
    inputs = np.concatenate([[EOD], corpus.ids[:-1].astype(np.int64)])[: corpus.targets]
    inputs[corpus.starts[:-1]] = EOD
    return inputs


def documents_of(corpus: TokenCorpus) -> Array:
    """The number of each target's document, (targets,) int32."""
    return np.repeat(np.arange(corpus.documents, dtype=np.int32), np.diff(corpus.starts))


def ages_of(corpus: TokenCorpus) -> Integers:
    """The number of tokens before each target in its document, (targets,).

    >>> ages_of(TokenCorpus(np.array([7, 8, 3, 9, 3]), np.array([0, 3, 5]), np.array([3, 2])))
    array([0, 1, 2, 0, 1])
    """
    return np.asarray(np.arange(corpus.targets) - np.repeat(corpus.starts[:-1], np.diff(corpus.starts)))


def gate_inputs(certainty: Array, ages: npt.ArrayLike) -> Array:
    """What a gate sees besides a network's state, (n, 4): the counts' certainty (n, 2), and a document's age and youth.

    The age is ln(1 + a) after a tokens, the youth exp(−a / YOUNG).

    >>> gate_inputs(np.ones((3, 2), np.float32), [0, 32, 9999]).round(1).tolist()
    [[1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 3.5, 0.4000000059604645], [1.0, 1.0, 7.599999904632568, 0.0]]
    """
    ages = np.minimum(ages, OLD)
    seen = [certainty, np.log1p(ages)[:, None], np.exp(-ages / YOUNG)[:, None]]
    return np.concatenate(seen, axis=1).astype(np.float32)


def training_rows(targets: int, length: int, rng: np.random.Generator) -> Integers:
    """All targets of a corpus in rows (rows, length) of consecutive targets, cut at random, in random order.

    The last row continues at the beginning of the corpus.
    """
    begins = rng.integers(length) + length * np.arange(-(-targets // length))
    return (rng.permutation(begins)[:, None] + np.arange(length)) % targets


def window_start(position: int, context: int) -> int:
    """Where the window of a target begins. Windows move by half their length: at least half of one precedes a target.

    >>> [window_start(position, 8) for position in (0, 7, 8, 11, 12)]
    [0, 0, 4, 4, 8]
    """
    half = context // 2
    return 0 if position < context else (position - context) // half * half + half


def scoring_rows(corpus: TokenCorpus, context: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Rows (rows, context) of positions that hold the window of every target, and where each target is scored.

    Documents of up to `context` targets are scored whole, longer ones in windows that overlap by half. Several windows
    share a row if they fit. Unused places are −1.
    """
    pieces = []  # begin, end, and the first target to be scored
    for begin, end in zip(corpus.starts[:-1].tolist(), corpus.starts[1:].tolist(), strict=True):
        done = begin
        while done < end:
            window = begin + window_start(done - begin, context)
            stop = min(window + context, end)
            pieces.append((window, stop, done))
            done = stop
    places = []
    used = context
    row = -1
    for begin, end, _ in pieces:
        if used + end - begin > context:
            row = row + 1
            used = 0
        places.append((row, used))
        used += end - begin
    positions = np.full((row + 1, context), -1, dtype=np.int64)
    scored = np.zeros((row + 1, context), dtype=bool)
    for (begin, end, first), (row, column) in zip(pieces, places, strict=True):
        positions[row, column : column + end - begin] = np.arange(begin, end)
        scored[row, column + first - begin : column + end - begin] = True
    return positions, scored


def held_out(log_p: Floats, most: int) -> Integers:
    """Ranges (n, 2) of targets to hold out of training: `most` in total, or a twentieth of the text.

    There is one in each eighth of the text: the piece whose mean ln p, by the counts, is closest to that of the eighth.
    Pieces at fixed places may all be hard or all be easy, and a gate fitted to them is wrong for other text. In a short
    text, where pieces are too short for a mean to say much, it is the one in the middle.

    >>> hard, easy, usual = -9.0, -1.0, -5.0
    >>> held_out(np.repeat([hard, easy, usual, hard, easy] * 8, 1000), 2000)[:2]
    array([[2000, 2250],
           [7000, 7250]])
    """
    length = min(most, len(log_p) // 20) // PIECES
    ranges = []
    for part in np.array_split(np.arange(len(log_p)), PIECES) if length else []:
        begin = int(part[0]) + (len(part) - length) // 2
        if length >= TYPICAL_FROM:
            pieces = log_p[part[: len(part) // length * length]].reshape(-1, length).mean(1)
            begin = int(part[0]) + length * int(np.abs(pieces - log_p[part].mean()).argmin())
        ranges.append((begin, begin + length))
    return np.array(ranges, dtype=np.int64).reshape(-1, 2)


def excerpt(corpus: TokenCorpus, targets: int) -> TokenCorpus:
    """About `targets` targets of a corpus: every nth document or, if documents are long, their first lines."""
    if corpus.targets <= targets:
        return corpus
    if corpus.targets / corpus.documents < targets / 100:
        return corpus.sample(targets)
    share = targets / corpus.targets
    pieces = []
    starts = [0]
    sizes = []
    ends = corpus.line_starts()
    for begin, end in zip(corpus.starts[:-1], corpus.starts[1:], strict=True):
        first = int(np.searchsorted(ends, begin))
        last = int(np.searchsorted(ends, begin + max(1, (end - begin) * share)))
        pieces.append(np.asarray(corpus.ids[begin : ends[last]]))
        sizes.append(corpus.sizes[first:last])
        starts.append(starts[-1] + len(pieces[-1]))
    assert all(piece[-1] == EOD for piece in pieces)
    return TokenCorpus(np.concatenate(pieces), np.array(starts, dtype=np.int64), np.concatenate(sizes))
