"""Tables of cells in the paper's layout, one per pair of modes, and how well they agree with those that it prints.

A table has one row per r and one column per b. Perplexities of another text and another tokenizer differ in size, so
orders and spreads are compared with the paper's, not levels.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from saffu.experiments.grid import DEFAULTS, MODES, SWEPT, CellKey, key_of, title_of
from saffu.experiments.results import Cell

PERPLEXITY = attrgetter("perplexity")
WORDS = {"sum": "summation", "cat": "concatenation"}


Floats = npt.NDArray[np.float64]
Perplexities = Mapping[CellKey, tuple[float, float]]
"""Train and dev perplexity by cell."""

Scores = tuple[float, float] | None
"""Train and dev perplexity; None for a cell that could not be fitted."""


@dataclass(frozen=True)
class Table:
    """Train and dev perplexities of one pair of modes, with or without a document model."""

    modes: str
    documents: bool
    cells: dict[tuple[int, int], Scores]  # by b and r

    @property
    def blocks(self) -> list[int]:
        return sorted({block for block, _ in self.cells})

    @property
    def radii(self) -> list[int]:
        return sorted({radius for _, radius in self.cells})

    @property
    def title(self) -> str:
        return title_of(self.modes, self.documents)

    @property
    def name(self) -> str:
        return self.title.replace("/", "-").replace(" + ", "-")

    @property
    def caption(self) -> str:
        block, radius = self.modes.split("/")
        model = "with a document model" if self.documents else "without a document model"
        return f"Train, dev perplexity {model}: block {WORDS[block]}, radial {WORDS[radius]}. Best dev in bold."

    def is_best(self, block: int, radius: int) -> bool:
        """Whether no other cell has a lower dev perplexity, as formatted."""
        own = self.cells.get((block, radius))
        least = min((scores[1] for scores in self.cells.values() if scores), default=0.0)
        return own is not None and f"{own[1]:.1f}" == f"{least:.1f}"

    def formatted(self, block: int, radius: int, best: str = "{}") -> str:
        """Both perplexities of a cell; `best` is the format of the best ones."""
        scores = self.cells.get((block, radius))
        text = f"{scores[0]:.1f}, {scores[1]:.1f}" if scores else "–"
        return best.format(text) if self.is_best(block, radius) else text


def base_settings(cells: Iterable[Cell]) -> tuple[Any, ...]:
    """The settings whose cells make the tables: the defaults if they are present, otherwise those of most cells."""
    each = [settings(cell) for cell in cells]
    usual = tuple(DEFAULTS[name] for name in SWEPT)
    return usual if usual in each else max(each, key=each.count)


def settings(cell: Cell) -> tuple[Any, ...]:
    return tuple(getattr(cell.config, name) for name in SWEPT)


def tables(scores: Iterable[tuple[CellKey, Scores]]) -> list[Table]:
    """One table per pair of modes in the paper's order, then those with a document model."""
    by_table: dict[tuple[bool, str], dict[tuple[int, int], Scores]] = {}
    for (modes, documents, block, radius), pair in scores:
        by_table.setdefault((documents, modes), {})[block, radius] = pair
    order = sorted(by_table, key=lambda key: (key[0], MODES.index(key[1])))
    return [Table(modes, documents, by_table[documents, modes]) for documents, modes in order]


def tables_of(cells: Iterable[Cell]) -> list[Table]:
    return tables((key_of(cell.config), cell.perplexities) for cell in cells)


def matching(table: Table, perplexities: Perplexities) -> Table:
    """The same rows and columns filled with other numbers: what the paper printed."""
    scores = {(b, r): perplexities.get((table.modes, table.documents, b, r)) for b, r in table.cells}
    return Table(table.modes, table.documents, scores)


def best_cells(cells: Iterable[Cell]) -> dict[str, Cell]:
    """The cell with the lowest dev perplexity by title of its table, in the paper's order."""
    scored = [cell for cell in cells if cell.dev]
    titles = [table.title for table in tables_of(scored)]
    return {title: min((cell for cell in scored if cell.title == title), key=PERPLEXITY) for title in titles}


@dataclass(frozen=True)
class Sweep:
    """How a change of settings affected the cells that exist with and without it."""

    changed: dict[str, Any]
    cells: int  # in common
    ratios: tuple[float, float, float] | None  # of dev perplexity to the unchanged cell's: least, median, greatest
    best: Cell | None

    @property
    def label(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.changed.items())

    def facts(self) -> list[str]:
        """The number of cells, the ratios, and the best dev perplexity."""
        best = f"{self.best.perplexity:.1f}" if self.best else "–"
        return [str(self.cells), *(map(change, self.ratios) if self.ratios else ["–"] * 3), best]


def sweeps(cells: Sequence[Cell], base: tuple[Any, ...]) -> list[Sweep]:
    """Every other combination of settings, compared cell by cell with the base."""
    unchanged = {key_of(cell.config): cell for cell in cells if settings(cell) == base}
    others: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if settings(cell) != base:
            others.setdefault(settings(cell), []).append(cell)
    compared = []
    for values, members in others.items():
        changed = {n: v for n, v, usual in zip(SWEPT, values, base, strict=True) if v != usual}
        scored = [cell for cell in members if cell.dev]
        ratios = sorted(
            cell.perplexity / other.perplexity
            for cell in scored
            if (other := unchanged.get(key_of(cell.config))) and other.dev
        )
        spread = (ratios[0], median(ratios), ratios[-1]) if ratios else None
        compared.append(Sweep(changed, len(ratios), spread, min(scored, key=PERPLEXITY, default=None)))
    return sorted(compared, key=lambda sweep: list(map(str, sweep.changed.items())))


def change(ratio: float) -> str:
    """A ratio as a percentage change, or as a factor if it is large.

    >>> change(1.0123), change(0.5), change(25.0)
    ('+1.23%', '-50.00%', '× 25')
    """
    return f"{100 * (ratio - 1):+.2f}%" if ratio < 10 else f"× {ratio:.3g}"


def pareto_front(cells: Iterable[Cell]) -> list[Cell]:
    """The cells that no other cell beats with as few parameters, smallest first."""
    front: list[Cell] = []
    for cell in sorted((cell for cell in cells if cell.dev), key=lambda cell: (cell.parameters, cell.perplexity)):
        if not front or cell.perplexity < front[-1].perplexity:
            front.append(cell)
    return front


@cache
def _printed_file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("saffu.experiments") / "paper_tables.json").read_text("utf-8"))
    return content


def printed_source() -> str:
    """Where the printed numbers were taken from."""
    return str(_printed_file()["source"])


@cache
def printed_perplexities() -> Perplexities:
    """The paper's five tables: 245 cells.

    >>> printed_perplexities()["sum/cat", False, 128, 8]  # b = 128, r = 8
    (43.4, 44.9)
    """
    content = _printed_file()
    perplexities: dict[CellKey, tuple[float, float]] = {}
    for table in content["tables"]:
        modes = f"{table['block_mode']}/{table['radius_mode']}"
        for radius, row in zip(content["sizes"], table["perplexities"], strict=True):
            for block, (train, dev) in zip(content["sizes"], row, strict=True):
                perplexities[modes, table["document_model"], block, radius] = train, dev
    return perplexities


def average_ranks(values: Iterable[float]) -> Floats:
    """Ranks from 1; equal values share the mean of their ranks.

    >>> average_ranks([10.0, 30.0, 10.0, 20.0])
    array([1.5, 4. , 1.5, 3. ])
    """
    _, inverse, counts = np.unique(list(values), return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks


def pearson(x: Iterable[float], y: Iterable[float]) -> float:
    """Correlation coefficient; NaN if either side is constant."""
    a, b = (np.asarray(list(values), dtype=np.float64) for values in (x, y))
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def spearman(x: Iterable[float], y: Iterable[float]) -> float:
    """Rank correlation, with average ranks for ties.

    >>> round(spearman([1, 2, 3, 4], [10, 30, 20, 40]), 3)
    0.8
    """
    return pearson(average_ranks(x), average_ranks(y))


@dataclass(frozen=True)
class Agreement:
    """A comparison of our dev perplexities with the printed ones, cell by cell."""

    cells: int
    spearman: float  # rank correlation
    pearson_log: float  # correlation of log-perplexities
    spread_ratio: float  # standard deviation of our log-perplexities over that of the printed ones
    ours_dev_train: float  # median ratio of dev to train perplexity
    printed_dev_train: float


def agreement(ours: Perplexities, title: str | None = None) -> Agreement | None:
    """Compare with the printed table of this title ("sum/cat + documents"), or with all without a document model.

    Cells that either side lacks are skipped; fewer than three cells in common cannot be compared: None.
    """
    printed = printed_perplexities()
    compared = [key for key in printed if (title_of(*key[:2]) == title if title else not key[1])]
    common = [key for key in compared if key in ours]
    if len(common) < 3:
        return None
    a, b = (np.array([side[key] for key in common], dtype=np.float64) for side in (ours, printed))  # (cells, 2)
    spreads = [np.log(side[:, 1]).std().item() for side in (a, b)]
    return Agreement(
        len(common),
        spearman(a[:, 1], b[:, 1]),
        pearson(np.log(a[:, 1]), np.log(b[:, 1])),
        spreads[0] / spreads[1],
        *(float(np.median(side[:, 1] / side[:, 0])) for side in (a, b)),
    )


def markdown(table: Table, caption: str = "") -> str:
    lines = [caption or table.caption, "", "| | " + " | ".join(f"b = {b}" for b in table.blocks) + " |"]
    lines.append("| --- |" + " --- |" * len(table.blocks))
    for radius in table.radii:
        row = [table.formatted(b, radius, "**{}**") for b in table.blocks]
        lines.append(f"| **r = {radius}** | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A tabular in the paper's format; powers of two are written as powers."""
    lines = [r"\begin{table}[htp]", rf"\caption{{{table.caption}}}", rf"\label{{tab:{table.name}}}", r"\begin{center}"]
    lines.append(rf"\begin{{tabular}}{{l{'l' * len(table.blocks)}}}")
    lines.append(" & " + " & ".join(f"$b = {power(b)}$" for b in table.blocks) + r" \\")
    for radius in table.radii:
        row = [table.formatted(b, radius, r"\textbf{{{}}}").replace("–", "--") for b in table.blocks]
        lines.append(f"$r = {power(radius)}$ & " + " & ".join(row) + r" \\")
    return "\n".join([*lines, r"\end{tabular}", r"\end{center}", r"\end{table}"]) + "\n"


def power(size: int) -> str:
    """
    >>> power(128), power(100)
    ('2^7', '100')
    """
    return f"2^{size.bit_length() - 1}" if size & (size - 1) == 0 else str(size)


def comma_separated(table: Table) -> str:
    """CSV at full precision, with separate columns for train and dev."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["r", *(f"b={b} {sample}" for b in table.blocks for sample in ("train", "dev"))])
    for radius in table.radii:
        scores = [table.cells.get((b, radius)) or ("", "") for b in table.blocks]
        writer.writerow([radius, *(score for pair in scores for score in pair)])
    return out.getvalue()


def all_cells(cells: Sequence[Cell]) -> str:
    """CSV with one row per cell: its settings and scores."""
    rows = [cell.facts() for cell in cells]
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
