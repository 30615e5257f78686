"""Signals that end a command, from the first moment on: while Python starts, imports modules, and parses options."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from saffu.writing import ENDING
from torture.harness import COMPANION, QUICK, Attempt, documents, patience, prepared
from torture.kills import absent_or, failed, reset

STARTED = """
import sys
from saffu.cli import main as module

def run(words):
    print("started", flush=True)
    return usual(words)

usual, module.run = module.run, run
module.main(sys.argv[1:])
"""
STATUSES = {number: (0, 128 + number, -number) for number in ENDING}  # negative: when Python is ending


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, out = prepared(place.parent / "made"), place / "out"
    text = f"{made['train.txt']} --split line --hold-out 0 --out {out}"
    lines = {
        "help": "train --help",
        "train": f"train {text} {QUICK}",
        "companion": f"train {text} {COMPANION} --dev {made['dev.txt']}",
        "update": f"update {out} {made['more.txt']}",
        "play": f"play {made['model']} --no-browser",
        "eval": f"eval {made['network']} {made['dev.txt']}",
        "pairs": f"pairs {made['companion']}",
    }
    sound = absent_or(lambda folder: documents(folder) in (300, 340))
    while True:
        for name, line in lines.items():
            for number, allowed in STATUSES.items():
                reset(out, made["model"] if name == "update" else None)
                moment = rng.uniform(0, 3)
                process = subprocess.Popen(
                    [sys.executable, "-c", STARTED, *line.split()],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                assert process.stdout is not None
                process.stdout.readline()  # before that, Python itself answers signals
                time.sleep(moment)
                process.send_signal(number)
                try:
                    _, err = process.communicate(timeout=patience(60))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    yield f"{name} {number.name}", f"after {moment:.3f} s: hangs"
                    continue
                last = (err.strip().splitlines() or [""])[-1]
                wrong = failed(sound, out)
                if process.returncode not in allowed or "Traceback" in err:
                    wrong = f"{process.returncode}, {last}"
                yield f"{name} {number.name}", wrong and f"after {moment:.3f} s: {wrong}"
