"""The self-attentive feed-forward unit: its forward pass, and what it asks of its attention."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, embedding_bag

from saffu import explicit
from saffu.corpus import Window
from saffu.explicit import InnerProducts
from saffu.kept import Kept
from saffu.tokenizer import PAD

Mode = Literal["sum", "cat"]
SHORT = 16  # slots of a "sum" window up to which adding decoded tokens is cheaper than decoding their sum


class Unit(Kept):
    """SAFFU(X) = softmax(−log softmax(X_h Xᵀ W) X U), Eq. 1, over K slots of embedded tokens.

    In mode "sum" the weighted slots are added, in mode "cat" each slot keeps its own rows of U. Slots beyond a
    window's hold `<pad>`; they are never built, since one row of E serves for all of them.

    A unit with a `bias` has one more parameter, b (K,), and attention −log softmax(QW + b).
    """

    E: Tensor  # (N, D) embeddings: rows non-negative, of unit sum
    W: nn.Parameter  # (K, K) attention
    U: nn.Parameter  # (D or K·D, outputs) decoder

    def __init__(self, embeddings: Tensor, slots: int, mode: Mode, outputs: int, bias: bool = False):
        super().__init__()
        self.slots, self.mode = slots, mode
        self.register_buffer("E", embeddings)
        rows = embeddings.shape[1] * (slots if mode == "cat" else 1)
        self.W = nn.Parameter(embeddings.new_ones(slots, slots))  # all ones: uniform attention
        self.b = nn.Parameter(embeddings.new_zeros(slots)) if bias else None
        self.U = nn.Parameter(embeddings.new_zeros(rows, outputs))
        self.dropout = nn.Dropout(0.0)  # of the decoder's inputs; only backpropagation raises it

    def inner_products(self) -> InnerProducts:
        """Of the embeddings with each other."""
        return self.kept("products", lambda: InnerProducts(self.E, self.E), self.E)

    def decoded_tokens(self) -> Tensor:
        """E·U of each token (N, outputs); in mode "cat" of each slot and token (K·N, outputs)."""
        by_slot: Tensor = self.U.unflatten(0, (-1, self.E.shape[1]))  # (1 or K, D, outputs)
        return self.kept("decoded", lambda: (self.E @ by_slot).flatten(0, 1), self.E, self.U)

    def quadratic_features(self, window: Window) -> Tensor:
        """Q_m = X_h Xᵀ, (m, J): of the window's slots, and in one more column, if need be, of any slot beyond."""
        return self.inner_products()(window.head[:, None], window.seen)

    def attention(self, window: Window) -> Tensor:
        """A = −log softmax(QW + b), (m, K)."""
        W: Tensor = self.W
        if window.width < self.slots:
            W = self.kept(f"W of {window.slots}", lambda: self._gathered(window), self.W)
        scores = self.quadratic_features(window) @ W
        return explicit.attention_weights(scores if self.b is None else scores + self.b)

    def _gathered(self, window: Window) -> Tensor:
        """The rows of W for the window's slots, and the sum of all others."""
        inside = self.W[window.slots]
        return torch.cat([inside, (self.W.sum(0) - inside.sum(0))[None]])

    def weighted_slots(self, window: Window) -> tuple[Tensor, Tensor]:
        """Attention to the window's slots (m, J), and to all slots with the window's set to zero (m, K)."""
        attention = self.attention(window)
        if window.width == self.slots:
            return attention, torch.zeros_like(attention)
        outside = attention.new_ones(self.slots)
        outside[window.slots] = 0
        return attention[:, window.slots], attention * outside

    def weighted_sum(self, window: Window, rows: Tensor | None = None) -> Tensor:
        """H = Σ_k A_k X_k, (m, D): the input of U in mode "sum". Or the sum of other `rows`, one a token, than E's."""
        attention = self.attention(window)
        weights = attention[:, window.slots]
        if window.width < self.slots:
            weights = torch.cat([weights, attention.sum(1, keepdim=True) - weights.sum(1, keepdim=True)], dim=1)
        rows = self.E if rows is None else rows
        return embedding_bag(window.seen, rows, per_sample_weights=weights, mode="sum")

    def forward(self, window: Window) -> Tensor:
        """Logits (m, outputs); their softmax is the unit's output."""
        width, by_table = window.width, self._decodes_by_table()
        if self.mode == "sum":
            if by_table and width <= SHORT:
                return self.weighted_sum(window, self.decoded_tokens())
            summed: Tensor = self.dropout(self.weighted_sum(window))
            return summed @ self.U
        weights, padding = self.weighted_slots(window)
        by_slot = self.U.unflatten(0, (self.slots, -1))  # (K, D, outputs)
        logits: Tensor
        if by_table:
            row = window.ids + len(self.E) * torch.arange(window.first, window.first + width, dtype=torch.int32)
            logits = embedding_bag(row, self.decoded_tokens(), per_sample_weights=weights, mode="sum")
        else:
            given = self.dropout((weights[:, :, None] * embedding(window.ids, self.E)).flatten(1))  # (m, J·D)
            logits = given @ by_slot[window.slots].flatten(0, 1)
        return logits if width == self.slots else logits + padding @ (self.E[PAD] @ by_slot)

    def _decodes_by_table(self) -> bool:
        """Whether logits are sums of decoded tokens: on a CPU that reads less than it would multiply."""
        entries = len(self.E) * len(self.U) // self.E.shape[1] * self.U.shape[1]
        learning = torch.is_grad_enabled() and (self.U.requires_grad or self.E.requires_grad)
        quick = self.E.dtype == torch.float32 and not self.E.is_cuda
        return quick and entries <= explicit.TABLE and not learning and not (self.dropout.p and self.training)

    def variation(self, window: Window, surprise: Tensor) -> Tensor:
        """V_mk − c = [U z̃ − U softmax(HU)]·X_mk, (m, K): how much more of slot k the target asks for.

        `surprise` is z̃ − softmax(HU), (m, outputs). This is the gradient of the unit's log-likelihood in A.
        """
        pull = surprise @ self.U.T  # (m, D or K·D)
        given = embedding(window.ids, self.E)  # (m, J, D)
        if self.mode == "sum":
            variation = (pull @ self.E[PAD])[:, None].repeat(1, self.slots)
            variation[:, window.slots] = torch.einsum("md,mjd->mj", pull, given)
        else:
            by_slot = pull.unflatten(1, (self.slots, -1))  # (m, K, D)
            variation = by_slot @ self.E[PAD]
            variation[:, window.slots] = torch.einsum("mjd,mjd->mj", by_slot[:, window.slots], given)
        return variation
