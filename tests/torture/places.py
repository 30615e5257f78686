"""Outputs named where something is already: what is not ours stays, inputs stay, and permissions stay."""

from __future__ import annotations

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from torture.harness import QUICK, Attempt, command, documents, prepared

State = dict[str, object]


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, work = prepared(place.parent / "made"), place / "work"
    while True:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        for name in ("model", "other", "both"):
            shutil.copytree(made[name], work / name)
        (work / "thesis").write_text("all of it")
        kind = rng.choice(list(KINDS))
        KINDS[kind](work / "target")
        name, line = rng.choice(list(lines(made, work, rng).items()))
        replaceable = (kind, name) == ("link to input", "train")  # whose input it is not
        force = "" if replaceable else rng.choice(["", " --force"])
        before = state(work)
        ended = command(f"{line}{force}")
        wrong = ended.problem() or untouched(before, state(work), kind, ended.status)
        yield f"{kind}, {name}", wrong and f"{line.replace(str(work), '…')}{force}: {wrong}"
        yield "permissions", permissions(made, work, rng)


def lines(made: dict[str, Path], work: Path, rng: random.Random) -> dict[str, str]:
    """Commands that write to the target."""
    target = work / "target"
    model = rng.choice([work / "model", work / "other" / ".." / "model"])
    return {
        "train": f"train {made['train.txt']} --split line --out {target} {QUICK}",
        "merge": f"merge {model} {work / 'other'} --out {target}",
        "export": f"export {model} --out {target}",
        "arpa": f"export {model} --to arpa --out {target}",
        "embed": f"embed {model} --out {target}",
    }


def foreign_folder(target: Path) -> None:
    target.mkdir()
    (target / "config.json").write_text('{"model_type": "bert", "format": 3, "checksums": {}}')
    (target / "notes.txt").write_text("mine")


def foreign_file(target: Path) -> None:
    target.write_text("mine")


def link_to_input(target: Path) -> None:
    target.symlink_to("model")


def link_to_a_file(target: Path) -> None:
    target.symlink_to("thesis")


def a_socket(target: Path) -> None:
    here = Path.cwd()
    os.chdir(target.parent)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(target.name)
    finally:
        os.chdir(here)


def a_lock_of_another_program(target: Path) -> None:
    target.with_name(".target.lock").write_text("pid 12")


KINDS: dict[str, Callable[[Path], None]] = {
    function.__name__.replace("_", " "): function
    for function in (
        foreign_folder, foreign_file, link_to_input, link_to_a_file, a_socket, a_lock_of_another_program,
    )
}  # fmt: skip


def state(place: Path) -> State:
    """Everything in a folder: what kind it is, its permissions, and its content."""
    found: State = {}
    for path in sorted(place.rglob("*")):
        kept = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(place))] = stat.filemode(kept.st_mode), content
    return found


def untouched(before: State, after: State, kind: str, status: int | None) -> str:
    """None of these targets may be replaced, whatever the command."""
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        return f"{kind}: changed {changed}"
    return "" if status == 2 else f"{kind}: succeeds without writing"


def permissions(made: dict[str, Path], work: Path, rng: random.Random) -> str:
    """A folder that changes keeps its permissions."""
    folder, mode = work / "kept", rng.choice([0o700, 0o750, 0o2770, 0o755, 0o1777])
    shutil.copytree(made["model"], folder)
    folder.chmod(mode)
    wrong = command(f"update {folder} {made['more.txt']}").problem((0,))
    found = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "config.json")]
    if not wrong and (found != [mode, mode & 0o666] or documents(folder) != 340):
        wrong = f"{mode:o} became {found[0]:o}, and its files {found[1]:o}"
    return wrong
