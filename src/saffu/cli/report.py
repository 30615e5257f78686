"""saffu report: tables, figures, and an HTML page of an ablation."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from saffu.cli.options import Command, Parser, named_path
from saffu.cli.output import print_json
from saffu.errors import SaffuError
from saffu.format import plural, warn


def add_options(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("folder", type=named_path, metavar="DIR", help="folder made by saffu ablate")
    parser.add_argument("--out", type=named_path, metavar="DIR", help="folder of the report [DIR/report]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    if not options.folder.is_dir():
        raise SaffuError(f"no folder {options.folder}; create one with `saffu ablate … --out {options.folder}`")
    out = options.out or options.folder / "report"
    if out.exists() and not out.is_dir():
        raise SaffuError(f"--out {out} is a file; pass a folder")

    from saffu.experiments.report import Report
    from saffu.experiments.results import Results

    results = Results(options.folder)
    if results.damage:
        warn(results.damage)
    report = Report(results)
    report.write(out)
    if options.json:
        print_json(report.to_dict() | {"out": out})
        return
    print(f"{plural(len(results.cells), 'cell')}; wrote {out / 'index.html'}, with tables and figures next to it")


COMMAND = Command(
    "report",
    "build an HTML report of an ablation",
    "DIR [options]",
    "saffu report grid        # writes grid/report/index.html",
    add_options,
    run,
)
