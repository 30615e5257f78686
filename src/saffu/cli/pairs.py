"""saffu pairs: how often a model prefers the acceptable sentence of a minimal pair."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saffu.cli.options import Command, Parser, add_device, add_model, add_output_options, load_model
from saffu.cli.output import clipped, print_json
from saffu.format import table


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = "JSON Lines files of BLiMP, EWoK, or COMPS, or folders of them [400 pairs that come with saffu]"
    parser.add_argument("files", nargs="*", metavar="FILE", help=help)
    help = "score the end of each sentence too, unlike evaluation harnesses"
    parser.add_argument("--include-eod", action="store_true", help=help)
    add_device(parser)
    add_output_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu.tools import minimal_pairs

    files = minimal_pairs.find_pairs(options.files)
    lm = load_model(options)
    rows = minimal_pairs.evaluate_pairs(lm.model_, lm.tokenizer_, files, lm.references_, options.include_eod)
    facts = minimal_pairs.overall(rows)
    if options.json:
        print_json(facts | {"include_eod": options.include_eod, "tie_within_nats": minimal_pairs.TIE, "files": rows})
        return
    others = [name for name in ("counted", "network", "beyond_counts", "trigram") if f"{name}_accuracy" in facts]
    head = ["", "pairs", "tokens", "accuracy", "ties", *(name.replace("_", " ") for name in others)]
    lines = [cells(short_name(row["file"]), row, others) for row in rows] + [cells("all pairs", facts, others)]
    if len(rows) > 1:
        means = [f"{facts[f'{name}_mean_accuracy']:.1%}" for name in others]
        lines.append(["mean of the files", "", "", f"{facts['mean_accuracy']:.1%}", "", *means])
    print(table(head, lines))
    if facts["ties"]:
        print(f"(a tie counts as half; with ties as wrong, {facts['strict_accuracy']:.1%} of all pairs)")
    if "trigram" not in others:
        print("(this model stores no n-gram baselines)")


def short_name(file: str) -> str:
    name = Path(file).name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    return clipped(name, 40)


def cells(name: str, row: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    shown = [name, f"{row['pairs']:,}", f"{row['tokens']:,}", f"{row['accuracy']:.1%}", f"{row['tie_rate']:.2%}"]
    return shown + [f"{row[f'{other}_accuracy']:.1%}" for other in others]


COMMAND = Command(
    "pairs",
    "evaluate a model on minimal pairs (BLiMP, EWoK, COMPS)",
    "MODEL [FILE ...] [options]",
    "saffu pairs model\nsaffu pairs model blimp_filtered/*.jsonl\nsaffu pairs model blimp_filtered --json",
    add_options,
    run,
)
