"""The paper's equations as short functions on tensors. They see numbers, never text.

Paper: Williams and Zhao, "Explicit Foundation Model Optimization with Self-Attentive Feed-Forward Neural Units".
Symbols: N tokens, K slots, D input dimensions, M targets; H inputs, Y targets, F co-occurrences.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import embedding

from saffu.errors import SaffuError

TABLE = 1 << 26  # largest number of entries of a precomputed table
MARGIN = 1e-6  # of the range of a row of F(Q, V), by which its least entry exceeds zero with `variation_shift` smallest
ROUNDING = 1e-5  # relative differences of entries of F(Q, V) that mean nothing


def attention_weights(scores: Tensor) -> Tensor:
    """A = −log softmax(QW), the inner part of Eq. 1: positive, with Σ_k e^{−A_k} = 1.

    >>> attention_weights(torch.zeros(1, 4))  # log 4
    tensor([[1.3863, 1.3863, 1.3863, 1.3863]])
    """
    return -torch.log_softmax(scores, dim=1)


def distribution(logits: Tensor) -> Tensor:
    """softmax by row, the outer part of Eq. 1. In float32, values below 1e-30 become zero: denormals are slow."""
    p = torch.softmax(logits, dim=1)
    return p if p.dtype == torch.float64 else torch.nn.functional.threshold(p, 1e-30, 0.0)


def co_occurrence(inputs: Tensor, targets: Tensor) -> Tensor:
    """Eq. 2, F(H, Y) = Σ_m H_m ⊗ Y_m = HᵀY, for dense targets."""
    return inputs.T @ targets


def explicit_solution(F: Tensor, priming: float, remedy: str = "raise `smoothing`") -> Tensor:
    """Eq. 3, and with it Eq. 5 and 6: U_ji = log F_ji − (K − 1)/K · log Σ_d F_di.

    >>> explicit_solution(torch.tensor([[2.0], [6.0]]), priming=2)  # log 2 − ½ log 8, log 6 − ½ log 8
    tensor([[-0.3466],
            [ 0.7520]])
    """
    lowest = float(F.min())
    if not lowest > 0:  # also true for NaN
        raise SaffuError(f"co-occurrence counts must be positive (the smallest is {lowest:g}); {remedy}")
    return torch.log(F) - (priming - 1) / priming * torch.log(F.sum(0, keepdim=True))


def fill_unseen(F: Tensor, smoothing: float) -> Tensor:
    """Fill the columns of outputs that never occurred with a constant; all others are positive, as embeddings are.

    >>> fill_unseen(torch.tensor([[3.0, 0.0], [1.0, 0.0]]), 0.5).tolist()
    [[3.0, 0.5], [1.0, 0.5]]
    """
    return torch.where(F.sum(0) > 0, F, smoothing)


def decoder_priming_number(slots: int) -> float:
    """K_U = K log K, the norm of H under uniform attention: K features of unit norm, each weighted by log K."""
    return slots * math.log(slots)


def attention_priming_number(slots: int) -> float:
    """K_W = log K, below the bound K on the norm of K similarities. At K = 2 it is less than one, which is fine."""
    return math.log(slots)


def variation_bound(slots: int, vocabulary: int) -> float:
    """c = 2 (1 + 1/K) log N, which keeps F(Q, V) positive (Sec. 2.4)."""
    return 2 * (1 + 1 / slots) * math.log(vocabulary)


def smallest_shift(F: Tensor) -> Tensor:
    """F(Q, V) with the least shift of V in each row, in place of c, that leaves every entry positive.

    With features of unit norm, c adds c·Σ_m Q_mj to all of row j, so that the differences within a row do not depend on
    it. Its least entry becomes `MARGIN` of its range. A row whose range is mere rounding stays as it is.

    >>> smallest_shift(torch.tensor([[50.0, 52.0, 51.0], [7.0, 7.0, 7.0]])).tolist()  # doctest: +ELLIPSIS
    [[1.99...e-06, 2.0..., 1.0...], [7.0, 7.0, 7.0]]
    """
    largest = F.max(1, keepdim=True).values
    least = F.min(1, keepdim=True).values
    span = largest - least
    return torch.where(span > ROUNDING * largest, F - least + MARGIN * span, F)


def gather(values: Tensor, index: Tensor) -> Tensor:
    """values[index] for a vector of values, several times faster on a CPU.

    >>> gather(torch.tensor([5, 6, 7]), torch.tensor([[2, 0]])).tolist()
    [[7, 5]]
    """
    return values.index_select(0, index.reshape(-1)).view(index.shape)


class InnerProducts:
    """Inner products of the rows of two matrices: looked up in a table if that is small, otherwise computed.

    Contexts are token ids, so every inner product of embeddings is a look-up: Q in E·Eᵀ, V̂ in log E·Eᵀ.
    """

    def __init__(self, left: Tensor, right: Tensor, tabulate: bool = True):
        self.left, self.right = left, right
        small = len(left) * len(right) <= TABLE
        self.table = (left @ right.T).view(-1) if tabulate and small else None

    def __call__(self, i: Tensor, j: Tensor) -> Tensor:
        """left[i_m]·right[j_mk] for i (m, 1) and j (m, k)."""
        if self.table is not None:
            return gather(self.table, i * len(self.right) + j)
        products: Tensor = (embedding(j, self.right) @ embedding(i, self.left).mT).squeeze(2)
        return products


class InitialVariation:
    """V̂_mk = [log E_{i_m} − log Eᵀ·ȳ + c]·X_mk (Sec. 2.4): the targets of attention while there is no decoder.

    With a `sign` of −1, that of the difference in brackets changes, and c stays.
    """

    def __init__(self, embeddings: Tensor, frequencies: Tensor, bound: float, sign: int = 1):
        log_embeddings = sign * torch.log(embeddings)
        mean_target = (frequencies.double() / frequencies.sum()).to(embeddings.dtype)  # ȳ (N,)
        self.products = InnerProducts(log_embeddings, embeddings)
        self.averages = embeddings @ (mean_target @ log_embeddings - bound)  # (N,)

    def __call__(self, target_ids: Tensor, slot_ids: Tensor) -> Tensor:
        """(m,) target ids and (m, J) slot ids to V̂ (m, J)."""
        return self.products(target_ids[:, None], slot_ids) - gather(self.averages, slot_ids)
