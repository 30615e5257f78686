"""Word classes: tokens that keep the same company, found by clustering token vectors.

Clustering turns the smallest difference into another class, and libraries of linear algebra add in an order that
depends on the processor and on the number of threads. So numbers are rounded, before they are multiplied, to so few
bits that no sum of products needs rounding: its order no longer matters, and classes are equal on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.ngrams import NgramCounts
from saffu.text.tokenizer import EOD

DIMENSIONS = 100
EXACT = 53  # bits of a float64
UNIT = 22  # bits of a coordinate of a unit vector: 2 · 22 of a product leave 9 for the sum, which is 1 at most
SHARE, IN = 20, 17  # bits of a share and of what it is multiplied with: 16 are left for a sum over all tokens
ROUNDS = 15  # of k-means
CANDIDATES = 32  # nearest classes that a token may move to
SWEEPS = 4  # of such moves over all tokens


def near_pairs(ngrams: NgramCounts) -> list[NgramCounts]:
    """Pairs of tokens one apart and, if the n-grams reach as far, two apart."""
    return [ngrams.marginal([distance]) for distance in range(1, min(3, ngrams.order))]


def token_vectors(ngrams: NgramCounts, dimensions: int = DIMENSIONS) -> Array:
    """A unit vector for each token, by the company it keeps: (N, dimensions) float64."""
    return vectors_of_pairs(near_pairs(ngrams), dimensions)


def vectors_of_pairs(near: Sequence[NgramCounts], dimensions: int = DIMENSIONS) -> Array:
    """Unit vectors (N, dimensions) float64 from pairs of tokens one and two apart.

    Tokens are described by the square roots of their neighbors' shares (one and two places before and after), and the
    descriptions are compressed to the subspace that holds most of them.
    """
    blocks = []
    vocabulary = near[0].vocabulary
    for pairs in near:
        before = np.repeat(np.arange(vocabulary, dtype=TOKEN), np.diff(pairs.offsets))
        for token, transposed in ((before, False), (pairs.keys, True)):
            totals = np.bincount(token, pairs.counts, vocabulary)
            shares = rounded(np.sqrt(pairs.counts / (totals[token] + 1)), SHARE)
            blocks.append(Block(pairs.offsets, pairs.keys, shares, transposed))
    return unit_rows(compressed(blocks, vocabulary, dimensions))


def rounded(numbers: Array, bits: int) -> Array:
    """Numbers of at most 1 as multiples of 2^−bits."""
    return np.asarray(np.rint(np.ldexp(numbers, bits)) * 2.0**-bits)


def largest(numbers: Array, axis: int | None = None) -> Array:
    """The largest absolute value along an axis, or a tiny number where all are zero."""
    return np.asarray(np.maximum(np.abs(numbers).max(axis, keepdims=True), 1e-300))


def unit_rows(rows: Array) -> Array:
    """Rows divided by their lengths; rows of zeros stay."""
    rows = rounded(rows / largest(rows, 1), UNIT)
    return rounded(rows / np.sqrt(np.maximum((rows * rows).sum(1, keepdims=True), 1)), UNIT)


def product(left: Array, right: Array) -> Array:
    """The product of two matrices, rounded before it instead of on the way."""
    bits = (EXACT - (left.shape[1] - 1).bit_length()) // 2
    rows = largest(left, 1)
    columns = largest(right, 0)
    return np.asarray(rounded(left / rows, bits) @ rounded(right / columns, bits) * rows * columns)


@dataclass(frozen=True)
class Block:
    """A sparse matrix (N, N), stored by rows or, transposed, by columns."""

    begin: Array
    column: Array
    value: Array  # float64
    transposed: bool

    def times(self, dense: Array, transposed: bool = False) -> Array:
        """The matrix, or its transpose, times a dense one (N, width)."""
        scale = largest(dense)
        inner = np.ascontiguousarray(rounded(dense / scale, IN))
        out = np.zeros_like(inner)
        library.saffu_sparse_product(
            pointer(self.begin, np.int64), pointer(self.column, TOKEN), pointer(self.value, np.float64),
            len(inner), pointer(inner, np.float64), inner.shape[1], self.transposed != transposed,
            pointer(out, np.float64),
        )  # fmt: skip
        return np.asarray(out * scale)


def compressed(blocks: list[Block], vocabulary: int, dimensions: int, rounds: int = 2) -> Array:
    """Short rows (N, dimensions) with about the inner products of the long rows [block 1, block 2, …].

    Subspace iteration from a fixed random start (Halko, Martinsson & Tropp 2011).
    """
    width = min(dimensions, vocabulary)
    start = np.random.default_rng(0).standard_normal((len(blocks), vocabulary, width), dtype=np.float32)
    basis = orthonormal(sum_of_products(blocks, start.astype(np.float64)))
    for _ in range(rounds):
        across = orthonormal(np.concatenate([block.times(basis, transposed=True) for block in blocks]))
        basis = orthonormal(sum_of_products(blocks, np.split(across, len(blocks))))
    within = np.concatenate([block.times(basis, transposed=True) for block in blocks])
    upper, _ = factors(product(within.T, within))
    return product(basis, upper.T)


def sum_of_products(blocks: Sequence[Block], parts: Sequence[Array] | Array) -> Array:
    """The matrix [block 1, block 2, …] times a dense one, whose rows come in parts."""
    return np.asarray(sum(block.times(part) for block, part in zip(blocks, parts, strict=True)))


def orthonormal(columns: Array) -> Array:
    """An orthonormal basis of the columns, by way of their small matrix of inner products."""
    _, inverse = factors(product(columns.T, columns))
    return product(columns, inverse)


def factors(gram: Array) -> tuple[Array, Array]:
    """The Cholesky factor R of a matrix, upper triangular with RᵀR = gram, and its inverse.

    By elimination on single numbers, so that it is equal on every machine. What depends on earlier columns but for
    rounding errors is left out.

    >>> upper, inverse = factors(np.array([[4.0, 2.0], [2.0, 5.0]]))
    >>> upper.tolist(), (upper @ inverse).tolist()
    ([[2.0, 1.0], [0.0, 2.0]], [[1.0, 0.0], [0.0, 1.0]])
    """
    n = len(gram)
    both = np.hstack([gram, np.eye(n)])
    least = 1e-10 * np.diag(gram).max()
    for k in range(n):
        pivot = both[k, k]
        both[k] *= 1 / np.sqrt(pivot) if pivot > least else 0
        both[k + 1 :, k : n + k + 1] -= both[k, k + 1 : n, None] * both[k, k : n + k + 1]
    return np.triu(both[:, :n]), np.ascontiguousarray(both[:, n:].T)


def token_classes(vectors: Array, frequencies: Array, number: int) -> tuple[Array, Array]:
    """A class from 0 for each token, (N,), and its nearest classes, (N, ≤ CANDIDATES), both uint16.

    Spherical k-means that starts at the most frequent tokens. Of those about as near, the first wins.
    """

    def nearness() -> Array:
        return np.asarray(np.rint(vectors @ centers.T * 1e5))

    number = max(1, min(number, len(vectors) - EOD - 1))
    centers = vectors[np.argsort(-frequencies, kind="stable")[:number]]
    weighted = vectors * np.sqrt(frequencies)[:, None]
    for _ in range(ROUNDS):
        sums = np.zeros_like(centers)
        places = nearness().argmax(1)[:, None] * sums.shape[1] + np.arange(sums.shape[1])
        np.add.at(sums.reshape(-1), places.reshape(-1), weighted.reshape(-1))  # row by row, it would be much slower
        centers = unit_rows(sums)
    candidates = np.argsort(-nearness(), axis=1, kind="stable")[:, :CANDIDATES]
    return candidates[:, 0].astype(TOKEN), np.ascontiguousarray(candidates, dtype=TOKEN)


@dataclass(frozen=True)
class Neighbors:
    """The neighbors of each token with their counts, sorted by token."""

    begin: Array  # (N + 1,) int64
    neighbor: Array  # uint16
    count: Array  # uint32

    @classmethod
    def after(cls, pairs: NgramCounts) -> Neighbors:
        """What follows each token, from pairs of adjacent tokens."""
        return cls(pairs.offsets, pairs.keys, pairs.counts)

    @classmethod
    def before(cls, pairs: NgramCounts) -> Neighbors:
        """What precedes each token."""
        order = np.argsort(pairs.keys, kind="stable")
        sizes = np.bincount(pairs.keys, minlength=pairs.vocabulary)
        preceding = np.repeat(np.arange(pairs.vocabulary, dtype=TOKEN), np.diff(pairs.offsets))
        return cls(np.concatenate([[0], sizes.cumsum()]), preceding[order], pairs.counts[order])

    def exchange(self, classes: Array, candidates: Array, first: int) -> Array:
        """Classes of the tokens from `first` on, improved by moving one token at a time (Kneser & Ney 1993).

        Each move makes the neighbors of tokens more likely given their class.
        """
        improved = classes.copy()
        number = int(candidates.max()) + 1
        library.saffu_exchange(
            pointer(self.begin, np.int64), pointer(self.neighbor, TOKEN), pointer(self.count, np.uint32),
            len(classes), number, pointer(candidates, TOKEN), candidates.shape[1], first, SWEEPS,
            pointer(improved, TOKEN),
        )  # fmt: skip
        return improved


def context_classes(vectors: Array, frequencies: Array, number: int, after: Neighbors) -> Array:
    """Classes of context tokens, (N,) uint16, by what follows a token.

    The special tokens, 0 to 3, stay themselves.
    """
    classes = after.exchange(*token_classes(vectors, frequencies, number), first=EOD + 1) + TOKEN(EOD + 1)
    classes[: EOD + 1] = np.arange(EOD + 1)
    return classes


def output_classes(vectors: Array, frequencies: Array, number: int, before: Neighbors) -> Array:
    """Classes that are predicted before tokens, (N,) uint16, numbered without gaps, by what precedes a token."""
    classes = before.exchange(*token_classes(vectors, frequencies, number), first=EOD)
    _, compact = np.unique(classes[EOD:], return_inverse=True)
    return np.concatenate([np.zeros(EOD, dtype=TOKEN), compact.astype(TOKEN)])
