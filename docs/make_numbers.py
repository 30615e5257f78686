"""Fill in the numbers of README.md and docs/*.md from the files of docs/results: run by `make numbers`.

    python docs/make_numbers.py            rewrite the pages
    python docs/make_numbers.py --check    only name what is out of date
    python docs/make_numbers.py --demo     run the commands of README's demo again, too

A page holds `<!--bench-mixed.machine.date-->2026-11-16<!---->`: the file docs/results/bench-mixed.json, its keys (`_`
stands for what is not a letter or a digit), and the value. `<!--mixed.fit_s 3-->32.5<!---->` uses a name of SHORT and
shows 3 significant digits (the default is in DIGITS); `3/1e6` also divides, by a number or by another value. Of a list,
the measurements of repeated runs, the best is shown: the largest of those per second, the smallest of others.
`<!--file demo.txt-->` … `<!--/file-->` holds a whole file.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from saffu import files

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHORT = {
    "counted": "bench-babylm-small.cases.calibrated",
    "lines": "bench-babylm-small.cases.calibrated_split_line",
    "mixed": "bench-mixed.cases.calibrated",
    "paper": "bench-paper.cases.paper",
}
DIGITS = {"bits_per_byte": 4, "per_s": 3, "_s": 2, "_mb": 3}  # significant ones, by how a name ends
NUMBER = re.compile(r"<!--([\w-]+(?:\.[\w-]+)+)(?: (\d+)(?:/(\S+?))?)?-->(.*?)<!---->")
FILE = re.compile(r"(<!--file (\S+?)-->\n)(.*?)(<!--/file-->)", re.DOTALL)
DEMO = ["train --out demo-model --force", "eval demo-model", "generate demo-model --samples 3 --seed 1"]
WIDTH = 110  # of the demo's lines


def main() -> None:
    if "--demo" in sys.argv:
        write_demo()
    stale = [page for page in PAGES if filled(text := page.read_text("utf-8")) != text]
    if "--check" in sys.argv:
        sys.exit(f"out of date: {', '.join(page.name for page in stale)}; run `make numbers`" if stale else 0)
    for page in stale:
        files.write_file(page, filled(page.read_text("utf-8")).encode())


def filled(page: str, results: Path = RESULTS) -> str:
    """The page with the numbers and files that its markers name."""
    if re.search(r"^<!--[\w-]+\.", page, re.MULTILINE):
        raise ValueError("Markdown takes a line that begins with <!-- for HTML: move a word before the number")

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
    """A number with so many significant digits.

    >>> significant(151573.2, 3), significant(1.5403, 4), significant(0.0996, 1)
    ('152,000', '1.540', '0.1')
    """
    rounded = float(f"{value:.{digits - 1}e}")
    places = digits - 1 - (math.floor(math.log10(abs(rounded))) if rounded else 0)
    return f"{rounded:,.{max(0, places)}f}"


def write_demo() -> None:
    """Run the demo, and keep what it prints; long lines are cut."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for line in DEMO:
            command = [sys.executable, "-m", "saffu", *line.split()]
            done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
            lines += [f"$ saffu {line}", *done.stdout.splitlines()]
    lines = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]
    files.write_file(RESULTS / "demo.txt", ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
