"""Several writers and readers of one folder at once."""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from torture.harness import QUICK, Attempt, command, documents, forked, prepared, sentences


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, folder = prepared(place.parent / "made"), place / "folder"
    parts = [place / f"part{number}.txt" for number in range(3)]
    for part in parts:
        part.write_text(sentences(rng, 10))
    while True:
        fresh(folder, made["model"])
        updates = [f"update {folder} {part}" for part in parts]
        statuses = together([lambda line=line: command(line).status for line in updates])
        wrong = (
            "" if statuses == [0, 0, 0] and documents(folder) == 330 else f"{statuses}, {documents(folder)} documents"
        )
        yield "writers", wrong

        fresh(folder, made["model"])
        *found, status = together(
            [lambda: read(folder, made["dev.txt"])] * 2 + [lambda: command(f"update {folder} {parts[0]}").status]
        )
        wrong = "" if found == [0, 0] and status == 0 else f"readers {found}, writer {status}"
        yield "readers during a write", wrong

        fresh(folder, made["both"])
        lines = [f"update {folder} {parts[0]}", f"forget {folder} {made['more.txt']}"]
        lines += [f"merge {made['model']} {made['other']} --out {folder} --force"]
        statuses = together([lambda line=line: command(line).status for line in lines])
        expected = {(0, 0, 0): (310, 340, 350, 300), (0, 0, 2): (310,)}.get(tuple(statuses), ())  # merge may be refused
        wrong = "" if documents(folder) in expected else f"{statuses}, {documents(folder)} documents"
        yield "update, forget, and merge", wrong

        fresh(folder, None)
        lines = [f"train {made['train.txt']} --split line --out {folder} --force {QUICK}"] * 2
        statuses = together([lambda line=line: command(line).status for line in lines])
        wrong = "" if {*statuses} <= {0, 2} and 0 in statuses and documents(folder) > 0 else f"{statuses}"
        yield "two trainings into one folder", wrong

        shutil.rmtree(place / "grid", ignore_errors=True)
        grid = f"--split line --out {place / 'grid'} --blocks 2 --radii 2 --modes sum/cat"
        lines = [f"ablate {made[name]} {grid}" for name in ("train.txt", "more.txt")]
        statuses = together([lambda line=line: command(line).status for line in lines])
        yield "two ablations of different texts", "" if sorted(statuses) == [0, 2] else f"{statuses}"


def fresh(folder: Path, source: Path | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if source:
        shutil.copytree(source, folder)


def read(folder: Path, text: Path) -> int | None:
    """Load a model, mapped or checked, and score a text with it, again and again; how that ended."""

    def work() -> None:
        from saffu import SaffuError, load

        lines = text.read_text().splitlines()
        for number in range(12):
            lm = load(folder, check=number % 2 == 0)
            assert lm.perplexity(lines) > 1
            try:
                assert len(lm.frequencies_) == len(lm.tokenizer_)
            except SaffuError as error:  # this part is read when first used
                assert "was replaced after this model was loaded" in str(error)

    return forked(work).status


def together(works: list[Callable[[], int | None]]) -> list[int | None]:
    """Run functions in processes of their own at the same time; what each returns."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            status = work()
            sys.stdout.flush()
            os._exit(99 if status is None or status < 0 else status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
