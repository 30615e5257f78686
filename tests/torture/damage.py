"""Model folders with damage of several kinds at once, from the table of tests/damage.py."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from damage import TABLE, Damage, apply, some_entry
from torture.harness import Attempt, command, prepared, resumed

COMMANDS = [
    "info {0} --check",
    "eval {0} {1} --split line",
    "generate {0} the --max-tokens 5 --seed 1",
    "explain {0} the",
    "pairs {0} {2}",
    "update {0} {1}",
    "forget {0} {1} --skip-uncounted --drop-network",
    "merge {0} {3} --out {4} --force",
    "export {0} --out {4} --force",
    "export {0} --to arpa --out {5} --force",
]
MODELS = ("model", "network", "companion", "int8")
CHECKED = ("info", "update", "forget", "merge", "train")  # commands that verify the checksums of all files
CHECKPOINTS = [Damage("checkpoint.json", "some entry", some_entry, None)]


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, folder = prepared(place.parent / "made"), place / "folder"
    others = made["more.txt"], made["pairs.jsonl"], made["other"], place / "out", place / "arpa"
    while True:
        for model in (*MODELS, "stopped"):
            rows, what = damaged(made[model], folder, CHECKPOINTS if model == "stopped" else TABLE, rng)
            line = resumed(made, folder) if model == "stopped" else rng.choice(COMMANDS).format(folder, *others)
            ended = command(line, limit=30)
            wrong = ended.problem(megabytes=300)
            if not wrong and ended.status == 0 and not all(row.signed for row in rows) and line.startswith(CHECKED):
                wrong = "the damage is not noticed"
            yield model, wrong and f"{what}, {line.split()[0]}: {wrong}"


def damaged(model: Path, folder: Path, table: list[Damage], rng: random.Random) -> tuple[list[Damage], str]:
    """Copy a model and damage it by some rows of the table; those that could be applied, and what they did."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder.parent / "pipe").unlink(missing_ok=True)
    shutil.copytree(model, folder)
    some = [row for row in table if row.what.startswith("some ")]
    rows = [rng.choice(rng.choice([table, some])) for _ in range(rng.choice([1, 1, 2, 3]))]
    done, what = list[Damage](), list[str]()
    for row in sorted(rows, key=lambda row: not row.signed):  # what is not a file any more cannot be signed
        try:
            what.append(apply(row, folder, rng))
            done.append(row)
        except (OSError, LookupError, TypeError, ValueError, AttributeError):
            continue  # of a file that this model lacks, or that was damaged before
    return done, ", ".join(what)
