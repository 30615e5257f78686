"""Tables of cells in the paper's layout: one for each mode pair, with a row for each r and a column for each b."""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from saffu.cells import Cell
from saffu.grid import DEFAULTS, MODES, SWEPT

WORDS = {"sum": "summation", "cat": "concatenation"}


@dataclass(frozen=True)
class Table:
    """All cells of one mode pair, with or without a document model."""

    modes: str
    documents: int
    cells: dict[tuple[int, int], Cell]  # by b and r

    @property
    def blocks(self) -> list[int]:
        return sorted({block for block, _ in self.cells})

    @property
    def radii(self) -> list[int]:
        return sorted({radius for _, radius in self.cells})

    @property
    def name(self) -> str:
        return self.modes.replace("/", "-") + ("-documents" if self.documents else "")

    @property
    def title(self) -> str:
        return self.modes + (" + documents" if self.documents else "")

    @property
    def caption(self) -> str:
        block, radius = self.modes.split("/")
        beside = f"with a document model of {self.documents} shards" if self.documents else "without a document model"
        return f"Train, dev perplexity {beside}: block {WORDS[block]}, radial {WORDS[radius]}. Best dev in bold."

    def perplexities(self, block: int, radius: int) -> tuple[float, float] | None:
        """Of train and dev; None for a cell that is not there or could not be fitted."""
        cell = self.cells.get((block, radius))
        return (cell.train.perplexity, cell.dev.perplexity) if cell and cell.train and cell.dev else None

    def printed(self, block: int, radius: int) -> str:
        scores = self.perplexities(block, radius)
        return f"{scores[0]:.1f}, {scores[1]:.1f}" if scores else "–"

    def is_best(self, block: int, radius: int) -> bool:
        """Whether no other cell has a lower dev perplexity in print."""
        found = [scores[1] for b, r in self.cells if (scores := self.perplexities(b, r))]
        own = self.perplexities(block, radius)
        return own is not None and f"{own[1]:.1f}" == f"{min(found):.1f}"


def base_settings(cells: Iterable[Cell]) -> tuple[Any, ...]:
    """The settings whose cells make the tables: the paper's if they are there, else those of most cells."""
    found = [settings(cell) for cell in cells]
    usual = tuple(DEFAULTS[name] for name in SWEPT)
    return usual if usual in found else max(found, key=found.count)


def settings(cell: Cell) -> tuple[Any, ...]:
    return tuple(getattr(cell.config, name) for name in SWEPT)


def tables(cells: Sequence[Cell]) -> list[Table]:
    """One table for each mode pair in the paper's order, then those with a document model."""
    found: dict[tuple[int, str], dict[tuple[int, int], Cell]] = {}
    for cell in cells:
        shape = (cell.config.block, cell.config.radius)
        found.setdefault((cell.config.documents, cell.modes), {})[shape] = cell
    order = sorted(found, key=lambda key: (key[0], MODES.index(key[1])))
    return [Table(modes, documents, found[documents, modes]) for documents, modes in order]


@dataclass(frozen=True)
class Sweep:
    """What a change of settings did to the cells that are there with and without it."""

    changed: dict[str, Any]
    cells: int  # in common
    ratios: tuple[float, float, float] | None  # of dev perplexity to the unchanged cell's: least, median, greatest
    best: Cell | None

    @property
    def label(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.changed.items())


def sweeps(cells: Sequence[Cell], base: tuple[Any, ...]) -> list[Sweep]:
    """Every other combination of settings, compared cell by cell with the base."""
    unchanged = {shape(cell): cell for cell in cells if settings(cell) == base}
    others: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        if settings(cell) != base:
            others.setdefault(settings(cell), []).append(cell)
    found = []
    for values, members in others.items():
        changed = {n: v for n, v, usual in zip(SWEPT, values, base, strict=True) if v != usual}
        scored = [cell for cell in members if cell.dev]
        ratios = sorted(
            cell.dev.perplexity / beside.dev.perplexity
            for cell in scored
            if cell.dev and (beside := unchanged.get(shape(cell))) and beside.dev
        )
        best = min(scored, key=lambda cell: cell.dev.nll if cell.dev else 0.0, default=None)
        spread = (ratios[0], median(ratios), ratios[-1]) if ratios else None
        found.append(Sweep(changed, len(ratios), spread, best))
    return sorted(found, key=lambda sweep: list(map(str, sweep.changed.items())))


def shape(cell: Cell) -> tuple[Any, ...]:
    return cell.modes, cell.config.documents, cell.config.block, cell.config.radius


def markdown(table: Table) -> str:
    lines = [table.caption, "", "| | " + " | ".join(f"b = {b}" for b in table.blocks) + " |"]
    lines.append("| --- |" + " --- |" * len(table.blocks))
    for radius in table.radii:
        row = [emphasised(table, b, radius, "**{}**") for b in table.blocks]
        lines.append(f"| **r = {radius}** | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """A tabular as the paper has it; sizes that are powers of two are written so."""
    lines = [r"\begin{table}[htp]", rf"\caption{{{table.caption}}}", rf"\label{{tab:{table.name}}}", r"\begin{center}"]
    lines.append(rf"\begin{{tabular}}{{l{'l' * len(table.blocks)}}}")
    lines.append(" & " + " & ".join(f"$b = {power(b)}$" for b in table.blocks) + r" \\")
    for radius in table.radii:
        row = [emphasised(table, b, radius, r"\textbf{{{}}}").replace("–", "--") for b in table.blocks]
        lines.append(f"$r = {power(radius)}$ & " + " & ".join(row) + r" \\")
    return "\n".join([*lines, r"\end{tabular}", r"\end{center}", r"\end{table}"]) + "\n"


def emphasised(table: Table, block: int, radius: int, best: str) -> str:
    printed = table.printed(block, radius)
    return best.format(printed) if table.is_best(block, radius) else printed


def power(size: int) -> str:
    """128 as 2^7, 100 as itself."""
    return f"2^{size.bit_length() - 1}" if size & (size - 1) == 0 else str(size)


def comma_separated(table: Table) -> str:
    """The same as numbers in full, train and dev in columns of their own."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["r", *(f"b={b} {sample}" for b in table.blocks for sample in ("train", "dev"))])
    for radius in table.radii:
        scores = [table.perplexities(b, radius) or ("", "") for b in table.blocks]
        writer.writerow([radius, *(score for pair in scores for score in pair)])
    return out.getvalue()


def all_cells(cells: Sequence[Cell]) -> str:
    """Every cell with all it tells, a row each."""
    rows = [json.loads(cell.to_line("")) for cell in cells]
    for row in rows:
        del row["text"], row["checksum"]
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
