"""The kernels of the network (native/network/), called with NumPy arrays."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from typing import Any

import numpy as np

from saffu.calibrated.kernels import TOKEN, declare, library, pointer
from saffu.calibrated.kneser_ney import Ranks
from saffu.calibrated.tempered import Prediction
from saffu.companion.weights import HEAD, ROUNDED, Weights, require
from saffu.interface import Array

PANEL = 32  # as in native/network/network.h
ROTARY_BASE = 10_000.0
LAST = 16  # floats at the end of what is kept of a token: what its state adds to the gate's logit, and unused ones


class NetworkStructure(Structure):
    """See native/network/network.h."""

    _fields_ = [
        *((name, c_int32) for name in ("vocabulary", "layers", "width", "context", "classes")),
        *(
            (name, c_void_p)
            for name in (
                "embedding", "attention", "mlp", "embedding8", "attention8", "mlp8", "embedding_scale",
                "attention_scale", "mlp_scale", "embedding_start", "attention_start", "up_start", "down8",
                "distance", "sink", "head_gate", "output_map", "output_bias",
                "class_map", "class_bias", "gate", "cosine", "sine", "rank", "token_of_rank", "class_of_rank",
                "class_first",
            )
        ),
    ]  # fmt: skip


class NativeNetwork:
    """One network laid out for the kernels, which read its weights where they are: in a mapped file, if they are."""

    def __init__(self, weights: Weights, ranks: Ranks) -> None:
        """`ranks`: the order of tokens by class, which matters only to a network that predicts classes first."""
        classes = 0 if weights.class_bias is None else len(weights.class_bias)
        require(classes in (0, ranks.number) and len(weights.embedding) == len(ranks.ranks))
        self.vocabulary, self.width = weights.embedding.shape
        self.context = weights.context
        self.ranks = ranks
        self.memory = (2 * weights.layers + 1) * self.width + LAST  # floats kept of a token: keys, values, state …
        angles = np.arange(self.context)[:, None] * ROTARY_BASE ** -(np.arange(0, HEAD, 2) / HEAD)
        before = np.full((*weights.sink.shape, PANEL), -np.inf, dtype=np.float32)
        arrays = matrices(weights) | {
            "gate": weights.gate_weight[: self.width],
            "distance": np.concatenate([before, weights.distance, np.zeros_like(before)], axis=2),
            "cosine": np.cos(angles).astype(np.float32),
            "sine": np.sin(angles).astype(np.float32),
            "rank": ranks.ranks,
            "token_of_rank": ranks.tokens,
            "class_of_rank": ranks.classes,
            "class_first": ranks.first,
        }
        self.structure = NetworkStructure(self.vocabulary, weights.layers, self.width, self.context, classes)
        self._kept = {name: np.ascontiguousarray(array) for name, array in arrays.items() if name in FIELDS}
        for name, array in self._kept.items():
            setattr(self.structure, name, pointer(array, array.dtype))

    def score(
        self, inputs: Array, begin: Array, wanted: Array, targets: Array, states: Array | None = None
    ) -> tuple[Array, Array]:
        """ln p of targets (rows, T) and what the states add to the gate's logit, where `wanted`; all are (rows, T).

        `begin`, int32, is the place in the row where the window of each token begins; a window sees nothing else.
        `states` (rows, T, d), if given, receives the states.
        """
        log_p = np.zeros(inputs.shape, dtype=np.float32)
        logit = np.zeros(inputs.shape, dtype=np.float32)
        library.saffu_network_score(
            self.structure, *inputs.shape, pointer(inputs, TOKEN), pointer(begin, np.int32),
            pointer(wanted, np.bool_), pointer(targets, TOKEN), pointer(log_p, np.float32),
            pointer(logit, np.float32), None if states is None else pointer(states, np.float32),
        )  # fmt: skip
        return log_p, logit

    def read(self, window: Array, past: int, addresses: Array, offset: int = 0) -> None:
        """Read the tokens of a window (n,) uint16, all at once, and store what is kept of those after the first `past`.

        `addresses` (n,) uint64: where this is stored of each, `offset` floats further on.
        """
        library.saffu_network_read(
            self.structure, pointer(window, TOKEN), len(window), past, pointer(addresses, np.uint64), offset
        )

    def step(self, token: int, addresses: Array, offset: int = 0) -> None:
        """Read one token. `addresses` (n,) as in `read`: those of the tokens before it, read before, and its own."""
        library.saffu_network_step(self.structure, token, len(addresses) - 1, pointer(addresses, np.uint64), offset)

    def log_probabilities(self, states: Array) -> Array:
        """ln p of every token after states (n, d): (n, N) float32; −inf for what is never predicted."""
        out = np.empty((len(states), self.vocabulary), dtype=np.float32)
        library.saffu_network_distribution(
            self.structure, pointer(states, np.float32), len(states), pointer(out, np.float32)
        )
        return out

    def prediction(self, state: Array) -> Prediction:
        """That distribution after one state (d,), class by class."""
        if not self.structure.classes:
            p = np.exp(self.log_probabilities(state[None])[0])[self.ranks.tokens[: self.ranks.predicted]]
            classes = np.add.reduceat(p, self.ranks.first[:-1])
            return Prediction(classes, lambda k: p[self.ranks.first[k] : self.ranks.first[k + 1]] / classes[k])
        mapped = np.empty(self.width, dtype=np.float32)
        classes = np.empty(self.structure.classes, dtype=np.float32)
        library.saffu_network_classes(
            self.structure, pointer(state, np.float32), pointer(mapped, np.float32), pointer(classes, np.float32)
        )

        def tokens(k: int) -> Array:
            out = np.empty(self.ranks.sizes[k], dtype=np.float32)
            library.saffu_network_members(self.structure, pointer(mapped, np.float32), k, pointer(out, np.float32))
            return out

        return Prediction(classes, tokens)

    def sample(self, state: Array, rng: np.random.Generator) -> int:
        """A token from that distribution after one state (d,)."""
        token: int = library.saffu_network_sample(
            self.structure, pointer(state, np.float32), pointer(rng.random(2), np.float64)
        )
        return token


def matrices(weights: Weights) -> dict[str, Array]:
    """The arrays of a network by their names in the structure, and what follows from int8 ones."""
    arrays = weights.arrays()
    if not weights.is_rounded:
        return arrays
    arrays |= {f"{name}8": arrays.pop(name) for name in ROUNDED}
    up = weights.mlp[:, 0]
    down = weights.mlp[:, 1]
    return arrays | {
        "embedding_start": starts(weights.embedding),
        "attention_start": starts(weights.attention),
        "up_start": starts(up),
        "down8": down.transpose(0, 2, 1),
    }


def starts(rows: Array) -> Array:
    """−128 times the sum of each row: added to its products with bytes that stand for numbers from −128 on."""
    return np.asarray(-128 * rows.sum(axis=-1, dtype=np.int32), dtype=np.int32)


def mixture(log_weights: Array, log_p: Array) -> Array:
    """ln Σ_c w_c·p_c (n,) from ln w (components,) and ln p (components, n), float32.

    >>> half = np.log(np.array([0.5, 0.5], dtype=np.float32))
    >>> mixture(half, np.log(np.array([[0.5, 1], [0.1, 0]], dtype=np.float32) + 1e-30)).round(3)
    array([-1.204, -0.693], dtype=float32)
    """
    out = np.empty(log_p.shape[1], dtype=np.float32)
    library.saffu_mixture(
        pointer(log_weights, np.float32), pointer(log_p, np.float32), *log_p.shape, pointer(out, np.float32)
    )
    return out


FIELDS = {name for name, kind, *_ in NetworkStructure._fields_ if kind is c_void_p}


def _declare() -> None:
    p = c_void_p
    i32 = c_int32
    i64 = c_int64
    network = POINTER(NetworkStructure)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "saffu_network_level": (None, [i32]),
        "saffu_network_score": (None, [network, i64, i32, p, p, p, p, p, p, p]),
        "saffu_network_read": (None, [network, p, i32, i32, p, i64]),
        "saffu_network_step": (None, [network, i32, i32, p, i64]),
        "saffu_network_distribution": (None, [network, p, i64, p]),
        "saffu_network_classes": (None, [network, p, p, p]),
        "saffu_network_members": (None, [network, p, i32, p]),
        "saffu_network_sample": (ctypes.c_int32, [network, p, p]),
        "saffu_mixture": (None, [p, p, i32, i64, p]),
    }
    declare(library, signatures)


_declare()
