"""The verdict on each of the paper's claims, computed from the files in docs/results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab import run_claims, search_results
from lab.claims import FAILS, HOLDS, IN_PART, OPEN, TABLES, Verdict, effects, judge, merged
from lab.readings import perplexities
from lab.rows import Row, head, read_rows
from saffu.errors import SaffuError
from saffu.experiments.grid import DOCUMENT_SHARDS
from saffu.experiments.results import Cell
from saffu.experiments.tables import Perplexities, printed_perplexities
from saffu.interface import Score
from saffu.paper.config import PaperConfig
from saffu.paper.parts import parameter_count, units_of

TEXTS = {
    "babylm-small": "babylm-small; held out: other documents of the same files",
    "spoken": "its spoken half; held out: other documents of the same files",
    "mixed-tenth": "a tenth of babylm-small with novels and Wikipedia, shuffled; held out: their development text",
    "babylm-small-published": "babylm-small; held out: the published development text",
    "spoken-published": "its spoken half; held out: the published development text",
    "spoken-196": "its spoken half, 196 cells; held out: the published development text",
    "mixed": "babylm-small with novels and Wikipedia, 10M words; held out: their development text",
}
PROTOCOL = "mixed"  # the text of the paper's protocol
MAIN = ("babylm-small", "babylm-small-published", "spoken", "spoken-published")  # first with the default reading wins
STORED = ("default", "0.2.0")  # readings whose whole grids may be stored, the first one found is judged
OTHER_READINGS = {"earlier": "the earlier default", "earlier+natural-logarithm": "natural logarithms"}  # judged, too
BY_RUNS = (8, 11, 19, 20, 21)  # claims judged by runs under today's default
JUDGED = {"attention", "attention_priming", "decoder_priming", "tune_folds", "fold_tokens"}  # by one claim or another


class Results:
    """What docs/results holds."""

    def __init__(self, folder: Path):
        self.readings = {name: read_rows(folder / f"readings-{name}.jsonl") for name in TEXTS}
        self.runs = read_rows(folder / "warm-starts.jsonl")
        self.tunings = read_rows(folder / "tunings.jsonl")
        self.protocol = read_rows(folder / "protocol.jsonl")
        self.default_protocol = read_rows(folder / "protocol-default.jsonl")
        self.stopped = read_rows(folder / "stopped.jsonl")
        self.search = read_rows(folder / "search.jsonl")

    def row(self, text: str, reading: str) -> Row | None:
        """The grid of a reading, on the first choice of documents."""
        found = [row for row in self.readings[text] if row["reading"] == reading]
        return min(found, key=lambda row: int(row.get("draw", 0)), default=None)

    @property
    def main(self) -> Row:
        """The whole grid that most claims are judged by."""
        return self._main[2]

    @property
    def main_text(self) -> str:
        return self._main[0]

    @property
    def main_reading(self) -> str:
        return self._main[1]

    @property
    def _main(self) -> tuple[str, str, Row]:
        for reading in STORED:
            for text in MAIN:
                if row := self.row(text, reading):
                    return text, reading, row
        raise SaffuError("no results of the default reading; run `python -m lab readings`")

    @property
    def default_grid(self) -> Perplexities:
        """The default reading on the main text: a whole grid if there is one, otherwise from the search."""
        row = search_results.default_row(self.search, self.main_text)
        if self.main_reading == "default" or row is None:
            return perplexities(self.main)
        return search_results.perplexities(row)


def cells_of(row: Row) -> list[Cell]:
    """The cells of a reading, as `claims` reads them."""
    found = []
    for (modes, document, block, radius), scores in perplexities(row).items():
        block_mode, radius_mode = modes.split("/")
        shape: dict[str, Any] = {"block_mode": block_mode, "radius_mode": radius_mode, "block": block, "radius": radius}
        config = PaperConfig(**row["changes"], **shape, document_shards=DOCUMENT_SHARDS if document else 0)
        parameters = parameter_count(units_of([config]), row["vocabulary"])
        train, dev = (Score(math.log(perplexity), 1, 1) for perplexity in scores)
        found.append(Cell(config, parameters, train, dev, row["least_attention"]))
    return found


def grid_verdicts(rows: Sequence[Row], reading: str = "default") -> dict[int, Verdict]:
    """Verdicts from the cells of a reading, and from readings that differ in a setting in question, over all draws."""
    by_draw: dict[int, list[Row]] = {}
    for row in rows:
        by_draw.setdefault(int(row.get("draw", 0)), []).append(row)
    found: dict[int, list[Verdict]] = {}
    for draw in sorted(by_draw):
        base = next((row for row in by_draw[draw] if row["reading"] == reading), None)
        if base is None:
            continue
        cells = []
        for row in by_draw[draw]:
            changed = {name for name, _ in row["changes"].items() ^ base["changes"].items()}
            if changed <= JUDGED:
                cells += cells_of(row)
        for verdict in judge(cells, cells_of(base), base["tokens"]):
            if verdict.number == 12:
                verdict = replace(verdict, evidence=f"{verdict.evidence} {unigram_ratio(base)}")
            found.setdefault(verdict.number, []).append(verdict)
    return {number: merged(verdicts) for number, verdicts in found.items()}


def unigram_ratio(row: Row) -> str:
    """What a model without context shows of dev/train, because held-out documents may just be harder."""
    return f"A unigram model's is {row['unigram']['dev'] / row['unigram']['train']:.3f} on the same documents."


def search_verdicts(rows: Sequence[Row], text: str) -> dict[int, Verdict]:
    """Verdicts on the claims about the printed tables, from the default reading's grid in the search."""
    row = search_results.default_row(rows, text)
    if row is None:
        return {}
    found = {}
    for decide in TABLES:
        verdict = decide(search_results.perplexities(row))
        paper = decide(printed_perplexities())
        found[verdict.number] = replace(verdict, paper_effect=paper.effect, tokens=row["tokens"])
    return found


def run_verdicts(results: Results) -> dict[int, Verdict]:
    """Verdicts from runs: tuning, training, vocabulary, and cost."""
    verdicts = [
        run_claims.tuning(results.tunings),
        *run_claims.training(results.runs),
        run_claims.large_text(results.stopped),
        run_claims.vocabulary(results.protocol),
        run_claims.cost(results.runs),
        *run_claims.stopping(results.stopped),
    ]
    return {verdict.number: verdict for verdict in verdicts}


def all_verdicts(results: Results) -> dict[int, Verdict]:
    """All verdicts, with grids of the main text under the default reading."""
    runs = run_verdicts(results)
    if runs[8].verdict == OPEN:  # a grid that was tuned once can decide it as well
        runs.pop(8)
    found = grid_verdicts(results.readings[results.main_text], results.main_reading) | runs
    if results.main_reading != "default":
        found |= search_verdicts(results.search, results.main_text)
    return dict(sorted(found.items()))


def other_verdicts(results: Results) -> dict[str, dict[int, Verdict]]:
    """Verdicts on other texts and under other readings."""
    found = {f"{text}, search": search_verdicts(results.search, text) for text in search_results.TEXTS}
    found.pop(f"{results.main_text}, search", None)
    for text, rows in results.readings.items():
        for reading in STORED:
            if (text, reading) != (results.main_text, results.main_reading):
                name = text if reading == "default" else f"{text} as 0.2.0 read it"
                found[name] = grid_verdicts(rows, reading)
    for reading, words in OTHER_READINGS.items():
        for text, rows in results.readings.items():
            found[f"{text} with {words}"] = grid_verdicts(rows, reading)
    if protocol := results.protocol:
        tests = [run | {"best_dev_perplexity": run["test_perplexity"]} for run in protocol if run["size"] == "10M"]
        verdicts = [*run_claims.training(tests), run_claims.large_text(protocol)]
        found[f"{PROTOCOL} as 0.2.0 read it, test"] = {verdict.number: verdict for verdict in verdicts}
    return found


def verdict_table(results: Results) -> str:
    """Every claim with its verdict, effect, spread over seeds, size of the text, and what other texts say."""
    verdicts = all_verdicts(results)
    others = other_verdicts(results)
    decided_by_search = search_verdicts(results.search, results.main_text)
    lines = head(["", "the paper's claim", "verdict", "effect (paper's)", "spread", "text", "evidence", "elsewhere"])
    for number, verdict in verdicts.items():
        shown = decided(verdict, others)
        is_own = shown is verdict
        verdict = shown
        is_former = results.main_reading != "default" and is_own and number not in {*decided_by_search, *BY_RUNS}
        spread = "–" if verdict.spread is None else f"± {100 * verdict.spread:.2f} ({verdict.seeds})"
        text = PROTOCOL if number == 13 else results.main_text
        text = text if is_own else "another text"
        size = f"{text}, {verdict.size}" + ", as 0.2.0 read the paper" * is_former if verdict.tokens else "–"
        values = [verdict.claim, f"**{short(verdict.verdict)}**", effects(verdict), spread, size, verdict.evidence]
        lines.append(f"| {number} | " + " | ".join([*values, elsewhere(verdict, others)]) + " |")
    summary = f"{verdict_counts(results)}. Effects are relative changes, averaged. A spread is a standard "
    summary += (
        "deviation in percentage points, with the number of seeds or choices of documents; “–” where there was one."
    )
    return "\n".join([*lines, "", summary, ""])


def verdict_counts(results: Results) -> str:
    """How many claims were judged, and how many have each verdict."""
    others = other_verdicts(results)
    verdicts = [decided(verdict, others).verdict for verdict in all_verdicts(results).values()]
    words = {HOLDS: "hold", IN_PART: "hold in part", FAILS: "do not hold", OPEN: "are open"}
    *counts, last = (f"{verdicts.count(kind)} {word}" for kind, word in words.items() if kind in verdicts)
    return f"Of {len(verdicts)} claims, {', '.join(counts)}, and {last}"


def decided(verdict: Verdict, others: dict[str, dict[int, Verdict]]) -> Verdict:
    """The verdict, or the first one of other texts and readings if there is none."""
    if verdict.verdict != OPEN:
        return verdict
    found = {name: verdicts[verdict.number] for name, verdicts in others.items() if verdict.number in verdicts}
    for name, other in found.items():
        if other.verdict != OPEN:
            return replace(other, evidence=f"{other.evidence} (From {name}.)")
    return verdict


def elsewhere(verdict: Verdict, others: dict[str, dict[int, Verdict]]) -> str:
    """What other texts and readings say: how many the same, and which ones something else."""
    found: dict[str, list[str]] = {}
    for name, verdicts in others.items():
        other = verdicts.get(verdict.number)
        if other and other.verdict != OPEN:
            found.setdefault(other.verdict, []).append(name)
    same = found.pop(verdict.verdict, [])
    parts = [f"the same: {len(same)}"] if same else []
    return "; ".join(parts + [f"{other}: {', '.join(names)}" for other, names in found.items()]) or "–"


def short(verdict: str) -> str:
    return "–" if verdict == OPEN else verdict
