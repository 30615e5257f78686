"""Files of other programs that are not what they seem: logs of folders, Parquet, zip, and gzip."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torture.crafted import VALUES, sign
from torture.harness import Attempt, command, documents, prepared

KEYS = ["stage", "tokens", "documents", "seconds", "dev_perplexity", "dev_bits_per_byte", "fold", "warnings", "sample"]


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, folder = prepared(place.parent / "made"), place / "folder"
    while True:
        for craft in (log, parquet, archive, compressed):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made["model"], folder)
            text = place / f"text{SUFFIXES[craft.__name__]}"
            what = craft(rng, text, folder)
            reading = "" if craft is log else f" {text}"
            verbs = ["info", "check", "generate"] if craft is log else ["update", "eval", "score", "forget"]
            name = rng.choice(verbs)
            ended = command(f"{name} {folder}{reading or (' the' if name == 'generate' else '')}", limit=60)
            wrong = ended.problem(megabytes=600)
            if not wrong and ended.status and craft is not log and documents(folder) != 300:
                wrong = "the model was changed"
            yield f"{craft.__name__}, {name}", wrong and f"{what}: {wrong}"


SUFFIXES = {"log": ".txt", "parquet": ".parquet", "archive": ".zip", "compressed": ".txt.gz"}


def log(rng: random.Random, _: Path, folder: Path) -> str:
    """Rows with values of any kind, in the log of a folder that is signed."""
    rows: list[Any] = [{key: rng.choice(VALUES) for key in rng.sample(KEYS, 4)} for _ in range(rng.randint(0, 3))]
    rows += rng.choices([[], 7, None, {"stage": "x"}, {"stage": "x", "a": [[[[1]]]]}], k=rng.randint(0, 2))
    content = "".join(json.dumps(row) + "\n" for row in rows) + rng.choice(["", "{", "\udcff", '{"stage": "\\ud800"}'])
    (folder / "log.jsonl").write_bytes(content.encode("utf-8", "surrogateescape"))
    sign(folder)
    return repr(content[:200])


def parquet(rng: random.Random, path: Path, _: Path) -> str:
    """Tables with columns of any type, and damaged ones."""
    import pyarrow
    import pyarrow.parquet

    texts = ["the dog", "", "and the sea", None, "x" * 5000, "\x00", "\U0001f600"]
    types = {
        "text": lambda: pyarrow.array(rng.choices(texts, k=5)),
        "binary": lambda: pyarrow.array([rng.randbytes(9) for _ in range(5)], pyarrow.binary()),
        "invalid": lambda: pyarrow.array([rng.randbytes(9) for _ in range(5)], pyarrow.binary()).view(pyarrow.string()),
        "number": lambda: pyarrow.array([rng.getrandbits(40) for _ in range(5)]),
        "date": lambda: pyarrow.array([rng.choice([0, 2**31 - 1, -(2**31)]) for _ in range(5)], pyarrow.date32()),
        "time": lambda: pyarrow.array([rng.choice([0, 2**62, -(2**62)]) for _ in range(5)], pyarrow.timestamp("us")),
        "list": lambda: pyarrow.array([["a"], [], None, ["b", None], ["c"]]),
    }
    chosen = {name: rng.choice(list(types)) for name in rng.sample(["text", "other", "id", "bits"], rng.randint(1, 4))}
    pyarrow.parquet.write_table(pyarrow.table({name: types[kind]() for name, kind in chosen.items()}), path)
    return f"{chosen} {damaged(rng, path)}"


def archive(rng: random.Random, path: Path, _: Path) -> str:
    """Archives with members of one name, of odd names, nested, encrypted by their flags, or damaged."""
    names = ["a.txt", "a.txt", "../b.txt", "/etc/passwd", "c.jsonl", "d.zip", "é.txt", "folder/", "x\x1b[2J.txt"]
    held = rng.choices(names, k=rng.randint(0, 4))
    method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(path, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there already
        for name in held:
            file.writestr(name, rng.choice(["the dog and\n" * 5, "", "\x00", "PK\x03\x04"]))
    if held and rng.random() < 0.3:
        data = bytearray(path.read_bytes())
        data[6] |= 1  # says that it is encrypted
        path.write_bytes(data)
    return f"{held} {damaged(rng, path)}"


def compressed(rng: random.Random, path: Path, _: Path) -> str:
    """Little that becomes much, several streams, or garbage, whatever the suffix says."""
    kind = rng.choice(["bomb", "gzip", "garbage", "nothing", "several"])
    small = gzip.compress(b"the dog and the sea\n" * 20)
    if kind == "bomb":
        held = io.BytesIO()
        with gzip.GzipFile(fileobj=held, mode="wb") as file:
            for _ in range(20):
                file.write(b"the \n" * 2_000)
        small = held.getvalue()
    path.write_bytes({"garbage": rng.randbytes(200), "nothing": b"", "several": small * 3}.get(kind, small))
    return f"{kind} {damaged(rng, path)}"


def damaged(rng: random.Random, path: Path) -> str:
    """Flip a byte, cut the file, or leave it."""
    data = bytearray(path.read_bytes())
    how = rng.choice(["whole", "flipped", "cut"])
    if how == "flipped" and data:
        data[rng.randrange(len(data))] ^= rng.randint(1, 255)
    if how == "cut":
        del data[rng.randint(0, len(data)) :]
    path.write_bytes(data)
    return how
