"""saffu pairs: does a model prefer the acceptable sentence of each pair?"""

import argparse
from pathlib import Path
from typing import Any

from saffu.commands.common import Verb, add_common_options, print_json


def add(verb: Verb) -> None:
    parser = verb(
        "pairs",
        run,
        "tell how often a model prefers the acceptable sentence of a minimal pair (BLiMP, EWoK, COMPS)",
        "saffu pairs model blimp_filtered/*.jsonl\n  saffu pairs model blimp_filtered --json",
    )
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="JSON lines, or folders of them, with the fields sentence_good and sentence_bad; or Context1, Target1, "
        "Target2; or prefix_acceptable, prefix_unacceptable, property_phrase",
    )
    parser.add_argument("--end", action="store_true", help="count the end of a sentence too (harnesses do not)")
    add_common_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu import pairs
    from saffu.model import SaffuLM

    files = pairs.find_pairs(options.files)
    lm = SaffuLM.load(options.model, options.device)
    rows = pairs.evaluate_pairs(lm, files, options.end)
    facts = pairs.overall(rows)
    if options.json:
        print_json(facts | {"end_counted": options.end, "tie_within_nats": pairs.TIE, "files": rows})
        return
    wide = min(40, max(len(name) for name in ["mean of the files", *(short(row["file"]) for row in rows)]))
    baseline = "trigram_right" in facts
    print(f"{'':<{wide}} {'pairs':>8} {'tokens':>10} {'accuracy':>9} {'ties':>7}" + f" {'trigram':>9}" * baseline)
    for row in rows:
        print_row(short(row["file"])[:wide], row, wide)
    print_row("all pairs", facts, wide)
    if len(rows) > 1:
        trigram = f"{'':>7} {facts['trigram_mean_accuracy']:>10.1%}" if baseline else ""
        print(f"{'mean of the files':<{wide}} {'':>8} {'':>10} {facts['mean_accuracy']:>9.1%}{trigram}")
    if not baseline:
        print("(no n-gram references are kept with this model)")


def short(file: str) -> str:
    return Path(file).name.removesuffix(".gz").removesuffix(".jsonl").removesuffix(".json")


def print_row(name: str, row: dict[str, Any], wide: int) -> None:
    trigram = f" {row['trigram_accuracy']:>9.1%}" if "trigram_accuracy" in row else ""
    cells = f"{row['pairs']:>8,} {row['tokens']:>10,} {row['accuracy']:>9.1%} {row['tie_rate']:>7.2%}"
    print(f"{name:<{wide}} {cells}{trigram}")
