"""Settings of the calibrated solution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from saffu.settings import Settings, setting


@dataclass(frozen=True)
class CalibratedConfig(Settings):
    """How a calibrated model is shaped. The defaults scored best (docs/calibration.md)."""

    preset: ClassVar[str] = "calibrated"

    order: int = setting(5, "length of the longest n-gram counted, including the predicted token", low=2, high=9)
    slots: int = setting(8, "number of preceding tokens that are also counted individually", low=0, high=16)
    word_classes: int = setting(
        300, "word classes of the finer class views, five for each coarse one; 0 for none", low=2, high=4096, off=True
    )
    output_classes: int = setting(80, "classes that are predicted before tokens", low=1, high=4096, rare=True)
    cache: int = setting(
        100_000,
        "number of preceding tokens of a document to remember; 0 for no memory",
        low=1,
        high=10**7,
        off=True,
        option="memory_tokens",
    )
    prune: int = setting(
        0, "drop n-grams of three or more tokens counted at most N times from the tables", high=2**32 - 1
    )
    seed: int = setting(0, "random seed: samples shown while training, and the network of --minutes", high=2**63 - 1)
