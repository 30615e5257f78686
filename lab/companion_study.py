"""Starts and optimizers of the network next to the counts: what each counted part is worth, and for how long.

    python -m lab companion-study --train FILES --dev FILES --out results.jsonl [--seconds 180]

All runs have the same time, the same counts, and the same cross-fitted numbers. A start is one of `STARTS`, each of
which has one more counted part than the one before.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean, stdev
from typing import Any

import numpy as np

from lab.rows import Row, append_row, head
from lab.warm_starts import add_common_options
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import fit
from saffu.calibrated.model import CalibratedModel
from saffu.companion.config import CompanionConfig, resolved
from saffu.companion.counted_start import STARTS
from saffu.companion.cross_fit import CrossFit, cross_fitted
from saffu.companion.model import CompanionModel
from saffu.companion.train import Training
from saffu.interface import Score
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

OPTIMIZERS = ("muon", "adamw")
SIDES = {"mixture": "dev_bits_per_byte", "network": "network_bits_per_byte"}


def run(
    counted: CalibratedModel,
    corpus: TokenCorpus,
    dev: TokenCorpus,
    config: CompanionConfig,
    seconds: float,
    cross_fit: CrossFit,
    device: str = "cpu",
) -> Row:
    """Train one network for some seconds; its learning curve and its score of all held-out text, as JSON values."""
    config = resolved(replace(config, minutes=seconds / 60), corpus.targets, device)
    training = Training(CompanionModel(config, counted, None, device), corpus, dev, cross_fit=cross_fit)
    training.progress.limit = seconds
    curve: list[dict[str, Any]] = []

    def note(row: dict[str, Any], _: CompanionModel) -> None:
        names = ("step", "tokens", *SIDES.values())
        if row["step"]:
            curve.append({"seconds": round(training.progress.seconds, 2)} | {name: row[name] for name in names})

    model = training.run(on_check=note)
    latest = model if model.networks else model.with_parts(networks=training.networks.without_torch(counted))
    parts = latest.scores_by_part(dev)
    found = {name: bits_per_byte(parts[name], dev) for name in ("counted", "network")}
    found["mixture"] = (
        bits_per_byte(parts[""], dev) if model.networks else found["counted"]
    )  # if nothing beat the counts
    return {
        "start": config.network_start,
        "optimizer": config.optimizer,
        "seed": config.seed,
        "device": device,
        "depth": config.depth,
        "parameters": training.networks.size,
        "tokens": corpus.targets,
        "documents": corpus.documents,
        "seconds": round(training.progress.seconds, 1),
        "excerpt_counted": training.counted_score.bits_per_byte,
        "bits_per_byte": found,
        "curve": curve,
        "ended": training.progress.ended,
    }


def bits_per_byte(log_p: Any, corpus: TokenCorpus) -> float:
    return Score(-float(log_p.sum()), corpus.targets, corpus.bytes).bits_per_byte


def seconds_to(curve: Sequence[Row], name: str, goal: float) -> float | None:
    """The seconds after which a curve first falls to a goal, between its points; None if it never does.

    >>> seconds_to([{"seconds": 1, "x": 3.0}, {"seconds": 2, "x": 2.0}, {"seconds": 4, "x": 1.5}], "x", 1.75)
    3.0
    >>> seconds_to([{"seconds": 1, "x": 3.0}], "x", 1.0)
    """
    for number, row in enumerate(curve):
        if row[name] <= goal:
            before = curve[number - 1] if number else row
            slope = (before[name] - goal) / (before[name] - row[name]) if before[name] > row[name] else 1.0
            return float(before["seconds"] + slope * (row["seconds"] - before["seconds"]))
    return None


def mean_curve(rows: Sequence[Row]) -> list[Row]:
    """The mean over seeds, point by point; all runs are checked after the same shares of their time."""
    points = zip(*(row["curve"] for row in rows), strict=False)
    return [{name: float(np.mean([point[name] for point in found])) for name in found[0]} for found in points]


def table(rows: Sequence[Row]) -> str:
    """Means and spread over seeds, in Markdown, and the seconds after which a start equals the random one's end."""
    lines = head(
        [
            "optimizer",
            "start",
            "seeds",
            "network alone",
            "mixture",
            "alone: time to match random start",
            "mixture: time to match random start",
        ]
    )
    for optimizer in OPTIMIZERS:
        groups = {start: [r for r in rows if (r["optimizer"], r["start"]) == (optimizer, start)] for start in STARTS}
        random = mean_curve(groups[STARTS[0]])
        for start, group in groups.items():
            if not group:
                continue
            cells = [optimizer, start, str(len(group)), *(spread(group, side) for side in ("network", "mixture"))]
            for side in ("network", "mixture"):
                equal = seconds_to(mean_curve(group), SIDES[side], random[-1][SIDES[side]]) if random else None
                cells.append("never" if equal is None else f"{equal:.1f} s")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def spread(rows: Sequence[Row], side: str) -> str:
    """Mean and standard deviation of the final score of all held-out text."""
    values = [row["bits_per_byte"][side] for row in rows]
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)
    parser.add_argument("--split", choices=("file", "line"), default="file", help="what a document is (default: file)")
    parser.add_argument("--seconds", type=float, default=180.0, help="of training per run (default: 180)")


def run_command(options: argparse.Namespace) -> None:
    paths, dev_paths = (find_files(names) for names in (options.train, options.dev))
    tokenizer = Tokenizer.train((text for _, text in read_lines(paths, options.split)), TokenizerConfig())
    corpus = TokenCorpus.build(read_lines(paths, options.split), tokenizer)
    dev = TokenCorpus.build(read_lines(dev_paths, options.split), tokenizer)
    (stage,) = fit(corpus, len(tokenizer), CalibratedConfig())
    assert isinstance(stage.model, CalibratedModel)
    cross_fit = cross_fitted(stage.model, corpus, "cross-fit")
    for seed, optimizer, start in product(range(options.seeds), OPTIMIZERS, STARTS):
        config = CompanionConfig.from_dict({"seed": seed, "optimizer": optimizer, "network_start": start})
        row = run(stage.model, corpus, dev, config, options.seconds, cross_fit, options.device)
        append_row(options.out, row)
        print(optimizer, start, seed, {side: round(bits, 4) for side, bits in row["bits_per_byte"].items()}, flush=True)
