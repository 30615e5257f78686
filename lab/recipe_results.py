"""The tables of docs/recipes.md, from what benchmarks/filtering.py and benchmarks/mixing.py measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KINDS = {"code": "code", "salad": "shuffled words", "repetition": "repetitions", "spam": "keyword spam"}
CLASSIFIER = "classifier of character n-grams"


def parts(results: Path) -> dict[str, str]:
    """The computed parts of the page."""
    measured = json.loads((results / "filtering.json").read_text("utf-8"))
    mixed = json.loads((results / "mixing.json").read_text("utf-8"))
    return {
        "filtering": filtering_table(measured["filtering"]),
        "selection": selection_table(measured["selection"]),
        "mixing": mixing_table(mixed),
    }


def mixing_table(texts: Mapping[str, Any]) -> str:
    """Bits per byte of what can be made of two models, for each pair of texts."""
    names = list(next(iter(texts.values()))["bits_per_byte"])
    lines = [f"| own text and base | {' | '.join(names)} |", f"| --- |{' --- |' * len(names)}"]
    for text, facts in texts.items():
        bits = [f"{facts['bits_per_byte'][name]:.3f}" for name in names]
        lines.append(f"| {text} | {' | '.join(bits)} |")
    return "\n".join(lines) + "\n"


def filtering_table(rows: Mapping[str, Any]) -> str:
    lines = [f"| | AUC | {' | '.join(KINDS.values())} | CPU, s |", f"| --- |{' --- |' * (len(KINDS) + 2)}"]
    for method in ("saffu", "saffu --repetition", "saffu --memory", "KenLM", CLASSIFIER):
        row = rows[method]
        numbers = [row["auc"], *(row["by_kind"][kind] for kind in KINDS)]
        lines.append(f"| {method} | {' | '.join(f'{n:.3f}' for n in numbers)} | {row['seconds']:.1f} |")
    return "\n".join(lines) + "\n"


def selection_table(rows: Mapping[str, Any]) -> str:
    """AUC with one model, and against each of two others."""
    seconds = ("", "against a sample of the crawl", "against unrelated text")
    lines = [f"| AUC | {' | '.join(second or 'one model' for second in seconds)} |", "| --- | --- | --- | --- |"]
    for method in ("saffu", "saffu --memory", "KenLM"):
        numbers = [rows[f"{method} {second}".strip()]["auc"] for second in seconds]
        lines.append(f"| {method} | {' | '.join(f'{n:.3f}' for n in numbers)} |")
    lines.append(f"| {CLASSIFIER} | | {rows[CLASSIFIER]['auc']:.3f} | |")
    return "\n".join(lines) + "\n"
