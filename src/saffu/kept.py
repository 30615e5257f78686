"""Things built from a network's weights and kept for as long as the weights stay the same."""

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Built = TypeVar("Built")
BUILDING = threading.Lock()  # of what threads share


class Source:
    """Weights that something was built from, as they were then."""

    def __init__(self, weights: Sequence[Tensor]):
        self.weights, self.versions = weights, [weight._version for weight in weights]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Source) or self.versions != other.versions:
            return False
        return all(map(operator.is_, self.weights, other.weights))


class Kept(nn.Module):
    """A module that keeps what it built: tables of products, say, which save computing the same again."""

    def __init__(self) -> None:
        super().__init__()
        self._built: dict[str, tuple[object, Source]] = {}

    def kept(self, name: str, build: Callable[[], Built], *weights: Tensor) -> Built:
        """What is built from these weights, kept for as long as they stay the same."""
        if torch.is_grad_enabled() and any(weight.requires_grad for weight in weights):
            return build()
        now = Source(weights)
        built, source = self._built.get(name, (None, None))
        if source != now:
            with BUILDING, torch.no_grad():
                built, source = self._built.get(name, (None, None))
                if source != now:  # no other thread has built it meanwhile
                    built = build()
                    self._built[name] = built, now
        return built  # type: ignore[return-value]

    def train(self, mode: bool = True) -> "Kept":
        """Tables of weights that were trained are of no use: a fused optimiser changes weights and leaves no trace."""
        self._built.clear()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Kept":
        """Nor are tables of another precision or device."""
        self._built.clear()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def __getstate__(self) -> dict[str, Any]:
        """A copy builds its own tables."""
        return {**self.__dict__, "_built": {}}
