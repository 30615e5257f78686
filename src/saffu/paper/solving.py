"""Solving: sums become weights, by Eq. 3, 5, and 6. Pure functions that see neither text nor networks."""

from __future__ import annotations

from torch import Tensor

from saffu.paper import equations
from saffu.paper.config import PaperConfig
from saffu.paper.sums import Counts


def solve_attention(counts: Counts, config: PaperConfig, remedy: str) -> Tensor:
    """Eq. 6: W (K, K) from F(Q, V). `remedy` says what to do if F has entries that are not positive."""
    slots = len(counts.F)
    K = {"paper": equations.attention_priming_number(slots), "slots": slots, "measured": counts.mean_norm}
    F = equations.smallest_shift(counts.F) if config.variation_shift == "smallest" else counts.F
    return equations.explicit_solution(F, K[config.attention_priming], remedy)


def solve_decoder(counts: Counts, slots: int, config: PaperConfig) -> Tensor:
    """Eq. 5: U from F(H, Z)."""
    paper = config.decoder_priming == "paper"
    priming = equations.decoder_priming_number(slots) if paper else counts.mean_norm
    return equations.explicit_solution(equations.fill_unseen(counts.F, config.smoothing), priming)


def solve_documents(counts: Counts, config: PaperConfig) -> Tensor:
    """Eq. 3: D from F(x, δ); x sums to one, so its priming number is 1."""
    return equations.explicit_solution(equations.fill_unseen(counts.F, config.smoothing), priming=1)


def solve_final(F: Tensor, config: PaperConfig) -> Tensor:
    """Eq. 3: M from F(h, Y). Each part's output sums to one, so the priming number is the number of parts."""
    parts = len(config.units()) + bool(config.document_shards)
    return equations.explicit_solution(F + config.smoothing, parts)
