"""Odd texts: whatever a file can hold. What is counted must be what is there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from torture.harness import PAPER, QUICK, Attempt, command, documents, examples, prepared

PIECES = [
    "a", "b", " ", " ", "\n", "\n", "\r\n", "\r", "\t", "the cat", "<eod>", "<sod>", "\u2028", "\x85", "\x0b", "\x1c",
    "é", "中文", "\U0001f600", "\u0301", "\ufeff", "\x00", "\x1b[2J", "x" * 300, "{}", '{"text": "a"}', '"', ",",
]  # fmt: skip


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, out = prepared(place.parent / "made"), place / "out"
    some = examples(st.lists(st.text(max_size=30)), rng)
    while True:
        path = place / rng.choice(["text.txt", "text.txt", "text.jsonl", "text.csv", "text.txt.gz", "text"])
        data = content(rng, some)
        path.write_bytes(data)
        split = rng.choice(["file", "paragraph", "line"])
        preset = rng.choice([QUICK, QUICK, QUICK, PAPER])
        errors = rng.choice(["strict", "replace"])
        reading = f"{path} --split {split} --encoding-errors {errors} --bad-records {rng.choice(['error', 'skip'])}"
        ended = command(f"train {reading} --hold-out 0 --out {out} --force {preset}")
        wrong = ended.problem() or (counted(out, data, path) if ended.status == 0 and split == "line" else "")
        yield f"train {path.suffix}", wrong and f"{data[:200]!r} ({preset[:14]}): {wrong}"
        for name in ("eval", "update", "forget", "score"):
            folder = made["model"] if name in ("eval", "score") else out
            if not (folder / "config.json").exists():
                continue
            line = f"{name} {folder} {path}" if name == "score" else f"{name} {folder} {reading}"
            wrong = command(line).problem()
            yield f"{name} {path.suffix}", wrong and f"{data[:200]!r}: {wrong}"


def content(rng: random.Random, some: Iterator[list[str]]) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randint(0, 300))
    if kind < 0.15:
        return b"word" * rng.choice([10**4, 10**5])  # one long line, without a place to cut it
    if kind < 0.2:
        return b"a few words " * rng.choice([10**4, 10**5])
    if kind < 0.4:
        return "\n".join(next(some)).encode()
    text = "".join(rng.choices(PIECES, k=rng.choice([0, 1, 3, 30, 300])))
    data = text.encode()
    if rng.random() < 0.2:
        place = rng.randint(0, len(data))
        data = data[:place] + rng.randbytes(3) + data[place:]
    return data


def counted(out: Path, data: bytes, path: Path) -> str:
    """Every line of plain text that is not blank is one document."""
    if path.suffix not in (".txt", ""):
        return ""
    lines = data.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    expected = sum(bool(line.strip()) for line in lines)
    found = documents(out)
    return "" if found == expected else f"{found} documents counted instead of {expected}"
