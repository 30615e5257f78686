"""Solving: sums become weights, by Eq. 3, 5, and 6. Pure functions that see neither text nor networks."""

from __future__ import annotations

import torch
from torch import Tensor

from saffu.paper import equations
from saffu.paper.config import PaperConfig
from saffu.paper.sums import Counts


def solve_attention(counts: Counts, config: PaperConfig, remedy: str) -> Tensor:
    """Eq. 6: W (K, K) from F(Q, V). `remedy` says what to do if F has entries that are not positive."""
    slots = len(counts.F)
    primings = {
        "paper": equations.attention_priming_number(slots),
        "slot_weight": equations.uniform_weight(slots, config.slot_weight),
        "slots": slots,
        "measured": counts.mean_norm,
    }
    F = equations.smallest_shift(counts.F) if config.variation_shift == "smallest" else counts.F
    return equations.explicit_solution(F, primings[config.attention_priming], remedy)


def solve_decoder(counts: Counts, slots: int, config: PaperConfig) -> Tensor:
    """Eq. 5: U from F(H, Z)."""
    paper = equations.decoder_priming_number(slots, config.slot_weight)
    priming = paper if config.decoder_priming == "paper" else counts.mean_norm
    return equations.explicit_solution(equations.fill_unseen(counts.F, config.smoothing), priming)


def solve_documents(counts: Counts, config: PaperConfig) -> Tensor:
    """Eq. 3: D from F(x, δ); x sums to one, so its priming number is 1."""
    return equations.explicit_solution(equations.fill_unseen(counts.F, config.smoothing), priming=1)


def solve_final(F: Tensor, config: PaperConfig) -> Tensor:
    """Eq. 3: M from F(h, Y). Each part's output sums to one, so the priming number is the number of parts."""
    parts = len(config.units()) + bool(config.document_shards)
    return equations.explicit_solution(F + config.smoothing, parts)


def stored(weight: Tensor, config: PaperConfig) -> Tensor:
    """The weight as it is saved, in float32: rounded to float16 first if `save_dtype` says so.

    >>> stored(torch.tensor([0.1]), PaperConfig(save_dtype="float16"))
    tensor([0.1000])
    >>> float(stored(torch.tensor([0.1]), PaperConfig(save_dtype="float16"))[0])
    0.0999755859375
    """
    return weight.to(torch.float16 if config.save_dtype == "float16" else torch.float32).float()
