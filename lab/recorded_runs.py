"""What a set of commands prints and writes, to the bit: recorded once, and compared while code moves.

    python -m lab recorded-runs [--record]

Seconds are left out. Bits depend on the machine and its libraries, so a recording holds only where it was made.
Whoever changes bits on purpose records again and says why in the commit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import random
import re
import shlex
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from saffu.cli.main import run
from saffu.errors import SaffuError
from saffu.files import write_file

RECORDING = Path(__file__).with_name("recorded_runs.json")
WORDS = "the a cat dog king house sat ran saw on to in by old small green and of was is he she they"
PAPER = "--preset paper --block 16 --radius 4 --block-dimension 16 --radius-dimension 12"
COMMANDS = (
    "train text.txt --out model --order 4 --word-classes 20",
    "info model",
    "eval model part.txt",
    "eval model part.txt --json",
    "score model part.txt",
    "score model part.txt --words --json",
    "explain model 'the old cat'",
    "explain model 'the old cat' --json",
    "generate model --seed 1 --samples 2",
    "pairs model --json",
    "update model more.txt",
    "forget model more.txt",
    "train text.txt --split line --out lines --memory-limit 2G",
    "eval lines part.txt --split line --json",
    "forget lines part.txt --skip-uncounted --json",
    "train more.txt --encoder lines --split line --out other --hold-out 0",
    "merge lines other --out both",
    f"train text.txt {PAPER} --dev part.txt --out paper",
    "eval paper more.txt --json",
    "explain paper 'the old cat'",
    f"train text.txt {PAPER} --backprop --max-folds 1 --out network",
    "score network part.txt",
)
SECONDS = re.compile(
    r'\b\d+(\.\d+)? s\b|( +[\d,]+)? +\d+\.\d  (?=<sod>)|(?<="seconds": )[\d.e-]+|(?<=per_second": )[\d.e-]+'
)
UNSTEADY = ("ledger.safetensors", "log.jsonl", "config.json", "checkpoint.json")  # salted, or with seconds and places


def write_texts(folder: Path) -> None:
    drawn = random.Random(0)
    for name, number in (("text.txt", 400), ("part.txt", 40), ("more.txt", 60)):
        lines = (" ".join(drawn.choices(WORDS.split(), k=drawn.randint(4, 12))) + " .\n" for _ in range(number))
        (folder / name).write_text("".join(lines), encoding="utf-8")


def printed(line: str) -> list[str]:
    """What a command prints, with its status; seconds are left out."""
    out = io.StringIO()
    errors = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = run(shlex.split(line))
    return [str(status), *SECONDS.sub("…", f"{out.getvalue()}{errors.getvalue()}").splitlines()]


def written(folder: Path) -> dict[str, str]:
    """A digest of each file that a command wrote; of logs and of config.json, without seconds and what follows."""
    digests: dict[str, str] = {}
    for path in sorted(folder.glob("*/*")):
        data: Any = path.read_bytes()
        if path.name == "log.jsonl":
            data = SECONDS.sub("…", data.decode()).encode()
        elif path.name == "config.json":
            document = json.loads(data)
            steady = {name: sum for name, sum in document["checksums"].items() if name not in UNSTEADY}
            data = json.dumps(document | {"checksums": steady}).encode()
        elif path.name in UNSTEADY:
            continue
        digests[path.relative_to(folder).as_posix()] = hashlib.sha256(data).hexdigest()[:16]
    return digests


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each command with what it printed and wrote."""
    back = Path.cwd()
    before = dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="saffu-") as name:
        folder = Path(name)
        write_texts(folder)
        os.chdir(folder)
        try:
            for line in COMMANDS:
                lines = printed(line)
                files = written(folder)
                yield line, {"printed": lines, "written": dict(sorted(files.items() - before.items()))}
                before = files
        finally:
            os.chdir(back)


def machine() -> dict[str, str]:
    """What bits depend on."""
    features = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    enabled = " ".join(sorted(name for name, has in features.items() if has))
    packages = {name: version(name) for name in ("numpy", "tokenizers", "torch")}
    return {"machine": platform.machine(), "cpu": hashlib.sha256(enabled.encode()).hexdigest()[:8], **packages}


def differences() -> list[str]:
    """What is no longer as it was recorded."""
    recorded = json.loads(RECORDING.read_text("utf-8"))["runs"]
    found = []
    for line, now in runs():
        for kind in ("printed", "written"):
            if recorded.get(line, {}).get(kind) != now[kind]:
                found.append(f"saffu {line}: {kind} {now[kind]}, recorded {recorded.get(line, {}).get(kind)}")
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", action="store_true", help="record again, instead of comparing")


def run_command(options: argparse.Namespace) -> None:
    if options.record:
        recording = {"machine": machine(), "runs": dict(runs())}
        write_file(RECORDING, (json.dumps(recording, indent=1, ensure_ascii=False) + "\n").encode())
    elif found := differences():
        raise SaffuError(
            "these runs differ from their recording; record again if that is intended\n" + "\n".join(found)
        )
