"""What docs/companion.md and README.md show of networks next to counts: tables and a figure, from docs/results."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from lab.rows import Row, head, read_rows
from saffu import files
from saffu.experiments import figures

TEXTS = {
    "running": "babylm-small, files as running text",
    "lines": "babylm-small, every line alone",
    "mixed": "babylm-small and mixed-10M, files as running text",
    "mixed lines": "babylm-small and mixed-10M, every line alone",
    "ptb": "Penn Treebank, words as tokens",
}
DEVICES = {"cuda": "H200", "cpu": "2 cores"}
SIDES = {"mixture": "dev_bits_per_byte", "network": "network_bits_per_byte"}
SIDE_STYLES = {"mixture": "-", "network": ":"}


def read_runs(results: Path) -> list[Row]:
    """Single runs, each as long as its device needs."""
    return list(json.loads((results / "companion.json").read_text("utf-8")).values())


def run_table(rows: Sequence[Row]) -> str:
    """Single runs: seconds of each step, and bits per byte of all held-out text."""
    lines = head(
        [
            "saffu",
            "device",
            "text",
            "tokens",
            "start",
            "networks",
            "counting",
            "cross-fitting",
            "training",
            "counted",
            "network",
            "mixture",
        ]
    )
    for row in rows:
        bits = row["bits_per_byte"]
        cells = [
            row["version"],
            DEVICES[row["device"]],
            TEXTS[row["text"]],
            f"{row['tokens'] / 1e6:.1f}M",
            row["start"],
            f"{row['networks']} of {row['depth']} layers",
            *(
                f"{row[name]:.0f} s" if name in row else "–"
                for name in ("counting_seconds", "cross_fit_seconds", "seconds")
            ),
            *(f"{bits[name]:.3f}" if name in bits else "–" for name in ("counted", "network", "mixture")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def paper_curves(runs: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """The paper's model, r = 8, best learning rate of each start: bits per byte over seconds."""
    found = {}
    for start, name in (("explicit", "paper's network, explicit start"), ("random", "paper's network, random start")):
        group = [run for run in runs if run["start"] == start and run["radius"] == 8]
        if group:
            run = min(group, key=lambda run: float(run["best_dev_perplexity"]))
            per_byte = run["dev_targets"] / run["dev_bytes"]
            found[name] = [(p["seconds"], math.log2(p["dev_perplexity"]) * per_byte) for p in run["curve"]]
    return found


def learning_curves(rows: Sequence[Row], paper: Sequence[Row]) -> str:
    """Bits per byte over seconds of training, lines alone: the paper's network on the left, ours on both sides."""
    with figures.drawing("companion"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, NullFormatter

        figure = Figure(figsize=(9.6, 3.9), layout="constrained")
        wide, near = figure.subplots(1, 2)
        chosen = [row for row in rows if row["text"] == "lines" and row["version"] == "0.2"]  # from both starts
        for row, color in zip(chosen, figures.COLORS, strict=False):
            for side, style in SIDE_STYLES.items():
                x, y = ([point[name] for point in row["curve"]] for name in ("seconds", SIDES[side]))
                name = "counts + network" if side == "mixture" else "network alone"
                for axis in (wide, near):
                    axis.plot(x, y, style, color=color, linewidth=1.8, label=f"{name}, {row['start']} start")
        for (name, points), color in zip(paper_curves(paper).items(), figures.COLORS[2:], strict=False):
            wide.plot(*zip(*points, strict=True), "--", color=color, linewidth=1.6, label=name)
        for axis in (wide, near):
            axis.axhline(chosen[0]["excerpt_counted"], color="black", linewidth=1, label="counts alone")
            axis.set_xlabel("seconds of training on one H200")
        wide.set_xscale("log")
        wide.set_yscale("log")
        wide.set_yticks([1.6, 2, 2.5, 3, 4])
        for ticks in (wide.xaxis, wide.yaxis):
            ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        wide.yaxis.set_minor_formatter(NullFormatter())
        wide.set_ylabel("bits per byte of held-out text")
        wide.set_title("the paper's network and ours", loc="left")
        near.set_title("ours", loc="left")
        handles, names = wide.get_legend_handles_labels()
        figure.legend(handles, names, frameon=False, fontsize=8.5, loc="outside lower center", ncols=4)
        return figures.svg(figure)


def parts(results: Path) -> dict[str, dict[str, str]]:
    """The computed part of docs/companion.md."""
    return {"companion.md": {"runs": run_table(read_runs(results))}}


def draw(results: Path, out: Path) -> None:
    """The figure of README.md."""
    figure = learning_curves(read_runs(results), read_rows(results / "warm-starts.jsonl"))
    files.write_file(out / "counted-then-trained.svg", figure.encode())
