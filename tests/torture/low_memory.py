"""Commands that may allocate only so much (RLIMIT_AS)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from torture.harness import NETWORK, PAPER, QUICK, Attempt, command, documents, prepared

ABORTS = (
    "memory allocation of",  # tokenizers
    "OpenBLAS error",
    "thread-local data",  # the C library
    "from 'torch.",  # half imported
)
TORCH = ("train paper", "backprop", "wide", "eval network", "pairs", "ablate")


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, out = prepared(place.parent / "made"), place / "out"
    text = f"{made['train.txt']} --split line"
    big, copy = place / "big.txt", place / "copy"
    big.write_text("a few words in one line " * 100_000)
    while True:
        for name, line in {
            "train": f"train {text} --out {out} --force {QUICK}",
            "train paper": f"train {text} --out {out} --force {PAPER}",
            "backprop": f"train {text} --out {out} --force {NETWORK}",
            "long line": f"train {big} --hold-out 0 --out {out} --force {QUICK}",
            "wide": f"train {text} --out {out} --force {PAPER} --hidden-dimension 16384 --block-mode cat",
            "eval": f"eval {made['model']} {made['dev.txt']}",
            "eval network": f"eval {made['network']} {made['dev.txt']}",
            "update": f"update {copy} {made['more.txt']}",
            "pairs": f"pairs {made['companion']}",
            "merge": f"merge {made['model']} {made['other']} --out {out} --force",
            "export": f"export {made['model']} --out {out} --force",
            "bounded": f"train {text} --out {out} --force {QUICK} --memory-limit 2G",
            "ablate": f"ablate {text} --out {place / 'grid'} --blocks 2 --radii 2 --modes sum/cat --document-shards 0",
        }.items():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(made["model"], copy)
            memory = int(2 ** rng.uniform(20, 30))
            ended = command(line, memory=memory, limit=180)  # the tokenizers library slows down before it gives up
            wrong = ended.problem(megabytes=1 << 10)  # it is limited
            if any(abort in ended.err for abort in ABORTS) or (ended.status in (-6, -11) and name in TORCH):
                name, wrong = f"{name}, a library aborts", ""  # nothing that Python could catch
            right = 340 if line.startswith("update") and ended.status == 0 else 300
            if documents(copy) != right:
                wrong = "the model was changed"
            yield name, wrong and f"with {memory >> 10} KB: {wrong}"
