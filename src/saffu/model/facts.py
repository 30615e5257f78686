"""What a model folder says about its model, validated before anything uses or prints it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from saffu.text.corpus import SPLITS

MOST = 2**63 - 1  # of anything that is counted
LONGEST = 10_000  # characters of a text or entries of a list in the log
NUMBERS = ("seconds", "dev_perplexity", "dev_bits_per_byte", "tokens_per_second", "learning_rate", "train_perplexity")
COUNTS = ("documents", "tokens", "fold", "step", "steps", "shared", "models", "lines", "bytes")
SIZES = ("documents", "lines", "tokens", "bytes")


def trained_on_facts(stored: Mapping[str, Any]) -> dict[str, int]:
    """The size of the text. Raises ValueError, KeyError, or TypeError if it is not one."""
    return {name: _count(stored[name], name) for name in SIZES}


def source_facts(stored: Mapping[str, Any]) -> dict[str, Any]:
    """How the text was read. Raises ValueError or TypeError if that is not known; other entries are the user's own."""
    source = dict(stored.items())
    if source.get("split") not in (None, *SPLITS):
        raise ValueError("its text was split in an unknown way")
    if source.get("hold_out") is not None and _count(source["hold_out"], "hold_out") == 1:
        raise ValueError("all of its text was held out")
    for name in ("field", "dev"):
        if not isinstance(source.get(name), str | None):
            raise TypeError(f"{name} is not a text")
    return source


def log_facts(text: str) -> list[dict[str, Any]]:
    """The rows of log.jsonl. Raises ValueError or TypeError if it is not one."""
    rows = [dict(json.loads(line)) for line in text.split("\n") if line]
    for row in rows:
        if not isinstance(row.get("stage"), str):
            raise TypeError("a row without a stage")
        if ("dev_perplexity" in row) != ("dev_bits_per_byte" in row):
            raise ValueError("a row with half of its scores")
        for name, value in row.items():
            if name in COUNTS:
                _count(value, name)
            elif name in NUMBERS and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise TypeError(f"{name} is not a number")
            elif name == "warnings" and not (isinstance(value, list) and all(isinstance(w, str) for w in value)):
                raise TypeError("warnings are not texts")
            _require_plain(name, value, depth=3)
    return rows


def _count(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"{name} is not a count")
    return value


def _require_plain(name: str, value: Any, depth: int) -> None:
    """Fail unless a value is a number or a text, or a list or mapping of them; none of them huge."""
    if isinstance(value, dict | list):
        if depth == 0 or len(value) > LONGEST:
            raise ValueError(f"{name[:40]} is too large")
        for entry in value.values() if isinstance(value, dict) else value:
            _require_plain(name, entry, depth - 1)
    elif isinstance(value, int) and abs(value) > MOST:
        raise ValueError(f"{name[:40]} is too large")
    elif isinstance(value, str) and len(value) > LONGEST:
        raise ValueError(f"{name[:40]} is too long")
    elif isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name[:40]} is not a number")
