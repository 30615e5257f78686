"""What the slots of a unit say of its outputs, before they are weighed: the features that calibration measures."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saffu.corpus import Window
from saffu.tokenizer import PAD
from saffu.unit import Mode


def slot_groups(name: str, slots: int, mode: Mode) -> Tensor:
    """(K,) which slots share an exponent: near ones have their own, farther ones ever larger ranges.

    A block's slots count from its marker, a radius's back from the target: its first is the farthest. In mode "sum" all
    slots share a decoder, and one exponent with it.
    """
    if mode == "sum":
        return torch.zeros(slots, dtype=torch.int64)
    if name == "block":
        place = torch.arange(slots)  # 0 | 1 | 2–3 | 4–7 | 8–15 …
        return torch.where(place > 0, place.clamp(min=1).log2().floor().long() + 1, 0)
    distance = torch.arange(slots, 0, -1)  # 1 | 2 | … | 8 | 9–16 | 17–32 …
    tied = (distance - 1).clamp(min=1).log2().floor().long() + 5
    return torch.where(distance <= 8, distance - 1, tied)


def log_prior(frequencies: Tensor) -> Tensor:
    """log f, half a count added to each output."""
    return torch.log((frequencies + 0.5) / (frequencies + 0.5).sum())


def relative_decoder(F: Tensor, log_f: Tensor, pseudo_counts: float) -> Tensor:
    """R = log(F_jn / (F_j f_n)), after adding so many counts of the prior to each input j."""
    smoothed = F + pseudo_counts * log_f.exp()
    return torch.log(smoothed) - torch.log(smoothed.sum(1, keepdim=True)) - log_f


@dataclass
class SlotFeatures:
    """What the groups of a unit's slots say of the outputs: Σ_{k in group} X_k·R_k."""

    E: Tensor  # (N, D)
    decoder: Tensor  # R (D or K·D, outputs)
    mode: Mode
    groups: Tensor  # (K,)

    def __post_init__(self) -> None:
        self.members = nn.functional.one_hot(self.groups).to(self.E)  # (K, groups)

    def __call__(self, windows: Iterable[Window], target_ids: Tensor, own: "OwnShare | None" = None) -> Tensor:
        """(targets, groups, outputs); with `own`, as if each target had not been counted."""
        features = self.E.new_empty(len(target_ids), self.members.shape[1], self.decoder.shape[1])
        for window in windows:
            said = self.of(window)
            if own is not None:
                ids = target_ids[window.rows]
                inputs = self.E.new_zeros(len(ids), len(self.groups), self.E.shape[1]) + self.E[PAD]
                inputs[:, window.slots] = self.E[window.ids]  # (m, K, D)
                taken = own.taken(inputs, ids, self.mode) @ self.members  # (m, groups)
                said.scatter_add_(2, ids[:, None, None].expand(-1, said.shape[1], 1), taken[:, :, None])
            features[window.rows] = said
        return features

    def of(self, window: Window) -> Tensor:
        outside = self.members.clone()
        outside[window.slots] = 0
        if self.mode == "sum":
            given = torch.einsum("mjd,jg->mgd", self.E[window.ids], self.members[window.slots])
            said: Tensor = (given + outside.sum(0)[:, None] * self.E[PAD]) @ self.decoder
            return said
        by_slot = self.decoder.unflatten(0, (len(self.groups), -1))  # (K, D, outputs)
        padding = outside.T @ (self.E[PAD] @ by_slot)  # (groups, outputs)
        features: Tensor = padding.repeat(len(window.rows), 1, 1)
        for place, slot in enumerate(range(window.slots.start, window.slots.stop)):
            tokens, token = torch.unique(window.ids[:, place], return_inverse=True)
            features[:, self.groups[slot]] += (self.E[tokens] @ by_slot[slot])[token]
        return features


@dataclass
class OwnShare:
    """What a target's own count adds to what the slots and the prior say of it, to be taken out again."""

    F: Tensor  # (D or K·D, N) counts
    frequencies: Tensor  # (N,)
    pseudo_counts: float

    def of_prior(self, ids: Tensor) -> Tensor:
        """log f of the targets without their own count, less log f with it: (m,)."""
        counted = self.frequencies[ids]
        return torch.log((counted - 0.5) / (counted + 0.5))

    def taken(self, inputs: Tensor, ids: Tensor, mode: Mode) -> Tensor:
        """(m, K, D) inputs to the change of X_k·R_k at the target, (m, K): only its own column of F is another."""
        prior = torch.exp(log_prior(self.frequencies))[ids][:, None, None] * self.pseudo_counts
        columns = self.F[:, ids].T  # (m, D or K·D)
        own = inputs if mode == "cat" else inputs.sum(1, keepdim=True)  # what the target added to its column
        column = columns.unflatten(1, (-1, inputs.shape[2]))  # (m, K or 1, D)
        change = torch.log((column - own).clamp(min=0) + prior) - torch.log(column + prior)
        return (inputs * change).sum(2) - self.of_prior(ids)[:, None]
