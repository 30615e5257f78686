"""What all attacks share: small texts and models, commands run in a forked process, and the verdict on how they end."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy

from conftest import part

T = TypeVar("T")
Attempt = tuple[str, str]
"""What was tried, and what went wrong; empty if nothing did."""

SECONDS = 60  # after which a command counts as hanging, on an idle machine
QUICK = "--order 3 --slots 3 --word-classes 20"
PAPER = "--preset paper --block 4 --radius 2 --block-dimension 12 --radius-dimension 12 --hidden-dimension 12"
SMALL = "--order 2 --slots 2 --word-classes 4"
COMPANION = f"{SMALL} --epochs 60"
NETWORK = f"{PAPER} --backprop --max-folds 2 --fold-tokens 500 --batch-size 64 --checkpoint-seconds 0.01"


@dataclass(frozen=True)
class Ended:
    """How a command ended: its status, or minus the number of the signal that killed it; None if it hung."""

    status: int | None
    out: str
    err: str
    seconds: float
    megabytes: float  # at most in use, beyond what a command needs that does nothing

    def problem(self, allowed: Sequence[int] = (0, 2), megabytes: float = 600) -> str:
        """What is wrong with the way it ended."""
        last = (self.err.strip().splitlines() or [""])[-1]
        if self.status is None:
            return f"hangs for {self.seconds:.0f} s"
        if "Traceback" in self.err or "terminate called" in self.err:
            return f"status {self.status}: {last}"
        if self.status not in allowed:
            return f"ends with status {self.status}: {self.err[-2000:] if self.status < 0 else last}"
        if self.status == 2 and not last.startswith("saffu: "):
            return f"status 2 without its line, but {last!r}"
        return f"uses {self.megabytes:.0f} MB" if self.megabytes > megabytes else ""


def command(
    line: str | Sequence[object],
    *,
    stop: tuple[float, int] | None = None,
    memory: int | None = None,
    limit: float = SECONDS,
    scratch: Path | None = None,
) -> Ended:
    """Run `saffu …` in a forked process. `stop`: send a signal after some seconds; `memory`: bytes it may add."""
    from saffu.calibrated import storage
    from saffu.cli.main import main

    words = shlex.split(line) if isinstance(line, str) else [str(word) for word in line]

    def work() -> None:
        storage.SMALL = 1 << 10  # so that even a small model uses files if its memory is limited
        secrets.token_bytes = random.Random(repr(words)).randbytes  # the same command gives the same files
        if scratch:
            tempfile.tempdir = str(scratch)
        if memory is not None:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
        main(words)

    return forked(work, stop, limit)


def forked(work: Callable[[], object], stop: tuple[float, int] | None = None, limit: float = SECONDS) -> Ended:
    """Run a function in a process of its own, which may crash."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ready, begin = os.pipe()
        child = os.fork()
        if child == 0:
            _child(work, out.fileno(), err.fileno(), begin)
        os.close(begin)
        os.read(ready, 1)  # signals are meant for the work, not for the fork
        os.close(ready)
        began = time.monotonic()
        try:
            status, usage = _waited(child, began, stop, limit)
        except BaseException:  # the suite itself is stopped
            os.kill(child, signal.SIGKILL)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(status, *texts, time.monotonic() - began, max(0.0, (usage.ru_maxrss - before) / 1024))


def _child(work: Callable[[], object], out: int, err: int, begin: int) -> None:
    status = 1
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((null, out, err)):
            os.dup2(source, target)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        faulthandler.enable(2)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # outside of the command, they just end the process
        os.close(begin)
        work()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def _waited(
    child: int, began: float, stop: tuple[float, int] | None, limit: float
) -> tuple[int | None, resource.struct_rusage]:
    hung = False
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return None if hung else os.waitstatus_to_exitcode(status), usage
        seconds = time.monotonic() - began
        if stop and seconds >= stop[0]:
            os.kill(child, stop[1])
            stop = None
        if seconds > patience(limit) and not hung:
            os.kill(child, signal.SIGKILL)
            hung = True
        time.sleep(0.002)


def patience(seconds: float) -> float:
    """How long something may take that takes at most some seconds while nothing else needs the processors."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def sentences(rng: random.Random, number: int) -> str:
    """Lines of words from a small vocabulary, each about one of two topics, which takes a network to notice."""
    topics = ("dog", "cat", "king", "queen", "house"), ("sea", "ship", "wind", "wave", "sail")

    def line() -> str:
        topic, starts = rng.choice(topics), (["and", "or", "with"], ["the", "a", "of"])
        return " ".join(rng.choice(words) for _ in range(rng.randint(2, 5)) for words in (*starts, topic))

    return "".join(f"{line()}.\n" for _ in range(number))


def prepared(place: Path) -> dict[str, Path]:
    """Texts and models that attacks begin from, made once.

    `model`, `other` (can be merged with it), `both` (merged), `network` (the paper's), `companion` (with a network),
    `int8` (the same, with weights of 8 bits), `stopped` (the same, interrupted).
    `part.txt` is a part of `train.txt`.
    """
    texts = ("train.txt", "part.txt", "more.txt", "dev.txt", "pairs.jsonl")
    models = ("model", "other", "both", "network", "int8", "companion", "stopped")
    made = {name: place / name for name in (*texts, *models)}
    if made["stopped"].exists():
        return made
    place.mkdir(parents=True, exist_ok=True)
    for number, (name, size) in enumerate([("train.txt", 300), ("more.txt", 40), ("dev.txt", 40)]):
        made[name].write_text(sentences(random.Random(number), size))
    made["part.txt"].write_text("".join(made["train.txt"].read_text().splitlines(True)[:40]))
    made["pairs.jsonl"].write_text('{"sentence_good": "and the dog", "sentence_bad": "the and dog"}\n')
    text = f"{made['train.txt']} --dev {made['dev.txt']} --split line --quiet"
    for line in (
        f"train {text} --out {made['model']} {QUICK}",
        f"train {made['more.txt']} --split line --hold-out 0 --quiet --encoder {made['model']} --out {made['other']}",
        f"merge {made['model']} {made['other']} --out {made['both']} --quiet",
        f"train {text} --out {made['network']} {PAPER}",
        f"train {text} --out {made['companion']} {COMPANION}",
    ):
        ended = command(line)
        assert ended.status == 0, ended.err
    assert part(made["companion"], "model.safetensors").stat().st_size > 200_000, "it has no network"
    moment = ended.seconds
    quantized = command(f"export {made['companion']} --to int8 --out {made['int8']}")
    assert quantized.status == 0, quantized.err
    while ended.status == 0 or not part(made["stopped"], "checkpoint.json").exists():
        shutil.rmtree(made["stopped"], ignore_errors=True)
        moment *= 0.7 if ended.status == 0 else 1.2  # too late or too early
        ended = command(f"train {text} --out {made['stopped']} {COMPANION}", stop=(moment, signal.SIGINT))
        assert ended.status in (0, 130), ended.err
    return made


def resumed(made: dict[str, Path], copy: Path) -> str:
    """How to resume a copy of `stopped`: a folder says where its text is as seen from itself, so that it is passed."""
    return f"train {made['train.txt']} --dev {made['dev.txt']} --resume {copy}"


def documents(folder: Path) -> int:
    """How many documents a model counts, after verifying all of its files."""
    from saffu import load

    return int(load(folder, check=True).trained_on_["documents"])


def contents(folder: Path) -> dict[str, str]:
    """The checksum of each file of a model, but for what depends on the time it took."""
    recorded = json.loads((folder / "config.json").read_text())["checksums"]
    return {name: recorded[name] for name in recorded if not name.startswith(("config", "log", "checkpoint"))}


def examples(strategy: SearchStrategy[T], rng: random.Random) -> Iterator[T]:
    """Values of a Hypothesis strategy, without end."""
    usual = settings(max_examples=50, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    found: list[T] = []

    @usual
    @given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    while True:
        seed(rng.getrandbits(32))(collect)()
        yield from found
        found.clear()
