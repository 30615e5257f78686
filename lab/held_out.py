"""The table of docs/evaluation.md: results on text that no choice rests on, made once by an earlier version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.rows import head, read_rows

MODELS = {
    "babylm-small and mixed-10M, train (9.8M words)": "9.8M words, ten minutes",
    "babylm-small and mixed-10M, train (9.8M words), ten presentations": "9.8M words, ten presentations",
    "Penn Treebank, train": "Penn Treebank, five minutes",
}


def parts(results: Path) -> dict[str, str]:
    """Return the computed parts of the page."""
    return {"held-out": table(read_rows(results / "held-out.jsonl"))}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per model and text, with all its measures."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if "train" in row:
            value = row["value"]
            shown = f"{100 * value:.2f}%" if "accuracy" in row["measure"] else f"{value:.4g}"
            networks = f"{row['networks']} network{'s' if row['networks'] > 1 else ''}, {row['seconds']:.0f} s"
            key = f"{MODELS[row['train']]} ({networks})", row["text"]
            grouped.setdefault(key, []).append(f"{row['measure']} {shown}")
    lines = [f"| {model} | {text} | {'; '.join(values)} |" for (model, text), values in grouped.items()]
    return "".join(f"{line}\n" for line in [*head(["model", "text", "result"]), *lines])
