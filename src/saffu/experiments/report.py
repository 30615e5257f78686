"""What an ablation's folder tells: tables, figures, verdicts and a page, written into its folder `report`."""

from pathlib import Path
from typing import Any

from saffu import figures, store
from saffu import tables as layout
from saffu.cells import Results
from saffu.errors import SaffuError
from saffu.grid import DEFAULTS, SWEPT
from saffu.page import page
from saffu.verdicts import Grid, Verdict, change, verdicts


class Report:
    """All that is shown of the cells in a folder."""

    def __init__(self, results: Results):
        if not results.cells:
            raise SaffuError(f"{results.folder} holds no cells; `saffu ablate … --out {results.folder}` makes them")
        if not results.run:
            raise SaffuError(f"{results.folder / 'run.json'} is missing; `saffu ablate` with the same text restores it")
        self.run, self.cells = results.run, list(results.cells.values())
        self.base = layout.base_settings(self.cells)
        chosen = [cell for cell in self.cells if layout.settings(cell) == self.base]
        self.tables = layout.tables(chosen)
        self.sweeps = layout.sweeps(self.cells, self.base)
        self.verdicts: list[Verdict] = verdicts(Grid(self.cells, chosen))

    @property
    def settings(self) -> str:
        """The settings of the tables, in words."""
        changed = [f"{n.replace('_', ' ')} {v}" for n, v in zip(SWEPT, self.base, strict=True) if v != DEFAULTS[n]]
        return f"Settings: {', '.join(changed)}." if changed else "Settings are the paper’s."

    def markdown(self) -> str:
        """The tables, then the verdicts."""
        parts = [layout.markdown(table) for table in self.tables]
        rows = [f"| {v.number} | {v.claim} | **{v.verdict}** | {v.evidence} |" for v in self.verdicts]
        parts.append("\n".join(["| | the paper's claim | here | |", "| --- | --- | --- | --- |", *rows]) + "\n")
        if self.sweeps:
            parts.append(self._sweeps())
        return "\n".join(parts)

    def _sweeps(self) -> str:
        lines = ["| changed | cells | least | median | greatest | best dev |", "| --- | --- | --- | --- | --- | --- |"]
        for sweep in self.sweeps:
            spread = [change(ratio) for ratio in sweep.ratios or ()] or ["–"] * 3
            best = f"{sweep.best.dev.perplexity:.1f}" if sweep.best and sweep.best.dev else "–"
            lines.append(f"| {sweep.label} | {sweep.cells} | {' | '.join(spread)} | {best} |")
        return "\n".join(lines) + "\n"

    def files(self) -> dict[str, str]:
        """Names and contents of all that is written."""
        files = {
            "index.html": page(self.run, self.tables, self.verdicts, self.sweeps, self.settings),
            "tables.md": self.markdown(),
            "tables.tex": "\n".join(layout.latex(table) for table in self.tables),
            "heat-maps.svg": figures.standalone(figures.heat_maps(self.tables)),
            "pareto.svg": figures.standalone(figures.pareto(self.tables)),
            "cells.csv": layout.all_cells(self.cells),
        }
        return files | {f"{table.name}.csv": layout.comma_separated(table) for table in self.tables}

    def write(self, folder: Path) -> list[Path]:
        paths = []
        for name, content in self.files().items():
            paths.append(folder / name)
            store.write_file(paths[-1], content.encode())
        return paths

    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        fronts = figures.pareto_front([cell for table in self.tables for cell in table.cells.values()])
        return {
            "cells": len(self.cells),
            "best": {table.title: best_of(table) for table in self.tables},
            "verdicts": [vars(verdict) for verdict in self.verdicts],
            "front": [
                {"modes": c.modes, "block": c.config.block, "radius": c.config.radius, "documents": c.config.documents}
                | {"parameters": c.parameters, "dev_perplexity": c.dev.perplexity}
                for c in fronts
                if c.dev
            ],
        }


def best_of(table: layout.Table) -> dict[str, Any] | None:
    scored = [(scores, shape) for shape in table.cells if (scores := table.perplexities(*shape))]
    if not scored:
        return None
    (train, dev), (block, radius) = min(scored, key=lambda entry: entry[0][1])
    return {"block": block, "radius": radius, "train_perplexity": train, "dev_perplexity": dev}
