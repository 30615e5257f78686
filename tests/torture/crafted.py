"""Model folders that were damaged, and folders made to do harm, with checksums that fit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from torture.harness import Attempt, command, prepared, resumed

NUMBERS = [-1, 0, 1, 2, 3, 5, 255, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 10**30]
VALUES: list[Any] = [*NUMBERS, None, "", "x", [], {}, [1], {"a": 1}, True, 1.5, -0.5, 1e308, "paper", "calibrated"]
DEVICES = ["/dev/zero", "/dev/random", "/dev/tty", "/dev/stdin", "/proc/self/mem", "/nowhere", "/"]
COMMANDS = [
    "info {0} --check",
    "eval {0} {1} --split line",
    "generate {0} the --max-tokens 5 --seed 1",
    "explain {0} the",
    "pairs {0} {2}",
    "update {0} {1}",
    "forget {0} {1} --skip-uncounted --drop-network",
    "merge {0} {3} --out {4} --force",
    "export {0} --out {4} --force",
    "export {0} --to arpa --out {5} --force",
]
MODELS = ("model", "network", "companion", "int8")
CHECKED = ("info", "update", "forget", "merge", "train")  # commands that verify the checksums of all files


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    made, folder = prepared(place.parent / "made"), place / "folder"
    others = made["more.txt"], made["pairs.jsonl"], made["other"], place / "out", place / "arpa"
    kinds = {function.__name__: function for function in (bytes_flipped, cut, replaced_by_device, setting, array_value,
             array_shape, header, tokenizer, checkpoint)}  # fmt: skip
    while True:
        for name, craft in kinds.items():
            for model in ("stopped",) if name == "checkpoint" else MODELS:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(made[model], folder)
                what = craft(rng, folder)
                is_checkpoint = what.startswith("checkpoint")
                line = resumed(made, folder) if is_checkpoint else rng.choice(COMMANDS).format(folder, *others)
                ended = command(line, limit=30)
                wrong = ended.problem(megabytes=300)
                if not wrong and name in ("bytes_flipped", "cut") and ended.status == 0 and line.startswith(CHECKED):
                    wrong = "the damage is not noticed"
                yield f"{name} {model}", wrong and f"{what}, {line.split()[0]}: {wrong}"


def some_file(rng: random.Random, folder: Path) -> Path:
    return rng.choice(sorted(folder.iterdir()))


def bytes_flipped(rng: random.Random, folder: Path) -> str:
    path = some_file(rng, folder)
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= rng.randint(1, 255)
    path.write_bytes(data)
    return f"{path.name} at {place}"


def cut(rng: random.Random, folder: Path) -> str:
    path = some_file(rng, folder)
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"{path.name} to {size}"


def replaced_by_device(rng: random.Random, folder: Path) -> str:
    path = some_file(rng, folder)
    path.unlink()
    target = rng.choice([*DEVICES, "fifo", "folder"])
    if target == "fifo":
        os.mkfifo(path)
    elif target == "folder":
        path.mkdir()
    else:
        path.symlink_to(target)
    return f"{path.name} is {target}"


def setting(rng: random.Random, folder: Path) -> str:
    """Change some value of config.json."""
    document = json.loads((folder / "config.json").read_text())
    inside = rng.choice([document, document["settings"], document["settings"], document["trained_on"]])
    name = rng.choice([name for name in inside if name != "checksums"])
    inside[name] = rng.choice(VALUES)
    sign(folder, document)
    return f"{name}={inside[name]!r}"


def checkpoint(rng: random.Random, folder: Path) -> str:
    """Change some value of checkpoint.json."""
    path = folder / "checkpoint.json"
    document = json.loads(path.read_text())
    inside = rng.choice([document, document["progress"], document["progress"], document["source"], document["text"]])
    name = rng.choice(sorted(inside))
    inside[name] = rng.choice(VALUES)
    path.write_text(json.dumps(document))
    sign(folder)
    return f"{path.name}: {name}={inside[name]!r}"


def array_value(rng: random.Random, folder: Path) -> str:
    """Change some numbers of some array."""

    def change(arrays: dict[str, np.ndarray]) -> str:
        name = rng.choice(sorted(name for name in arrays if arrays[name].size))
        array = arrays[name] = arrays[name].copy()
        flat = array.reshape(-1)
        number = rng.choice([*NUMBERS[:-1], 7, 300, 900, 10**5]) if array.dtype.kind in "iu" else rng.choice(
            [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e30])  # fmt: skip
        place = rng.choice([slice(None), slice(0, 1), slice(-1, None), slice(rng.randrange(flat.size), None)])
        flat[place] = np.array([number]).astype(array.dtype) if array.dtype.kind in "iu" else number
        return f"{name}[{place.start}:{place.stop}]={number}"

    return rewritten(rng, folder, change)


def array_shape(rng: random.Random, folder: Path) -> str:
    """Give some array another shape or type, drop it, or add one."""

    def change(arrays: dict[str, np.ndarray]) -> str:
        name = rng.choice(sorted(arrays))
        array, how = arrays[name], rng.choice(["drop", "cut", "double", "empty", "flat", "scalar", "type", "other"])
        others = [other for other in arrays.values() if other is not array]
        arrays[name] = (
            {
                "drop": lambda: array,
                "cut": lambda: array[: len(array) // 2],
                "double": lambda: np.concatenate([array, array]),
                "empty": lambda: array[:0],
                "flat": lambda: array.reshape(1, -1),
                "scalar": lambda: array.reshape(-1)[:1].reshape(()),
                "type": lambda: array.astype(rng.choice(["u1", "i8", "f4", "f8", "u2", "i4", "u8", "f2", "?"])),
                "other": lambda: rng.choice(others or [array]),
            }[how]()
            if array.size and array.ndim
            else array.reshape(-1)
        )
        if how == "drop":
            del arrays[name]
        return f"{name} {how}"

    with np.errstate(all="ignore"):
        return rewritten(rng, folder, change)


def rewritten(rng: random.Random, folder: Path, change: Callable[[dict[str, np.ndarray]], str]) -> str:
    from saffu.files import load_arrays, to_safetensors

    path = rng.choice(sorted(folder.glob("*.safetensors")))
    arrays = load_arrays(path)
    what = change(arrays)
    path.write_bytes(b"".join(bytes(piece) for piece in to_safetensors(arrays)))
    sign(folder)
    return f"{path.name}: {what}"


def header(rng: random.Random, folder: Path) -> str:
    """Change what the header of a safetensors file declares."""
    path = rng.choice(sorted(folder.glob("*.safetensors")))
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    document = json.loads(data[8 : 8 + size])
    name = rng.choice([name for name in document if name != "__metadata__"])
    key = rng.choice(["dtype", "shape", "data_offsets"])
    document[name][key] = rng.choice(
        [*VALUES, [0, 10**18], [10**18, 10**18], [0, 2**62, 2**62], [1] * 70, "I64", "F16"]
    )
    text = json.dumps(document).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    sign(folder)
    return f"{path.name}: {name}.{key}={document[name][key]!r}"


def tokenizer(rng: random.Random, folder: Path) -> str:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    inside = rng.choice([document, document["model"]])
    name = rng.choice(sorted(inside))
    inside[name] = rng.choice([*VALUES, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": "(a*)*b"}}])
    path.write_text(json.dumps(document))
    sign(folder)
    return f"{name}={str(inside[name])[:60]}"


def sign(folder: Path, document: dict[str, Any] | None = None) -> None:
    """Make all checksums fit."""
    document = document or json.loads((folder / "config.json").read_text())
    names = [name for name in document["checksums"] if name != "config.json"]
    document["checksums"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    whole = json.dumps(document, sort_keys=True).encode()
    document["checksums"]["config.json"] = hashlib.sha256(whole).hexdigest()
    (folder / "config.json").write_text(json.dumps(document))
