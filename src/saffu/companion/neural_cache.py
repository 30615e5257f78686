"""The neural cache (Grave et al. 2017): words that followed similar states of the networks before, in text read online.

    p_cache(w) = Σ_i softmax_i(SHARPNESS · h_t·h_i) [w_i = w]
    p = (1 − λ_t)·p_mixture + λ_t·p_cache,    λ_t = λ · n/(n + FEW)

where i runs over the last n targets, at most WINDOW, h are states of length one, and similarities are averaged over
networks. λ begins at START and then follows the text: after each target, it moves toward the share of the prediction
that came from the cache.
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


class NeuralCache:
    """What a reader of documents has seen last; like the memory of the counts, it continues from one to the next."""

    def __init__(self, networks: int, width: int) -> None:
        self.states = np.zeros((0, networks, width), dtype=np.float16)
        self.targets = np.zeros(0, dtype=np.int64)
        self.share = START  # λ

    def read(self, log_p: Floats, states: Array, targets: Array) -> Floats:
        """Return ln p (n,) of targets with the cache, from ln p without it and the states before them (n, K, d).

        >>> cache = NeuralCache(1, 2)
        >>> states = np.tile(np.eye(2, dtype=np.float16), (500, 1))[:, None]  # (1000, 1, 2)
        >>> log_p = cache.read(np.full(1000, np.log(0.1)), states, np.tile([7, 8], 500))
        >>> log_p[[0, 999]].round(2)  # λ has grown
        array([-2.3 , -0.68])
        """
        log_p = self._with_cache(log_p, self.probabilities(states, targets))
        self.states = np.concatenate([self.states, states[-WINDOW:]])[-WINDOW:]
        self.targets = np.concatenate([self.targets, targets])[-WINDOW:]
        return log_p

    def probabilities(self, states: Array, targets: Array) -> Floats:
        """Return p_cache of each target (n,), from what the networks knew before it (n, K, d).

        >>> states = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[1.0, 0.0]], [[1.0, 0.0]]], dtype=np.float32)
        >>> NeuralCache(1, 2).probabilities(states, np.array([7, 8, 7, 9])).round(3).tolist()
        [0.0, 0.0, 1.0, 0.0]
        """
        p = np.zeros(len(targets))
        known = len(self.targets)
        seen = np.concatenate([self.targets, targets])

        def work(begin: int) -> None:
            end = min(begin + BLOCK, len(targets))
            first = max(0, known + begin - WINDOW)
            near = np.concatenate([self.states[first:], states[max(0, first - known) : end]], dtype=np.float32)
            own = near[begin - end :]
            similarity = own.reshape(len(own), -1) @ near.reshape(len(near), -1).T * (SHARPNESS / states.shape[1])
            back = known + np.arange(begin, end)[:, None] - np.arange(first, known + end)
            weights = np.where((back > 0) & (back <= WINDOW), np.exp(similarity), 0.0)  # (block, window + block)
            same = targets[begin:end, None] == seen[first : known + end]
            p[begin:end] = (weights * same).sum(1) / np.maximum(weights.sum(1), np.finfo(np.float32).tiny)

        in_parallel(work, range(0, len(targets), BLOCK))
        return p

    def _with_cache(self, log_p: Floats, cached: Floats) -> Floats:
        mixed = np.empty_like(log_p)
        before = np.minimum(len(self.targets) + np.arange(len(log_p)), WINDOW)
        reliance = (before / (before + FEW)).tolist()
        for n, (known, p, q) in enumerate(zip(reliance, np.exp(log_p).tolist(), cached.tolist(), strict=True)):
            of_cache = self.share * known * q
            total = (1 - self.share * known) * p + of_cache
            mixed[n] = total
            if known and total:
                gain = of_cache / total - self.share * known
                self.share = min(max(LEAST, self.share + RATE * known * gain), MOST)
        return np.log(mixed)
