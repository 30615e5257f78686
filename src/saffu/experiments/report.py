"""The report of an ablation: tables, figures, and a page, written to its folder `report`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import figures, tables
from saffu.experiments.agreement import agreement, agreement_by_table, printed_perplexities, printed_source
from saffu.experiments.grid import key_of, reading_of
from saffu.experiments.html import page
from saffu.experiments.results import Results, perplexities_of

TITLE = "<title>saffu: ablation report</title>"


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
        self.agreement = agreement(perplexities_of(self.base))
        self.agreement_by_table = agreement_by_table(perplexities_of(self.base))

    @cached_property
    def heat_maps(self) -> str:
        """SVG."""
        return figures.heat_maps(self.tables)

    @cached_property
    def pareto(self) -> str:
        """SVG."""
        return figures.pareto(self.base)

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
            compared = self.agreement_by_table.get(ours.title)
            agreed = f" Rank correlation with ours: {compared.spearman:.3f}." if compared else ""
            parts += [tables.markdown(ours), tables.markdown(printed, f"The paper's {printed.title}.{agreed}")]
        if self.sweeps:
            parts.append(self._sweeps())
        parts.append(f"The paper's numbers: {printed_source()}.\n")
        return "\n".join(parts)

    def _sweeps(self) -> str:
        lines = tables.head(["changed", "cells", "least", "median", "greatest", "best dev"])
        for sweep in self.sweeps:
            spread = [tables.change(ratio) for ratio in sweep.ratios or ()] or ["–"] * 3
            best = f"{sweep.best.dev.perplexity:.1f}" if sweep.best and sweep.best.dev else "–"
            lines.append(f"| {sweep.label} | {sweep.cells} | {' | '.join(spread)} | {best} |")
        return "\n".join(lines) + "\n"

    def files(self) -> dict[str, str]:
        """Names and contents of the report's files."""
        contents = {
            "index.html": page(self),
            "tables.md": self.markdown(),
            "tables.tex": "\n".join(tables.latex(table) for table in self.tables),
            "heat-maps.svg": self.heat_maps,
            "pareto.svg": self.pareto,
            "cells.csv": tables.all_cells(self.cells),
        }
        return contents | {f"{table.name}.csv": tables.comma_separated(table) for table in self.tables}

    def write(self, folder: Path) -> list[Path]:
        """Write the files of the report. Those of an earlier report are replaced, but no others."""
        require_own_report(folder, self.files())
        paths = []
        for name, content in self.files().items():
            paths.append(folder / name)
            files.write_file(paths[-1], content.encode())
        return paths

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "cells": len(self.cells),
            "reading": self.reading,
            "tokens": self.run["tokens"],
            "best": {
                table.title: dict(zip(("block", "radius", "train_perplexity", "dev_perplexity"), best, strict=True))
                for table in self.tables
                if table.best and (best := (*table.best, *(table.cells[table.best] or ())))
            },
            "agreement": vars(self.agreement) if self.agreement else None,
            "agreement_by_table": {title: vars(compared) for title, compared in self.agreement_by_table.items()},
            "front": [
                dict(zip(("modes", "documents", "block", "radius"), key_of(cell.config), strict=True))
                | {"parameters": cell.parameters, "dev_perplexity": cell.dev.perplexity}
                for cell in tables.pareto_front(self.base)
                if cell.dev
            ],
        }


def require_own_report(folder: Path, names: Iterable[str]) -> None:
    """Fail if a report would replace files that are not part of a report."""
    page = folder / "index.html"
    own = page.is_file() and TITLE in page.read_text("utf-8", "replace")
    foreign = [name for name in names if (folder / name).exists()]
    if foreign and not own:
        raise SaffuError(f"will not replace {folder / foreign[0]}: it is not part of a report; choose another folder")
