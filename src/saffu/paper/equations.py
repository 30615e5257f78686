"""The paper's closed forms, Eq. 1–6, each as one short function. They see numbers, never text.

Paper: Williams & Zhao, "Explicit Foundation Model Optimization with Self-Attentive Feed-Forward Neural Units".
Symbols: N tokens, K slots, D input dimensions, M targets; H inputs, Y targets, F co-occurrences.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from saffu.errors import SaffuError

TABLE = 1 << 26  # most entries of a table that saves computing the same again


@dataclass
class Counts:
    """All that a layer's closed form needs to know of the data: sums over targets, so that shards add up."""

    F: Tensor  # (inputs, outputs) generalised co-occurrences, float64
    norm: Tensor  # Σ_m ‖input_m‖₁, which measures the priming number
    targets: Tensor  # M

    @classmethod
    def zeros(cls, inputs: int, outputs: int, device: torch.device | str = "cpu") -> "Counts":
        scalar = torch.zeros((), dtype=torch.float64, device=device)
        return cls(torch.zeros(inputs, outputs, dtype=torch.float64, device=device), scalar, scalar.clone())

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.F + other.F, self.norm + other.norm, self.targets + other.targets)

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(self.F - other.F, self.norm - other.norm, self.targets - other.targets)

    @property
    def mean_norm(self) -> float:
        """K̂ = Σ_m ‖H_m‖₁ / M, the measured priming number."""
        return float(self.norm / self.targets)


def co_occurrence(inputs: Tensor, targets: Tensor) -> Tensor:
    """Eq. 2, F(H, Y) = Σ_m H_m ⊗ Y_m = HᵀY, for dense targets."""
    return inputs.T @ targets


class SumsByTarget:
    """Eq. 2 for one-hot targets, transposed: Σ_m Y_m ⊗ H_m (N, inputs), without building Y.

    Rows are summed in their own precision for a while, then in float64.
    """

    WHILE = 1 << 17  # targets

    def __init__(self, targets: int, inputs: int, like: Tensor):
        self.recent = like.new_zeros(targets, inputs)
        self.earlier = self.recent if like.dtype == torch.float64 else self.recent.double()
        self.waiting = self.seen = 0

    def add(self, inputs: Tensor, target_ids: Tensor, first: int = 0) -> None:
        """Rows (m, ≤ inputs), which begin at the column `first`, to the sums of their targets (m,)."""
        self.recent[:, first : first + inputs.shape[1]].index_add_(0, target_ids, inputs)
        self.waiting += len(target_ids)
        self.seen += len(target_ids)
        if self.waiting > self.WHILE:
            self._settle()

    def _settle(self) -> None:
        if self.earlier is not self.recent:
            self.earlier += self.recent
            self.recent.zero_()
        self.waiting = 0

    @property
    def total(self) -> Tensor:
        self._settle()
        return self.earlier

    @property
    def counts(self) -> Counts:
        return Counts(self.total.T, self.total.sum(), self.total.new_tensor(float(self.seen)))


def on_grid(numbers: Tensor) -> Tensor:
    """Rounded to multiples of 2⁻³⁴, in place.

    float64 adds such numbers without error (up to 2¹⁹): whatever the order and the portions, the sum is the same bit
    for bit, and what was added can be taken away again without a trace.
    """
    return numbers.mul_(2.0**34).round_().mul_(2.0**-34)


def explicit_solution(F: Tensor, priming: float, remedy: str = "raise `smoothing`") -> Tensor:
    """Eq. 3, and with it Eq. 5 and 6: log F_{j,i} − (K−1)/K · log Σ_d F_{d,i}."""
    lowest = float(F.min())
    if not lowest > 0:  # also refuses NaN
        raise SaffuError(f"a co-occurrence of {lowest:g} has no logarithm; {remedy}")
    return torch.log(F) - (priming - 1) / priming * torch.log(F.sum(0, keepdim=True))


def fill_unseen(F: Tensor, smoothing: float) -> Tensor:
    """Give outputs that never occurred a small constant. All others are positive, for embeddings have no zeros."""
    return torch.where(F.sum(0) > 0, F, smoothing)


def decoder_priming_number(slots: int) -> float:
    """K_U = K log K: K features of unit norm, weighted by −log of a distribution over K slots."""
    return slots * math.log(slots)


def attention_priming_number(slots: int) -> float:
    """K_W = log K: below the bound K on the norm of K similarities. (At K = 2 it is under one; so be it.)"""
    return math.log(slots)


def variation_bound(slots: int, vocabulary: int) -> float:
    """c = 2 (1 + 1/K) log N, which keeps F(Q, V) positive."""
    return 2 * (1 + 1 / slots) * math.log(vocabulary)


def attention_weights(scores: Tensor) -> Tensor:
    """A = −log softmax(QW), the inner part of Eq. 1: positive, and Σ_k e^{−A_k} = 1."""
    return -torch.log_softmax(scores, dim=1)


def distribution(logits: Tensor) -> Tensor:
    """softmax by row, the outer part of Eq. 1; what is below 1e-30 is zero, as denormal numbers slow everything."""
    return torch.nn.functional.threshold(torch.softmax(logits, dim=1), 1e-30, 0.0)


def grid_distribution(logits: Tensor) -> Tensor:
    """softmax by row, as it is counted: in float64 on the grid, on which very small probabilities are zero."""
    return on_grid(torch.softmax(logits, dim=1)) if logits.dtype == torch.float64 else distribution(logits)


def look_up(values: Tensor, index: Tensor) -> Tensor:
    """values[index] for a vector of values: the same, but several times faster on a CPU."""
    return values.index_select(0, index.reshape(-1)).view(index.shape)


class InnerProducts:
    """Inner products of rows of two matrices by their numbers: a table while that is small, else as they come.

    Contexts are token ids, so every inner product of embeddings is a look-up: Q in E·Eᵀ, the targets V̂ in log E·Eᵀ.
    """

    def __init__(self, left: Tensor, right: Tensor):
        self.left, self.right = left, right
        self.table = left @ right.T if len(left) * len(right) <= TABLE else None

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """left[i_m]·right[j_mk] for i (m, 1) and j (m, k)."""
        if self.table is not None:
            return look_up(self.table.view(-1), i * len(self.right) + j)
        products: Tensor = (embedding(j, self.right) @ embedding(i, self.left).mT).squeeze(2)
        return products


class InitialVariation:
    """V̂_mk − c = [log E_{i_m} − log Eᵀ·ȳ]·X_mk: the targets of attention before any decoder is known."""

    def __init__(self, embeddings: Tensor, frequencies: Tensor):
        log_embeddings = torch.log(embeddings)
        mean_target = (frequencies / frequencies.sum()).to(embeddings.dtype)  # ȳ (N,)
        self.products = InnerProducts(log_embeddings, embeddings)
        self.averages = embeddings @ (mean_target @ log_embeddings)  # (N,)

    def __call__(self, target_ids: Tensor, slot_ids: Tensor) -> Tensor:
        """(m,) target ids and (m, J) slot ids to V̂ − c (m, J)."""
        return self.products(target_ids[:, None], slot_ids) - look_up(self.averages, slot_ids)
