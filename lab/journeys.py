"""How far one has to walk to follow a command: the files and functions of the package that it enters.

    python -m lab journeys

Counted by a profiler on a toy corpus, after everything was imported: module bodies and what they call do not count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shlex
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import saffu
from lab.recorded_runs import write_texts
from saffu.cli.main import run

PACKAGE = Path(saffu.__file__).parent
JOURNEYS = {
    "train": "train text.txt --out model",
    "eval": "eval model part.txt",
    "generate": "generate model --seed 1",
    "score": "score model part.txt",
    "explain": "explain model 'the old cat'",
    "update": "update model more.txt",
    "forget": "forget model more.txt",
    "train --preset paper": "train text.txt --preset paper --out paper",
    "train --epochs 1": "train text.txt --epochs 1 --out companion",
}
BODIES = ("<module>", "<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


def import_everything() -> None:
    """All modules of the package whose libraries are installed."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if path.name != "__main__.py":
            with contextlib.suppress(ImportError):
                import_module(module.removesuffix(".__init__"))


def entered(line: str) -> set[tuple[str, str]]:
    """The files and functions that a command enters."""
    seen: set[tuple[str, str]] = set()
    prefix = str(PACKAGE) + os.sep

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & 0x2  # CO_NEWLOCALS: neither a module nor a class body
        if event == "call" and is_function and code.co_filename.startswith(prefix) and code.co_name not in BODIES:
            seen.add((code.co_filename.removeprefix(prefix), code.co_qualname))

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        sys.setprofile(note)
        try:
            status = run(shlex.split(line))
        finally:
            sys.setprofile(None)
    if status:
        sys.exit(f"saffu {line}: {errors.getvalue()}")
    return seen


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", action="store_true", help="list the files of each journey")


def run_command(options: argparse.Namespace) -> None:
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    print(f"{sum(lines.values()):,} lines of Python in {len(lines)} files of the wheel")
    import_everything()
    back = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="saffu-") as folder:
        write_texts(Path(folder))
        os.chdir(folder)
        try:
            for name, line in JOURNEYS.items():
                seen = entered(line)
                places = sorted({file for file, _ in seen})
                print(f"{name:<22} {len(seen):>4} functions in {len(places):>3} files")
                if options.files:
                    print("   ", *places)
        finally:
            os.chdir(back)
