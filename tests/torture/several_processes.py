"""Training by two processes, as torchrun starts them, and on Ray, again and again; sometimes one of them is killed."""

from __future__ import annotations

import importlib.util
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from test_processes import started
from torture.harness import COMPANION, NETWORK, QUICK, Attempt, command, contents, documents, patience, prepared
from torture.kills import SIGNALS, STATUSES, failed, reset


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, out = prepared(place.parent / "made"), place / "out"
    line = f"train {made['train.txt']} --dev {made['dev.txt']} --split line --out {out} --force"
    while True:
        for name, settings in {"backprop": NETWORK, "companion": COMPANION}.items():
            for kill in (False, True):
                reset(out, None)
                wrong = by_two(f"{line} {settings}".split(), rng.uniform(1, 6) if kill else None, rng)
                if not wrong and kill:
                    resumed = (out / "checkpoint.json").exists()
                    wrong = command(f"train --resume {out}" if resumed else f"{line} {settings}").problem((0,))
                yield f"{name}, {'one killed' if kill else 'undisturbed'}", wrong or failed(is_whole, out)
        if importlib.util.find_spec("ray"):
            for how in rng.sample(sorted(SIGNALS), len(SIGNALS)):
                reset(out, None)
                words = f"{line} {QUICK} --ray".split()
                yield f"Ray, {how}", on_ray(words, how, rng.uniform(0, 12), out, made["model"])


def is_whole(folder: Path) -> bool:
    return documents(folder) == 300


def by_two(words: list[str], moment: float | None, rng: random.Random) -> str:
    """Run a command as two processes and kill one of them after some seconds; what went wrong."""
    with started(["-m", "saffu", *words]) as processes:
        if moment is not None:
            time.sleep(moment)
            rng.choice(processes).kill()
        hung, errors = waited(processes), [process.communicate()[1] for process in processes]
    statuses = [process.returncode for process in processes]
    if hung or not {*statuses} <= ({0} if moment is None else {0, 2, -9, -15, 143}):
        return f"{'hangs' if hung else 'ends'}: {statuses} {[error[-300:] for error in errors]}"
    found = [error for error in errors if "Traceback" in error or "terminate called" in error]
    return f"a traceback: {statuses} {found[0][-1000:]}" if found else ""


def waited(processes: list[subprocess.Popen[str]], limit: float = 120) -> bool:
    """Wait for the end, as torchrun does: when one process has failed, the others are terminated. Whether they hang."""
    began = time.monotonic()
    while None in (statuses := [process.poll() for process in processes]) and waits(began, limit):
        time.sleep(0.05)
        if any(statuses) and limit > 20:
            time.sleep(3)
            for process in processes:
                process.terminate()
            began, limit = time.monotonic(), 20
    left = [process for process in processes if process.poll() is None]
    for process in left:
        process.kill()
    return bool(left)


def waits(began: float, limit: float) -> bool:
    return time.monotonic() - began < patience(limit)


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
