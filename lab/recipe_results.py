"""The tables of docs/recipes.md, from what benchmarks/ measured: filtering.py, logs.py, suggestions.py."""

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
    logs = json.loads((results / "logs.json").read_text("utf-8"))
    suggestions = json.loads((results / "suggestions.json").read_text("utf-8"))
    return {
        "filtering": filtering_table(measured["filtering"]),
        "filtering-second": filtering_table(measured["second"]),
        "selection": selection_table(measured["selection"]),
        "logs": logs_table(logs),
        "typing": typing_table(suggestions["typing"]),
        "drafts": drafts_table(suggestions["drafts"]),
    }


def logs_table(facts: Mapping[str, Any]) -> str:
    """How many planted lines each method found, of all and of each kind."""
    kinds = {"new": "new messages", "odd": "odd values", "misplaced": "wrong component"}
    heads = [f"{name} ({facts['by_kind'][kind]})" for kind, name in kinds.items()]
    lines = [f"| | all ({facts['planted']}) | {' | '.join(heads)} |", "| --- | --- | --- | --- | --- |"]
    for method, row in facts["methods"].items():
        numbers = [row["top_50"], *(row["by_kind"][kind] for kind in kinds)]
        lines.append(f"| {method} | {' | '.join(map(str, numbers))} |")
    return "\n".join(lines) + "\n"


def typing_table(facts: Mapping[str, Any]) -> str:
    lines = ["| | first suggestion | one of three | keystrokes saved |", "| --- | --- | --- | --- |"]
    for name in ("this model", "most frequent words"):
        shares = [facts[name][share] for share in ("top_1", "top_3", "keystrokes_saved")]
        lines.append(f"| {name} | {' | '.join(f'{share:.1%}' for share in shares)} |")
    return "\n".join(lines) + "\n"


def drafts_table(facts: Mapping[str, Any]) -> str:
    lines = ["| draft | sampled tokens accepted | same best token |", "| --- | --- | --- |"]
    for name, title in {"model": "default", "small": "`--order 3 --slots 2`"}.items():
        lines.append(f"| {title} | {facts[name]['accepted']:.1%} | {facts[name]['same_best']:.1%} |")
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
