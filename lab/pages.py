"""Fill in README.md and docs/: numbers, tables, and verdicts between markers, and figures, all from docs/results.

    python -m lab pages [--check] [--demo]

The markers are explained in `lab.fill`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from lab import companion_results, recipe_results, search_results, transcripts
from lab.fill import filled
from lab.readings import dev_over_train, label, perplexities, structure_of
from lab.rows import Row, head
from lab.run_claims import best_rate, changes, described
from lab.verdicts import TEXTS, Results, verdict_counts, verdict_table
from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import figures, learning_curves, tables
from saffu.experiments.learning_curves import Curve
from saffu.experiments.reproduce import LEARNING_RATE, PRINTED_LOG, PRINTED_TEST, PRINTED_TEST_100M
from saffu.format import plural

NAMES = {"explicit": "warm", "random": "cold", "cipher": "cold, cipher's embeddings"}


def readings_table(results: Results, texts: Iterable[str]) -> str:
    """Readings with whole grids, side by side: RMS, in both halves of the tables, rank correlation, and dev/train."""
    texts = [text for text in texts if results.readings[text]]
    rows = {text: {row["reading"]: row for row in results.readings[text] if not row.get("draw", 0)} for text in texts}
    names = list(dict.fromkeys(name for text in texts for name in rows[text]))

    def distance(name: str) -> float:
        return next(structure_of(rows[text][name]).rms for text in texts if name in rows[text])

    lines = head(["changed settings", *texts])
    for name in sorted(names, key=distance):
        found = {text: rows[text][name] for text in texts if name in rows[text]}
        values = [reading_cell(found[text]) if text in found else "" for text in texts]
        lines.append(f"| {label(next(iter(found.values())))} | " + " | ".join(values) + " |")
    return "\n".join([*lines, "", *(text_facts(results.readings[text], text) for text in texts), ""])


def reading_cell(row: Row) -> str:
    found = structure_of(row)
    halves = " / ".join(f"{rms:.3f}" for rms in found.rms_by_half.values())
    return f"{found.rms:.3f} ({halves}), {found.rank_correlation:.2f}, {dev_over_train(perplexities(row)):.3f}"


def text_facts(rows: Sequence[Row], text: str) -> str:
    """The size of a text, and how much the RMS of 0.2.0's reading depends on the choice of documents."""
    row = rows[0]
    unigram = row["unigram"]
    cells = sum(not document for _, document, *_ in row["perplexities"])
    facts = (
        f"- **{text}**: {TEXTS[text]}. {row['tokens']:,} tokens in {row['documents']:,} documents, vocabulary "
        f"{row['vocabulary']:,}, {cells} cells. The unigram's dev/train is {unigram['dev'] / unigram['train']:.3f}."
    )
    drawn = [structure_of(row).rms for row in rows if row["reading"] == "0.2.0"]
    if len(drawn) > 1:
        facts += f" RMS of 0.2.0 over {len(drawn)} choices of documents: {min(drawn):.3f} to {max(drawn):.3f}."
    return facts


def grid_tables(results: Results) -> str:
    """The default reading's tables, each cell next to the paper's."""
    row = search_results.default_row(results.search, results.main_text)
    return search_results.grid_table(row, results.main_text) if row else "\n"


def magnitude_table(results: Results) -> str:
    """The levels that the paper prints, and ours as e^nats and as 2^nats."""
    ours = results.default_grid
    devs = sorted(dev for (_, document, *_), (_, dev) in ours.items() if not document)
    rows: list[tuple[str, float | None, float | None]] = [
        *((f"unigram of {text}", None, rows[0]["unigram"]["dev"]) for text, rows in results.readings.items() if rows),
        ("worst cell of the grid", 64.0, devs[-1]),
        ("sum/cat, b = 128, r = 8", 44.9, ours["sum/cat", False, 128, 8][1]),
        ("best cell of the grid", 44.7, devs[0]),
    ]
    for start, name in (("random", "cold start"), ("explicit", "warm start")):
        runs = best_rate(results.runs, start, 8)
        best = mean(run["best_dev_perplexity"] for run in runs) if runs else None
        rows.append((f"{name}, trained, r = 8", PRINTED_TEST[f"{start}-8"], best))
    ours_as = [f"ours ({results.main_text})", "ours as 2^nats"]
    lines = head(["", "printed", *ours_as, "printed, if it is 2^nats, as a perplexity"])
    for name, printed, own in rows:
        values = [printed, own, own and 2 ** math.log(own), printed and math.exp(math.log2(printed))]
        lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" if value else "–" for value in values) + " |")
    return "\n".join(lines) + "\n"


def warm_table(results: Results) -> str:
    """Best dev perplexity by start, radius, and learning rate: means over the seeds, with their range."""
    rates = sorted({run["learning_rate"] for run in results.runs})
    lines = head(["", "start", *(f"rate {rate:g}" for rate in rates), "paper (test)"])
    for radius in (8, 128):
        for start, name in NAMES.items():
            runs = [run for run in results.runs if (run["start"], run["radius"]) == (start, radius)]
            if runs:
                begin = runs[0]["curve"][0]["dev_perplexity"]
                scores = [[run["best_dev_perplexity"] for run in runs if run["learning_rate"] == r] for r in rates]
                best = [described(found) if found else "–" for found in scores]
                printed = PRINTED_TEST.get(f"{start}-{radius}", "–")
                lines.append(f"| {name}, r = {radius} | {begin:,.1f} | {' | '.join(best)} | {printed} |")
    if not results.runs:
        return "\n".join(lines) + "\n"
    run = results.runs[0]
    folds = max(r["curve"][-1]["fold"] for r in results.runs)
    facts = f"{run['tokens']:,} tokens, {folds} folds, {run['dev_targets']:,} held-out targets, "
    return "\n".join([*lines, "", f"{facts}vocabulary {run['vocabulary']:,}.", ""])


def log_table(results: Results) -> str:
    """Dev perplexity of the paper's best model as it is initialized and tuned (means), next to the printed log."""
    lines = head(["step", "dev perplexity", "as 2^nats", "printed"])
    runs = [row for row in results.tunings if row["radius"] == 8]
    if not runs:
        return "\n".join(lines) + "\n"
    stages = {stage: mean(row["dev_perplexities"][stage] for row in runs) for stage in runs[0]["dev_perplexities"]}
    stages[f"all {plural(len(stages), 'fold')}, without tuning"] = mean(row["without_tuning"] for row in runs)
    for stage, dev in stages.items():
        lines.append(f"| {stage} | {dev:.2f} | {2 ** math.log(dev):.2f} | {PRINTED_LOG.get(stage, '–')} |")
    facts = f"Means of {plural(len(runs), 'order')} of the documents; folds of {runs[0]['fold_tokens']:,} tokens; "
    return "\n".join([*lines, "", f"{facts}{runs[0]['dev_targets']:,} held-out targets.", ""])


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


def default_protocol_table(results: Results) -> str:
    """Runs of the same protocol under the default reading, as far as they got: dev perplexities after some folds."""
    stages = ("init", "tune 10", *(f"train {fold}" for fold in (1, 2, 4, 8, 10)))
    lines = head(["", "initialized", "tuned", *(f"{stage.removeprefix('train ')} folds" for stage in stages[2:])])
    for run in results.default_protocol:
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


def draw_figures(results: Results, folder: Path) -> None:
    heat_maps = figures.heat_maps(tables.tables(results.default_grid.items()))
    files.write_file(folder / "ablation-heat-maps.svg", heat_maps.encode())
    curves = []
    for radius in (8, 128):
        for start, name in NAMES.items():
            if runs := best_rate(results.runs, start, radius):
                rows = [row | {"dev_bits_per_byte": row["dev_perplexity"]} for row in runs[0]["curve"]]
                curves.append(Curve(f"{name}, r = {radius}", rows))
    protocol = [
        Curve(name.rpartition(",")[0], [row for row in runs[0]["log"] if "fold" in row])
        for name, runs in protocol_runs(results.protocol).items()
    ]
    for name, drawn in {"warm-cold": curves, "protocol": protocol}.items():
        if drawn:
            learning_curves.draw(drawn, folder / name, over=("tokens",))[0].unlink()  # the SVG alone is shown


def pages(results: Results) -> dict[str, dict[str, str]]:
    """The computed parts of each page."""
    held_out = ("babylm-small", "spoken", "mixed-tenth")
    published = ("babylm-small-published", "spoken-published", "mixed", "spoken-196")
    return {
        "ablation.md": {
            "readings": readings_table(results, held_out),
            "readings-published": readings_table(results, published),
            "grid": grid_tables(results),
            "search": search_results.search_table(results.search) if results.search else "\n",
            "properties": search_results.properties_table(results.search) if results.search else "\n",
            "validation": search_results.validation_table(results.search) if results.search else "\n",
        },
        "paper.md": {
            "magnitude": magnitude_table(results),
            "log": log_table(results),
            "protocol": protocol_table(results.protocol),
            "default-protocol": default_protocol_table(results),
            "stopped": protocol_table(results.stopped),
            "verdicts": verdict_table(results),
        },
        "warm-start.md": {"warm-starts": warm_table(results)},
        "README.md": {"claims": verdict_counts(results)},
    }


def stale_pages(docs: Path) -> dict[Path, str]:
    """The pages that are not what docs/results says, and what they should be."""
    results = docs / "results"
    computed = pages(Results(results)) | companion_results.parts(results)
    if (docs / "recipes.md").exists():
        computed["recipes.md"] = recipe_results.parts(results)
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
    draw_figures(Results(results), options.docs / "figures")
    companion_results.draw(results, options.docs / "figures")
