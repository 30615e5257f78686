"""Computed parts of a page: numbers, tables, and whole files, each between comments that name its source.

`<!--bench-mixed.machine.date-->2026-11-16<!---->` shows a value of the file bench-mixed.json in docs/results: the names
are its keys (`_` stands for what is not a letter or a digit). `<!--mixed.fit_s 3-->32.5<!---->` uses a name of SHORT
and shows 3 significant digits (the default is in DIGITS); `3/1e6` also divides, by a number or by another value. Of a
list, the measurements of repeated runs, the best is shown: the largest of those per second, the smallest of others.
`<!--file demo.txt-->` … `<!--/file-->` holds a whole file, and `<!-- name -->` … `<!-- /name -->` a part that
`lab.pages` computes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saffu.errors import SaffuError

SHORT = {
    "counted": "bench-babylm-small.cases.calibrated",
    "lines": "bench-babylm-small.cases.calibrated_split_line",
    "mixed": "bench-mixed.cases.calibrated",
    "paper": "bench-paper.cases.paper",
}
DIGITS = {"bits_per_byte": 4, "per_s": 3, "_s": 2, "_mb": 3}  # significant ones, by how a name ends
NUMBER = re.compile(r"<!--([\w-]+(?:\.[\w-]+)+)(?: (\d+)(?:/(\S+?))?)?-->(.*?)<!---->")
FILE = re.compile(r"(<!--file (\S+?)-->\n)(.*?)(<!--/file-->)", re.DOTALL)


def filled(page: str, results: Path, parts: Mapping[str, str]) -> str:
    """The page with the numbers and files that its markers name, and with its computed parts.

    >>> filled("a <!-- n -->old<!-- /n --> b", Path(), {"n": "new"})
    'a <!-- n -->\\nnew<!-- /n --> b'
    """
    if re.search(r"^<!--[\w-]+\.", page, re.MULTILINE):
        raise ValueError("Markdown takes a line that begins with <!-- for HTML: move a word before the number")
    for name, content in parts.items():
        pattern = re.compile(f"(<!-- {name} -->).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise SaffuError(f"the page has no part <!-- {name} -->")
        page = pattern.sub(lambda match, content=content: f"{match[1]}\n{content}{match[2]}", page)  # type: ignore[misc]

    def number(match: re.Match[str]) -> str:
        path, digits, divisor, shown = match.groups()
        value = lookup(path, results)
        digits = digits or next((digits for end, digits in DIGITS.items() if path.endswith(end)), None)
        if divisor:
            value /= float(divisor) if divisor[0].isdigit() else lookup(divisor, results)
        text = significant(value, int(digits)) if digits else f"{value:,}" if isinstance(value, int) else str(value)
        return match[0].replace(f"-->{shown}<!---->", f"-->{text}<!---->")

    def file(match: re.Match[str]) -> str:
        return f"{match[1]}```\n{(results / match[2]).read_text('utf-8')}```\n{match[4]}"

    return FILE.sub(file, NUMBER.sub(number, page))


def lookup(path: str, results: Path) -> Any:
    """The value at a path such as file.key.key."""
    first, _, rest = path.partition(".")
    name, *keys = f"{SHORT.get(first, first)}.{rest}".split(".")
    value = json.loads((results / f"{name}.json").read_text("utf-8"))
    for key in keys:
        value = {re.sub(r"\W+", "_", name): entry for name, entry in value.items()}[key]
    if isinstance(value, list):
        return max(value) if path.endswith("per_s") else min(value)
    return value


def significant(value: float, digits: int) -> str:
    """A number rounded to that many significant digits.

    >>> significant(151573.2, 3), significant(1.5403, 4), significant(0.0996, 1)
    ('152,000', '1.540', '0.1')
    """
    rounded = float(f"{value:.{digits - 1}e}")
    places = digits - 1 - (math.floor(math.log10(abs(rounded))) if rounded else 0)
    return f"{rounded:,.{max(0, places)}f}"
