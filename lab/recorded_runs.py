"""What a set of commands prints and writes: recorded once, and compared while code moves.

    python -m lab recorded-runs [--record]

Words and integers (counts, sums, tokenizers, classes) must be equal. Real numbers, whose last bits depend on the
machine, must agree within TOLERANCE, and so must those that are printed, within their last digit. Seconds are left out.
Whoever changes any of them on purpose records again and says why in the commit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from saffu.cli.main import run
from saffu.errors import SaffuError
from saffu.files import read_arrays, read_file, read_manifest, stored_names

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
    r'\b\d+(\.\d+)? s\b|( +[\d,]+)? +\d+\.\d  (?=[^\d\s])|(?<="seconds": )[\d.e-]+|(?<=per_second": )[\d.e-]+'
)
REAL = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?!\w)")
DIGEST = re.compile(r"^((?:encoder|basis) +)[0-9a-f]{16}", re.MULTILINE)  # of exponents
UNSTEADY = ("ledger.safetensors", "checkpoint.safetensors")  # salted, or not of a model
TOLERANCE = 1e-5  # relative to a number, or to 1 if it is smaller


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
    return [str(status), *DIGEST.sub(r"\1…", SECONDS.sub("…", f"{out.getvalue()}{errors.getvalue()}")).splitlines()]


def written(folder: Path) -> dict[str, dict[str, str]]:
    """Each file that commands wrote: a digest of what must be equal, and a mean of each array of real numbers."""
    found = {}
    for config in sorted(folder.glob("*/config.json")):
        manifest = read_manifest(config.parent)
        for name in sorted(stored_names(manifest)):
            if name.endswith(".safetensors") and name not in UNSTEADY:
                parts = array_facts(read_arrays(config.parent, name, manifest))
            elif name == "tokenizer.json":
                parts = {"exact": digest(read_file(config.parent, name, manifest))}
            elif name == "log.jsonl":
                lines = read_file(config.parent, name, manifest).decode()
                parts = {"exact": digest(REAL.sub("…", SECONDS.sub("…", lines)).encode())}
            else:
                continue
            found[f"{config.parent.name}/{name}"] = parts
        del manifest["checksums"]
        found[f"{config.parent.name}/config.json"] = {"exact": digest(REAL.sub("…", json.dumps(manifest)).encode())}
    return found


def array_facts(arrays: Mapping[str, Any]) -> dict[str, str]:
    """A digest of integers and shapes, and a mean of each array of real numbers."""
    means = {name: mean(array) for name, array in arrays.items() if array.dtype.kind == "f"}
    shapes = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    integers = b"".join(array.tobytes() for name, array in arrays.items() if name not in means)
    return {"exact": digest(repr(shapes).encode() + integers), **means}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def mean(array: Any) -> str:
    """A mean of real numbers, weighted by their places, so that these matter as well."""
    numbers = np.asarray(array, dtype=np.float64).ravel()
    return f"{float((numbers * np.linspace(0.5, 1.5, len(numbers))).mean()):.8f}" if len(numbers) else "none"


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each command with what it printed, on a terminal of 80 columns and without progress, and wrote."""
    back = Path.cwd()
    before: dict[str, dict[str, str]] = {}
    steady = mock.patch.dict(os.environ, {"COLUMNS": "80", "TQDM_DISABLE": "1"})
    with tempfile.TemporaryDirectory(prefix="saffu-") as name, steady:
        folder = Path(name)
        write_texts(folder)
        os.chdir(folder)
        try:
            for line in COMMANDS:
                lines = printed(line)
                files = written(folder)
                changed = {name: new for name, new in files.items() if new != before.get(name)}
                yield line, {"printed": lines, "written": changed}
                before = files
        finally:
            os.chdir(back)


def alike(recorded: str, now: str) -> bool:
    """Whether words and integers are equal, and real numbers within TOLERANCE and a unit of their last digit.

    >>> alike("ppl  19.43", "ppl 19.44"), alike("ppl 19.43", "ppl 19.45"), alike("0.5 of 3", "0.5 of 4")
    (True, False, False)
    """
    if "".join(REAL.sub("…", recorded).split()) != "".join(REAL.sub("…", now).split()):
        return False
    return all(near(a, b) for a, b in zip(REAL.findall(recorded), REAL.findall(now), strict=True))


def near(recorded: str, now: str) -> bool:
    decimals = len(recorded.partition(".")[2])
    unit = 0.0 if "e" in recorded else 10.0**-decimals
    expected = float(recorded)
    return abs(float(now) - expected) <= TOLERANCE * max(1.0, abs(expected)) + 1.001 * unit


def differences() -> list[str]:
    """What is no longer as it was recorded."""
    recorded = json.loads(RECORDING.read_text("utf-8"))
    found = []
    for line, now in runs():
        before = facts(recorded.get(line, {}))
        after = facts(now)
        for fact in sorted(before.keys() | after.keys()):
            if not alike(before.get(fact, ""), after.get(fact, "")):
                found.append(f"saffu {line}: {fact} {after.get(fact)}, recorded {before.get(fact)}")
    return found


def facts(run: dict[str, Any]) -> dict[str, str]:
    """What a run prints, line by line, and writes, array by array."""
    lines = {f"line {number}": line for number, line in enumerate(run.get("printed", ()))}
    return lines | {
        f"{file} {name}": value for file, parts in run.get("written", {}).items() for name, value in parts.items()
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--record", action="store_true", help="record again, instead of comparing")


def run_command(options: argparse.Namespace) -> None:
    if options.record:
        RECORDING.write_text(json.dumps(dict(runs()), indent=1, ensure_ascii=False) + "\n", "utf-8")
    elif found := differences():
        raise SaffuError(
            "these runs differ from their recording; record again if that is intended\n" + "\n".join(found)
        )
