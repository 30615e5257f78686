"""saffu compare: the learning curves of several runs, and who reached what when."""

import argparse
from pathlib import Path

from saffu.commands.common import Verb, print_json
from saffu.errors import SaffuError
from saffu.wording import number_of


def add(verb: Verb) -> None:
    parser = verb(
        "compare",
        run,
        "draw the learning curves of runs of backpropagation, and tell who reached what when",
        "saffu compare warm cold --out curves",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders that saffu train --backprop wrote")
    parser.add_argument(
        "--out", type=Path, default=Path("curves"), metavar="NAME", help="draw NAME.png and NAME.svg (default: curves)"
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="what to call the runs (default: their folders)")
    parser.add_argument(
        "--over", choices=("tokens", "seconds", "both"), default="both", help="what the curves run over (default: both)"
    )
    parser.add_argument("--title", default="", help="a heading for the drawing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from saffu import curves

    if len({folder.resolve() for folder in options.runs}) < len(options.runs):
        raise SaffuError("a run is named twice; name each once")
    if options.names and len(set(options.names)) < len(options.names):
        raise SaffuError("two runs have the same name; give each its own")
    names = options.names or [""] * len(options.runs)
    if len(names) != len(options.runs):
        raise SaffuError(
            f"{number_of(len(names), 'name')} for {number_of(len(options.runs), 'run')}; give one for each"
        )
    read = [curves.Curve.read(folder, name) for folder, name in zip(options.runs, names, strict=True)]
    if len({curve.name for curve in read}) < len(read):
        read = [curves.Curve(str(folder), curve.rows) for folder, curve in zip(options.runs, read, strict=True)]
    facts = curves.comparison(read)
    over = tuple(curves.AXES) if options.over == "both" else (options.over,)
    drawn = curves.draw(read, options.out, over, options.title)
    if options.json:
        print_json({"runs": facts, "drawn": [str(path) for path in drawn]})
    else:
        print(curves.table(facts))
        print(f"\ndrawn in {' and '.join(str(path) for path in drawn)}")
