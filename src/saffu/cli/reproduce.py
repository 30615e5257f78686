"""saffu reproduce: the paper's experiments, end to end, with the paper's preset."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from saffu.cli.options import Command, Parser, add_output_options, count, device_of, finite, integer, named_path
from saffu.cli.output import print_json, say

EXPERIMENTS = ("logs", "figure", "tables")


def add_options(parser: Parser, _: Sequence[str]) -> None:
    help = "logs: explicit solution and training log; figure: explicit and random starts; tables: ablation"
    parser.add_argument("experiment", choices=EXPERIMENTS, metavar="|".join(EXPERIMENTS), help=help)
    parser.add_argument(
        "--data", type=named_path, required=True, metavar="DIR", help="corpus fetched by saffu download"
    )
    parser.add_argument("--out", type=named_path, default=Path("paper"), metavar="DIR", help="results [paper]")
    sizes = ("10M", "100M")
    parser.add_argument("--size", choices=sizes, metavar="|".join(sizes), help="training text to use if DIR has both")
    parser.add_argument("--max-tokens", type=count, metavar="N", help="use only N tokens of the shuffled training text")
    parser.add_argument("--learning-rate", type=finite, metavar="X", help="learning rate [the paper's, 5e-6]")
    help = "maximum number of training folds [until early stopping]"
    parser.add_argument("--max-folds", type=integer(1), metavar="N", help=help)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda, or cuda:N [cpu]")
    add_output_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu.experiments import reproduce
    from saffu.experiments.download import find_splits

    splits = find_splits(options.data, options.size)
    protocol = reproduce.Protocol(
        train=splits["train"],
        dev=splits["dev"],
        test=splits.get("test", []),
        out=options.out,
        device=device_of(options),
        size=options.size or "10M",
        max_tokens=options.max_tokens,
        learning_rate=options.learning_rate,
        max_folds=options.max_folds,
    )
    experiment = {"logs": reproduce.logs, "figure": reproduce.figure, "tables": reproduce.tables}[options.experiment]
    facts = experiment(protocol, lambda line: say(options, line))
    if options.json:
        print_json(facts)


COMMAND = Command(
    "reproduce",
    "reproduce the paper's training logs, figure, or tables",
    "logs|figure|tables --data DIR [options]",
    "saffu download babylm --out babylm\n"
    "saffu reproduce logs --data babylm --out paper --device cuda\n"
    "saffu reproduce figure --data babylm --out paper --learning-rate 0.01 --max-folds 10",
    add_options,
    run,
)
