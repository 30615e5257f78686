"""The self-attentive feed-forward unit: its forward pass, and the targets of its attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag

from saffu.paper import equations
from saffu.paper.config import UnitShape
from saffu.paper.equations import InnerProducts
from saffu.paper.windows import Window
from saffu.text.tokenizer import PAD

SHORT = 16  # slots of a "sum" window up to which adding decoded tokens is cheaper than decoding their sum


class UnitTables(NamedTuple):
    """Look-ups made from a unit's weights; invalid once those change."""

    similarities: InnerProducts  # E·Eᵀ
    decoded: Tensor | None  # E·U (N, outputs) in mode "sum", E·U_k (K·N, outputs) in mode "cat"; None: too large


class Unit(nn.Module):
    """SAFFU(X) = softmax(−log softmax(X_h Xᵀ W) X U), Eq. 1, over K slots of embedded tokens.

    In mode "sum" the weighted slots are added; in mode "cat" each slot has its own rows of U. The slots outside a
    window hold `<pad>`; they are never built, since one row of E stands for all of them.
    """

    E: Tensor  # (N, D) embeddings: rows positive, of unit sum
    W: nn.Parameter  # (K, K) attention
    U: nn.Parameter  # (D or K·D, outputs) decoder

    def __init__(self, embeddings: Tensor, shape: UnitShape, outputs: int):
        super().__init__()
        self.slots = shape.slots
        self.mode = shape.mode
        self.register_buffer("E", embeddings)
        rows = embeddings.shape[1] * (shape.slots if shape.mode == "cat" else 1)  # word vectors have their own D
        self.W = nn.Parameter(embeddings.new_ones(shape.slots, shape.slots))  # all ones: uniform attention
        self.U = nn.Parameter(embeddings.new_zeros(rows, outputs))
        self.dropout = nn.Dropout(0.0)  # of the decoder's inputs; raised by backpropagation only

    @torch.no_grad()
    def tables(self, decode: bool = True) -> UnitTables:
        """Look-ups for the weights as they are now; without `decode`, only those that depend on E alone."""
        by_slot = self.U.unflatten(0, (-1, self.E.shape[1]))  # (1 or K, D, outputs)
        entries = len(self.E) * len(by_slot) * self.U.shape[1]
        pays_off = self.E.dtype == torch.float32 and not self.E.is_cuda  # elsewhere products are quicker than look-ups
        decoded = None
        if decode and pays_off and entries <= equations.TABLE:
            decoded = (self.E @ by_slot).flatten(0, 1)
        return UnitTables(InnerProducts(self.E, self.E), decoded)

    def quadratic_features(self, window: Window, tables: UnitTables | None = None) -> Tensor:
        """Q_m = X_h Xᵀ, (m, J): of the window's slots and, if J < K, in a last column that of any other slot."""
        similarities = tables.similarities if tables else InnerProducts(self.E, self.E, tabulate=False)
        return similarities(window.query[:, None], window.seen)

    def attention(self, window: Window, tables: UnitTables | None = None) -> Tensor:
        """A = −log softmax(QW), (m, K)."""
        W: Tensor = self.W
        if window.width < self.slots:  # the rows of the window's slots, and the sum of all others
            inside = W[window.slots]
            W = torch.cat([inside, (W.sum(0) - inside.sum(0))[None]])
        return equations.attention_weights(self.quadratic_features(window, tables) @ W)

    def weighted_slots(self, window: Window, tables: UnitTables | None = None) -> tuple[Tensor, Tensor]:
        """Attention to the window's slots (m, J), and to all slots with the window's set to zero (m, K)."""
        attention = self.attention(window, tables)
        if window.width == self.slots:
            return attention, torch.zeros_like(attention)
        outside = attention.new_ones(self.slots)
        outside[window.slots] = 0
        return attention[:, window.slots], attention * outside

    def weighted_sum(self, window: Window, tables: UnitTables | None = None, rows: Tensor | None = None) -> Tensor:
        """H = Σ_k A_k X_k, (m, D): the input of U in mode "sum". With `rows` (N, ·), their sum instead of E's."""
        attention = self.attention(window, tables)
        weights = attention[:, window.slots]
        if window.width < self.slots:
            weights = torch.cat([weights, attention.sum(1, keepdim=True) - weights.sum(1, keepdim=True)], dim=1)
        return embedding_bag(window.seen, self.E if rows is None else rows, per_sample_weights=weights, mode="sum")

    def forward(self, window: Window, tables: UnitTables | None = None) -> Tensor:
        """Logits (m, outputs); their softmax is the unit's output."""
        decoded = tables.decoded if tables else None
        if self.mode == "sum":
            if decoded is not None and window.width <= SHORT:
                return self.weighted_sum(window, tables, decoded)
            H: Tensor = self.dropout(self.weighted_sum(window, tables))
            return H @ self.U
        weights, padding = self.weighted_slots(window, tables)
        by_slot = self.U.unflatten(0, (self.slots, -1))  # (K, D, outputs)
        logits: Tensor
        if decoded is not None:
            row = window.ids + len(self.E) * torch.arange(window.first, window.first + window.width, dtype=torch.int32)
            logits = embedding_bag(row, decoded, per_sample_weights=weights, mode="sum")
        else:
            inputs = self.dropout((weights[:, :, None] * embedding(window.ids, self.E)).flatten(1))  # (m, J·D)
            logits = inputs @ by_slot[window.slots].flatten(0, 1)
        return logits if window.width == self.slots else logits + padding @ (self.E[PAD] @ by_slot)

    def variation(self, window: Window, residual: Tensor, bound: float = 0.0) -> Tensor:
        """V_mk = [U z̃ − U softmax(HU) + c]·X_mk, (m, K): the gradient of the unit's log-likelihood in A, shifted by c.

        `residual` is z̃ − softmax(HU), (m, outputs), and `bound` is c.
        """
        gradient = residual @ self.U.T + bound  # in H, (m, D or K·D)
        X = embedding(window.ids, self.E)  # (m, J, D)
        if self.mode == "sum":
            variation = (gradient @ self.E[PAD])[:, None].repeat(1, self.slots)
            variation[:, window.slots] = torch.einsum("md,mjd->mj", gradient, X)
        else:
            by_slot = gradient.unflatten(1, (self.slots, -1))  # (m, K, D)
            variation = by_slot @ self.E[PAD]
            variation[:, window.slots] = torch.einsum("mjd,mjd->mj", by_slot[:, window.slots], X)
        return variation
