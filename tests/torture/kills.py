"""Commands that write are killed, interrupted, and terminated at random moments; then they are run again."""

from __future__ import annotations

import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import part
from saffu.commit import leftovers
from torture.harness import (
    COMPANION,
    NETWORK,
    QUICK,
    SMALL,
    Attempt,
    Ended,
    command,
    contents,
    documents,
    prepared,
    resumed,
)

LIMITED = "--memory-limit 2G"
SIGNALS = {"killed": signal.SIGKILL, "terminated": signal.SIGTERM, "interrupted": signal.SIGINT}
STATUSES = {"killed": (0, -9), "terminated": (0, 143, -15), "interrupted": (0, 130, -2)}  # negative: at either end


@dataclass(frozen=True)
class Victim:
    """A command that writes to a folder, what the folder holds before, and what is true of it afterwards."""

    name: str
    line: str
    before: Path | None
    sound: Callable[[Path], bool]  # after a signal
    done: Callable[[Path], bool]  # after it ran undisturbed
    again: str = ""  # how it is run again, if in another way
    exact: bool = True  # whether it always ends with the same files


def victims(made: dict[str, Path], out: Path) -> list[Victim]:
    text = f"{made['train.txt']} --dev {made['dev.txt']} --split line"
    fresh, changed = absent_or(lambda f: documents(f) == 300), lambda *n: lambda f: documents(f) in n
    grid = "--blocks 2 --radii 2,3 --modes sum/cat --set block_dimension=12 --set radius_dimension=12"
    grid += " --set hidden_dimension=12"
    merge, merged = f"merge {made['model']} {made['other']} --out {out} --force", absent_or(changed(340))
    return [
        Victim("train", f"train {text} --out {out} --force {QUICK}", None, fresh, changed(300)),
        Victim("little memory", f"train {text} --out {out} --force {QUICK} {LIMITED}", None, fresh, changed(300)),
        Victim("replace", f"train {text} --out {out} --force {QUICK}", made["other"], changed(40, 300), changed(300)),
        Victim(
            "backprop", f"train {text} --out {out} --force {NETWORK}", None, fresh, changed(300),
            f"train --resume {out}",
        ),
        Victim(
            "companion", f"train {text} --out {out} --force {COMPANION}", None, fresh, changed(300),
            f"train --resume {out}",
        ),
        Victim("resume", resumed(made, out), made["stopped"], changed(300), changed(300)),
        Victim(
            "minutes", f"train {text} --out {out} --force {SMALL} --minutes 0.05", None, fresh, changed(300),
            f"train --resume {out}", exact=False,
        ),
        Victim("update", f"update {out} {made['more.txt']}", made["model"], changed(300, 340), changed(340)),
        Victim(
            "update minutes", f"update {out} {made['more.txt']} --minutes 0.03 --dev {made['dev.txt']}",
            made["companion"], changed(300, 340), changed(340), exact=False,
        ),
        Victim("forget", f"forget {out} {made['more.txt']}", made["both"], changed(300, 340), changed(300)),
        Victim(
            "forget network", f"forget {out} {made['part.txt']} --drop-network", made["companion"], changed(300, 260),
            changed(260),
        ),
        Victim("merge", merge, None, merged, changed(340)),
        Victim("merge with little memory", f"{merge} {LIMITED}", None, merged, changed(340)),
        Victim("export", f"export {made['model']} --out {out} --force", None, fresh, changed(300)),
        Victim(
            "export arpa", f"export {made['model']} --to arpa --out {out} --force", None, absent_or(whole_arpa),
            whole_arpa, exact=False,
        ),
        Victim(
            "ablate", f"ablate {text} --out {out} {grid} --document-shards 0", None, lambda _: True,
            lambda f: len((f / "results.jsonl").read_text().splitlines()) >= 2, exact=False,
        ),
    ]  # fmt: skip


def absent_or(sound: Callable[[Path], bool]) -> Callable[[Path], bool]:
    return lambda folder: not folder.exists() or sound(folder)


def whole_arpa(path: Path) -> bool:
    return path.read_text().endswith("\\end\\\n")


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, scratch = prepared(place.parent / "made"), place / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    usual: dict[str, float] = {}
    expected: dict[str, dict[str, str]] = {}  # files
    while True:
        every = victims(made, place / "out")
        for victim in rng.sample(every, len(every)):
            if victim.name not in usual:
                reset(place / "out", victim.before)
                ended = command(victim.line, scratch=scratch)
                usual[victim.name] = ended.seconds
                wrong = ended.problem((0,)) or failed(victim.done, place / "out")
                if victim.exact:
                    expected[victim.name] = contents(place / "out")
                yield f"{victim.name} undisturbed", wrong
            for how, number in SIGNALS.items():
                reset(place / "out", victim.before)
                moment = rng.uniform(0, 1.05) * usual[victim.name]
                ended = command(victim.line, stop=(moment, number), scratch=scratch)
                wrong = ended.problem(STATUSES[how]) or failed(victim.sound, place / "out")
                wrong = wrong or left_behind(scratch) or run_again(victim, place / "out", ended)
                if not wrong and victim.exact and contents(place / "out") != expected[victim.name]:
                    wrong = "the model differs from that of an undisturbed run"
                yield f"{victim.name} {how}", wrong and f"after {moment:.3f} s: {wrong}"


def reset(out: Path, before: Path | None) -> None:
    for left in [*out.parent.glob(f".{out.name}.*"), out]:
        shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    if before:
        shutil.copytree(before, out)


def failed(check: Callable[[Path], bool], folder: Path) -> str:
    try:
        return "" if check(folder) else "the folder holds something else"
    except Exception as error:
        return f"the folder is broken: {error}"


def left_behind(scratch: Path) -> str:
    left = sorted(path.name for path in scratch.iterdir() if not path.name.startswith("torchinductor"))
    for path in scratch.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return f"left behind: {', '.join(left)}" if left else ""


def run_again(victim: Victim, out: Path, first: Ended) -> str:
    """The same command, or its continuation, must now succeed, unless it had been done; either way, it cleans up.

    What was done is done once: a second `forget` is refused, and what a second `update` adds is forgotten again.
    """
    done = victim.name.startswith(("update", "forget")) and victim.done(out)
    if first.status == 0:
        return ""
    resumable = victim.again and part(out, "checkpoint.json").exists()
    ended = command(victim.again if resumable else victim.line)
    left = [path.name for path in [*out.parent.glob(f".{out.name}.*"), *(leftovers(out) if out.is_dir() else [])]]
    wrong = ended.problem((2,) if done and victim.name.startswith("forget") else (0,))
    if not wrong and done and ended.status == 0:
        undo = re.sub(" --.*", "", victim.line.replace("update", "forget", 1))
        wrong = command(f"{undo} --drop-network").problem((0,))
    return wrong or failed(victim.done, out) or (f"left behind: {left}" if left else "")
