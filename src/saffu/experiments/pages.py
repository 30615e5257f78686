"""Fills in the numbers of docs/: tables and verdicts between markers, and figures, all from docs/results.

    python -m saffu.experiments.pages [docs]

A page holds `<!-- name -->` and `<!-- /name -->` around each part that is computed.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import figures, learning_curves, tables
from saffu.experiments.agreement import agreement_by_table, printed_perplexities
from saffu.experiments.claims import FAILS, HOLDS, IN_PART, OPEN, Verdict, judge
from saffu.experiments.grid import DOCUMENT_SHARDS, radius_unit
from saffu.experiments.learning_curves import Curve
from saffu.experiments.readings import Row, compare, label, number, perplexities, read_rows
from saffu.experiments.reproduce import PRINTED_TEST
from saffu.experiments.results import Cell
from saffu.experiments.scoring import left_side
from saffu.experiments.units import parameter_count
from saffu.paper.config import PaperConfig
from saffu.tools.evaluate import Score

TEXTS = {
    "babylm-small": "babylm-small; held out: other documents of the same files",
    "spoken": "its spoken half; held out: other documents of the same files",
    "babylm-small-published": "babylm-small; held out: the published development text",
    "spoken-published": "its spoken half; held out: the published development text",
    "spoken-natural": "its spoken half; held out: the published development text; natural logarithms",
    "mixed": "babylm-small with novels and Wikipedia, 10M words; held out: their development text",
}
MAIN = ("babylm-small", "babylm-small-published", "spoken", "spoken-published")  # first with the default reading wins
NATURAL = ("babylm-small", "spoken-natural")  # where natural logarithms are judged, too
JUDGED = {"attention", "attention_priming", "tune_folds", "fold_tokens"}  # settings that claims are about
OTHER_CLAIMS = {
    11: "100M tokens, initialized on 10M only, end at 58.05.",
    13: "The vocabulary shrinks from 26,693 to 2,848 tokens.",
    15: "The explicit solution is cheaper than backpropagation.",
}


class Results:
    """What docs/results holds."""

    def __init__(self, folder: Path):
        self.readings = {name: read_rows(folder / f"readings-{name}.jsonl") for name in TEXTS}
        self.runs = read_rows(folder / "warm-starts.jsonl")

    def row(self, text: str, reading: str = "default") -> Row | None:
        return next((row for row in self.readings[text] if row["reading"] == reading), None)

    @property
    def main(self) -> Row:
        """The default reading of the first text that has one."""
        for text in MAIN:
            if row := self.row(text):
                return row
        raise SaffuError("no results of the default reading; run `python -m saffu.experiments.readings`")

    def best_run(self, init: str, radius: int) -> Row | None:
        """The best of the learning rates."""
        runs = [run for run in self.runs if (run["init"], run["radius"]) == (init, radius)]
        return min(runs, key=lambda run: float(run["best_dev_perplexity"]), default=None)


def cells_of(row: Row) -> list[Cell]:
    """The cells of a reading, as `claims` reads them."""
    found = []
    for (modes, document, block, radius), scores in perplexities(row).items():
        block_mode, radius_mode = modes.split("/")
        shape: dict[str, Any] = {"block_mode": block_mode, "radius_mode": radius_mode, "block": block, "radius": radius}
        config = PaperConfig(**row["changes"], **shape, document_shards=DOCUMENT_SHARDS if document else 0)
        parameters = parameter_count([*left_side(config), radius_unit(config)], row["vocabulary"])
        train, dev = (Score(math.log(perplexity), 1, 1) for perplexity in scores)
        found.append(Cell(config, parameters, train, dev, row["least_attention"]))
    return found


def verdicts_of(rows: Sequence[Row], reading: str = "default") -> dict[int, Verdict]:
    """The verdicts on one text: from the cells of a reading, and from readings that differ in a setting in question."""
    base = next((row for row in rows if row["reading"] == reading), None)
    if base is None:
        return {}
    cells = []
    for row in rows:
        changed = {name for name, _ in row["changes"].items() ^ base["changes"].items()}
        if changed <= JUDGED:
            cells += cells_of(row)
    return {verdict.number: verdict for verdict in judge(cells, cells_of(base), base["tokens"])}


def training_verdicts(results: Results) -> dict[int, Verdict]:
    """Claims 9 and 10, on warm and cold starts."""
    best = {(init, radius): results.best_run(init, radius) for init in ("explicit", "random") for radius in (8, 128)}
    scores = {key: float(run["best_dev_perplexity"]) for key, run in best.items() if run}
    claims = {
        9: "After a warm start, r = 8 (23.84) ends below r = 128 (30.35), and both below cold starts (63.98).",
        10: "Cold starts stop at the same perplexity for both radii.",
    }
    if len(scores) < 4:
        return {n: Verdict(n, claim, OPEN, "Needs warm and cold starts of both radii.") for n, claim in claims.items()}
    order = [scores["explicit", 8], scores["explicit", 128], min(scores["random", 8], scores["random", 128])]
    steps = [before < after for before, after in pairwise(order)]
    evidence = "Warm {:.1f} (r = 8) and {:.1f} (r = 128); cold {:.1f} and {:.1f}.".format(
        *(scores[init, radius] for init in ("explicit", "random") for radius in (8, 128))
    )
    ratio = scores["random", 128] / scores["random", 8]
    return {
        9: Verdict(9, claims[9], HOLDS if all(steps) else IN_PART if any(steps) else FAILS, evidence),
        10: Verdict(10, claims[10], HOLDS if abs(ratio - 1) < 0.02 else FAILS, f"Their ratio is {ratio:.2f}."),
    }


def verdict_table(results: Results) -> str:
    """Every claim with its verdict on each text, under the default reading, and under natural logarithms."""
    columns = {name: verdicts_of(rows) for name, rows in results.readings.items()}
    columns = {name: found for name, found in columns.items() if found}
    main = next(text for text in MAIN if results.row(text))
    for text in NATURAL:
        if found := verdicts_of(results.readings[text], "natural-logarithm"):
            columns[text if "natural" in text else f"{text}, natural logarithms"] = found
    training = training_verdicts(results)
    head = ["", "the paper's claim", *columns, f"evidence ({main})"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for n in range(1, 16):
        judged = columns[main].get(n) or training.get(n) or Verdict(n, OTHER_CLAIMS[n], OPEN, "Not tested here.")
        verdicts = [short(column[n].verdict) if n in column else "–" for column in columns.values()]
        if n in training:
            verdicts[0] = short(judged.verdict)
        lines.append(f"| {n} | {judged.claim} | {' | '.join(verdicts)} | {judged.evidence} |")
    row = results.main
    size = f"{row['tokens']:,} tokens counted, vocabulary {row['vocabulary']:,}, {len(row['perplexities'])} cells"
    return "\n".join([*lines, "", f"On {main}: {size}. “–”: not decided by these cells.", ""])


def short(verdict: str) -> str:
    return "–" if verdict == OPEN else verdict


def readings_table(results: Results, texts: Iterable[str]) -> str:
    """All readings of some texts side by side: both halves of the cells, the table sum/cat, and dev/train."""
    texts = [text for text in texts if results.readings[text]]
    rows = {text: {row["reading"]: row for row in results.readings[text]} for text in texts}
    names = list(dict.fromkeys(name for text in texts for name in rows[text]))
    parts = {text: {name: compare(perplexities(row)) for name, row in rows[text].items()} for text in texts}

    def rank(name: str) -> float:
        first = next(parts[text][name] for text in texts if name in parts[text])
        return -number(first["selection"], "spearman")

    lines = ["| changed settings | " + " | ".join(texts) + " |", "| --- " * (len(texts) + 1) + "|"]
    for name in sorted(names, key=rank):
        values = []
        for text in texts:
            if name not in rows[text]:
                values.append("")
                continue
            found = parts[text][name]
            halves = " / ".join(f"{number(found[part], 'spearman'):.2f}" for part in ("selection", "check"))
            table = agreement_by_table(perplexities(rows[text][name])).get("sum/cat")
            ratio = number(found["all"], "ours_dev_train")
            values.append(f"{halves}, {number(table, 'spearman'):.2f}, {ratio:.3f}")
        row = next(rows[text][name] for text in texts if name in rows[text])
        lines.append(f"| {label(row)} | " + " | ".join(values) + " |")
    facts = []
    for text in texts:
        row = results.readings[text][0]
        unigram = row["unigram"]
        cells = sum(not document for _, document, *_ in row["perplexities"])
        facts.append(
            f"- **{text}**: {TEXTS[text]}. {row['tokens']:,} tokens in {row['documents']:,} documents, vocabulary "
            f"{row['vocabulary']:,}, {cells} cells. The unigram's dev/train is {unigram['dev'] / unigram['train']:.3f}."
        )
    return "\n".join([*lines, "", *facts, ""])


def grid_tables(row: Row) -> str:
    """The default reading's tables, each followed by the paper's."""
    ours = tables.tables(perplexities(row).items())
    by_table = agreement_by_table(perplexities(row))
    parts = []
    for table in ours:
        printed = tables.matching(table, printed_perplexities())
        agreed = number(by_table.get(table.title), "spearman")
        caption = f"The paper's {printed.title}. Rank correlation with ours: {agreed:.2f}."
        parts += [tables.markdown(table), tables.markdown(printed, caption)]
    return "\n".join(parts)


def magnitude_table(results: Results) -> str:
    """The levels that the paper prints, and ours as e^nats and as 2^nats."""
    main = next(text for text in MAIN if results.row(text))
    ours = perplexities(results.main)
    devs = sorted(dev for (_, document, *_), (_, dev) in ours.items() if not document)
    rows: list[tuple[str, float | None, float | None]] = [
        ("unigram", None, results.main["unigram"]["dev"]),
        ("worst cell of the grid", 64.0, devs[-1]),
        ("sum/cat, b = 128, r = 8", 44.9, ours["sum/cat", False, 128, 8][1]),
        ("best cell of the grid", 44.7, devs[0]),
    ]
    for init, name in (("random", "cold start"), ("explicit", "warm start")):
        run = results.best_run(init, 8)
        best = run["best_dev_perplexity"] if run else None
        rows.append((f"{name}, trained, r = 8", PRINTED_TEST[f"{init}-8"], best))
    head = ["", "printed", f"ours ({main})", "ours as 2^nats", "printed, if it is 2^nats, as a perplexity"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for name, printed, own in rows:
        values = [printed, own, own and 2 ** math.log(own), printed and math.exp(math.log2(printed))]
        lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" if value else "–" for value in values) + " |")
    return "\n".join(lines) + "\n"


def warm_table(results: Results) -> str:
    """Best dev perplexity by start, radius, and learning rate."""
    rates = sorted({run["learning_rate"] for run in results.runs})
    head = ["", "start", *(f"rate {rate:g}" for rate in rates), "paper"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for radius in (8, 128):
        for init, name in (("explicit", "warm"), ("random", "cold")):
            runs = {r["learning_rate"]: r for r in results.runs if (r["init"], r["radius"]) == (init, radius)}
            if runs:
                begin = next(iter(runs.values()))["curve"][0]["dev_perplexity"]
                best = [f"{runs[rate]['best_dev_perplexity']:.1f}" if rate in runs else "–" for rate in rates]
                printed = PRINTED_TEST[f"{init}-{radius}"]
                lines.append(f"| {name}, r = {radius} | {begin:,.1f} | {' | '.join(best)} | {printed} |")
    run = results.runs[0]
    folds = max(r["curve"][-1]["fold"] for r in results.runs)
    facts = f"{run['tokens']:,} tokens, {folds} folds, {run['dev_targets']:,} held-out targets, "
    return "\n".join([*lines, "", f"{facts}vocabulary {run['vocabulary']:,}.", ""])


def draw_figures(results: Results, folder: Path) -> None:
    heat_maps = figures.heat_maps(tables.tables(perplexities(results.main).items()))
    files.write_file(folder / "ablation-heat-maps.svg", heat_maps.encode())
    curves = []
    for radius in (8, 128):
        for init, name in (("explicit", "warm"), ("random", "cold")):
            if run := results.best_run(init, radius):
                rows = [row | {"dev_bits_per_byte": row["dev_perplexity"]} for row in run["curve"]]
                curves.append(Curve(f"{name}, r = {radius}", rows))
    if curves:
        learning_curves.draw(curves, folder / "warm-cold", over=("tokens",))[0].unlink()  # the SVG alone is shown


def filled(page: str, parts: Mapping[str, str]) -> str:
    """The page with its computed parts replaced.

    >>> filled("a <!-- n -->old<!-- /n --> b", {"n": "new"})
    'a <!-- n -->\\nnew<!-- /n --> b'
    """
    for name, content in parts.items():
        pattern = re.compile(f"(<!-- {name} -->).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise SaffuError(f"the page has no part <!-- {name} -->")
        page = pattern.sub(lambda match, content=content: f"{match[1]}\n{content}{match[2]}", page)  # type: ignore[misc]
    return page


def pages(results: Results) -> dict[str, dict[str, str]]:
    """The computed parts of each page."""
    held_out, published = (
        ("babylm-small", "spoken"),
        ("babylm-small-published", "spoken-published", "mixed", "spoken-natural"),
    )
    return {
        "ablation.md": {
            "readings": readings_table(results, held_out),
            "readings-published": readings_table(results, published),
            "grid": grid_tables(results.main),
        },
        "paper.md": {"verdicts": verdict_table(results), "magnitude": magnitude_table(results)},
        "warm-start.md": {"warm-starts": warm_table(results)},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    folder = Path(*(sys.argv[1:] if arguments is None else arguments) or ["docs"])
    results = Results(folder / "results")
    for name, parts in pages(results).items():
        page = filled((folder / name).read_text("utf-8"), parts)
        files.write_file(folder / name, page.encode())
    draw_figures(results, folder / "figures")


if __name__ == "__main__":
    main()
