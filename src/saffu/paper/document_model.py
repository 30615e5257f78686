"""The document model (Sec. 3.1): predicts the part of the corpus that a text comes from, as further input of M."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saffu.paper.equations import distribution
from saffu.text.tokenizer import PAD


class DocumentModel(nn.Module):
    """softmax(x·D), where x is the mean embedding of everything that precedes the target in its document."""

    D: nn.Parameter  # (D, Δ)

    def __init__(self, dimension: int, shards: int):
        super().__init__()
        self.D = nn.Parameter(torch.zeros(dimension, shards))

    def forward(self, means: Tensor) -> Tensor:
        """Distributions over shards (n, Δ) from means (n, D)."""
        return distribution(means @ self.D)


@torch.no_grad()
def preceding_means(embeddings: Tensor, ids: Tensor, positions: Tensor, history: Tensor) -> Tensor:
    """x_m = (E_<pad> + Σ_{j<m} E_{i_j})/m, (n, D), of consecutive targets.

    `history` has the ids of the first target's document before the first target. The result is a constant, even where
    embeddings are trained.

    >>> E = torch.tensor([[2.0], [0.0], [0.0], [0.0], [4.0], [6.0]])
    >>> ids, positions = torch.tensor([5, 3, 4, 3]), torch.tensor([1, 2, 0, 1])
    >>> preceding_means(E, ids, positions, history=torch.tensor([4])).T  # (2+4)/2, (2+4+6)/3, 2/1, (2+4)/2
    tensor([[3., 4., 2., 3.]])
    """
    E = embeddings.double()
    own = E.index_select(0, ids)
    before = own.cumsum(0).sub_(own)  # sums over this run of targets, each target excluded
    before += torch.bincount(history, minlength=len(E)).double() @ E
    rows = torch.arange(len(ids), device=ids.device)
    opening = (rows - positions).clamp(min=0)  # row of the document's first target, if it is in this run
    elsewhere = torch.index_select(before, 0, opening, out=own)
    elsewhere.masked_fill_((positions > rows)[:, None], 0)
    means: Tensor = before.sub_(elsewhere).add_(E[PAD]).div_((positions + 1)[:, None])
    return means.to(embeddings.dtype)


def shard_of(documents: Tensor, shards: int, total: int) -> Tensor:
    """The shard of each document, by its number: contiguous and of equal numbers of documents.

    >>> shard_of(torch.arange(6), 3, 6).tolist()
    [0, 0, 1, 1, 2, 2]
    """
    return (documents * shards).div(total, rounding_mode="floor")
