"""Training by two processes, as torchrun starts them, again and again; sometimes one of them is killed."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from torture.harness import NETWORK, Attempt, documents, prepared


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, out = prepared(place.parent / "made"), place / "out"
    line = f"train {made['train.txt']} --dev {made['dev.txt']} --split line --out {out} --force {NETWORK}"
    while True:
        for kill in (False, True):
            shutil.rmtree(out, ignore_errors=True)
            processes = started(line)
            if kill:
                time.sleep(rng.uniform(1, 6))
                rng.choice(processes).kill()
            hung, errors = waited(processes), [process.communicate()[1] for process in processes]
            statuses = [process.returncode for process in processes]
            wrong = (
                "" if {*statuses} <= ({0, 2, -9, -15, 143} if kill else {0}) and not hung else "hangs" * hung or "ends"
            )
            if any("terminate called" in err or ("Traceback" in err and not kill) for err in errors):
                wrong = "a traceback"
            wrong = wrong and f"{wrong}: {statuses} {[err[-300:] for err in errors]}"
            if not wrong and (out.exists() or not kill) and documents(out) != 300:
                wrong = "the model is broken"
            yield "one killed" if kill else "undisturbed", wrong


def waited(processes: list[subprocess.Popen[str]], limit: float = 120) -> bool:
    """Wait for the end, as torchrun does: when one process has failed, the others are terminated. Whether they hang."""
    end = time.monotonic() + limit
    while None in (statuses := [process.poll() for process in processes]) and time.monotonic() < end:
        time.sleep(0.05)
        if any(statuses):
            time.sleep(3)
            for process in processes:
                process.terminate()
            end = min(end, time.monotonic() + 20)
    left = [process for process in processes if process.poll() is None]
    for process in left:
        process.kill()
    return bool(left)


def started(line: str) -> list[subprocess.Popen[str]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(
            [sys.executable, "-m", "saffu", *line.split()],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
