"""The neural cache (Grave et al. 2017): words that followed similar states of the networks earlier in the document.

    p_cache(w) = Σ_i softmax_i(SHARPNESS · h_t·h_i) [w_i = w]
    p = (1 − λ_t)·p_mixture + λ_t·p_cache,    λ_t = λ · n/(n + FEW)

where i runs over the last n targets of the document, at most WINDOW, h are states of length one, and similarities are
averaged over networks. λ begins at START in each document and then follows it: after each target, it moves toward the
share of the prediction that came from the cache. Like the memory of the counts, the cache belongs to the reader of a
document.
"""

from __future__ import annotations

import numpy as np

from saffu.interface import Array, Floats
from saffu.workers import in_parallel

WINDOW = 2000  # targets
SHARPNESS = 12.0
FEW = 100  # targets
START = 0.05
RATE = 0.003
LEAST, MOST = 0.002, 0.5
BLOCK = 500  # targets at once


def cached_probabilities(states: Array, targets: Array, starts: Array) -> Floats:
    """p_cache of each target (n,), from what the networks knew before it (n, K, d) and where documents start.

    >>> states = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]], dtype=np.float32)
    >>> cached_probabilities(states, np.array([7, 8, 7, 9]), np.array([0, 4])).round(3).tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    p = np.zeros(len(targets))
    flat = states.reshape(len(states), -1)

    def work(block: tuple[int, int, int]) -> None:
        document, begin, end = block
        first = max(document, begin - WINDOW)
        own = np.asarray(flat[begin:end], dtype=np.float32)
        similarity = own @ np.asarray(flat[first:end], dtype=np.float32).T * (SHARPNESS / states.shape[1])
        back = np.arange(begin, end)[:, None] - np.arange(first, end)
        weights = np.where((back > 0) & (back <= WINDOW), np.exp(similarity), 0.0)  # (block, window + block)
        same = targets[begin:end, None] == targets[first:end]
        p[begin:end] = (weights * same).sum(1) / np.maximum(weights.sum(1), np.finfo(np.float32).tiny)

    documents = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    in_parallel(work, [(a, n, min(n + BLOCK, b)) for a, b in documents for n in range(a, b, BLOCK)])
    return p


def with_cache(log_p: Floats, cached: Floats, starts: Array) -> Floats:
    """ln p (n,) of targets by the mixture and the cache together.

    >>> repeated = np.full(1000, 0.9)
    >>> alone = np.log(np.full(1000, 0.1))
    >>> with_cache(alone, repeated, np.array([0, 1000]))[[0, 999]].round(2)  # λ has grown
    array([-2.3 , -0.77])
    """
    mixed = np.empty_like(log_p)
    ages = np.arange(len(log_p)) - np.repeat(starts[:-1], np.diff(starts))
    reliance = (np.minimum(ages, WINDOW) / (np.minimum(ages, WINDOW) + FEW)).tolist()
    begins = set(starts.tolist())
    share = START
    for n, (known, p, q) in enumerate(zip(reliance, np.exp(log_p).tolist(), cached.tolist(), strict=True)):
        if n in begins:
            share = START
        of_cache = share * known * q
        total = (1 - share * known) * p + of_cache
        mixed[n] = total
        if known and total:
            share = min(max(LEAST, share + RATE * known * (of_cache / total - share * known)), MOST)
    return np.log(mixed)
