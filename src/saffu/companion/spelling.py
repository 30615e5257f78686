"""What tokens have in common by their spelling, for networks to learn once instead of for each token.

While a network is trained, the embedding of a token is a sum,

    E[n] + Σ_g G[g] / √|g of n|        over the character n-grams g of the token,

so that a rare word shares what it can with others: its stem, or an ending such as -ing. Afterward the sum is stored
as the token's embedding, and neither models nor kernels know of spelling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from saffu.interface import Array

LENGTHS = (3, 4, 5)  # bytes of an n-gram
MIN_TOKENS = 3  # that share an n-gram: one that hardly any have teaches nothing
END = b">"  # after a token; a space before a word is part of it


class Spellings(NamedTuple):
    """The n-grams of N tokens, one token after the other."""

    grams: Array  # numbers of n-grams, int64
    offsets: Array  # where those of each token begin (N,) int64
    weights: Array  # of each entry of `grams`, float32
    number: int  # of different n-grams


def spellings_of(pieces: Sequence[bytes]) -> Spellings:
    """The n-grams of tokens that spell these bytes; those without a spelling have none.

    >>> of = spellings_of([b"", b" sing", b" ring", b" king", b" a"])
    >>> of.number, np.diff(of.offsets).tolist()  # ing, ng>, and ing> in three tokens
    (3, [0, 3, 3, 3])
    """
    by_token = [sorted(n_grams(piece)) for piece in pieces]
    frequencies = Counter(gram for grams in by_token for gram in grams)
    shared = sorted(gram for gram, tokens in frequencies.items() if tokens >= MIN_TOKENS)
    numbers = {gram: number for number, gram in enumerate(shared)}
    grams_of = [[numbers[gram] for gram in grams if gram in numbers] for grams in by_token]
    sizes = np.array([len(grams) for grams in grams_of], dtype=np.int64)
    weights = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes).astype(np.float32)
    return Spellings(
        np.concatenate([np.array(grams, dtype=np.int64) for grams in grams_of]),
        np.cumsum(sizes) - sizes,
        weights,
        len(shared),
    )


def n_grams(piece: bytes) -> set[bytes]:
    """The n-grams of a token and its end.

    >>> sorted(n_grams(b" a"))
    [b' a>']
    """
    spelled = piece + END
    return {spelled[first : first + n] for n in LENGTHS for first in range(len(spelled) - n + 1)} if piece else set()
