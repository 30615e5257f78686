"""Settings of a counted model with a network trained next to it, and the rule that chooses those left open."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from saffu.calibrated.config import CalibratedConfig
from saffu.settings import setting


@dataclass(frozen=True)
class CompanionConfig(CalibratedConfig):
    """The counted model's settings, and those of the network. 0 or None leaves a choice to `resolved`."""

    preset: ClassVar[str] = "companion"

    minutes: float = setting(
        0.0, "total minutes, including counting, to train a network next to the counts", high=100_000
    )
    epochs: float = setting(0.0, "passes over the text, instead of or in addition to a limit in minutes", high=100_000)
    depth: int = setting(0, "number of layers (width: 64 times that); 0 to choose by text and time", high=24)
    network_dropout: float | None = setting(None, "dropout; none to choose by text and time", high=0.95, rare=True)
    decay: float | None = setting(None, "weight decay; none to choose by text and time", high=1000, rare=True)
    context: int = setting(256, "tokens that the network sees at once", low=8, high=4096, rare=True)
    batch_tokens: int = setting(0, "tokens per training step; 0 to choose by device", high=1 << 24, rare=True)
    optimizer: Literal["muon", "adamw"] = setting("muon", "optimizer of the network's matrices", rare=True)
    network_start: Literal["counted", "map", "embeddings", "random"] = setting(
        "counted", "initial weights from counts: all, up to the output map, only embeddings, or none", rare=True
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "of training; auto: bfloat16 on GPUs, and on CPUs with instructions for it", rare=True
    )
    class_first: bool | None = setting(None, "predict classes before tokens; none: on a CPU only", rare=True)


SPEED = {"cpu": {2: 20e3, 4: 4e3, 6: 1.3e3}, "cuda": {2: 3e6, 4: 1.5e6, 6: 0.9e6}}
"""Tokens per second of training by device and depth: two cores, or one H200. The rule needs only rough values."""
MOST_EPOCHS = {"cpu": 16.0, "cuda": 32.0}  # more does not help
MANY = 8  # epochs after which a text could be memorized …
SHORT = 5e6  # … if it has fewer tokens
MANY_TOKENS = 15e6  # in a run, for six layers to pay off
DECAY, DECAY_TOKENS = 3.0, 6e6  # weight decay over many epochs, and its product with the tokens of a longer text


def resolved(config: CompanionConfig, tokens: int, device: str) -> CompanionConfig:
    """The settings, with everything chosen that follows from text, time, and device.

    On a CPU a network has 2 layers; on a GPU it has 6, or 4 if the time is too short for 15 million tokens with 6. A
    text that is read often must not be memorized: from 8 epochs on, a short text gets dropout, and weight decay is such
    that weights are replaced after the same fraction of an epoch, whatever its length. These values were chosen on 2
    and 15 million tokens (docs/companion.md).
    """
    kind = device.split(":")[0]

    def epochs(depth: int) -> float:
        """The number of epochs that the time allows."""
        limit = config.epochs or MOST_EPOCHS[kind]
        return min(limit, SPEED[kind][depth] * 60 * config.minutes / tokens) if config.minutes else limit

    depth = config.depth or (2 if kind == "cpu" else 6 if epochs(6) * tokens >= MANY_TOKENS or config.epochs else 4)
    expected = epochs(max(d for d in SPEED[kind] if d <= max(2, depth)))
    often, dropout, decay = expected >= MANY, config.network_dropout, config.decay
    return replace(
        config,
        depth=depth,
        network_dropout=(0.1 if often and tokens < SHORT else 0.0) if dropout is None else dropout,
        decay=(min(DECAY, DECAY_TOKENS / tokens) if often else 0.5) if decay is None else decay,
        epochs=config.epochs or MOST_EPOCHS[kind],
        batch_tokens=config.batch_tokens or (4096 if kind == "cpu" else 8192),
        class_first=kind == "cpu" if config.class_first is None else config.class_first,
    )
