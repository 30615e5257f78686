"""saffu compare: learning curves of several runs, and the time each takes to match the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from saffu.cli.options import Command, Parser
from saffu.cli.output import print_json
from saffu.errors import SaffuError
from saffu.format import plural


def add_options(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders made by saffu train --backprop")
    default = Path("curves")
    parser.add_argument(
        "--out", type=Path, default=default, metavar="NAME", help="write NAME.png and NAME.svg [curves]"
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="names of the runs [their folders]")
    choices = ("tokens", "seconds", "both")
    help = "x-axis [both]"
    parser.add_argument("--x-axis", choices=choices, default="both", metavar="|".join(choices), help=help)
    parser.add_argument("--title", default="", help="figure title")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")


def run(options: argparse.Namespace) -> None:
    from saffu.experiments import learning_curves

    if len({folder.resolve() for folder in options.runs}) < len(options.runs):
        raise SaffuError("the same run is listed twice; list each run once")
    names = options.names or [""] * len(options.runs)
    if len(names) != len(options.runs):
        given = f"{plural(len(names), 'name')} for {plural(len(options.runs), 'run')}"
        raise SaffuError(f"{given}; pass one name per run")
    if options.names and len(set(names)) < len(names):
        raise SaffuError("two runs have the same name; pass different --names")
    if options.out.name == "" or options.out.is_dir():
        raise SaffuError(f"--out {options.out} is a folder; pass the name of the figure without its suffix")
    curves = [learning_curves.Curve.read(run, name) for run, name in zip(options.runs, names, strict=True)]
    rows = learning_curves.comparison(curves)
    over = tuple(learning_curves.AXES) if options.x_axis == "both" else (options.x_axis,)
    figures = learning_curves.draw(curves, options.out, over, options.title)
    if options.json:
        print_json({"runs": rows, "figures": figures})
        return
    print(learning_curves.table(rows))
    print(f"\nwrote {' and '.join(str(path) for path in figures)}")


COMMAND = Command(
    "compare",
    "plot learning curves and report time to quality",
    "RUN [RUN ...] [options]",
    "saffu compare explicit random --out curves",
    add_options,
    run,
)
