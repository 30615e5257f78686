"""Ctrl-C and SIGTERM from the first moment on: while Python starts, modules are imported, and options are parsed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torture.harness import QUICK, Attempt, prepared

STARTED = """
import sys
from saffu.cli import main as module

def run(words):
    print("started", flush=True)
    return usual(words)

usual, module.run = module.run, run
module.main(sys.argv[1:])
"""
STATUSES = {signal.SIGINT: (0, 130, -2), signal.SIGTERM: (0, 143, -15)}  # negative: when Python is ending


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made = prepared(place.parent / "made")
    lines = {
        "help": "train --help",
        "train": f"train {made['train.txt']} --split line --out {place / 'out'} --force {QUICK}",
        "play": f"play {made['model']} --no-browser",
        "eval": f"eval {made['network']} {made['dev.txt']}",
    }
    while True:
        for name, line in lines.items():
            for number, allowed in STATUSES.items():
                moment = rng.uniform(0, 1.5)
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
                    _, err = process.communicate(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    yield f"{name} {number.name}", f"after {moment:.3f} s: hangs"
                    continue
                last = (err.strip().splitlines() or [""])[-1]
                wrong = process.returncode not in allowed or "Traceback" in err
                yield f"{name} {number.name}", f"after {moment:.3f} s: {process.returncode}, {last}" if wrong else ""
