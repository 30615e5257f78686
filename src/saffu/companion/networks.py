"""Trained networks next to a counted model, without torch: scores of text, states of documents, and the mixture.

Each of the K networks has its own gate, which decides how much of a prediction comes from it:

    p = (1/K) Σ_k [g_k·p_k + (1 − g_k)·p_counted] = (1 − ḡ)·p_counted + Σ_k (g_k/K)·p_k

So a prediction is a mixture of K + 1 distributions, the counted one first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from saffu.calibrated.kernels import TOKEN
from saffu.calibrated.kneser_ney import Ranks
from saffu.calibrated.ngrams import checked_ids
from saffu.companion.kernels import LAST, NativeNetwork
from saffu.companion.neural_cache import NeuralCache
from saffu.companion.rows import documents_of, inputs_of, scoring_rows
from saffu.companion.weights import PREFIX, Weights, stored, weights_of
from saffu.format import progress_bar
from saffu.interface import Array, Floats
from saffu.text.corpus import TokenCorpus
from saffu.workers import in_parallel

ROWS = 16  # scored at a time


class Scores(NamedTuple):
    """One entry per target, (targets,) each."""

    mixture: Floats  # ln p
    trained: Floats  # ln p by the networks alone: the logarithm of their mean


class Networks:
    """The networks of a model and their gates. They are read where they lie, and never changed."""

    def __init__(self, arrays: Mapping[str, Array], context: int, ranks: Ranks) -> None:
        """`arrays`: as they are stored, among others; `ranks`: the order of tokens by the counted model's classes."""
        self.stored = {name: array for name, array in arrays.items() if name.startswith(PREFIX)}
        self.context = context
        self.ranks = ranks
        self.weights: list[Weights] = weights_of(self.stored, context)
        self.natives = [NativeNetwork(weights, ranks) for weights in self.weights]
        self.vocabulary = self.natives[0].vocabulary
        ends = list(accumulate(native.memory for native in self.natives))
        self.memory = ends[-1]  # floats kept of a token, network by network
        self.offsets = [end - native.memory for end, native in zip(ends, self.natives, strict=True)]
        self.logits = [end - LAST for end in ends]  # where what states add to the gates' logits is kept, and the states
        self.states = [slice(end - own.width, end) for end, own in zip(self.logits, self.weights, strict=True)]
        self.of_certainty = np.stack([own.gate_weight[own.width :] for own in self.weights])  # (K, certainties)
        self.of_gates = np.stack([own.gate_bias for own in self.weights])  # (K,)

    def arrays(self) -> dict[str, Array]:
        """All weights, by name."""
        return dict(self.stored)

    def rounded(self) -> Networks:
        """The same networks with int8 weights."""
        return Networks(stored([own.rounded() for own in self.weights]), self.context, self.ranks)

    def restored_arrays(self) -> dict[str, Array]:
        """All weights in float32, by name."""
        return stored([own.restored() for own in self.weights]) if self.weights[0].is_rounded else self.arrays()

    @property
    def size(self) -> int:
        return sum(array.size for array in self.stored.values())

    @property
    def width(self) -> int:
        """The number of entries of all states together."""
        return sum(own.width for own in self.weights)

    def gate_logits(self, from_states: Array, certainty: Array) -> Array:
        """The logits (K, n) of the gates, from what states add to them (K, n) and what they see of the counts."""
        return np.asarray(from_states + self.of_certainty @ certainty.T + self.of_gates[:, None])

    def score(
        self,
        corpus: TokenCorpus,
        counted: Floats,
        certainty: Array,
        progress: str | None = None,
        cache: NeuralCache | None = None,
    ) -> Scores:
        """Score a corpus together with the counted model, whose ln p (targets,) and certainty are given.

        Each target sees at least half a window, or everything before it; a `cache`, all that it has read before.
        """
        targets = checked_ids(corpus, self.vocabulary)
        inputs = inputs_of(corpus).astype(TOKEN)
        documents = documents_of(corpus)
        positions, scored = scoring_rows(corpus, self.context)
        log_p, from_states = np.zeros((2, len(self.natives), corpus.targets), dtype=np.float32)
        with (
            progress_bar(progress, total=corpus.targets) as bar,
            temporary_states(self, corpus, cache is not None) as states,
        ):

            def work(first: int) -> None:
                places = positions[first : first + ROWS]
                wanted = scored[first : first + ROWS]
                begin = window_begins(places, documents)
                own = places[wanted]
                for k, native in enumerate(self.natives):
                    hidden = None if states is None else np.zeros((*places.shape, native.width), dtype=np.float32)
                    own_log_p, logit = native.score(inputs[places], begin, wanted, targets[places], hidden)
                    log_p[k, own] = own_log_p[wanted]
                    from_states[k, own] = logit[wanted]
                    if states is not None and hidden is not None:
                        states[own, k] = hidden[wanted] / np.linalg.norm(hidden[wanted], axis=1, keepdims=True)
                bar.update(len(own))

            in_parallel(work, range(0, len(positions), ROWS))
            parts = np.concatenate([counted[None], log_p])  # (1 + K, targets) float64
            mixture = np.logaddexp.reduce(log_weights(self.gate_logits(from_states, certainty)) + parts, axis=0)
            if cache is not None and states is not None:
                mixture = cache.read(mixture, states, targets)
        return Scores(mixture, np.logaddexp.reduce(parts[1:], axis=0) - np.log(len(self.natives)))


@contextmanager
def temporary_states(networks: Networks, corpus: TokenCorpus, wanted: bool) -> Iterator[Array | None]:
    """Room for the states of all targets (targets, K, d), in a temporary file; or None."""
    if not wanted:
        yield None
        return
    shape = (corpus.targets, len(networks.natives), networks.natives[0].width)
    with tempfile.TemporaryFile() as file:
        yield np.memmap(file, dtype=np.float16, mode="w+", shape=shape)


def log_weights(logits: Array) -> Array:
    """ln of the weights of a mixture, (1 + K, n) float32, from the logits (K, n) of the gates: 1 − ḡ, then each g_k/K.

    >>> np.exp(log_weights(np.array([[0.0], [np.log(3)]]))).round(3).tolist()
    [[0.375], [0.25], [0.375]]
    """
    logits = logits.astype(np.float64)
    log_open = -np.logaddexp(0, -logits)
    log_shut = -np.logaddexp(0, logits)
    parts = np.concatenate([np.logaddexp.reduce(log_shut, axis=0, keepdims=True), log_open])
    return np.asarray(parts - np.log(len(logits)), dtype=np.float32)


def window_begins(positions: Array, documents: Array) -> Array:
    """Where in its row the window of each place begins, (rows, T) int32, from positions in a corpus; −1: none.

    >>> window_begins(np.array([[5, 6, 7, 2, 3, -1]]), np.array([0, 0, 0, 0, 0, 0, 1, 1]))
    array([[0, 1, 1, 3, 3, 5]], dtype=int32)
    """
    own = documents[positions]
    first = np.ones(positions.shape, dtype=bool)
    first[:, 1:] = (np.diff(positions, axis=1) != 1) | (own[:, 1:] != own[:, :-1])
    return np.maximum.accumulate(np.where(first, np.arange(positions.shape[1]), 0), axis=1).astype(np.int32)
