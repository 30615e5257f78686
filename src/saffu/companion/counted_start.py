"""The counted start: initial weights of the network in closed form, from counts of pairs of tokens.

    embeddings    the counted model's token vectors e (unit length; by the company that tokens keep)
    output map    B_1 of PMI_1(m, n) ≈ e_m B_1 e_nᵀ, where m is the token one place before n
    first layer   head j looks j tokens back and adds PMI_{j+1}: its value and output maps are B_{j+1} B_1⁻¹, truncated
                  to the rank of a head
    output bias   log f (set by the network itself)

B_k is the least-squares solution weighted by f on both sides: with E (N, d) and F = diag(f),

    B_k = (EᵀFE)⁻¹ EᵀF PMI_k FE (EᵀFE)⁻¹.

PMI of pairs overstates how much a single token predicts, so B_1 is scaled by an exponent that maximizes the likelihood
of the pairs (Newton's method, one number).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saffu.calibrated.classes import Block, token_vectors
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.views import CalibratedSums
from saffu.companion.network import EMBEDDING_NORM, HEAD, NetworkStack
from saffu.errors import SaffuError
from saffu.interface import Array, Floats
from saffu.text.tokenizer import EOD

LOOK, REST = 12.0, 6.0  # a head's bias at its distance, and its sink
HEADS_EXPONENT = 0.5  # of the heads relative to the nearest token
RIDGE = 1e-4  # relative to the largest eigenvalue
CONTEXTS = 512  # most frequent tokens, after which the exponent is fitted …
ROUNDS = 6  # … by Newton's method


@torch.no_grad()
def counted_start(networks: NetworkStack, counted: CalibratedModel) -> None:
    """Set the initial weights of all networks."""
    width = networks.width
    sums = sums_of(counted)
    vectors = np.zeros((counted.vocabulary, width))
    counted_vectors = token_vectors(sums.ngrams, width)
    _, axes = np.linalg.eigh(counted_vectors.T @ counted_vectors)  # each coordinate is to learn at its own rate
    vectors[:, : len(axes)] = counted_vectors @ axes
    networks.embedding.copy_(torch.from_numpy(vectors) * EMBEDDING_NORM)
    nearest = association(vectors, sums.ngrams.marginal([1]))
    nearest = nearest * exponent(vectors, nearest, sums.ngrams.marginal([1]))
    scale = 1 / (width**0.5 * EMBEDDING_NORM)  # h is √d times a unit vector
    networks.output_map.copy_(torch.from_numpy(nearest * scale))
    if networks.class_map is not None:
        networks.class_map.copy_(class_means(networks, counted.frequencies) @ networks.output_map[0].T)
    undo = np.linalg.pinv(nearest, rcond=1e-2)
    for head in range(networks.heads):
        pairs = pairs_at(counted, head + 2)
        if pairs is None:
            return
        across = association(vectors, pairs) @ undo * (HEADS_EXPONENT * EMBEDDING_NORM / width**0.5)
        left, lengths, right = np.linalg.svd(across)
        root = np.sqrt(lengths[:HEAD])
        own = slice(head * HEAD, (head + 1) * HEAD)
        networks.attention[:, 0, 2, own] = torch.from_numpy((left[:, :HEAD] * root).T.astype(np.float32))
        networks.attention[:, 0, 3, :, own] = torch.from_numpy((root[:, None] * right[:HEAD]).T.astype(np.float32))
        networks.distance[:, 0, head, head + 1] = LOOK
        networks.sink[:, 0, head] = REST


def pairs_at(counted: CalibratedModel, distance: int) -> NgramCounts | None:
    """Counts of pairs of tokens this far apart; None if they were not counted."""
    sums = sums_of(counted)
    return sums.ngrams.marginal([distance]) if distance < sums.ngrams.order else sums.pairs.get(distance)


def sums_of(counted: CalibratedModel) -> CalibratedSums:
    if counted.sums is None:
        raise SaffuError("this model was loaded without its counts, which a network starts from; load the whole folder")
    return counted.sums


def association(vectors: Array, pairs: NgramCounts) -> Floats:
    """B (d, d) with PMI(m, n) ≈ e_m B e_nᵀ over pairs of a token m and a later token n."""
    before = np.repeat(np.arange(pairs.vocabulary), np.diff(pairs.offsets))
    counts = pairs.counts.astype(np.float64)
    total = counts.sum()
    f_before = np.bincount(before, counts, pairs.vocabulary) / total
    f_after = np.bincount(pairs.keys, counts, pairs.vocabulary) / total
    expected = f_before[before] * f_after[pairs.keys]
    weighted = expected * np.log(counts / total / expected)  # f_m f_n PMI(m, n)
    inner = vectors.T @ Block(pairs.offsets, pairs.keys, weighted, False).times(vectors)
    return np.asarray(inverse(vectors, f_before) @ inner @ inverse(vectors, f_after))


def inverse(vectors: Floats, frequencies: Floats) -> Floats:
    """(EᵀFE)⁻¹, with a small ridge."""
    gram = (vectors * frequencies[:, None]).T @ vectors
    return np.asarray(np.linalg.inv(gram + RIDGE * np.linalg.norm(gram, 2) * np.eye(len(gram))), dtype=np.float64)


def exponent(vectors: Array, association: Floats, pairs: NgramCounts) -> float:
    """The a for which p(n | m) ∝ f_n exp(a · e_m B e_nᵀ) makes the pairs most likely."""
    before = np.repeat(np.arange(pairs.vocabulary), np.diff(pairs.offsets))
    contexts = np.argsort(-np.bincount(before, pairs.counts, pairs.vocabulary), kind="stable")[:CONTEXTS]
    scores = vectors[contexts] @ association @ vectors.T  # (contexts, N)
    counts = np.zeros_like(scores)
    for row, context in enumerate(contexts):
        own = slice(int(pairs.offsets[context]), int(pairs.offsets[context + 1]))
        counts[row, pairs.keys[own]] = pairs.counts[own]
    prior = np.log(np.bincount(pairs.keys, pairs.counts, pairs.vocabulary) + 1e-9)
    a = 0.5
    totals = counts.sum(1)
    for _ in range(ROUNDS):
        logits = prior + a * scores
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        mean = (p * scores).sum(1)
        variance = (p * scores**2).sum(1) - mean**2
        a += float(((counts * scores).sum() - totals @ mean) / max(totals @ variance, 1e-9))
        a = min(max(a, 0.0), 2.0)
    return a


def class_means(networks: NetworkStack, frequencies: Array) -> Tensor:
    """The mean embedding of each class, weighted by frequency: (K, d)."""
    weight = torch.from_numpy(frequencies[EOD:].astype(np.float32) + 0.5)[:, None]
    sums = torch.zeros(len(networks.first) - 1, networks.width + 1)
    sums.index_add_(0, networks.class_of, torch.cat([networks.embedding[0, EOD:] * weight, weight], 1))
    return sums[:, :-1] / sums[:, -1:]
