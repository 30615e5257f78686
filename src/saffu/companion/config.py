"""Settings of a counted model with a network trained next to it, and the rule that fills in what was left open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from saffu.calibrated.config import CalibratedConfig
from saffu.settings import setting


@dataclass(frozen=True)
class CompanionConfig(CalibratedConfig):
    """The counted model's settings, and how the network is shaped and trained. 0 leaves a choice to `resolved`."""

    preset: ClassVar[str] = "companion"

    minutes: float = setting(0.0, "minutes of training next to the counts; the schedule fits them")
    epochs: float = setting(0.0, "passes over the text, instead of or in addition to a limit in minutes")
    depth: int = setting(0, "layers of the network, each 64 wide per layer; 0 to follow from text and device", high=24)
    network_dropout: float | None = setting(None, "dropout of the network", high=0.95, rare=True)
    decay: float = setting(0.1, "weight decay of the network's matrices", rare=True)
    context: int = setting(256, "tokens that the network sees at once", low=8, high=4096, rare=True)
    batch_tokens: int = setting(0, "tokens per training step; 0 to follow from the device", rare=True)
    optimizer: Literal["muon", "adamw"] = setting("muon", "optimizer of the network's matrices", rare=True)
    network_start: Literal["counted", "random"] = setting("counted", "weights that training starts from", rare=True)
    class_first: bool | None = setting(None, "decide the class of a token before the token", rare=True)


def resolved(config: CompanionConfig, tokens: int, device: str) -> CompanionConfig:
    """The settings with everything decided that follows from the text and the device."""
    gpu = device != "cpu"
    depth = config.depth or ((4 if tokens < 6e6 else 6) if gpu else 2)
    dropout = config.network_dropout
    return replace(
        config,
        depth=depth,
        network_dropout=(0.25 if gpu else 0.1) if dropout is None else dropout,
        epochs=config.epochs or (16.0 if config.minutes else 4.0),
        batch_tokens=config.batch_tokens or (8192 if gpu else 4096),
        class_first=(not gpu) if config.class_first is None else config.class_first,
    )
