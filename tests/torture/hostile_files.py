"""Files of other programs that are not what they seem: Parquet, zip, and gzip."""

from __future__ import annotations

import gzip
import io
import random
import shutil
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from damage import cut, flipped
from torture.harness import Attempt, command, documents, prepared


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, folder = prepared(place.parent / "made"), place / "folder"
    while True:
        for craft, ending in ((parquet, "parquet"), (archive, "zip"), (compressed, "txt.gz")):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made["model"], folder)
            text = place / f"text.{ending}"
            what = craft(rng, text)
            how = rng.choice(["whole", "flipped", "cut"])
            if how != "whole" and text.stat().st_size:
                (flipped if how == "flipped" else cut)(text, rng)
            name = rng.choice(["update", "eval", "score", "forget"])
            ended = command(f"{name} {folder} {text}", limit=60)
            wrong = ended.problem(megabytes=600)
            if not wrong and ended.status and documents(folder) != 300:
                wrong = "the model was changed"
            yield f"{craft.__name__}, {name}", wrong and f"{what} {how}: {wrong}"


def parquet(rng: random.Random, path: Path) -> str:
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
    return str(chosen)


def archive(rng: random.Random, path: Path) -> str:
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
    return str(held)


def compressed(rng: random.Random, path: Path) -> str:
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
    return kind
