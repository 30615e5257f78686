"""saffu compare: learning curves of several runs, and the time each takes to match the others."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from saffu.cli.options import Command, Parser, named_path
from saffu.cli.output import print_json
from saffu.errors import SaffuError
from saffu.format import plural, warn


def add_options(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument(
        "runs", nargs="+", type=named_path, metavar="RUN", help="folders made by saffu train --backprop or --minutes"
    )
    default = Path("curves")
    parser.add_argument(
        "--out", type=named_path, default=default, metavar="NAME", help="write NAME.png and NAME.svg [curves]"
    )
    parser.add_argument("--names", nargs="+", metavar="NAME", help="names of the runs [their folders]")
    choices = ("tokens", "seconds", "both")
    help = "x-axis [both]"
    parser.add_argument("--x-axis", choices=choices, default="both", metavar="|".join(choices), help=help)
    parser.add_argument("--force", action="store_true", help="replace figures that exist")
    parser.add_argument("--title", default="", help="figure title")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from saffu.experiments import learning_curves

    if len({folder.resolve() for folder in options.runs}) < len(options.runs):
        raise SaffuError("the same run is listed twice; list each run once")
    names = options.names or [""] * len(options.runs)
    if len(names) != len(options.runs):
        numbers = f"{plural(len(names), 'name')} for {plural(len(options.runs), 'run')}"
        raise SaffuError(f"{numbers}; pass one name per run")
    if options.names and len(set(names)) < len(names):
        raise SaffuError("two runs have the same name; pass different --names")
    if options.out.name == "" or options.out.is_dir():
        raise SaffuError(f"--out {options.out} is a folder; pass the name of the figure without its suffix")
    learning_curves.require_figures(options.out, options.force)
    curves = [learning_curves.Curve.read(run, name) for run, name in zip(options.runs, names, strict=True)]
    if len({curve.name for curve in curves}) < len(curves):
        curves = [replace(curve, name=str(run)) for curve, run in zip(curves, options.runs, strict=True)]
    one_vocabulary = require_comparable(options.runs)
    rows = learning_curves.comparison(curves)
    over = tuple(learning_curves.AXES) if options.x_axis == "both" else (options.x_axis,)
    quantity: Literal["perplexity", "bits_per_byte"] = "perplexity" if one_vocabulary else "bits_per_byte"
    figures = learning_curves.draw(curves, options.out, over, options.title, quantity)
    if options.json:
        print_json({"runs": rows, "figures": figures})
        return
    print(learning_curves.comparison_table(rows))
    if not one_vocabulary:
        print("\nThe runs have different vocabularies: compare their bits per byte, not their perplexities.")
    print(f"\nwrote {' and '.join(str(path) for path in figures)}")


def require_comparable(runs: Sequence[Path]) -> bool:
    """Fail if the runs were scored on different text; return whether they share a vocabulary."""
    from saffu.files import read_manifest
    from saffu.model.folder import ModelFolder, log_facts, source_facts

    texts = set()
    vocabularies = set()
    for run in runs:
        folder = run if run.is_dir() else run.parent
        if not (folder / "config.json").exists():  # a log alone
            warn(f"{run} does not state its held-out text; make sure that it is the same as for the other runs")
            continue
        opened = ModelFolder(folder, True, read_manifest(folder))
        with opened.fitting("config.json or log.jsonl"):
            rows = log_facts(opened.text("log.jsonl"))
            texts.add(source_facts(opened.manifest["source"]).get("dev"))
        changed = [row["stage"] == "update" for row in rows]
        if any("fold" in row for row in rows[changed.index(True) if any(changed) else len(rows) :]):
            raise SaffuError(f"{run} was trained further by saffu update, on other text; pass runs of saffu train")
        vocabularies.add(opened.text("tokenizer.json"))
    if len(texts - {None}) > 1:
        raise SaffuError("the runs were scored on different held-out texts; compare runs with the same --dev")
    if None in texts and len(runs) > 1:
        warn("a run does not state its held-out text; make sure that all runs use the same text")
    return len(vocabularies) < 2


COMMAND = Command(
    "compare",
    "plot learning curves and report how soon runs match each other",
    "RUN [RUN ...] [options]",
    "saffu compare explicit random --out curves",
    add_options,
    run,
)
