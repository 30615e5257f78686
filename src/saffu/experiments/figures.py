"""Figures of a grid as SVG text: heat maps over r and b, and parameters against perplexity."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from saffu.experiments.results import Cell
from saffu.experiments.tables import Table, pareto_front

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900"]  # colorblind-safe
COLUMNS = 2  # of heat maps
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "svg.fonttype": "none",
}


@contextmanager
def drawing(salt: str, **changes: Any) -> Iterator[None]:
    """matplotlib without a display, with our style; `salt` makes the ids in the SVG reproducible."""
    import matplotlib

    matplotlib.use("Agg")
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt} | changes):
        yield


def svg(figure: Figure) -> str:
    """The figure as an <svg> element, without an XML prolog, so that HTML can contain it."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    content = out.getvalue()
    return content[content.index("<svg") :]


def heat_maps(tables: Sequence[Table]) -> str:
    """Dev perplexity over b and r, one panel per table, all on one logarithmic color scale."""
    with drawing("heat maps"):
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure

        rows = -(-len(tables) // COLUMNS)
        figure = Figure(figsize=(4.6 * COLUMNS, 0.6 + 3.4 * rows), layout="constrained")
        scores = [pair[1] for table in tables for pair in table.cells.values() if pair]
        low, high = min(scores, default=1.0), max(scores, default=1.0)
        norm = LogNorm(low, high if high > low else 1.001 * low)
        panels = figure.subplots(rows, COLUMNS, squeeze=False).flat
        image = None
        for table, axis in zip(tables, panels, strict=False):
            values = [
                [pair[1] if (pair := table.cells.get((b, r))) else None for b in table.blocks] for r in table.radii
            ]
            shown = [[float("nan") if value is None else value for value in row] for row in values]
            image = axis.pcolormesh(shown, cmap="viridis", norm=norm, edgecolor="white", linewidth=1)
            axis.invert_yaxis()
            axis.set_title(table.title, loc="left", fontweight="bold")
            axis.set_xticks([i + 0.5 for i in range(len(table.blocks))], [f"b={b}" for b in table.blocks])
            axis.set_yticks([j + 0.5 for j in range(len(table.radii))], [f"r={r}" for r in table.radii])
            axis.tick_params(length=0)
            for j, i in ((j, i) for j, row in enumerate(values) for i, value in enumerate(row) if value is not None):
                best = table.is_best(table.blocks[i], table.radii[j])
                ink = "white" if norm(shown[j][i]) < 0.55 else "black"
                weight = "bold" if best else "normal"
                axis.text(i + 0.5, j + 0.5, short(shown[j][i]), ha="center", va="center", color=ink, fontweight=weight)
        for axis in panels:
            axis.set_visible(False)
        if image is not None:
            bar = figure.colorbar(image, ax=figure.axes, shrink=0.6, label="dev perplexity")
            ticks = [low * (high / low) ** (step / 4) for step in range(5)] if high > low else [low]
            bar.set_ticks(ticks, labels=[short(tick) for tick in ticks])
            bar.minorticks_off()
        return svg(figure)


def pareto(cells: Sequence[Cell]) -> str:
    """Parameters against dev perplexity, both logarithmic, with the Pareto front."""
    with drawing("pareto"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

        figure = Figure(figsize=(8.5, 4.6), layout="constrained")
        axis = figure.subplots()
        groups: dict[str, list[Cell]] = {}
        for cell in (cell for cell in cells if cell.dev):
            groups.setdefault(cell.title, []).append(cell)
        axis.set_xscale("log")
        axis.set_yscale("log")
        for (title, members), color in zip(groups.items(), COLORS * len(groups), strict=False):
            axis.plot(*coordinates(members), "o", markersize=4, alpha=0.75, color=color, label=title)
        front = coordinates(pareto_front(cells))
        axis.plot(*front, "k--o", drawstyle="steps-post", linewidth=1, markerfacecolor="none")
        axis.yaxis.set_major_locator(MaxNLocator(6))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}M"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("parameters")
        axis.set_ylabel("dev perplexity")
        if groups:
            axis.legend(frameon=False, ncols=len(groups), loc="lower left", bbox_to_anchor=(0, 1))
        return svg(figure)


def coordinates(cells: Sequence[Cell]) -> tuple[list[int], list[float]]:
    return [cell.parameters for cell in cells], [cell.perplexity for cell in cells]


def short(perplexity: float) -> str:
    """At most four characters for usual values.

    >>> short(98.31), short(128.4), short(12345.0)
    ('98.3', '128', '12k')
    """
    if perplexity < 99.95:
        return f"{perplexity:.1f}"
    return f"{perplexity:.0f}" if perplexity < 9999.5 else f"{perplexity / 1000:.0f}k"
