"""saffu report: tables, figures, verdicts and a page of an ablation."""

import argparse
import sys
from pathlib import Path

from saffu.commands.common import Verb, print_json
from saffu.errors import SaffuError
from saffu.wording import number_of


def add(verb: Verb) -> None:
    parser = verb(
        "report",
        run,
        "make tables, figures and a page of an ablation, and judge the paper's claims by it",
        "saffu report grid                         # writes grid/report/index.html and more",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a folder that saffu ablate wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: DIR/report)")
    parser.add_argument("--json", action="store_true", help="print one JSON object; all else goes to standard error")


def run(options: argparse.Namespace) -> None:
    if not options.folder.is_dir():
        raise SaffuError(f"no folder at {options.folder}; `saffu ablate … --out {options.folder}` makes one")
    out = options.out or options.folder / "report"
    if out.exists() and not out.is_dir():
        raise SaffuError(f"{out} is a file, and a report is a folder; choose another --out")

    from saffu.cells import Results
    from saffu.report import Report

    results = Results(options.folder)
    for note in results.notes:
        print(f"note: {note}", file=sys.stderr)
    report = Report(results)
    report.write(out)
    if options.json:
        print_json(report.facts() | {"out": str(out)})
        return
    for verdict in report.verdicts:
        print(f"{verdict.number:>2} {verdict.verdict + ':':<17} {verdict.claim}\n{'':<21}{verdict.evidence}")
    print(f"{number_of(len(report.cells), 'cell')}; the page is {out / 'index.html'}, tables and figures are beside it")
