"""Texts and folders that would control the terminal they are printed to."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from conftest import part
from damage import sign
from torture.harness import Attempt, forked, prepared

EVIL = ["\x1b]0;owned\x07", "\x1b[2J", "\x9b31m", "\x1bP$q\x1b\\", "\r", "\x08" * 3, "\u202e", "\x7f", "\x00", "\x1b(0"]
RAW = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)"
)  # newline and tab are fine


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, folder, text = prepared(place.parent / "made"), place / "folder", place / "text.txt"
    while True:
        evil = "".join(rng.choices(EVIL, k=3))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made["model"], folder)
        where = rng.choice(["log", "source", "text"])
        if where == "log":
            row = {"stage": f"x{evil}", "tokens": 3, "seconds": 1.0, "warnings": [evil], "sample": f"a {evil} b"}
            part(folder, "log.jsonl").write_text(json.dumps(row) + "\n")
            sign(folder)
        if where == "source":
            source = json.loads((folder / "config.json").read_text())["source"]
            sign(folder, source=source | {evil: evil, "field": f"text{evil}"})
        text.write_text(f"the dog {evil} and\nthe {evil}king\n", newline="")
        line = rng.choice(
            [
                f"info {folder}", f"score {folder} {text} --tokens", f"score {folder} {text} --words",
                f"score {folder} {text} --keep bits>0", f"eval {folder} {text}", f"check {folder} {text}",
                f"forget {folder} {text}", f"update {folder} {text}", f"generate {folder} {{evil}}",
                f"explain {folder} {{evil}}", f"embed {folder} {{evil}}", f"info {folder}{{evil}}",
            ]
        )  # fmt: skip
        words = [word.format(evil=evil.replace("\0", "")) for word in line.split()]
        shown, problem = on_terminal(words)
        wrong = problem or (
            f"controls the terminal: {found[0]!r} in {shown[-200:]!r}" if (found := RAW.findall(shown)) else ""
        )
        yield f"{words[0]}, {where}", wrong and f"{line.replace(str(place), '…')} {evil!r}: {wrong}"


def on_terminal(words: list[str]) -> tuple[str, str]:
    """What a command prints to a terminal, and what is wrong with the way it ends."""
    master, slave = os.openpty()
    pieces: list[bytes] = []

    def collect() -> None:
        while True:
            try:
                piece = os.read(master, 1 << 16)
            except OSError:  # the other side is closed
                return
            if not piece:
                return
            pieces.append(piece)

    def work() -> None:
        import sys

        from saffu.cli.main import main

        os.dup2(slave, 1)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        main(words)

    reader = threading.Thread(target=collect)
    reader.start()
    ended = forked(work)
    os.close(slave)
    reader.join()
    os.close(master)
    return b"".join(pieces).decode("utf-8", "replace") + ended.err, ended.problem()
