"""Sums over targets that layers are solved from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOAT32_TARGETS = 1 << 17  # targets that are summed in float32 before they are added to float64 sums


@dataclass(frozen=True, eq=False)
class Counts:
    """Everything that a layer's closed form needs to know about the data."""

    F: Tensor  # (inputs, outputs) co-occurrences, float64
    norm: float  # Σ_m ‖input_m‖₁
    targets: int  # M

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.F + other.F, self.norm + other.norm, self.targets + other.targets)

    @property
    def mean_norm(self) -> float:
        """K̂ = Σ_m ‖H_m‖₁ / M, the measured priming number."""
        return self.norm / self.targets


class SumsByTarget:
    """Eq. 2 for one-hot targets, transposed: Σ_m Y_m ⊗ H_m (N, inputs), without building Y.

    Rows are summed in their own precision for a while, then in float64.
    """

    def __init__(self, targets: int, inputs: int, like: Tensor):
        self.recent = like.new_zeros(targets, inputs)
        self.earlier = self.recent if like.dtype == torch.float64 else self.recent.double()
        self.waiting = self.seen = 0

    def add(self, inputs: Tensor, target_ids: Tensor, first: int = 0) -> None:
        """Add rows (m, ≤ inputs), which begin at column `first`, to the sums of their targets (m,)."""
        self.recent[:, first : first + inputs.shape[1]].index_add_(0, target_ids, inputs)
        self.waiting += len(target_ids)
        self.seen += len(target_ids)
        if self.waiting > FLOAT32_TARGETS:
            self._flush()

    def _flush(self) -> None:
        if self.earlier is not self.recent:
            self.earlier += self.recent
            self.recent.zero_()
        self.waiting = 0

    @property
    def total(self) -> Tensor:
        self._flush()
        return self.earlier

    @property
    def counts(self) -> Counts:
        return Counts(self.total.T, float(self.total.sum()), self.seen)
