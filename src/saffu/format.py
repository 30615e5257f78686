"""What people and programs read: numbers, tokens, tables, facts, warnings, and progress bars."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar

BAR_AFTER = 0.3  # seconds after which work shows a bar on a terminal …
REDRAWN_AFTER = 0.2
LINE_AFTER, LINES_APART = 1.0, 10.0  # … and lines elsewhere; farther apart in long runs
T = TypeVar("T")

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


class ProgressBar:
    """How far a piece of work is: a bar on a terminal, lines elsewhere, and nothing if it takes no time.

    A thread draws it, so that work that cannot say how far it is shows at least that it is being done.

    >>> with ProgressBar(None, 3, " words", 0) as bar:
    ...     list(bar.through(["a", "b"])), bar.n
    (['a', 'b'], 2)
    """

    def __init__(self, title: str | None, total: int | None, unit: str | None, initial: int) -> None:
        self.title = title
        self.total = total
        self.unit = unit
        self.initial = initial
        self.n = initial
        self.note = ""  # shown at its end
        self._began = 0.0
        self._changing = threading.Lock()
        self._ended = threading.Event()
        self._drawing: threading.Thread | None = None

    def __enter__(self) -> ProgressBar:
        if self.title is not None and not (_hidden or sys.stderr is None or os.environ.get("TQDM_DISABLE")):
            self._began = time.time()
            draw = self._draw if sys.stderr.isatty() else self._print_lines
            self._drawing = threading.Thread(target=draw, daemon=True)
            self._drawing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._drawing is not None:
            self._drawing.join()

    def update(self, n: int = 1) -> None:
        """Say that more is done; from any thread."""
        with self._changing:
            self.n += n

    def through(self, items: Iterable[T]) -> Iterator[T]:
        """Yield items, each of which counts as one when the next is asked for."""
        for item in items:
            yield item
            self.update()

    def _draw(self) -> None:
        if self._ended.wait(BAR_AFTER):
            return
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # no thread of its own, which would outlive the bars
        form = None if self.unit else "{desc}: {elapsed}"
        with tqdm(
            desc=self.title, total=self.total, unit=self.unit or "", unit_scale=True, initial=self.initial,
            leave=False, bar_format=form,
        ) as bar:  # fmt: skip
            bar.start_t = self._began
            while True:
                bar.n = self.n
                bar.set_postfix_str(self.note)
                if self._ended.wait(REDRAWN_AFTER):
                    return

    def _print_lines(self) -> None:
        wait = LINE_AFTER
        while not self._ended.wait(wait):
            seconds = time.time() - self._began
            done = f"{self.n / self.total:.0%}, " if self.total else f"{self.n:,}{self.unit}, " if self.unit else ""
            with suppress(OSError, ValueError):  # closed
                sys.stderr.write(f"{self.title}: {done}{seconds:.0f} s  {self.note}".rstrip() + "\n")
                sys.stderr.flush()
            wait = max(LINES_APART, seconds / 10)


@contextmanager
def bars_cleared() -> Iterator[None]:
    """Make room on the terminal for lines of text above the bars that are shown."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    with tqdm.external_write_mode() if tqdm else nullcontext():
        yield


def progress_bar(
    title: str | None, total: int | None = None, unit: str | None = " tokens", initial: int = 0
) -> ProgressBar:
    """Show how far some work is; nothing without a title. Without a `unit`, only for how long it has been done."""
    return ProgressBar(title, total, unit, initial)
