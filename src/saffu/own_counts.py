"""Training on a target with counts that hold it misleads: its own count can be taken out."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.explicit import Counts

if TYPE_CHECKING:
    from saffu.model import SaffuLM


class OwnCounts:
    """What a target's own count adds to its logit, so that it can be taken out while training on that target.

    M follows from F, and F holds h⊗y of every target counted. Without its own, a target y would find in M
    log(F_y − h) in place of log F_y, and a smaller column sum; h is taken as it is now, which is near what was counted.
    """

    def __init__(self, counts: Counts, smoothing: float, parts: int, device: torch.device):
        self.by_target = counts.F.T.float().contiguous().to(device)  # (N, rows of M)
        self.sums = (counts.F + smoothing).sum(0).float().to(device)  # (N,)
        self.smoothing, self.parts = smoothing, parts

    @classmethod
    def of(cls, lm: "SaffuLM") -> "OwnCounts":
        if "final" not in lm.counts_:
            raise SaffuError("`leave_out` needs the counts of a final decoder; use `fit_share` in its place")
        if lm.config.calibrate:
            raise SaffuError("`leave_out` knows the paper's decoders, not calibrated ones; use `fit_share` instead")
        parts = len(lm.trainable_network().units) + bool(lm.config.documents)
        return cls(lm.counts_["final"], lm.config.smoothing, parts, lm.device)

    def __call__(self, hidden: Tensor, target_ids: Tensor) -> Tensor:
        """(m, rows of M) inputs and (m,) targets to (m,) shares of the logits."""
        counted = self.by_target[target_ids]  # (m, rows)
        with_own = torch.log(counted + self.smoothing)
        without = torch.log((counted - hidden).clamp(min=0) + self.smoothing)
        sums = self.sums[target_ids]
        rest = (sums - self.parts).clamp(min=self.smoothing * hidden.shape[1])
        return (hidden * (with_own - without)).sum(1) - (self.parts - 1) * torch.log(sums / rest)
