"""saffu pairs: how often a model prefers the acceptable sentence of a minimal pair."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saffu.cli.options import Command, Parser, add_device, add_model, add_output_options, device_of
from saffu.cli.output import clipped, print_json, table


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = "JSON Lines files of BLiMP, EWoK, or COMPS, or folders of them"
    parser.add_argument("files", nargs="+", metavar="FILE", help=help)
    help = "include the end-of-document token in the score (evaluation harnesses don't)"
    parser.add_argument("--include-eod", action="store_true", help=help)
    add_device(parser)
    add_output_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu import load
    from saffu.tools import minimal_pairs

    files = minimal_pairs.find_pairs(options.files)
    lm = load(options.model, device_of(options))
    rows = minimal_pairs.evaluate_pairs(lm.model_, lm.tokenizer_, files, lm.references_, options.include_eod)
    facts = minimal_pairs.overall(rows)
    if options.json:
        print_json(facts | {"include_eod": options.include_eod, "tie_within_nats": minimal_pairs.TIE, "files": rows})
        return
    baseline = "trigram_accuracy" in facts
    head = ["", "pairs", "tokens", "accuracy", "ties"] + ["trigram"] * baseline
    lines = [cells(short_name(row["file"]), row) for row in rows] + [cells("all pairs", facts)]
    if len(rows) > 1:
        mean = ["mean of the files", "", "", f"{facts['mean_accuracy']:.1%}", ""]
        lines.append(mean + ([f"{facts['trigram_mean_accuracy']:.1%}"] if baseline else []))
    print(table(head, lines))
    if facts["ties"]:
        print(f"(a tie counts as half; with ties as wrong, {facts['strict_accuracy']:.1%} of all pairs)")
    if not baseline:
        print("(this model stores no n-gram baselines)")


def short_name(file: str) -> str:
    name = Path(file).name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")
    return clipped(name, 40)


def cells(name: str, row: Mapping[str, Any]) -> list[str]:
    shown = [name, f"{row['pairs']:,}", f"{row['tokens']:,}", f"{row['accuracy']:.1%}", f"{row['tie_rate']:.2%}"]
    return shown + ([f"{row['trigram_accuracy']:.1%}"] if "trigram_accuracy" in row else [])


COMMAND = Command(
    "pairs",
    "evaluate a model on minimal pairs (BLiMP, EWoK, COMPS)",
    "MODEL FILE [FILE ...] [options]",
    "saffu pairs model blimp_filtered/*.jsonl\nsaffu pairs model blimp_filtered --json",
    add_options,
    run,
)
