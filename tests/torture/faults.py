"""Every call that changes a file fails once, or is met by a signal, in every command that writes.

`attack` tries calls at random; `python -m torture.faults` tries every call of every command with every fault. They
run in processes forked from one that has preloaded faults.c.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import hashlib
import importlib
import itertools
import json
import math
import os
import pkgutil
import random
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import saffu
from conftest import part
from saffu.commit import leftovers
from torture.harness import PAPER, QUICK, SMALL, Attempt, Ended, forked, sentences

SOURCE = Path(__file__).with_name("faults.c")
SIGNAL = 1000  # faults from here on are signals
FAULTS = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EINTR": errno.EINTR,
    "SIGINT": SIGNAL + signal.SIGINT,
    "SIGKILL": SIGNAL + signal.SIGKILL,
}
STATUSES = {"SIGINT": (0, 130), "SIGKILL": (0, -9)}  # of the others: 0 or 2
APPLIED = "had been written|holds the new version|are counted"  # in messages of what had happened before a failure
HIDDEN = re.compile(r"^\.(.+)\.(lock|writing-[0-9a-z_]+(-old)?)$")  # our own files, while we write

CHECKPOINTS = 6.0  # seconds per look at the clock: every few steps, a minute has passed, and a checkpoint is saved
COMPANION = f"{SMALL} --epochs 4"
NETWORK = f"{PAPER} --backprop --max-folds 2 --fold-tokens 500 --batch-size 256"
SCRATCH = "scratch"  # folder for temporary files
ARCHIVE = "archive.zip"  # to be downloaded

State = dict[str, bytes]
"""Files by path, with their contents."""


@dataclass(frozen=True)
class Writer:
    """A command that writes, in a folder of its own."""

    line: str
    partial: bool = False  # it may leave a part of its result, from which it can be continued
    again: str = ""  # how it is continued once it has saved a checkpoint, if in another way
    tick: float = 0.001  # seconds that pass between two looks at the clock


def writers() -> dict[str, Writer]:
    """Every command that writes; their texts and models are made by `prepare`."""
    from saffu.play.web_page import CODE

    grid = "--blocks 2 --radii 2 --modes sum/cat --set block_dimension=12 --set radius_dimension=12"
    grid += " --set hidden_dimension=12 --document-shards 0"
    text = "train.txt --dev dev.txt --split line"
    return {
        "train": Writer(f"train {text} --out new --force {QUICK}"),
        "replace": Writer(f"train {text} --out other --force {QUICK}"),
        "little memory": Writer(f"train {text} --out new --force {QUICK} --memory-limit 2G"),
        "network": Writer(f"train {text} --out new --force {COMPANION}", True, "train --resume new", CHECKPOINTS),
        "backprop": Writer(f"train {text} --out new --force {NETWORK}", True, "train --resume new", CHECKPOINTS),
        "resume": Writer("train --resume stopped", True, "", CHECKPOINTS),
        "update": Writer("update model more.txt"),
        "update network": Writer(
            "update companion more.txt --epochs 1 --dev dev.txt",
            True,
            "train --resume companion",
            CHECKPOINTS,
        ),
        "forget": Writer("forget both more.txt"),
        "forget network": Writer("forget companion part.txt --drop-network"),
        "merge": Writer("merge model other --out new --force"),
        "merge replacing": Writer("merge model other --out both --force"),
        "export": Writer("export model --out new --force"),
        "export int8": Writer("export companion --to int8 --out new --force"),
        **({"export web": Writer("export model --to web --out new --force")} if CODE.is_file() else {}),
        "export arpa": Writer("export model --to arpa --out new.arpa --force"),
        "export replacing": Writer("export model --to arpa --out old.arpa --force"),
        "embed": Writer("embed model --out vectors.txt --force"),
        "ablate": Writer(f"ablate {text} --out grid {grid}", partial=True),
        "report": Writer("report done", partial=True),
        "compare": Writer("compare companion --out curves --force", partial=True),
        "download": Writer("download babylm --out corpus", partial=True),
        "reproduce": Writer("reproduce figure --data texts --out paper --max-folds 1", True, "", CHECKPOINTS),
        "reproduce tables": Writer("reproduce tables --data texts --out paper", partial=True),
        "score": Writer("score model dev.txt"),
        "generate": Writer("generate model the --seed 1"),
    }


def prepare(place: Path, names: Sequence[str]) -> None:
    """The texts and models that some commands need, next to files that are not ours."""
    place.mkdir(parents=True)
    for number, (name, lines) in enumerate({"train": 60, "more": 8, "dev": 8}.items()):
        (place / f"{name}.txt").write_text(sentences(random.Random(number), lines))
    (place / "part.txt").write_text("".join((place / "train.txt").read_text().splitlines(True)[:5]))
    for split in ("train", "dev"):
        (place / "texts" / split).mkdir(parents=True)
        shutil.copy(place / f"{split}.txt", place / "texts" / split)
    with zipfile.ZipFile(place / ARCHIVE, "w") as archive:
        for name in ("10M/speech.train", "dev/speech.dev", "test/speech.test"):
            archive.writestr(f"babylm_{name}", (place / "dev.txt").read_text())
    text, grid = "train.txt --dev dev.txt --split line --quiet", writers()["ablate"].line.replace(" grid", " done")
    needed = {word for name in names for word in writers()[name].line.split()}
    for name, line in {
        "model": f"train {text} --out model {QUICK}",
        "other": "train more.txt --split line --hold-out 0 --quiet --encoder model --out other",
        "both": "merge model other --out both --quiet",
        "companion": f"train {text} --out companion {COMPANION}",
        "old.arpa": "export model --to arpa --out old.arpa",
        "done": grid,
    }.items():
        if name in needed | {"model", "other"}:
            ended = run(line, place)[0]
            assert ended.status == 0, (line, ended.err)
    if "stopped" in needed:
        interrupt(f"train {text} --out stopped {COMPANION}", place)
    for name in ("thesis.txt", ".new.notes", ".model.writing", "new.txt"):  # which are not ours
        (place / name).write_text("all of it")


def interrupt(line: str, place: Path) -> None:
    """Interrupt a training at the first checkpoint from which it can be resumed."""
    for number in itertools.count(100, 20):
        ended, _ = run(line, place, number, FAULTS["SIGINT"])
        if part(place / "stopped", "checkpoint.json").exists():
            return
        assert ended.status == 130, ended.err
        shutil.rmtree(place / "stopped", ignore_errors=True)


def run(line: str, place: Path, nth: int = 0, fault: int = 0, tick: float = 0.001) -> tuple[Ended, list[str]]:
    """Run a command in a folder; its nth call that changes a file is met by a fault. Returns also these calls."""
    from saffu.cli.main import main

    shim, words = ctypes.CDLL(None), shlex.split(line)
    shim.faults_calls.restype = ctypes.c_char_p
    shim.faults_begin.argtypes = ctypes.c_char_p, ctypes.c_long, ctypes.c_long
    with tempfile.TemporaryFile() as report:

        def work() -> None:
            os.chdir(place)
            (place / SCRATCH).mkdir(exist_ok=True)
            tempfile.tempdir = str(place / SCRATCH)
            secrets.token_bytes = random.Random(line).randbytes  # the same command gives the same files
            ticks = itertools.count()
            time.perf_counter = lambda: next(ticks) * tick
            make_small(place)
            shim.faults_begin(os.fsencode(place), nth, fault)
            try:
                main(words)
            finally:
                shim.faults_end()
                report.write(shim.faults_calls())
                report.flush()

        ended = forked(work)
        report.seek(0)
        return ended, report.read().decode().replace(f"{place}/", "").splitlines()


def make_small(place: Path) -> None:
    """Let commands whose size is not an option do little, and download from the folder."""
    from saffu.calibrated import storage
    from saffu.experiments import download, grid, reproduce

    storage.SMALL = 1 << 10  # so that even a small model uses files if its memory is limited
    reproduce.BLOCK, reproduce.RADII, reproduce.TUNINGS, reproduce.DOCUMENT_SHARDS = 4, (2,), 1, 2
    reproduce.STARTS = {"explicit": reproduce.STARTS["explicit"]}
    reproduce.grid = lambda: grid.grid([2], [2], ["sum/cat"], 0, {})
    archive = download.Archive(ARCHIVE, (place / ARCHIVE).as_uri())
    download.SOURCES[2023] = dict.fromkeys(download.SOURCES[2023], archive)


class Trial:
    """One command, with what it does undisturbed: once, and again on what it has made."""

    def __init__(self, name: str, writer: Writer, made: Path, place: Path) -> None:
        self.name, self.writer, self.made, self.place = name, writer, made, place
        self.reset()
        self.before, _ = state(place)
        ended, self.calls = run(writer.line, place, tick=writer.tick)
        assert not ended.problem((0,)), (writer.line, ended)
        self.after, left = state(place)
        assert not left, left
        self.again = run(writer.line, place, tick=writer.tick)[0].status, *state(place)
        self.checked: dict[str, str] = {}  # states of the folder, and what is wrong with running the command again

    def reset(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.made, self.place)

    def named_attempt(self, nth: int, fault: str) -> Attempt:
        wrong = self.attempt(nth, fault)
        return f"{self.name} {fault}", wrong and f"call {nth} ({self.calls[nth - 1]}): {wrong}"

    def attempt(self, nth: int, fault: str) -> str:
        """Run the command with a fault at the nth call; what is wrong."""
        self.reset()
        ended, _ = run(self.writer.line, self.place, nth, FAULTS[fault], self.writer.tick)
        now, left = state(self.place)
        wrong = ended.problem(STATUSES.get(fault, (0, 2))) or self.lost(now) or self.untrue(ended, now)
        if not wrong and fault != "SIGKILL":
            wrong = self.littered(ended, left, fault)
        if wrong:
            return f"{wrong}; it said {ended.err[-300:]!r}"
        seen = hashlib.sha256(repr((sorted(now.items()), sorted(map(anonymous, left.items())))).encode()).hexdigest()
        if seen not in self.checked:
            self.checked[seen] = self.run_again(now)
        return self.checked[seen]

    def lost(self, now: State) -> str:
        """Every file is the old one or the new one, and the outputs are all old or all new."""
        if now in (self.before, self.after):
            return ""
        paths = sorted(self.before.keys() | self.after.keys() | now.keys())
        kept = [path for path in paths if self.before.get(path) == self.after.get(path) == now.get(path)]
        changed = sorted(set(paths) - set(kept))
        outputs = {path.split("/")[0] for path in paths if self.before.get(path) != self.after.get(path)}
        foreign = [path for path in changed if path.split("/")[0] not in outputs]
        if foreign:
            return f"changed {foreign}"
        return "" if self.writer.partial else f"neither the old version nor the new one: {changed}"

    def untrue(self, ended: Ended, now: State) -> str:
        """Success means that the new version is there; a failure says if it is."""
        if ended.status == 0:
            return "" if now == self.after or self.writer.partial else "says nothing, but did not write"
        if self.before == self.after or ended.status == -signal.SIGKILL or self.writer.partial:
            return ""
        says = bool(re.search(APPLIED, ended.err))
        return "" if says == (now == self.after) else f"says {'' if says else 'not '}that it wrote"

    def littered(self, ended: Ended, left: State, fault: str) -> str:
        """Nothing is left behind, unless it could not be removed, and is named."""
        kept = () if fault == "SIGINT" else (".lock",)  # of locks, which are empty and harmless
        litter = {name for name in left if not name.endswith(kept)}
        unsaid = sorted(name for name in litter if not any(part in ended.err for part in name.split("/")))
        return f"left behind: {unsaid}" if unsaid else ""

    def run_again(self, now: State) -> str:
        """The command, run again, or its continuation, works and cleans up."""
        resumed = any(re.search(r"checkpoint-\w+\.json$", path) for path in differences(now, self.before) & now.keys())
        line = self.writer.again if resumed and self.writer.again else self.writer.line
        ended, _ = run(line, self.place, tick=self.writer.tick)
        found, left = state(self.place)
        complete = now == self.after
        status, expected, _ = self.again if complete else (0, self.after, {})
        allowed = (0, status or 0) if self.writer.partial else (status or 0,)
        if wrong := ended.problem(allowed):
            return f"run again, {wrong}"
        if left:
            return f"run again, left behind: {sorted(left)}"
        if not self.writer.partial:
            return "" if found == expected else f"run again, differs: {sorted(differences(found, expected))}"
        if (resumed or learned(now) == learned(self.before)) and learned(found) != learned(self.after):
            return "run again, the model differs from that of an undisturbed run"
        return self.lost(found) or broken(self.place)


def state(place: Path) -> tuple[State, State]:
    """The files of a folder, and those that are ours while we write."""
    files: State = {}
    hidden: State = {}
    for path in sorted(place.rglob("*")):
        name = str(path.relative_to(place))
        if name == SCRATCH:
            continue
        ours = HIDDEN.match(name.split("/")[0]) or HIDDEN.match(path.name) or name.startswith(SCRATCH)
        ours = ours or path in leftovers(path.parent)
        content = path.read_bytes() if path.is_file() else b"a folder"
        (hidden if ours else files)[name] = content
    return files, hidden


def anonymous(file: tuple[str, bytes]) -> tuple[str, bytes]:
    """A file left behind, without the part of its name that is drawn at random."""
    return re.sub("writing-[0-9a-z_]+", "writing", file[0]), file[1]


def differences(one: State, other: State) -> set[str]:
    return {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}


def learned(files: State) -> State:
    """The files that hold what models have learned, which does not depend on the time it took."""
    return {path: files[path] for path in files if re.search(r"/(model|sums|tokenizer)-\w+\.\w+$", path)}


def broken(place: Path) -> str:
    """What is wrong with the models in a folder."""
    from saffu import SaffuError, load

    for config in place.glob("*/config.json"):
        try:
            load(config.parent, check=True)
        except SaffuError as error:
            return str(error)
    return ""


NOT_USED = ("saffu.cluster", "saffu.model.transformers", "saffu.__main__")  # by these commands
USED = ("torch._dynamo", "matplotlib.pyplot", "matplotlib.backends.backend_svg", "matplotlib.backends.backend_agg")


def trials(place: Path, names: Sequence[str]) -> Callable[[str], Trial]:
    """How to try each of these commands: a function of its name."""
    own = [module.name for module in pkgutil.walk_packages(saffu.__path__, "saffu.")]
    for name in (*own, *USED):  # once instead of in every process
        if not name.startswith(NOT_USED):
            importlib.import_module(name)
    prepare(place / "made", names)
    every = writers()
    return cache(lambda name: Trial(name, every[name], place / "made", place / "run"))


def at_random(place: Path, names: Sequence[str], seed: int) -> Iterator[Attempt]:
    rng, trial_of = random.Random(seed), trials(place, names)
    while True:
        trial, fault = trial_of(rng.choice(names)), rng.choice(list(FAULTS))
        yield trial.named_attempt(rng.randint(1, len(trial.calls)), fault)


def all_of_them(place: Path, names: Sequence[str], most: int) -> Iterator[Attempt]:
    """Every fault at every call, or at `most` calls of each command, at even distances."""
    trial_of = trials(place, names)
    for name in names:
        trial = trial_of(name)
        print(json.dumps({name: len(trial.calls)}), flush=True)
        step = math.ceil(len(trial.calls) / most)
        for nth, fault in itertools.product(range(1, len(trial.calls) + 1, step), FAULTS):
            yield trial.named_attempt(nth, fault)


def preloaded(place: Path, *arguments: object) -> subprocess.Popen[str]:
    """This module in a process of its own with faults.c."""
    library = place / "faults.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    command = [sys.executable, "-m", "torture.faults", "--place", place / "work", *arguments]
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "SAFFU_THREADS": "1",
        "MPLCONFIGDIR": str(place),
        "TORCHINDUCTOR_CACHE_DIR": str(place),
    }
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, text=True)


def attack(rng: random.Random, place: Path, only: str = "") -> Iterator[Attempt]:
    place.mkdir(parents=True, exist_ok=True)
    with preloaded(place, "--seed", rng.getrandbits(32), "--only", only) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tried, wrong = json.loads(line)
                yield tried, wrong
        finally:
            process.kill()
    raise AssertionError("the process with the faults has ended")


def main() -> None:
    parser = argparse.ArgumentParser(prog="torture.faults", description=__doc__)
    parser.add_argument("--only", help="commands to try, separated by commas")
    parser.add_argument("--calls", type=int, default=10**6, help="of each command to try, at most")
    parser.add_argument("--out", type=Path, help="report")
    parser.add_argument("--place", type=Path, help="of a process that has preloaded the faults")
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(writers())
    if options.place:
        shutil.rmtree(options.place, ignore_errors=True)
        place, seed = options.place, options.seed
        for attempt in all_of_them(place, names, options.calls) if seed is None else at_random(place, names, seed):
            print(json.dumps(attempt), flush=True)
        return
    began = time.monotonic()
    report = Report(options.out)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where nothing waits for a disk
    number = min(len(names), len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(prefix="faults-", dir=memory) as place, ThreadPoolExecutor(number) as pool:

        def work(worker: int) -> int:
            own = Path(place) / str(worker)
            own.mkdir()
            with preloaded(own, "--only", ",".join(names[worker::number]), "--calls", options.calls) as process:
                report.read(process.stdout or ())
            return process.returncode

        statuses = list(pool.map(work, range(number)))
    tried, problems = report.tried.total(), len(report.problems)
    print(f"{tried:,} attempts, {problems:,} problems, {time.monotonic() - began:,.0f} s")
    sys.exit(any(statuses) or problems > 0)


@dataclass
class Report:
    """What was tried of the calls that each command made; commands not tried now are as they are in the file."""

    path: Path | None
    calls: dict[str, int] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, lines: Iterable[str]) -> None:
        """Add what a process prints: the number of calls of a command, and then each attempt."""
        name = ""
        for line in lines:
            if isinstance(found := json.loads(line), dict):
                self.write(name)
                ((name, calls),) = found.items()
                self.calls[name] = calls
                print(f"{name}: {calls} calls", file=sys.stderr, flush=True)
                continue
            what, wrong = found
            self.tried[name] += 1
            if wrong:
                self.problems.append((name, f"{what}: {wrong}"))
                print(self.problems[-1][1], file=sys.stderr, flush=True)
        self.write(name)

    def write(self, name: str) -> None:
        """Write what was tried of a command into the file."""
        if not self.path or not name:
            return
        with self.lock:
            self._write(self.path, name)

    def _write(self, path: Path, name: str) -> None:
        commands = json.loads(path.read_text())["commands"] if path.exists() else {}
        attempts = self.tried[name]
        wrong = [problem for command, problem in self.problems if command == name]
        facts = {"calls": attempts // len(FAULTS), "of": self.calls[name], "attempts": attempts}
        commands[name] = {"date": time.strftime("%Y-%m-%d"), **facts, "problems": len(wrong), "wrong": wrong}
        totals = {key: sum(facts[key] for facts in commands.values()) for key in ("calls", "attempts", "problems")}
        path.write_text(json.dumps({**totals, "commands": commands}, indent=1) + "\n")


if __name__ == "__main__":
    main()
