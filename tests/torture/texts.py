"""Odd texts: whatever a file can hold. What is counted must be what is there."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

from conftest import part
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
        path.write_bytes(packed(data, path.suffix) if rng.random() < 0.7 else data)
        split = rng.choice(["file", "paragraph", "line"])
        preset = rng.choice([QUICK, QUICK, QUICK, PAPER])
        errors = rng.choice(["strict", "replace"])
        reading = f"{path} --split {split} --encoding-errors {errors} --bad-records {rng.choice(['error', 'skip'])}"
        ended = command(f"train {reading} --hold-out 0 --out {out} --force {preset}")
        wrong = ended.problem() or (counted(out, data, path) if ended.status == 0 and split == "line" else "")
        yield f"train {path.suffix}", wrong and f"{data[:200]!r} ({preset[:14]}): {wrong}"
        for name in ("eval", "score", "pairs"):
            line = f"{name} {made['model']} {reading if name == 'eval' else path}"
            wrong = command(line).problem()
            yield f"{name} {path.suffix}", wrong and f"{data[:200]!r}: {wrong}"
        if ended.status or preset == PAPER:  # whose models do not change
            continue
        before = documents(out), counts(out)
        for name in ("update", "forget"):  # what is added is removed again
            wrong = command(f"{name} {out} {reading}").problem((0,))
            if not wrong and name == "forget" and before != (documents(out), counts(out)):
                wrong = "the counts are not what they were"
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


def packed(data: bytes, suffix: str) -> bytes:
    """Odd lines in a file that is valid."""
    lines = data.decode("utf-8", "replace").split("\n")
    if suffix == ".jsonl":
        return "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    if suffix == ".csv":
        table = io.StringIO()
        csv.writer(table).writerows([["text"], *([line] for line in lines)])
        return table.getvalue().encode()
    return gzip.compress(data) if suffix == ".gz" else data


def counts(out: Path) -> str:
    """The checksum of what a model has counted."""
    return part(out, "sums.safetensors").name


def counted(out: Path, data: bytes, path: Path) -> str:
    """Every line of plain text that is not blank is one document."""
    if path.suffix not in (".txt", ""):
        return ""
    lines = data.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    expected = sum(bool(line.strip()) for line in lines)
    found = documents(out)
    return "" if found == expected else f"{found} documents counted instead of {expected}"
