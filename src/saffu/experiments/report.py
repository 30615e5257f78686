"""The report of an ablation: tables, figures, and a page, written to its folder `report`.

The page works offline, in light and dark mode, on a phone, and in print; it loads nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import figures, tables
from saffu.experiments.grid import key_of, reading_of
from saffu.experiments.results import Cell, Results, perplexities_of
from saffu.experiments.tables import Agreement, agreement, printed_perplexities, printed_source
from saffu.format import plural

CHECKSUMS = "checksums.json"  # of the report's files, by which those that were edited are known


class Report:
    """Everything that is shown about the cells in a folder."""

    def __init__(self, results: Results):
        if not results.cells:
            raise SaffuError(
                f"{results.folder} holds no cells; create some with `saffu ablate … --out {results.folder}`"
            )
        if not results.run:
            raise SaffuError(f"{results.folder / 'text.json'} is missing; run `saffu ablate` again with the same text")
        self.run = results.run
        self.cells = list(results.cells.values())
        base = tables.base_settings(self.cells)
        self.base = [cell for cell in self.cells if tables.settings(cell) == base]
        self.reading = reading_of(self.base[0].config)
        self.tables = tables.tables_of(self.base)
        self.printed_tables = [tables.matching(table, printed_perplexities()) for table in self.tables]
        self.sweeps = tables.sweeps(self.cells, base)
        ours = perplexities_of(self.base)
        self.agreement = agreement(ours)
        self.agreement_by_table = {t.title: compared for t in self.tables if (compared := agreement(ours, t.title))}

    def agreed(self, table: tables.Table, ours: str) -> str:
        """How well the paper's table agrees with one of ours."""
        compared = self.agreement_by_table.get(table.title)
        return f" Rank correlation with {ours}: {compared.spearman:.3f}." if compared else ""

    def markdown(self) -> str:
        """Agreement, each table followed by the paper's, and the other settings."""
        parts = [f"Settings: {self.reading}. {self.run['tokens']:,} tokens counted.\n"]
        if self.agreement:
            parts.append(
                f"Rank correlation of dev perplexities with the paper's tables: {self.agreement.spearman:.3f} over "
                f"{self.agreement.cells} cells; dev/train {self.agreement.ours_dev_train:.3f} "
                f"(paper: {self.agreement.printed_dev_train:.3f}).\n"
            )
        for ours, printed in zip(self.tables, self.printed_tables, strict=True):
            caption = f"The paper's {printed.title}.{self.agreed(ours, 'ours')}"
            parts += [tables.markdown(ours), tables.markdown(printed, caption)]
        if self.sweeps:
            lines = ["| changed | cells | least | median | greatest | best dev |", "| --- " * 6 + "|"]
            lines += [f"| {' | '.join([sweep.label, *sweep.facts()])} |" for sweep in self.sweeps]
            parts.append("\n".join(lines) + "\n")
        parts.append(f"The paper's numbers: {printed_source()}.\n")
        return "\n".join(parts)

    def files(self) -> dict[str, str]:
        """Names and contents of the report's files."""
        drawings = {"heat-maps.svg": figures.heat_maps(self.tables), "pareto.svg": figures.pareto(self.base)}
        contents = {
            "index.html": page_of(self, *drawings.values()),
            "tables.md": self.markdown(),
            "tables.tex": "\n".join(tables.latex(table) for table in self.tables),
            **drawings,
            "cells.csv": tables.all_cells(self.cells),
        }
        return contents | {f"{table.name}.csv": tables.comma_separated(table) for table in self.tables}

    def write(self, folder: Path) -> None:
        """Write the files of the report. Those of an earlier report are replaced unless they were edited."""
        contents = {name: content.encode() for name, content in self.files().items()}
        before = require_own_report(folder, contents)
        checksums = {name: {checksum(content), before.get(name, "")} - {""} for name, content in contents.items()}
        facts = {"report": {name: sorted(known) for name, known in checksums.items()}}  # also if this is interrupted
        files.write_file(folder / CHECKSUMS, (json.dumps(facts, indent=2) + "\n").encode())
        for name, content in contents.items():
            files.write_file(folder / name, content)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "cells": len(self.cells),
            "reading": self.reading,
            "tokens": self.run["tokens"],
            "best": {
                title: {name: cell.facts()[name] for name in ("block", "radius", "train_perplexity", "dev_perplexity")}
                for title, cell in tables.best_cells(self.base).items()
            },
            "agreement": vars(self.agreement) if self.agreement else None,
            "agreement_by_table": {title: vars(compared) for title, compared in self.agreement_by_table.items()},
            "front": [
                dict(zip(("modes", "documents", "block", "radius"), key_of(cell.config), strict=True))
                | {"parameters": cell.parameters, "dev_perplexity": cell.perplexity}
                for cell in tables.pareto_front(self.base)
            ],
        }


def require_own_report(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The checksums of files of an earlier report. Fails if others would be replaced, or if it lies in a model."""
    recorded: dict[str, list[str]] = {}
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        stored = json.loads((folder / CHECKSUMS).read_text("utf-8"))["report"]
        recorded = {name: list(known) for name, known in stored.items()}
    paths = [folder / name for name in names]
    present = {path.name: checksum(path.read_bytes()) if path.is_file() else "" for path in paths if path.exists()}
    foreign = [name for name, known in present.items() if known not in recorded.get(name, [])]
    if (folder / CHECKSUMS).exists() and not recorded:
        foreign.append(CHECKSUMS)
    if foreign:
        path = folder / foreign[0]
        raise SaffuError(f"will not replace {path}: it is not as saffu report wrote it; move it, or pass another `out`")
    return present


def checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def page_of(report: Report, heat_maps: str, pareto: str) -> str:
    """The whole page, with its figures as SVG."""
    template = Template((resources.files("saffu.experiments") / "report.html").read_text("utf-8"))
    return template.substitute(
        title=escape(plural(len(report.base), "model") + " compared"),
        reading=escape(report.reading),
        facts=fact_list(report.run, report.base),
        agreement=agreement_table(report.agreement, report.agreement_by_table),
        heat_maps=heat_maps,
        pareto=pareto,
        front=front_table(report.base),
        source=escape(printed_source()),
        tables="\n".join(
            f"<h3>{escape(ours.title)}</h3>{perplexity_table(ours, f'Ours. {ours.caption}')}"
            + perplexity_table(printed, f"The paper’s.{report.agreed(ours, 'our table')}")
            for ours, printed in zip(report.tables, report.printed_tables, strict=True)
        ),
        sweeps="<h2>Other settings</h2>" + sweep_table(report.sweeps) if report.sweeps else "",
        footer=escape(footer(report.run)),
    )


def fact_list(facts: dict[str, Any], cells: Iterable[Cell]) -> str:
    shown = [("tokens counted", f"{facts['tokens']:,}"), ("vocabulary", f"{facts['vocabulary']:,}")]
    shown += [("held-out targets", f"{facts['dev_targets']:,}")]
    best = min(cells, key=tables.PERPLEXITY)
    if best.dev:
        shown.append(("best dev perplexity", f"{best.dev.perplexity:.1f}"))
        shown.append(("its bits per byte", f"{best.dev.bits_per_byte:.3f}"))
        shown.append(("its shape", best.shape))
    shown += [(f"{name} baseline", f"{value:.1f}") for name, value in facts.get("dev_references", {}).items()]
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="facts">{items}</dl>'


def agreement_table(overall: Agreement | None, by_table: dict[str, Agreement]) -> str:
    if overall is None:
        return "<p>Fewer than three cells of this grid are in the paper’s tables.</p>"
    formats = ("d", ".3f", ".3f", ".2f", ".3f", ".3f")
    rows = [
        row(title, (f"{value:{form}}" for value, form in zip(vars(compared).values(), formats, strict=True)))
        for title, compared in {"all without documents": overall, **by_table}.items()
    ]
    head = ("cells", "rank correlation", "correlation of logs", "ratio of spreads", "dev/train", "paper’s dev/train")
    caption = "Dev perplexities of this grid and of the paper’s tables; spread: standard deviation of log-perplexities."
    return html_table(caption, "table", head, rows)


def perplexity_table(table: tables.Table, caption: str) -> str:
    rows = [
        f'<tr><th scope="row">r = {radius}</th>{"".join(perplexity_cell(table, b, radius) for b in table.blocks)}</tr>'
        for radius in table.radii
    ]
    return html_table(escape(caption), "", [f"b = {block}" for block in table.blocks], rows)


def perplexity_cell(table: tables.Table, block: int, radius: int) -> str:
    scores = table.cells.get((block, radius))
    if scores is None:
        return "<td>–</td>"
    best = ' class="best"' if table.is_best(block, radius) else ""
    return f'<td{best}><span class="train">{scores[0]:.1f},</span> {scores[1]:.1f}</td>'


def front_table(cells: Iterable[Cell]) -> str:
    rows = [
        row(
            cell.title,
            [f"{cell.config.block}", f"{cell.config.radius}", f"{cell.parameters:,}", f"{cell.perplexity:.1f}"],
        )
        for cell in tables.pareto_front(cells)
    ]
    return html_table("The Pareto front, smallest first.", "modes", ("b", "r", "parameters", "dev perplexity"), rows)


def sweep_table(sweeps: Sequence[tables.Sweep]) -> str:
    rows = [row(sweep.label, [*sweep.facts(), sweep.best.shape if sweep.best else "–"]) for sweep in sweeps]
    caption = "Dev perplexity relative to the same cells of the tables above; negative is better."
    return html_table(caption, "changed", ("cells", "least", "median", "greatest", "best dev", "its shape"), rows)


def row(title: str, values: Iterable[str]) -> str:
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f'<tr><th scope="row">{escape(title)}</th>{cells}</tr>'


def html_table(caption: str, first: str, head: Iterable[str], rows: Sequence[str]) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = f'<thead><tr><th class="left">{first}</th>{columns}</tr></thead><tbody>{"".join(rows)}</tbody>'
    return f'<p class="caption">{caption}</p><div class="scroll"><table>{body}</table></div>'


def footer(facts: dict[str, Any]) -> str:
    runs = facts.get("runs", [])
    seconds = sum(run["fit_seconds"] + run["score_seconds"] for run in runs)
    devices = ", ".join(dict.fromkeys(run["device"] for run in runs))
    made = f"Fitted and scored in {seconds:,.0f} seconds on {devices}. " if runs else ""
    return f"{made}Text fingerprint {facts['text']}. Generated by saffu report."
