"""Surprisal of words, exact for tokens that carry the white space before a word.

With such tokens, whether a word has ended shows only in the token after it: p(" cat" | the) also covers "cats". So a
word is scored together with its ending, and given that the word before it has ended (Pimentel & Meister 2024, "How to
compute the probability of a word"):

    p(word | before) = p(its tokens | before) · p(B | before, its tokens) / p(B | before)

where B stands for all tokens that begin with white space, and `<eod>`. At the start of a line nothing has to end, so
there p(B | before) is left out. The end of a line is scored as p(<eod> | before) / p(B | before). All factors p(B)
cancel in the product, so the words of a line and its end add up to the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from saffu.interface import Array, Floats, Model
from saffu.text.tokenizer import EOD, Tokenizer

WHITE_SPACE = b" \t\n\r\x0b\x0c"  # what separates words; a non-breaking space does not
_FIRST_BYTES = frozenset(bytes([byte]) for byte in WHITE_SPACE)
END_OF_LINE = "<eod>"
BATCH = 64  # distributions computed at a time


@dataclass(frozen=True)
class WordScore:
    """A word of a text, or the end of one of its lines, for which `word` is `<eod>`."""

    position: int  # in the text, from 1
    word: str
    tokens: int
    bits: float  # surprisal: −log2 p(word and its ending | all words before it)


@lru_cache(maxsize=8)
def boundaries(tokenizer: Tokenizer) -> Array:
    """Which tokens end a word that stands before them, (N,) bool: `<eod>`, and what begins with white space."""
    pieces = [tokenizer.decode_bytes([token]) for token in range(len(tokenizer))]
    return np.array([token == EOD or piece[:1] in _FIRST_BYTES for token, piece in enumerate(pieces)])


def word_ends(pieces: Sequence[bytes]) -> list[int]:
    """After how many tokens each word of a line ends, by the bytes of its tokens. White space belongs to what follows.

    >>> word_ends([b"the", b" ", b" c", b"at", b" "])
    [1, 4]
    """
    ends, in_word = [], False
    for number, piece in enumerate(pieces):
        if in_word and piece[:1] in _FIRST_BYTES:
            ends.append(number)
            in_word = False
        in_word = in_word or bool(piece.strip(WHITE_SPACE))
    return [*ends, len(pieces)] if in_word else ends


def log_boundary(model: Model, tokenizer: Tokenizer, states: Sequence[object]) -> Floats:
    """ln p(B | state), (states,): the probability that a word ends here."""
    chosen = boundaries(tokenizer)
    rows = [
        model.next_log_probabilities(states[lo : lo + BATCH])[:, chosen].astype(np.float64)
        for lo in range(0, len(states), BATCH)
    ]
    return np.concatenate([np.zeros(0), *(np.log(np.exp(row).sum(1)) for row in rows)])


def word_scores(
    model: Model, tokenizer: Tokenizer, ids: Sequence[int], log_p: Sequence[float] | Floats, begin: int = 0
) -> list[WordScore]:
    """Score the words of a document given as token ids, `<eod>` after each line, with ln p of each token.

    Words before the token at place `begin`, where a line begins, are context only.
    """
    ends = [begin - 1, *(place for place in range(begin, len(ids)) if ids[place] == EOD)]
    spans: list[tuple[int, int, bool]] = []  # of words and ends of lines: from where to where, and whether it is a word
    for before, end in pairwise(ends):
        pieces = [tokenizer.decode_bytes([token]) for token in ids[before + 1 : end]]
        cuts = [before + 1, *(before + 1 + cut for cut in word_ends(pieces))]
        spans += [(lo, hi, True) for lo, hi in pairwise(cuts)]
        spans.append((cuts[-1], end + 1, False))
    ended = dict(zip((hi for _, hi, is_word in spans if is_word), _after(model, tokenizer, ids, spans), strict=True))
    rows = []
    for position, (lo, hi, is_word) in enumerate(spans, 1):
        text = tokenizer.decode_bytes(ids[lo:hi]).strip(WHITE_SPACE).decode("utf-8", "replace")
        nats = -math.fsum(log_p[lo:hi]) + ended.get(lo, 0.0) - (ended[hi] if is_word else 0.0)
        rows.append(WordScore(position, text if is_word else END_OF_LINE, hi - lo, nats / math.log(2)))
    return rows


def _after(
    model: Model, tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[tuple[int, int, bool]]
) -> list[float]:
    """ln p(B) after each word."""
    state, place, found, states = model.start(ids[: spans[0][0]]), spans[0][0], [], []
    for _, hi, is_word in spans:
        for token in ids[place:hi]:
            state = model.advance(state, token)
        place = hi
        if is_word:
            states.append(state)
        if len(states) == BATCH:
            found += log_boundary(model, tokenizer, states).tolist()
            states = []
    return [*found, *log_boundary(model, tokenizer, states).tolist()]
