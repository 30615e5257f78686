"""Results of studies: JSON Lines, one row per run; and the head of a table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saffu import files
from saffu.errors import SaffuError

Row = dict[str, Any]
"""One run, as JSON values."""


def read_rows(path: Path) -> list[Row]:
    """The rows of a results file; none if there is no file yet."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except ValueError:
        raise SaffuError(f"{path} is damaged; delete it and run the study again") from None


def append_row(path: Path, row: Row) -> None:
    """Add a row to a results file, which is replaced whole."""
    rows = [*read_rows(path), row]
    files.write_file(path, "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode())


def head(titles: Sequence[str]) -> list[str]:
    """The first two lines of a table in Markdown.

    >>> head(["", "dev"])
    ['|  | dev |', '| --- | --- |']
    """
    return ["| " + " | ".join(titles) + " |", "| --- " * len(titles) + "|"]
