"""What people and programs read: numbers, tokens, tables, facts, warnings, and progress bars."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

_hidden = False  # whether progress bars are


def plural(count: int, name: str) -> str:
    """A count with its noun, singular or plural.

    >>> plural(1, "document"), plural(2000, "document")
    ('1 document', '2,000 documents')
    """
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def in_parts(documents: int, parts: int) -> str:
    """Documents, and their parts if lines between them were held out.

    >>> in_parts(400, 400), in_parts(3, 28)
    ('400 documents', '3 documents in 28 parts')
    """
    return plural(documents, "document") + (f" in {plural(parts, 'part')}" if parts > documents else "")


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


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of text in columns: the first aligned left, the others right.

    >>> print(table(["", "bits/byte"], [["this model", "1.78"]]))
                bits/byte
    this model       1.78
    """
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = []
    for first, *others in [head, *rows]:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def warn(text: str) -> None:
    """Report what the user should know but what stops nothing; the command line prints it on standard error."""
    logging.getLogger("saffu").warning(text)


def announce_keyboard() -> None:
    """Say, unless progress is hidden, that what is read is typed now, if standard input is a terminal."""
    if not _hidden and sys.stdin is not None and sys.stdin.isatty():
        warn(f"reading from the keyboard; end with {'Ctrl-Z' if sys.platform == 'win32' else 'Ctrl-D'}")


def hide_progress(hidden: bool = True) -> None:
    """Show no bars from now on, or show them again."""
    global _hidden
    _hidden = hidden


class NoBar:
    """A bar that is not shown, and costs nothing."""

    n = 0

    def __init__(self, iterable: Iterable[Any] = ()) -> None:
        self.iterable = iterable

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def update(self, n: int = 1) -> None: ...

    def set_postfix_str(self, text: str, refresh: bool = True) -> None: ...


def progress_bar(
    title: str | None, total: int | None = None, unit: str = " tokens", **options: Any
) -> tqdm[Any] | NoBar:
    """A bar that disappears when it is done; none at all without a title, or unless standard error is a terminal.

    >>> with progress_bar(None, total=2) as bar:
    ...     bar.update(2)
    """
    if title is None or _hidden:
        return NoBar(options.get("iterable", ()))
    from tqdm.auto import tqdm

    tqdm.monitor_interval = 0  # no monitoring thread, which would outlive the bars
    return tqdm(desc=title, total=total, unit=unit, unit_scale=True, leave=False, disable=None, **options)
