"""The trained networks and their gates as plain arrays, mapped from a file or given by torch; checked before use.

A model holds K networks with a gate each. Every array is stored with a leading dimension K.

The large matrices can be int8: a weight is then its byte times the scale of its row, and every input of a product with
such a matrix is rounded as well (see reference/companion.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import numpy as np

from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.text.tokenizer import EOD

PREFIX = "trained."
HEAD = 64  # dimensions of a head
CERTAINTIES = 4  # what a gate sees besides the state, see `gate_inputs` in rows.py
ROUNDED = ("embedding", "attention", "mlp")  # what can be int8


@dataclass(frozen=True, eq=False)
class Weights:
    """One network of L layers, H heads, and width d = 64·H for N tokens, and its gate. See network.py.

    Everything is float32, except that embedding, attention, and mlp can be int8, with a scale for each of their rows.
    """

    embedding: Array  # (N, d), shared with the output
    attention: Array  # (L, 4, d, d): query, key, value, output
    mlp: Array  # (L, 2, 4·d, d): up, and down transposed
    distance: Array  # (L, H, context): a bias for each distance
    sink: Array  # (L, H)
    head_gate: Array  # (L, d, H): 2·σ(norm(x)·G) scales what each head reads
    output_map: Array  # (d, d)
    output_bias: Array  # (N − EOD,)
    gate_weight: Array  # (d + CERTAINTIES,)
    gate_bias: Array  # ()
    class_map: Array | None = None  # (classes, d), if classes are predicted before tokens
    class_bias: Array | None = None  # (classes,)
    embedding_scale: Array | None = None  # (N,), and so on, if weights are int8
    attention_scale: Array | None = None  # (L, 4, d)
    mlp_scale: Array | None = None  # (L, 2, 4·d)

    def __post_init__(self) -> None:
        vocabulary, width = self.embedding.shape
        layers, heads, context = self.distance.shape
        shapes: dict[str, tuple[int, ...]] = {
            "attention": (layers, 4, width, width),
            "mlp": (layers, 2, 4 * width, width),
            "sink": (layers, heads),
            "head_gate": (layers, width, heads),
            "output_map": (width, width),
            "output_bias": (vocabulary - EOD,),
            "gate_weight": (width + CERTAINTIES,),
            "gate_bias": (),
        }
        if self.class_map is not None:
            shapes |= {"class_map": (len(self.class_map), width), "class_bias": (len(self.class_map),)}
        if self.is_rounded:
            shapes |= {"embedding_scale": (vocabulary,), "attention_scale": (layers, 4, width)}
            shapes |= {"mlp_scale": (layers, 2, 4 * width)}
        require(width == HEAD * heads and min(layers, heads, context) > 0)
        require(all(getattr(self, name).shape == shape for name, shape in shapes.items()))
        for name, array in self.arrays().items():
            rounded = self.is_rounded and name in ROUNDED
            require(array.dtype == (np.int8 if rounded else np.float32))
            if not rounded and not np.isfinite(array.sum(dtype=np.float64)):
                raise SaffuError(f"the network's weights are damaged: {name} is not finite; restore the folder")

    def arrays(self) -> dict[str, Array]:
        """All arrays, by the name of their attribute."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def is_rounded(self) -> bool:
        """Whether weights are int8."""
        return self.embedding_scale is not None

    def rounded(self) -> Weights:
        """The same network with int8 weights.

        The rows of the second half of `mlp` belong to inputs of a product, not to outputs; their scales are multiplied
        with the inputs.
        """
        if self.is_rounded:
            return self
        changes: dict[str, Array] = {}
        for name in ROUNDED:
            array = getattr(self, name)
            scale = np.abs(array).max(axis=-1) / np.float32(127)
            steps = np.where(scale > 0, scale, 1)[..., None]
            changes |= {name: np.rint(array / steps).astype(np.int8), f"{name}_scale": scale}
        return replace(self, **changes)

    def restored(self) -> Weights:
        """The same network with float32 weights."""
        if not self.is_rounded:
            return self
        changes: dict[str, Any] = {f"{name}_scale": None for name in ROUNDED}
        for name in ROUNDED:
            changes[name] = getattr(self, name) * getattr(self, f"{name}_scale")[..., None]
        return replace(self, **changes)

    @property
    def context(self) -> int:
        return int(self.distance.shape[2])

    @property
    def width(self) -> int:
        return int(self.embedding.shape[1])

    @property
    def layers(self) -> int:
        return len(self.sink)


def stored_name(name: str) -> str:
    """The name of a weight in files.

    >>> stored_name("gate_bias"), stored_name("output_bias")
    ('trained.gate.bias', 'trained.network.output_bias')
    """
    return f"{PREFIX}gate.{name[5:]}" if name.startswith("gate_") else f"{PREFIX}network.{name}"


def weights_of(arrays: Mapping[str, Array], context: int) -> list[Weights]:
    """The networks whose stored arrays these are, for windows of `context` tokens; SaffuError if they are damaged."""
    stored = {entry.name: arrays.get(stored_name(entry.name)) for entry in fields(Weights)}
    present = {name: array for name, array in stored.items() if array is not None}
    require({entry.name for entry in fields(Weights) if entry.default is MISSING} <= set(present))
    require(("class_map" in present) == ("class_bias" in present))
    require(sum(f"{name}_scale" in present for name in ROUNDED) in (0, len(ROUNDED)))
    require(present["gate_bias"].ndim == 1)
    number = len(present["gate_bias"])
    require(number > 0 and all(array.ndim and len(array) == number for array in present.values()))
    require(
        present["embedding"].ndim == 3 and present["distance"].ndim == 4 and present["distance"].shape[3] == context
    )
    return [Weights(**{name: array[k] for name, array in present.items()}) for k in range(number)]


def stored(networks: Sequence[Weights]) -> dict[str, Array]:
    """The arrays of networks as a file holds them."""
    return {
        stored_name(name): np.stack([getattr(network, name) for network in networks]) for name in networks[0].arrays()
    }


def require(sound: bool) -> None:
    """Raise SaffuError unless the weights are sound."""
    if not sound:
        raise SaffuError("the network's weights do not fit its settings; restore the folder or train again")
