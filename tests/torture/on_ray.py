"""Training on Ray, stopped and run again."""

from __future__ import annotations

import importlib.util
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from torture.harness import QUICK, Attempt, contents, documents, patience, prepared
from torture.kills import SIGNALS, STATUSES, failed, reset


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, out = prepared(place.parent / "made"), place / "out"
    line = f"train {made['train.txt']} --dev {made['dev.txt']} --split line --out {out} --force {QUICK} --ray"
    while importlib.util.find_spec("ray"):
        for how in rng.sample(sorted(SIGNALS), len(SIGNALS)):
            reset(out, None)
            yield f"Ray, {how}", on_ray(line.split(), how, rng.uniform(0, 12), out, made["model"])


def is_whole(folder: Path) -> bool:
    return documents(folder) == 300


def on_ray(words: list[str], how: str, moment: float, out: Path, model: Path) -> str:
    """Stop a run on Ray and run it again: it ends with the files of a run in one process. What went wrong."""
    first, err = on_ray_until(words, moment, SIGNALS[how])
    aborted = first == -signal.SIGABRT and "*** SIGTERM received" in err  # by Ray itself, while its core starts
    if (not aborted and first not in STATUSES[how]) or "Traceback" in err:
        return f"after {moment:.1f} s: {first}, {err[-1000:]}"
    if first != 0:
        if out.exists() and (wrong := failed(is_whole, out)):  # it may have been stopped after it was written
            return f"after {moment:.1f} s: {wrong}"
        again, err = on_ray_until(words, patience(120), signal.SIGKILL)
        if again != 0:
            return f"after {moment:.1f} s, run again: {again}, {err[-1000:]}"
    same = {name: digest for name, digest in contents(model).items() if name != "ledger.safetensors"}
    if {name: digest for name, digest in contents(out).items() if name != "ledger.safetensors"} != same:
        return f"after {moment:.1f} s: the model differs from that of one process"
    left = [path.name for path in out.parent.glob(f".{out.name}.*")]
    return failed(is_whole, out) or (f"left behind: {left}" if left else "")


def on_ray_until(words: list[str], moment: float, number: int) -> tuple[int, str]:
    """Run a command, and send it a signal if it takes longer than some seconds; its status and errors."""
    command = [sys.executable, "-m", "saffu", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        err = process.communicate(timeout=patience(120))[1]
    return process.returncode, err
