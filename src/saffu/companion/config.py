"""Settings of a counted model with a network trained next to it, and the rule from which most of them follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

from saffu.calibrated.config import CalibratedConfig
from saffu.settings import setting

HEAD = 64  # dimensions of an attention head


@dataclass(frozen=True)
class CompanionConfig(CalibratedConfig):
    """The counted model's settings, and those of the network: how long, how many, and what `resolved` derives."""

    preset: ClassVar[str] = "companion"

    minutes: float = setting(
        0.0, "minutes for everything, counting included, to train a network next to the counts", high=100_000
    )
    epochs: float = setting(0.0, "passes over the text, instead of or in addition to a limit in minutes", high=100_000)
    networks: int = setting(
        0, "number of networks whose predictions are averaged; 0 to choose by text and time", high=16
    )
    depth: int = setting(0, "number of layers; the width is 64 times that", high=24, derived=True)
    network_dropout: float | None = setting(None, "dropout", high=0.95, derived=True)
    decay: float | None = setting(None, "weight decay", high=1000, derived=True)
    rate: float | None = setting(None, "factor of all learning rates", high=100, derived=True)
    context: int = setting(256, "tokens that the network sees at once", low=8, high=4096, derived=True)
    batch_tokens: int = setting(0, "tokens per training step", high=1 << 24, derived=True)
    class_first: bool | None = setting(None, "whether classes are predicted before tokens", derived=True)


SPEED = {"cpu": {2: 20e3, 4: 4e3, 6: 1.3e3}, "cuda": {2: 3e6, 4: 1.5e6, 6: 0.85e6, 8: 0.52e6}}
"""Tokens per second of training by device and depth: two cores, or one H200. The rule needs only rough values."""
COMPILED_FROM = 90.0  # seconds of training on a GPU: compiling takes 10 to 20 and then saves three tenths of each step
COMPILED_SPEED = 1.35  # times the speed
TRAINING_SHARE = 0.85  # of the minutes; the rest is for counting
MOST_EPOCHS = {"cpu": 16.0, "cuda": 30.0}  # of each network; more does not help
MANY_EPOCHS = 8  # after which weight decay keeps a text from being memorized
MIN_TOKENS = {6: 15e6, 8: 60e6}  # read in a run, for this many layers to pay off on a GPU …
LONG_TEXT = 5e6  # … eight for a text of this many tokens, or if there is time for several networks
MIN_EPOCHS, MIN_STEPS = 10, 3000  # of each network, for several to pay off …
SEVERAL, MIN_EPOCHS_OF_MANY = 4, 24  # … and for more than four, or for these to have eight layers
MOST_NETWORKS = 8
BATCH_TOKENS = {"cpu": 4096, "cuda": 8192}
LONG_RUN = 27_000  # steps; a run that would take more reads twice as many tokens per step, a quarter faster
MOST_DROPOUT = 0.4
DECAY, DECAY_TOKENS = 3.0, 7.7e6  # weight decay over many epochs, and its product with the tokens of a longer text
FEW_EPOCHS_DECAY = 0.5
RATE, RATE_STEPS, RATE_WIDTH = 0.3, 3000, 384  # the factor of the learning rates at this number of steps and width


def resolved(config: CompanionConfig, tokens: int, device: str) -> CompanionConfig:
    """The settings, with everything that follows from text, time, and device, unless it is there already.

    On a CPU there is one network of 2 layers. On a GPU, a network has 6 layers, fewer if the time is too short, more if
    the text is long or there is time for four networks; time for more than 10 epochs and 3,000 steps goes into more
    networks, up to four, and up to eight if each gets 24 epochs. Learning rates fall with the width and slowly with the
    number of steps. What keeps a text from being memorized, dropout and weight decay, follows from how often it is read
    and how long it is. Measured in docs/companion.md.
    """
    kind = device.split(":")[0]
    batch_tokens = config.batch_tokens or BATCH_TOKENS[kind]

    def epochs_of_all(depth: int) -> float:
        """The number of epochs, added up over networks, that the time allows."""
        speed = SPEED[kind][max(d for d in SPEED[kind] if d <= max(2, depth))]
        seconds = 60 * TRAINING_SHARE * config.minutes
        if kind != "cpu" and seconds >= COMPILED_FROM:
            speed *= COMPILED_SPEED
        return speed * seconds / tokens if config.minutes else math.inf

    depth = config.depth or depth_for(kind, tokens, epochs_of_all)
    limit = config.epochs or MOST_EPOCHS[kind]
    networks = config.networks
    if not networks:
        available = epochs_of_all(depth) if kind != "cpu" and config.minutes else 1.0
        pays_off = min(available / MIN_EPOCHS, available * tokens / batch_tokens / MIN_STEPS)
        networks = int(min(max(1.0, pays_off), max(SEVERAL, available / MIN_EPOCHS_OF_MANY), MOST_NETWORKS))
    epochs = min(limit, epochs_of_all(depth) / networks)
    decay = min(DECAY, DECAY_TOKENS / tokens) if epochs >= MANY_EPOCHS else FEW_EPOCHS_DECAY
    steps = max(1.0, epochs * tokens / batch_tokens)
    if kind != "cpu" and steps > LONG_RUN and not config.batch_tokens:
        batch_tokens = 2 * batch_tokens
        steps = steps / 2
    return replace(
        config,
        depth=depth,
        networks=networks,
        network_dropout=dropout_for(epochs, tokens, depth)
        if config.network_dropout is None
        else config.network_dropout,
        decay=decay if config.decay is None else config.decay,
        rate=rate_for(steps, depth) if config.rate is None else config.rate,
        epochs=limit,
        batch_tokens=batch_tokens,
        class_first=kind == "cpu" if config.class_first is None else config.class_first,
    )


def depth_for(kind: str, tokens: int, epochs_of_all: Callable[[int], float]) -> int:
    """The number of layers for a text of some tokens."""
    if kind == "cpu":
        return 2
    if tokens >= LONG_TEXT and epochs_of_all(8) * tokens >= MIN_TOKENS[8]:
        return 8
    if SEVERAL * MIN_EPOCHS_OF_MANY <= epochs_of_all(8) < math.inf:
        return 8
    return 6 if epochs_of_all(6) * tokens >= MIN_TOKENS[6] else 4


def dropout_for(epochs: float, tokens: int, depth: int) -> float:
    """Dropout: more for a text that is short and read often, and for large networks; none for small ones.

    >>> [dropout_for(epochs, tokens, 6) for epochs, tokens in ((12, 1.9e6), (27, 0.93e6), (7, 15e6), (30, 15e6))]
    [0.15, 0.29, 0.0, 0.14]
    >>> [dropout_for(27, 0.93e6, depth) for depth in (2, 4, 8)]
    [0.1, 0.19, 0.35]
    """
    size = depth / 6 if depth < 6 else math.pow(depth / 6, 2 / 3)
    dropout = 0.115 * math.log2(1 + epochs / math.sqrt(tokens / 1e6) / 6) * size
    return round(min(MOST_DROPOUT, dropout), 2) if dropout >= 0.05 else 0.0


def rate_for(steps: float, depth: int) -> float:
    """The factor of all learning rates.

    >>> [round(rate_for(steps, depth), 2) for steps, depth in ((3000, 6), (7000, 6), (12_000, 8), (1600, 2))]
    [0.3, 0.23, 0.14, 1.0]
    """
    return min(1.0, RATE * math.pow(RATE_STEPS / steps, 1 / 3) * RATE_WIDTH / (HEAD * depth))
