"""The tables of docs/explicit-layers.md, from what benchmarks/layers.py measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.rows import head

OUTSIDERS = {"logistic regression": "logistic regression", "MultinomialNB": "MultinomialNB"}
LAYER = {
    "explicit": "explicit solution, as printed",
    "scaled": "explicit solution, scaled",
    "ridge": "ridge regression, scaled",
    **OUTSIDERS,
}
UNIT = {
    "other": "uniform attention, U zero",
    "uniform": "uniform attention, U solved and scaled",
    "explicit": "W and U solved, scale 1",
    "scaled": "W and U solved, scaled",
}
TABLES = {
    "digits": {"other": "zero", **LAYER},
    "lines": {"other": "zero", **LAYER},
    "hidden": {"other": "random weights", **LAYER},
    "sum": UNIT,
    "cat": UNIT | OUTSIDERS,
}


def parts(results: Path) -> dict[str, str]:
    """The computed parts of the page."""
    measured = json.loads((results / "layers.json").read_text("utf-8"))
    return {trial: trial_table(measured[trial]["methods"], names) for trial, names in TABLES.items()}


def trial_table(methods: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Held-out loss after steps of Adam, and what the start cost, of each start; then models that stay as they are."""
    steps = list(methods["other"]["steps"])
    lines = head(["starts from", *(f"{step} steps" for step in steps), "rate", "accuracy at 0 steps", "seconds", "MB"])
    for method, name in names.items():
        row = methods[method]
        if "steps" in row:
            cells = [*(described(row["steps"][step]) for step in steps), f"{row['rate']:g}"]
        else:
            cells = [described(row["loss"]), *["–"] * len(steps)]
        cells.append(f"{100 * row['accuracy']:.1f} %")
        cells += ["–", "–"] if method == "other" else [f"{row['seconds']:.3f}", f"{row['memory_mb']:.1f}"]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines) + "\n"


def described(loss: Mapping[str, Any]) -> str:
    """
    >>> described({"mean": 0.3543, "deviation": 0.0141})
    '0.354 ± 0.014'
    """
    return f"{loss['mean']:.3f} ± {loss['deviation']:.3f}"
