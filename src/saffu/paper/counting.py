"""Counters: what the closed forms need to know of the data, summed over windows of targets."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from saffu import explicit
from saffu.corpus import Targets, Window
from saffu.explicit import Counts, InitialVariation, SumsByTarget
from saffu.tokenizer import PAD
from saffu.unit import Unit


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
        bits = self.bits[target_ids].to(probabilities.dtype)
        return bits / bits.sum(1, keepdim=True) - probabilities


class AttentionCounter:
    """Counts F(Q, V), from which Eq. 6 solves W: with V̂ before the unit has a decoder, with V after."""

    def __init__(self, unit: Unit, targets: HiddenTargets, sign: int, initial: InitialVariation | None):
        self.unit, self.targets, self.sign, self.initial = unit, targets, sign, initial
        self.bound = explicit.variation_bound(unit.slots, len(unit.E))
        self.counts = Counts.zeros(unit.slots, unit.slots, unit.E.device)

    def add(self, window: Window, target_ids: Tensor) -> None:
        features = self.unit.quadratic_features(window)  # Q (m, J), with one more column for all slots beyond
        column = torch.full((self.unit.slots,), window.width, device=features.device)
        column[window.slots] = torch.arange(window.width, device=features.device)
        if self.initial is not None:
            variation = self.initial(target_ids, window.seen)  # V̂ − c, in the same columns
        else:
            surprise = self.targets.surprise(explicit.distribution(self.unit(window)), target_ids)
            variation = self.unit.variation(window, surprise)  # V − c (m, K)
        F = explicit.co_occurrence(features, self.sign * variation + self.bound)[column]
        self.counts.F += F if self.initial is None else F[:, column]
        self.counts.norm += features.sum(0)[column].sum()
        self.counts.targets += len(target_ids)


class DecoderCounter:
    """Counts F(H, Z), from which Eq. 5 solves U: sums the inputs H by target token, then spreads them over Z."""

    def __init__(self, unit: Unit, targets: HiddenTargets):
        self.unit, self.targets = unit, targets
        tokens, dimension = unit.E.shape
        by_slot = unit.mode == "cat"
        self.inputs = SumsByTarget(tokens, dimension * (unit.slots if by_slot else 1), unit.E)
        # In mode "cat", attention to `<pad>` beyond the windows is summed apart.
        self.padding = SumsByTarget(tokens, unit.slots, unit.E) if by_slot else None
        self.seen = 0

    def add(self, window: Window, target_ids: Tensor) -> None:
        if self.padding is None:
            self.inputs.add(self.unit.weighted_sum(window), target_ids)
        else:
            weights, padding = self.unit.weighted_slots(window)
            given = weights[:, :, None] * embedding(window.ids, self.unit.E)  # (m, J, D)
            self.inputs.add(given.flatten(1), target_ids, first=window.first * given.shape[2])
            if window.width < self.unit.slots:
                self.padding.add(padding, target_ids)
        self.seen += len(target_ids)

    @property
    def counts(self) -> Counts:
        inputs = self.inputs.total
        if self.padding is not None:
            inputs = inputs + (self.padding.total[:, :, None] * self.unit.E[PAD].double()).flatten(1)
        F = self.targets.co_occurrence(inputs)
        return Counts(F, inputs.sum(), F.new_tensor(float(self.seen)))


class OutputCounter:
    """Counts F(h, Y), from which Eq. 3 solves the unit's rows of the final decoder: its outputs with the targets."""

    def __init__(self, unit: Unit):
        self.unit = unit
        self.outputs = SumsByTarget(len(unit.E), unit.U.shape[1], unit.E)

    def add(self, window: Window, target_ids: Tensor) -> None:
        self.outputs.add(explicit.grid_distribution(self.unit(window)), target_ids)

    @property
    def counts(self) -> Counts:
        return self.outputs.counts


class DocumentCounter:
    """Counts what the document model reads or says of each target with something of that target: `pair` gives both."""

    def __init__(self, pair: Callable[[Targets], tuple[Tensor, Tensor]], outputs: int, like: Tensor):
        self.pair, self.sums = pair, SumsByTarget(outputs, like.shape[1], like)

    def add(self, targets: Targets) -> None:
        self.sums.add(*self.pair(targets))

    @property
    def counts(self) -> Counts:
        return self.sums.counts
