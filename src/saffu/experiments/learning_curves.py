"""Learning curves of several runs: a table of the time each takes to reach the others' quality, and a plot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from saffu.errors import SaffuError
from saffu.experiments.figures import drawing
from saffu.files import stored_names
from saffu.format import table
from saffu.model.folder import log_facts
from saffu.writing import facts_of_model, replacing, require_new_file

AXES = {"tokens": "million tokens seen by backpropagation", "seconds": "seconds of work, including the start"}
SCORES = ("dev_perplexity", "dev_bits_per_byte", "train_perplexity")
STYLE: dict[str, Any] = {"font.size": 10, "axes.grid": True, "grid.color": "#e6e6e6", "grid.linewidth": 0.6}
COLORS = ["#b2182b", "#2166ac", "#1b7837", "#762a83", "#b35806", "#01665e", "#c51b7d", "#4d4d4d"]
DASHES = ["-", "--", "-.", ":"]
OURS = {
    ".png": r"\x89PNG[\s\S]{0,400}Software\x00saffu",
    ".svg": r"<\?xml[\s\S]{0,2000}<dc:title>saffu</dc:title>",
}  # how the figures begin that we write


@dataclass(frozen=True)
class Curve:
    """The folds of one run, starting with fold 0."""

    name: str
    rows: list[dict[str, Any]]

    @classmethod
    def read(cls, run: Path, name: str = "") -> Curve:
        """Read the folder of a trained model, or its log.jsonl."""
        stored = stored_names({"checksums": {}} | facts_of_model(run))
        log = run / stored.get("log.jsonl", "log.jsonl") if run.is_dir() else run
        if not log.is_file():
            raise SaffuError(
                f"no run at {run}; pass folders written by `saffu train` with --minutes, --epochs, or --backprop"
            )
        try:
            rows = [row for row in log_facts(log.read_text("utf-8")) if "fold" in row and "dev_perplexity" in row]
            {(row["tokens"], row["seconds"]) for row in rows}
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SaffuError(f"{log} is damaged; restore it or train again") from None
        if not all(0 < row.get(name, 1) < math.inf for row in rows for name in SCORES):  # the axis is logarithmic
            raise SaffuError(f"{log} has scores that are not positive and finite, so it cannot be plotted; omit it")
        if not rows:
            raise SaffuError(
                f"{run} was counted, not trained, so it has no learning curve; pass a run that was trained"
            )
        return cls(name or (run.name if run.is_dir() else run.parent.name or run.stem), rows)

    @property
    def best(self) -> dict[str, Any]:
        """The fold with the fewest bits per byte, which runs of different vocabularies can be compared by."""
        return min(self.rows, key=lambda row: row["dev_bits_per_byte"])

    @staticmethod
    def point(row: dict[str, Any], where: str, quantity: str) -> tuple[float, float]:
        """Coordinates of a fold's quantity over (million) "tokens" or "seconds"."""
        return row[where] / (1e6 if where == "tokens" else 1), row[quantity]

    def column(self, quantity: str, where: str) -> tuple[list[float], list[float]]:
        """A quantity for all folds that have it."""
        points = [self.point(row, where, quantity) for row in self.rows if quantity in row]
        return [x for x, _ in points], [y for _, y in points]

    def seconds_to(self, bits_per_byte: float) -> float | None:
        """Seconds until the held-out text first took this few bits per byte; None if it never did."""
        return next((row["seconds"] for row in self.rows if row["dev_bits_per_byte"] <= bits_per_byte), None)


def comparison(curves: list[Curve]) -> list[dict[str, Any]]:
    """For each run: its best, when it was reached, and the seconds to reach each run's best ("time to quality")."""
    return [
        {
            "run": curve.name,
            "start_dev_perplexity": curve.rows[0]["dev_perplexity"],
            "best_dev_perplexity": curve.best["dev_perplexity"],
            "best_dev_bits_per_byte": curve.best["dev_bits_per_byte"],
            "tokens": curve.best["tokens"],
            "seconds": curve.best["seconds"],
            "folds": curve.rows[-1]["fold"],
            "seconds_to_best_of": {other.name: curve.seconds_to(other.best["dev_bits_per_byte"]) for other in curves},
        }
        for curve in curves
    ]


def comparison_table(facts: list[dict[str, Any]]) -> str:
    """The comparison as text."""
    best = [
        [
            fact["run"],
            f"{fact['start_dev_perplexity']:.2f}",
            f"{fact['best_dev_perplexity']:.2f}",
            f"{fact['best_dev_bits_per_byte']:.3f}",
            f"{fact['tokens']:,}",
            f"{fact['seconds']:.1f}",
        ]
        for fact in facts
    ]
    times = [
        [fact["run"], *("–" if s is None else f"{s:.1f}" for s in fact["seconds_to_best_of"].values())]
        for fact in facts
    ]
    return "\n".join(
        [
            table(["run", "    start", "best dev ppl", "bits/byte", "      tokens", "  seconds"], best),
            "\nseconds to reach the best of (–: never)",
            table(["   ", *(f"{fact['run']:>9}" for fact in facts)], times),
        ]
    )


def draw(
    curves: list[Curve],
    out: Path,
    over: Sequence[str] = tuple(AXES),
    title: str = "",
    quantity: Literal["perplexity", "bits_per_byte"] = "perplexity",
) -> list[Path]:
    """Plot a quantity over tokens, over seconds, or both, to out.png and out.svg.

    Perplexities can only be compared within one vocabulary; bits per byte are known of held-out text only.
    """
    with drawing("saffu", **STYLE):
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        figure = Figure(figsize=(2.2 + 4.4 * len(over), 4.6), layout="constrained")
        grid = figure.subplots(1, len(over), sharey=True, squeeze=False)
        for axis, where in zip(grid[0], over, strict=True):
            for number, curve in enumerate(curves):
                for text, width, alpha in (("train", 0.9, 0.45), ("dev", 1.9, 1.0)):
                    x, y = curve.column(f"{text}_{quantity}", where)
                    axis.plot(x, y, linewidth=width, alpha=alpha, **look(number))
                best = curve.point(curve.best, where, f"dev_{quantity}")
                axis.plot(*best, "o", color=look(number)["color"], markersize=4.5)
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
            axis.set_xlim(left=0)
            axis.set_xlabel(AXES[where])
        grid[0][0].set_ylabel(quantity.replace("_", " "))
        key = "thick: held-out text · thin: training text · dot: best"
        grid[0][0].text(
            0.99, 0.98, key, transform=grid[0][0].transAxes, ha="right", va="top", fontsize=8.5, color="#555555"
        )
        label(grid[0][-1], curves, over[-1], f"dev_{quantity}")
        if title:
            figure.suptitle(without_math(title), fontsize=11.5)
        png, svg = figure_paths(out)
        with replacing(png) as file:
            figure.savefig(file, format="png", dpi=160, metadata={"Software": "saffu"})
        with replacing(svg) as file:
            figure.savefig(file, format="svg", metadata={"Creator": "saffu", "Date": None})
    return [png, svg]


def figure_paths(out: Path) -> list[Path]:
    return [out.with_name(out.name + suffix) for suffix in OURS]


def require_figures(out: Path, force: bool) -> None:
    """Fail before the work if the figures cannot be written here."""
    for path in figure_paths(out):
        require_new_file(path, force, OURS[path.suffix])


def without_math(text: str) -> str:
    """Text as matplotlib shows it letter by letter; between dollar signs it would expect a formula."""
    return text.replace("$", r"\$")


def look(number: int) -> dict[str, str]:
    return {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[number // len(COLORS) % len(DASHES)]}


def label(axis: Any, curves: list[Curve], where: str, quantity: str) -> None:
    """Write each run's name and best value to the right of its curve, moving labels apart where they overlap."""
    low, high = (math.log(limit) for limit in axis.get_ylim())
    order = sorted(range(len(curves)), key=lambda number: curves[number].rows[-1][quantity])
    ends = [Curve.point(curves[number].rows[-1], where, quantity) for number in order]
    heights = spread([math.log(y) for _, y in ends], gap=(high - low) / 21)
    right = axis.get_xlim()[1]
    for number, end, height in zip(order, ends, heights, strict=True):
        color = look(number)["color"]
        best = f"{curves[number].best[quantity]:.{1 if quantity == 'dev_perplexity' else 3}f}"
        axis.annotate(
            f"{without_math(curves[number].name)}  {best}",
            xy=end,
            xytext=(right * 1.03, math.exp(height)),
            color=color,
            fontsize=9,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "alpha": 0.5, "shrinkA": 2, "shrinkB": 3},
        )


def spread(places: list[float], gap: float) -> list[float]:
    """Rising places, moved as little as possible so that neighbors are at least `gap` apart.

    >>> spread([0.0, 0.1, 5.0], 1.0)
    [-0.45, 0.55, 5.0]
    """
    groups: list[list[float]] = []  # [sum of the members' ideal first place, members]
    for place in places:
        groups.append([place, 1])
        while len(groups) > 1 and start(groups[-2]) + groups[-2][1] * gap > start(groups[-1]):
            total, members = groups.pop()
            groups[-1][0] += total - members * groups[-1][1] * gap
            groups[-1][1] += members
    return [start(group) + n * gap for group in groups for n in range(int(group[1]))]


def start(group: list[float]) -> float:
    return group[0] / group[1]
