"""Settings of the calibrated solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from saffu.settings import Settings, setting


@dataclass(frozen=True)
class CalibratedConfig(Settings):
    """How a calibrated model is shaped. The defaults are what measured best (docs/calibration.md)."""

    preset: ClassVar[str] = "calibrated"

    order: int = setting(5, "longest n-gram counted, the predicted token included", low=2, high=9)
    slots: int = setting(8, "tokens before the target that are also counted one by one", low=0, high=16)
    word_classes: int = setting(
        300, "word classes of the finer class views; the coarser ones have a fifth as many", low=2, high=4096, off=True
    )
    output_classes: int = setting(80, "classes that are predicted before tokens", low=1, high=4096, rare=True)
    cache: int = setting(
        2000, "tokens of the same document that the recency cache remembers", low=1, high=100_000, off=True
    )
    prune: int = setting(
        0, "drop n-grams of three tokens or more counted this often or less from the tables", high=2**32 - 1
    )
    seed: int = setting(0, "seed of the samples shown while training", high=2**63 - 1)
