"""Fill in README.md and docs/: numbers and tables between markers, and figures, all from docs/results.

    python -m lab pages [--check] [--demo]

The markers are explained in `lab.fill`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from lab import companion_results, held_out, layer_results, recipe_results, transcripts
from lab.fill import filled
from lab.rows import Row, head, read_rows
from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import learning_curves
from saffu.experiments.learning_curves import Curve
from saffu.experiments.reproduce import LEARNING_RATE, PRINTED_TEST, PRINTED_TEST_100M
from saffu.format import plural

NAMES = {"explicit": "warm", "random": "cold", "cipher": "cold, cipher's embeddings"}


def best_rate(rows: Iterable[Row], start: str, radius: int) -> list[Row]:
    """The runs of a start at its best learning rate, by mean dev perplexity over the seeds."""
    rates: dict[float, list[Row]] = {}
    for row in rows:
        if (row["start"], row["radius"]) == (start, radius):
            rates.setdefault(row["learning_rate"], []).append(row)
    return min(rates.values(), key=lambda runs: mean(run["best_dev_perplexity"] for run in runs), default=[])


def described(scores: Sequence[float]) -> str:
    """
    >>> described([50.0, 52.0]), described([50.0])
    ('51.0 (50.0 to 52.0 over 2 seeds)', '50.0')
    """
    if len(scores) == 1:
        return f"{scores[0]:.1f}"
    return f"{mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f} over {plural(len(scores), 'seed')})"


def changes(run: Row) -> Mapping[str, Any]:
    """The settings of a run's model that differ from those of the study; older rows have none."""
    found: Mapping[str, Any] = run.get("settings", {})
    return found


def warm_table(rows: Sequence[Row]) -> str:
    """Best dev perplexity by start, radius, and learning rate: means over the seeds, with their range."""
    rates = sorted({run["learning_rate"] for run in rows})
    lines = head(["", "start", *(f"rate {rate:g}" for rate in rates), "paper (test)"])
    for radius in (8, 128):
        for start, name in NAMES.items():
            runs = [run for run in rows if (run["start"], run["radius"]) == (start, radius)]
            if runs:
                begin = runs[0]["curve"][0]["dev_perplexity"]
                scores = [[run["best_dev_perplexity"] for run in runs if run["learning_rate"] == r] for r in rates]
                best = [described(found) if found else "–" for found in scores]
                printed = PRINTED_TEST.get(f"{start}-{radius}", "–")
                lines.append(f"| {name}, r = {radius} | {begin:,.1f} | {' | '.join(best)} | {printed} |")
    if not rows:
        return "\n".join(lines) + "\n"
    run = rows[0]
    folds = max(r["curve"][-1]["fold"] for r in rows)
    facts = f"{run['tokens']:,} tokens, {folds} folds, {run['dev_targets']:,} held-out targets, "
    return "\n".join([*lines, "", f"{facts}vocabulary {run['vocabulary']:,}.", ""])


def protocol_table(rows: Sequence[Row]) -> str:
    """Runs of the paper's protocol: what they start from, where they end, and the printed test perplexities."""
    lines = head(["", "start", "best dev", "folds", "test", "test as 2^nats", "printed", "parameters"])
    for name, runs in protocol_runs(rows).items():
        curves = [[row for row in run["log"] if "fold" in row] for run in runs]
        tests = [run["test_perplexity"] for run in runs]
        printed = (PRINTED_TEST if runs[0]["size"] == "10M" else PRINTED_TEST_100M).get(runs[0]["run"], "–")
        printed = "–" if changes(runs[0]) else printed
        values = [
            f"{mean(curve[0]['dev_perplexity'] for curve in curves):,.1f}",
            described([min(row["dev_perplexity"] for row in curve) for curve in curves]),
            f"{curves[0][-1]['fold']}",
            described(tests),
            f"{2 ** math.log(mean(tests)):.1f}",
            f"{printed}",
            f"{runs[0]['parameters']:,}",
        ]
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    facts = []
    if rows:
        run = rows[0]
        sizes = f"vocabulary {run['full_vocabulary']:,}, reduced to {run['vocabulary']:,} (printed: 26,693, 2,848)"
        facts = ["", f"{run['tokens']:,} tokens; {sizes}; {run['test_targets']:,} test targets."]
    return "\n".join([*lines, *facts, ""])


def default_protocol_table(rows: Sequence[Row]) -> str:
    """Runs of the same protocol under the default of 0.3.0, as far as they got: dev perplexities after some folds."""
    stages = ("init", "tune 10", *(f"train {fold}" for fold in (1, 2, 4, 8, 10)))
    lines = head(["", "initialized", "tuned", *(f"{stage.removeprefix('train ')} folds" for stage in stages[2:])])
    for run in rows:
        log = {row["stage"].replace("random", "init"): row["dev_perplexity"] for row in run["log"]}
        name = run_name(run)
        if run["learning_rate"] == LEARNING_RATE:
            name += f", the printed rate, {run['batch_size']} targets per step"
        cells = [f"{log[stage]:,.1f}" if stage in log else "–" for stage in stages]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines).replace("| 1 folds", "| 1 fold") + "\n"


def protocol_runs(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Runs of the paper's protocol that differ in their seeds alone, by a name."""
    found: dict[str, list[Row]] = {}
    for run in rows:
        found.setdefault(f"{run_name(run)}, rate {run['learning_rate']:g}", []).append(run)
    return found


def run_name(run: Row) -> str:
    """A run's start and what it changes, in words."""
    name = f"{NAMES[run['start']]}, r = {run['radius']}" + (", from a tenth" if run["size"] == "100M" else "")
    return name + "".join(f", {setting} {value}" for setting, value in changes(run).items())


def draw_figures(results: Path, folder: Path) -> None:
    starts = read_rows(results / "warm-starts.jsonl")
    curves = []
    for radius in (8, 128):
        for start, name in NAMES.items():
            if runs := best_rate(starts, start, radius):
                rows = [row | {"dev_bits_per_byte": row["dev_perplexity"]} for row in runs[0]["curve"]]
                curves.append(Curve(f"{name}, r = {radius}", rows))
    protocol = [
        Curve(name.rpartition(",")[0], [row for row in runs[0]["log"] if "fold" in row])
        for name, runs in protocol_runs(read_rows(results / "protocol.jsonl")).items()
    ]
    for name, drawn in {"warm-cold": curves, "protocol": protocol}.items():
        if drawn:
            learning_curves.draw(drawn, folder / name, over=("tokens",))[0].unlink()  # the SVG alone is shown


def pages(results: Path) -> dict[str, dict[str, str]]:
    """The computed parts of each page."""
    return {
        "paper.md": {
            "protocol": protocol_table(read_rows(results / "protocol.jsonl")),
            "default-protocol": default_protocol_table(read_rows(results / "protocol-default.jsonl")),
            "stopped": protocol_table(read_rows(results / "stopped.jsonl")),
        },
        "warm-start.md": {"warm-starts": warm_table(read_rows(results / "warm-starts.jsonl"))},
    }


def stale_pages(docs: Path) -> dict[Path, str]:
    """The pages that are not what docs/results says, and what they should be."""
    results = docs / "results"
    computed = pages(results) | companion_results.parts(results)
    if (docs / "recipes.md").exists():
        computed["recipes.md"] = recipe_results.parts(results)
    if (docs / "explicit-layers.md").exists():
        computed["explicit-layers.md"] = layer_results.parts(results)
    if (docs / "evaluation.md").exists():
        computed["evaluation.md"] = held_out.parts(results)
    fresh: dict[Path, str] = {}
    for path in [docs.parent / "README.md", *sorted(docs.glob("*.md"))]:
        page = path.read_text("utf-8")
        content = filled(page, docs / "results", computed.get(path.name, {}))
        if content != page:
            fresh[path] = content
    return fresh


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("docs", nargs="?", type=Path, default=Path("docs"), help="the folder of the pages [docs]")
    parser.add_argument("--check", action="store_true", help="only name what is out of date")
    parser.add_argument("--demo", action="store_true", help="run the commands of the transcripts again, too")


def run_command(options: argparse.Namespace) -> None:
    results = options.docs / "results"
    if options.demo:
        with tempfile.TemporaryDirectory() as folder:
            transcripts.write(results, Path(folder))
    stale = stale_pages(options.docs)
    if options.check:
        if stale:
            raise SaffuError(f"out of date: {', '.join(path.name for path in stale)}; run `make numbers`")
        return
    for path, content in stale.items():
        files.write_file(path, content.encode())
    draw_figures(results, options.docs / "figures")
    companion_results.draw(results, options.docs / "figures")
