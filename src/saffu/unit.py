"""The self-attentive feed-forward unit: its forward pass and the two counts that solve it."""

from typing import Literal

import torch
from torch import Tensor, nn

from saffu import explicit
from saffu.corpus import Window
from saffu.explicit import Counts, InitialVariation, InnerProducts
from saffu.tokenizer import PAD

Mode = Literal["sum", "cat"]


class Unit(nn.Module):
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
        self._products: tuple[InnerProducts, Tensor, int] | None = None

    def inner_products(self) -> InnerProducts:
        """Of the embeddings with each other, kept for as long as the embeddings stay the same."""
        if self.E.requires_grad and torch.is_grad_enabled():
            return InnerProducts(self.E, self.E)
        if self._products is None or self._products[1] is not self.E or self._products[2] != self.E._version:
            self._products = InnerProducts(self.E.detach(), self.E.detach()), self.E, self.E._version
        return self._products[0]

    def quadratic_features(self, window: Window) -> tuple[Tensor, Tensor]:
        """Q_m = X_h Xᵀ: (m, J) for the window's slots, and (m, 1) for any slot that holds `<pad>`."""
        products, head = self.inner_products(), window.head[:, None]
        return products(head, window.ids), products(head, torch.full_like(head, PAD))

    def attention(self, window: Window) -> Tensor:
        """A = −log softmax(QW + b), (m, K)."""
        given, pad = self.quadratic_features(window)
        inside = self.W[window.slots]
        scores = given @ inside + pad * (self.W.sum(0) - inside.sum(0))
        return explicit.attention_weights(scores if self.b is None else scores + self.b)

    def weighted_slots(self, window: Window) -> tuple[Tensor, Tensor]:
        """Attention to the window's slots (m, J), and to all slots with the window's set to zero (m, K)."""
        attention = self.attention(window)
        outside = attention.new_ones(self.slots)
        outside[window.slots] = 0
        return attention[:, window.slots], attention * outside

    def weighted_sum(self, window: Window) -> Tensor:
        """H = Σ_k A_k X_k, (m, D): the input of U in mode "sum"."""
        weights, padding = self.weighted_slots(window)
        given = nn.functional.embedding_bag(window.ids, self.E, per_sample_weights=weights, mode="sum")
        return given + padding.sum(1, keepdim=True) * self.E[PAD]

    def forward(self, window: Window) -> Tensor:
        """Logits (m, outputs); their softmax is the unit's output."""
        if self.mode == "sum":
            summed: Tensor = self.dropout(self.weighted_sum(window))
            return summed @ self.U
        weights, padding = self.weighted_slots(window)
        by_slot = self.U.unflatten(0, (self.slots, -1))  # (K, D, outputs)
        given = self.dropout((weights[:, :, None] * self.E[window.ids]).flatten(1))  # (m, J·D)
        logits: Tensor = given @ by_slot[window.slots].flatten(0, 1)
        return logits if window.ids.shape[1] == self.slots else logits + padding @ (self.E[PAD] @ by_slot)

    def variation(self, window: Window, surprise: Tensor) -> Tensor:
        """V_mk − c = [U z̃ − U softmax(HU)]·X_mk, (m, K): how much more of slot k the target asks for.

        `surprise` is z̃ − softmax(HU), (m, outputs). This is the gradient of the unit's log-likelihood in A.
        """
        pull = surprise @ self.U.T  # (m, D or K·D)
        given = self.E[window.ids]  # (m, J, D)
        if self.mode == "sum":
            variation = (pull @ self.E[PAD])[:, None].repeat(1, self.slots)
            variation[:, window.slots] = torch.einsum("md,mjd->mj", pull, given)
        else:
            by_slot = pull.unflatten(1, (self.slots, -1))  # (m, K, D)
            variation = by_slot @ self.E[PAD]
            variation[:, window.slots] = torch.einsum("mjd,mjd->mj", by_slot[:, window.slots], given)
        return variation


class HiddenTargets:
    """What a unit's decoder is counted against: the bits Z of each target token, or the token itself."""

    def __init__(self, bits: Tensor | None, vocabulary: int):
        self.bits = bits  # Z (N, D_H), or None for the vocabulary itself
        self.outputs = vocabulary if bits is None else bits.shape[1]

    def co_occurrence(self, inputs_by_target: Tensor) -> Tensor:
        """F(H, Z) (inputs, outputs) from the inputs summed by target token (N, inputs)."""
        return inputs_by_target.T if self.bits is None else explicit.co_occurrence(inputs_by_target, self.bits)

    def surprise(self, probabilities: Tensor, target_ids: Tensor) -> Tensor:
        """z̃ − p, (m, outputs), where z̃ = z/‖z‖₁ is the target as a distribution."""
        if self.bits is None:
            return nn.functional.one_hot(target_ids, self.outputs) - probabilities
        bits = self.bits[target_ids]
        return bits / bits.sum(1, keepdim=True) - probabilities


class AttentionCounter:
    """Counts F(Q, V), from which Eq. 6 solves W: with V̂ before the unit has a decoder, with V after."""

    def __init__(self, unit: Unit, targets: HiddenTargets, sign: int, initial: InitialVariation | None):
        self.unit, self.targets, self.sign, self.initial = unit, targets, sign, initial
        self.bound = explicit.variation_bound(unit.slots, len(unit.E))
        self.counts = Counts.zeros(unit.slots, unit.slots, unit.E.device)

    def add(self, window: Window, target_ids: Tensor) -> None:
        given, pad = self.unit.quadratic_features(window)
        features = pad.repeat(1, self.unit.slots)  # Q (m, K)
        features[:, window.slots] = given
        if self.initial is not None:
            padding = torch.full_like(target_ids, PAD)[:, None]
            variation = self.initial(target_ids, padding).repeat(1, self.unit.slots)
            variation[:, window.slots] = self.initial(target_ids, window.ids)
        else:
            surprise = self.targets.surprise(explicit.distribution(self.unit(window)), target_ids)
            variation = self.unit.variation(window, surprise)
        self.counts.F += explicit.co_occurrence(features, self.sign * variation + self.bound)
        self.counts.norm += features.sum()
        self.counts.targets += len(target_ids)


class DecoderCounter:
    """Counts F(H, Z), from which Eq. 5 solves U: sums the inputs H by target token, then spreads them over Z."""

    def __init__(self, unit: Unit, targets: HiddenTargets):
        self.unit, self.targets = unit, targets
        tokens, dimension = unit.E.shape
        self.by_target = unit.E.new_zeros(tokens, unit.slots if unit.mode == "cat" else 1, dimension)
        # In mode "cat", attention to `<pad>` beyond the windows is summed apart.
        self.padding = unit.E.new_zeros(tokens if unit.mode == "cat" else 0, unit.slots)
        self.seen = 0

    def add(self, window: Window, target_ids: Tensor) -> None:
        if self.unit.mode == "sum":
            summed = self.unit.weighted_sum(window)
            explicit.add_co_occurrence(self.by_target, summed[:, None], target_ids)
        else:
            weights, padding = self.unit.weighted_slots(window)
            given = weights[:, :, None] * self.unit.E[window.ids]  # (m, J, D)
            explicit.add_co_occurrence(self.by_target[:, window.slots], given, target_ids)
            explicit.add_co_occurrence(self.padding, padding, target_ids)
        self.seen += len(target_ids)

    @property
    def counts(self) -> Counts:
        inputs = self.by_target
        if self.unit.mode == "cat":
            inputs = inputs + self.padding[:, :, None] * self.unit.E[PAD]
        F = self.targets.co_occurrence(inputs.flatten(1))
        return Counts(F, inputs.sum(), F.new_tensor(float(self.seen)))
