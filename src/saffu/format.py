"""Numbers, tokens, and facts as people and programs read them."""

import json
import math
from collections.abc import Mapping
from typing import Any


def plural(count: int, name: str) -> str:
    """A count with its noun, singular or plural.

    >>> plural(1, "document"), plural(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def show_token(token: str) -> str:
    """A token with its spaces visible and control characters escaped, so that no text can control a terminal.

    >>> show_token(" the\\x1b")
    '▁the\\\\x1b'
    """
    return "".join("▁" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in token)


def escape_controls(text: str) -> str:
    """Escape control characters other than newline and tab, so that no text can control a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def to_json(facts: Any) -> str:
    """One line of JSON. Numbers that JSON does not have, infinity and NaN, are null.

    >>> to_json({"a": (1, float("inf")), "b": "\x9b"})
    '{"a": [1, null], "b": "\\\\u009b"}'
    """
    text = json.dumps(_plain(facts), ensure_ascii=False, allow_nan=False)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)  # they could control a terminal


def _plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays to Python's, and anything else to text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return _plain(value.tolist()) if hasattr(value, "tolist") else str(value)
