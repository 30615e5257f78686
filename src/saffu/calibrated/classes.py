"""Word classes: tokens that keep the same company, found by clustering token vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.ngrams import NgramCounts
from saffu.text.tokenizer import EOD

DIMENSIONS = 100
ROUNDS = 15  # of k-means
CANDIDATES = 32  # nearest classes that a token may move to
SWEEPS = 4  # of such moves over all tokens


def near_pairs(ngrams: NgramCounts) -> list[NgramCounts]:
    """Pairs of tokens one apart and, if the n-grams reach as far, two apart."""
    return [ngrams.marginal([distance]) for distance in range(1, min(3, ngrams.order))]


def token_vectors(ngrams: NgramCounts, dimensions: int = DIMENSIONS) -> Array:
    """A unit vector for each token, by the company it keeps: (N, dimensions) float32."""
    return vectors_of_pairs(near_pairs(ngrams), dimensions)


def vectors_of_pairs(near: Sequence[NgramCounts], dimensions: int = DIMENSIONS) -> Array:
    """Unit vectors (N, dimensions) float32 from pairs of tokens one and two apart.

    Tokens are described by the square roots of their neighbors' shares (one and two places before and after), and the
    descriptions are compressed to the subspace that holds most of them.
    """
    blocks = []
    vocabulary = near[0].vocabulary
    for pairs in near:
        before = np.repeat(np.arange(vocabulary, dtype=TOKEN), np.diff(pairs.offsets))
        for token, transposed in ((before, False), (pairs.keys, True)):
            totals = np.bincount(token, pairs.counts, vocabulary)
            shares = np.sqrt(pairs.counts / (totals[token] + 1)).astype(np.float32)
            blocks.append(Block(pairs.offsets, pairs.keys, shares, transposed))
    vectors = compressed(blocks, vocabulary, dimensions)
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


@dataclass(frozen=True)
class Block:
    """A sparse matrix (N, N), stored by rows or, transposed, by columns."""

    begin: Array
    column: Array
    value: Array
    transposed: bool

    def times(self, dense: Array, transposed: bool = False) -> Array:
        """The matrix, or its transpose, times a dense one (N, width)."""
        dense = np.ascontiguousarray(dense, dtype=np.float32)
        out = np.zeros_like(dense)
        library.saffu_sparse_product(
            pointer(self.begin, np.int64), pointer(self.column, TOKEN), pointer(self.value, np.float32),
            len(dense), pointer(dense, np.float32), dense.shape[1], self.transposed != transposed,
            pointer(out, np.float32),
        )  # fmt: skip
        return out


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # flags that some BLAS libraries set without reason
def compressed(blocks: list[Block], vocabulary: int, dimensions: int, rounds: int = 2) -> Array:
    """Short rows (N, dimensions) with about the inner products of the long rows [block 1, block 2, …].

    Subspace iteration from a fixed random start (Halko, Martinsson & Tropp 2011).
    """
    width = min(dimensions, vocabulary)
    start = np.random.default_rng(0).standard_normal((len(blocks), vocabulary, width), dtype=np.float32)
    basis = orthonormal(sum(block.times(part) for block, part in zip(blocks, start, strict=True)))
    for _ in range(rounds):
        across = orthonormal(np.concatenate([block.times(basis, transposed=True) for block in blocks]))
        parts = np.split(across, len(blocks))
        basis = orthonormal(sum(block.times(part) for block, part in zip(blocks, parts, strict=True)))
    within = np.concatenate([block.times(basis, transposed=True) for block in blocks]).astype(np.float64)
    squares, axes = np.linalg.eigh(within.T @ within)
    lengths = np.sqrt(np.where(squares > 1e-10 * squares.max(), squares, 0))  # smaller values are rounding errors
    return np.asarray(basis @ (axes * lengths).astype(np.float32))


def orthonormal(columns: Any) -> Array:
    """An orthonormal basis of the columns, by way of their small matrix of inner products."""
    squares, axes = np.linalg.eigh((columns.T @ columns).astype(np.float64))
    lengths = np.sqrt(np.maximum(squares, 1e-10 * squares.max() + 1e-30))
    return np.asarray(columns @ (axes / lengths).astype(np.float32))


def token_classes(vectors: Array, frequencies: Array, number: int) -> tuple[Array, Array]:
    """A class from 0 for each token, (N,), and its nearest classes, (N, ≤ CANDIDATES), both uint16.

    Spherical k-means that starts at the most frequent tokens.
    """
    number = max(1, min(number, len(vectors) - EOD - 1))
    centers = vectors[np.argsort(-frequencies, kind="stable")[:number]]
    weighted = vectors * np.sqrt(frequencies.astype(np.float32))[:, None]
    nearness = np.round(vectors @ centers.T * 1e5)  # rounded, so that the first of equals wins on every machine
    for _ in range(ROUNDS):
        sums = np.zeros_like(centers)
        places = nearness.argmax(1)[:, None] * sums.shape[1] + np.arange(sums.shape[1])
        np.add.at(sums.reshape(-1), places.reshape(-1), weighted.reshape(-1))  # row by row, it would be much slower
        centers = sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
        nearness = np.round(vectors @ centers.T * 1e5)
    candidates = np.argsort(-nearness, axis=1, kind="stable")[:, :CANDIDATES]
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
