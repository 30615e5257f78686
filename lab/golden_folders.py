"""Model folders of today's format, one of each kind, and what their models say about a text: tests/golden.

    python -m lab golden-folders

Run it when the format of folders changes. Until then, every change of the package must read them and say the same.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

from saffu import CalibratedConfig, PaperConfig, SaffuLM
from saffu.companion.config import CompanionConfig
from saffu.errors import SaffuError
from saffu.files import write_file
from saffu.paper.config import TrainingConfig

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
NAMES = ("ann", "bob", "cat", "dan", "eve", "fay", "gus", "hal")
COUNTED = {"order": 3, "slots": 2, "word_classes": 4, "output_classes": 4}
NETWORK = {"order": 2, "slots": 1, "cache": 0, "depth": 1, "context": 32, "epochs": 12.0, "batch_tokens": 512}
PAPER = {"block": 8, "radius": 2, "block_dimension": 10, "radius_dimension": 9, "hidden_dimension": 16}
PAPER |= {"document_shards": 3}
KINDS = ("calibrated", "companion", "paper", "paper-trained")


def texts(seed: int, number: int) -> list[str]:
    """Documents of twelve lines, in which a name comes back after four other words: too far for the counts."""
    drawn = random.Random(seed)
    lines = [f"{name} saw {drawn.choice(NAMES)} and {name} ran" for name in drawn.choices(NAMES, k=12 * number)]
    return ["\n".join(lines[first : first + 12]) for first in range(0, 12 * number, 12)]


def model(kind: str) -> SaffuLM:
    """A small model of a kind."""
    train, dev = texts(1, 50), texts(2, 10)
    if kind == "calibrated":
        return SaffuLM(CalibratedConfig.from_dict(COUNTED)).fit(train, dev)
    if kind == "companion":
        return SaffuLM(CompanionConfig.from_dict(COUNTED | NETWORK)).fit(train, dev).backprop(train, dev)
    lm = SaffuLM(PaperConfig.from_dict(PAPER)).fit(train, dev)
    return lm.backprop(train, dev, TrainingConfig(max_folds=1)) if kind == "paper-trained" else lm


def answers(lm: SaffuLM) -> dict[str, Any]:
    """What a model says: the score of a text, a continuation, and whether it can forget one of its documents."""
    scores = {"nll": lm.score(texts(3, 5)).nll, "continuation": lm.generate("ann saw", temperature=0)}
    try:
        lm.forget(texts(1, 50)[:1])
    except SaffuError:
        return scores
    return scores | {"nll_without_a_document": lm.score(texts(3, 5)).nll}


def add_options(_: argparse.ArgumentParser) -> None:
    pass


def run_command(_: argparse.Namespace) -> None:
    for kind in KINDS:
        model(kind).save(GOLDEN / kind)
    found = {kind: answers(SaffuLM.load(GOLDEN / kind)) for kind in KINDS}
    write_file(GOLDEN / "answers.json", (json.dumps(found, indent=2) + "\n").encode())
