"""Damage to model folders: one table of what is changed in which file, and what the one line then says.

`test_damage.py` tries every row once; the torture suite and `make test-sanitized` combine rows at random.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from conftest import part
from saffu import files
from saffu.files import load_arrays, to_safetensors

Change = Callable[[Path, random.Random], object]
"""What is done to a file; some draw what they do, and return it."""
Arrays = dict[str, np.ndarray]

GOLDEN = Path(__file__).parent / "golden" / "companion"
CHECK = ("info {0} --check",)
READ = (*CHECK, "generate {0} the --seed 1 --max-tokens 3")  # all of it into memory; where it lies, as needed
UPDATE = ("update {0} {text}",)
CHANGES = (*UPDATE, "check {0}", "forget {0} {text} --skip-uncounted", "merge {0} {same} --out {out}")
COUNTS = (*CHANGES, "export {0} --to arpa --out {out}", "embed {0} --out {out}")  # what reads the counts


class Damage(NamedTuple):
    """One change of one file, and what is said by each of its uses."""

    file: str
    what: str
    change: Change
    line: str | None = "damaged"  # a pattern; None: whoever reads it need not notice
    uses: tuple[str, ...] = UPDATE  # {0}: the folder
    signed: bool = True  # whether the checksums are made to fit
    kind: str = "counted"  # of the model


def sign(folder: Path, **changes: object) -> None:
    """Change config.json, and make all checksums fit."""
    document = json.loads((folder / "config.json").read_text()) | changes
    names = [name for name in document["checksums"] if name != "config.json"]
    document["checksums"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    seal(folder, document)


def seal(folder: Path, document: dict[str, Any]) -> None:
    """Write config.json with its own checksum."""
    document["checksums"].pop("config.json", None)
    whole = json.dumps(document, sort_keys=True).encode()
    document["checksums"]["config.json"] = hashlib.sha256(whole).hexdigest()
    (folder / "config.json").write_text(json.dumps(document))


def apply(row: Damage, folder: Path, rng: random.Random) -> str:
    """Damage a folder; what was done."""
    found = row.change(part(folder, row.file), rng)
    if row.signed:
        sign(folder)
    return f"{row.file} {row.what}{f' ({found})' if isinstance(found, str) else ''}"


# Bytes


def edited(change: Callable[[bytes], bytes]) -> Change:
    return lambda path, _: path.write_bytes(change(path.read_bytes()))


def content(data: bytes | str) -> Change:
    return edited(lambda _: data if isinstance(data, bytes) else data.encode())


def replaced(target: str) -> Change:
    def change(path: Path, _: random.Random) -> None:
        path.unlink()
        if target == "a pipe":
            os.mkfifo(path)
        elif target == "a link to a pipe":
            os.mkfifo(path.parent.with_name("pipe"))
            path.symlink_to(path.parent.with_name("pipe"))
        elif target == "a folder":
            path.mkdir()
        elif target != "missing":
            path.symlink_to(target)

    return change


def flipped(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    data[place] ^= rng.randint(1, 255)
    path.write_bytes(data)
    return f"at {place}"


def cut(path: Path, rng: random.Random) -> str:
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"to {size}"


# JSON

NUMBERS = [-1, 0, 1, 2, 3, 5, 255, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 10**30]
VALUES: list[Any] = [*NUMBERS, None, "", "x", [], {}, [1], {"a": 1}, True, 1.5, -0.5, 1e308, "paper", "calibrated"]
PARTS = {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": "(a*)*b"}}  # of tokenizers
KEYS = ["stage", "tokens", "documents", "seconds", "dev_perplexity", "dev_bits_per_byte", "fold", "warnings", "sample"]


def entry(*names: str, value: object) -> Change:
    """Set an entry of a JSON document, or one inside it."""

    def change(path: Path, _: random.Random) -> None:
        document = inside = json.loads(path.read_text())
        for name in names[:-1]:
            inside = inside[name]
        inside[names[-1]] = value
        path.write_text(json.dumps(document))

    return change


def naming(name: str) -> Change:
    """Name another file, as if its content were known; otherwise a folder could test what other files contain."""

    def change(path: Path, _: random.Random) -> None:
        document = json.loads(path.read_text())
        document["checksums"][name] = hashlib.sha256(b"private").hexdigest()
        seal(path.parent, document)

    return change


def some_entry(path: Path, rng: random.Random) -> str:
    """Set some entry of a JSON document to some value."""
    document = json.loads(path.read_text())
    inner = [value for name, value in document.items() if isinstance(value, dict) and value and name != "checksums"]
    inside = rng.choice([document, *inner, *inner])
    name = rng.choice([name for name in sorted(inside) if name != "checksums"])
    inside[name] = rng.choice([*VALUES, *PARTS])
    path.write_text(json.dumps(document))
    return f"{name}={str(inside[name])[:60]}"


def some_rows(path: Path, rng: random.Random) -> str:
    """Write rows with values of any kind."""
    rows: list[Any] = [{key: rng.choice(VALUES) for key in rng.sample(KEYS, 4)} for _ in range(rng.randint(0, 3))]
    rows += rng.choices([[], 7, None, {"stage": "x"}, {"stage": "x", "a": [[[[1]]]]}], k=rng.randint(0, 2))
    text = "".join(json.dumps(row) + "\n" for row in rows) + rng.choice(["", "{", "\udcff", '{"stage": "\\ud800"}'])
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return repr(text[:200])


# Arrays


def rewritten(change: Callable[[Arrays, random.Random], object]) -> Change:
    def whole(path: Path, rng: random.Random) -> object:
        arrays = {name: array.copy() for name, array in load_arrays(path).items()}
        with np.errstate(all="ignore"):
            found = change(arrays, rng)
        path.write_bytes(b"".join(bytes(piece) for piece in to_safetensors(arrays)))
        return found

    return whole


RESHAPED: dict[str, Callable[[np.ndarray], np.ndarray | None]] = {
    "dropped": lambda array: None,
    "empty": lambda array: array.reshape(-1)[:0],
    "a number": lambda array: np.ones((), array.dtype),
    "flat": lambda array: array.reshape(1, -1),
    "of another type": lambda array: array.astype("u1" if array.dtype != "u1" else "i8"),
    "cut": lambda array: array[: len(array) // 2] if array.ndim else array,
    "doubled": lambda array: np.concatenate([array, array]) if array.ndim else array,
}
REFUSED = ("dropped", "empty", "a number")  # always
OPTIONAL = ("estimated", "divided.counted")  # arrays that a file may lack


def reshaped(how: str, share: float) -> Change:
    """Give an array, a share of all names down their list, another shape or type, or drop it."""

    def change(arrays: Arrays, _: random.Random) -> str:
        names = [name for name in sorted(arrays) if not name.endswith(OPTIONAL)]
        names = [name for name in names if how == "dropped" or arrays[name].size > 1]
        name = names[int(share * len(names))]
        array = RESHAPED[how](arrays.pop(name))
        arrays |= {} if array is None else {name: array}
        return name

    return rewritten(change)


def some_shape(arrays: Arrays, rng: random.Random) -> str:
    name = rng.choice(sorted(arrays))
    how = rng.choice([*RESHAPED, "another array"])
    array = RESHAPED.get(how, lambda _: rng.choice([*arrays.values()]))(arrays.pop(name))
    arrays |= {} if array is None else {name: array}
    return f"{name} is {how}"


def some_numbers(arrays: Arrays, rng: random.Random) -> str:
    """Set some numbers of an array."""
    name = rng.choice([name for name in sorted(arrays) if arrays[name].size] or [""])
    flat = arrays[name].reshape(-1)
    place = slice(begin := rng.randrange(len(flat)), begin + rng.choice([1, 1, len(flat)]))
    number = rng.choice([*NUMBERS, 1e308, -1e308, float("nan"), float("inf"), rng.getrandbits(16)])
    if flat.dtype.kind in "iub":
        number = int(number) % 2 ** (8 * flat.dtype.itemsize) if math.isfinite(number) else 0
        flat.view(f"u{flat.dtype.itemsize}")[place] = number
    else:
        flat[place] = min(max(number, -1e308), 1e308)
    return f"{name}[{place.start}:{place.stop}]={number}"


def last(name: str, number: float) -> Change:
    """Set the last number of an array."""

    def change(arrays: Arrays, _: random.Random) -> None:
        arrays[name].reshape(-1)[-1] = number

    return rewritten(change)


def no_word_counted(arrays: Arrays, _: random.Random) -> None:
    arrays["frequencies"][:] = 0


def larger_vocabulary(arrays: Arrays, _: random.Random) -> None:
    """Make the counts those of a larger vocabulary, with its tokens among them, that agree with each other."""
    for name in [name for name in arrays if name.endswith("shape")]:
        prefix = name.removesuffix("shape")
        arrays[name][1] += 3000
        offsets, keys = arrays[f"{prefix}offsets"], arrays[f"{prefix}keys"]
        arrays[f"{prefix}offsets"] = np.concatenate([offsets, np.full(3000, offsets[-1])])
        ends = offsets[1:][np.diff(offsets) > 0] - 1  # where larger tokens keep the order of their bucket
        keys[ends] |= keys.dtype.type(3000)


def some_counts(arrays: Arrays, rng: random.Random) -> str:
    """Change rows of counts, and whatever else must agree with them."""
    prefix = rng.choice([name for name in sorted(arrays) if name.endswith("shape")]).removesuffix("shape")
    shape, offsets, keys, counts = (arrays[f"{prefix}{name}"] for name in ("shape", "offsets", "keys", "counts"))
    buckets = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    rows = list(zip(buckets.tolist(), keys.tolist(), counts.tolist(), strict=True))
    vocabulary = len(offsets) - 1
    how = rng.choice(["more rows", "fewer rows", "a larger vocabulary", "a smaller vocabulary", "counted often"])
    if how == "more rows" and keys.ndim == 1:
        used = max(1, int(shape[0]) - 1)
        tokens = [0, 0, 3, rng.randrange(4, vocabulary), vocabulary - 1]
        for _ in range(rng.choice([1, 30, 300])):
            key = sum(rng.choice(tokens) << 16 * place for place in range(1, used)) | rng.choice(tokens[2:])
            rows.append((rng.randrange(vocabulary), key, rng.choice([1, 2**31, 2**32 - 1])))
        rows = [*{row[:2]: row for row in rows}.values()]
    elif how == "fewer rows":
        rows = rng.sample(rows, len(rows) // 2)
    elif how == "a larger vocabulary":
        vocabulary += rng.choice([1, 3, 300, 60_000])
        rows += [(rng.randrange(vocabulary), *rows[0][1:]) for _ in range(3)]
        rows = [*{row[:2]: row for row in rows if keys.ndim == 1}.values()] or rows
    elif how == "a smaller vocabulary":
        vocabulary = rng.randrange(1, vocabulary)
        rows = [row for row in rows if row[0] < vocabulary]
    else:
        often = rng.choice([2, 255, 2**16, 2**31, 2**32 - 1])
        rows = [(bucket, key, often if rng.random() < 0.5 else count) for bucket, key, count in rows]
    rows.sort(key=lambda row: (row[0], row[1] if keys.ndim == 1 else row[1][::-1]))
    shape[1] = vocabulary
    sizes = np.bincount([row[0] for row in rows], minlength=vocabulary)
    arrays[f"{prefix}offsets"] = np.concatenate([[0], sizes.cumsum()]).astype(offsets.dtype)
    arrays[f"{prefix}keys"] = np.array([row[1] for row in rows], dtype=keys.dtype).reshape(-1, *keys.shape[1:])
    arrays[f"{prefix}counts"] = np.array([row[2] for row in rows], dtype=np.uint32)
    return f"{prefix}{how}"


def some_tables(arrays: Arrays, rng: random.Random) -> str:
    """Change the tables or the classes of a model, and whatever else must agree with them."""
    prefix = rng.choice([name for name in sorted(arrays) if name.endswith(".follow")]).removesuffix("follow")
    begin, follow, mass = (arrays[f"{prefix}{name}"] for name in ("begin", "follow", "mass"))
    outputs = next(name for name in sorted(arrays) if name.endswith("output_classes"))
    size = len(arrays[outputs])
    how = rng.choice(["more followers", "all tokens follow", "other classes", "more classes", "a larger vocabulary"])
    if how in ("more followers", "all tokens follow"):
        at = rng.randrange(len(begin) - 1)
        own = {*follow[begin[at] : begin[at + 1]].tolist()}
        own |= {*range(size)} if how == "all tokens follow" else {rng.randrange(size) for _ in range(80)}
        new = np.array(sorted(own)[: size - rng.choice([0, 3, 3, 3])], dtype=follow.dtype)
        arrays[f"{prefix}follow"] = np.concatenate([follow[: begin[at]], new, follow[begin[at + 1] :]])
        shares = np.full(len(new), 1 / max(1, len(new)), dtype=mass.dtype)
        arrays[f"{prefix}mass"] = np.concatenate([mass[: begin[at]], shares, mass[begin[at + 1] :]])
        begin[at + 1 :] += np.uint32(len(new)) - (begin[at + 1] - begin[at])
    elif how == "other classes":
        for name in [name for name in sorted(arrays) if name.endswith("_classes") or ".context_classes." in name]:
            arrays[name] = np.array(rng.choices(range(size), k=size), dtype=arrays[name].dtype)
    elif how == "more classes":
        arrays[outputs][3:] = np.arange(size - 3) if rng.random() < 0.5 else 0
    else:
        more = rng.choice([1, 3, 300])
        for name, array in arrays.items():
            if array.shape[:1] == (size,):
                arrays[name] = np.concatenate([array, np.repeat(array[-1:], more, axis=0)])
            elif array.shape == (size + 1,) and name.endswith((".1.begin", ".1.child")):
                arrays[name] = np.concatenate([array, np.repeat(array[-1:], more)])
    return f"{prefix}{how}"


def markers_counted(arrays: Arrays, _: random.Random) -> None:
    for name in [name for name in arrays if name.endswith("keys")]:
        arrays[name][arrays[name.replace("keys", "offsets")][:-1][:1]] = 0


def markers_follow(arrays: Arrays, _: random.Random) -> None:
    """Make markers, which no text predicts, the last followers of contexts."""
    for name in [name for name in arrays if name.endswith(".1.follow")]:
        begin = arrays[name.replace("follow", "begin")]
        ends = begin[1:][np.diff(begin.astype(np.int64)) > 0] - 1
        arrays[name][ends] = len(arrays["frequencies"]) - 1


def flat_tables(arrays: Arrays, _: random.Random) -> None:
    """Give arrays another shape, with the same numbers, which is all that kernels see."""
    for name in [name for name in arrays if name.endswith((".unigram", ".1.mass"))]:
        arrays[name] = arrays[name].reshape(1, -1)


def gate_of(weight: float) -> Callable[[Arrays, random.Random], object]:
    def change(arrays: Arrays, _: random.Random) -> None:
        (name,) = (name for name in arrays if name.endswith("gate.weight"))
        arrays[name][:] = weight

    return change


# Headers of arrays


def raw(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def declared(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    """What the header of a safetensors file says about one array."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def headed(change: Callable[[dict[str, Any], int, random.Random], object]) -> Change:
    """Change what a header declares about the data, of some length, that follow it."""

    def whole(path: Path, rng: random.Random) -> object:
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        document = json.loads(data[8:end])
        found = change(document, len(data) - end, rng)
        path.write_bytes(raw(document, data[end:]))
        return found

    return whole


def shaped(shape: object) -> Change:
    return headed(lambda header, length, _: header["frequencies"].update(shape=shape))


def with_empty(shape: list[int]) -> Change:
    return headed(lambda header, length, _: header.update(zz=declared("I64", shape, [length, length])))


def some_header(header: dict[str, Any], length: int, rng: random.Random) -> str:
    name = rng.choice([name for name in header if name != "__metadata__"])
    key = rng.choice(["dtype", "shape", "data_offsets"])
    header[name][key] = rng.choice([*VALUES, *SHAPES, [0, 10**18], "I64", "F16"])
    return f"{name}.{key}={header[name][key]!r}"


FILES = ("config.json", "tokenizer.json", "log.jsonl", *(f"{name}.safetensors" for name in ("model", "sums", "ledger")))
FILES += ("references.safetensors",)
ARRAYS = FILES[3:]
BYTES: dict[str, Callable[[bytes], bytes]] = {
    "is cut in half": lambda data: data[: len(data) // 2],
    "has another end": lambda data: data[:-1] + b"x",
    "has more": lambda data: data + b"x",
    "is empty": lambda data: b"",
}
MANIFESTS = [
    "{",
    "[]",
    "{}",
    "[1]",
    '{"format": "x"}',
    '{"format": %d}',
    '{"format": %d, "checksums": []}',
    "[" * 10**5,
]
SAFETENSORS = [
    b"\x01",
    raw({}, length=2**63),
    raw({}, length=10**8 + 1),
    raw(b"{"),
    raw(b"[]", b"abcd"),
    raw(b"[[1]]"),
    raw(b"\xff\xfe"),
    raw(b"[" * 10**5),
    raw({}, b"abcd"),
    raw({"a": []}, b"abcd"),
    raw({"a": declared("X8")}, b"abcd"),
    raw({"a": declared(["U8"])}, b"abcd"),
    raw({"a": declared(shape=[5])}, b"abcd"),
    raw({"a": declared(shape=[-2, -2])}, b"abcd"),
    raw({"a": declared(shape=["4"])}, b"abcd"),
    raw({"a": declared(shape=4)}, b"abcd"),
    raw({"a": declared(shape=[2**62, 2**62])}, b"abcd"),
    raw({"a": declared(shape=[10**12], offsets=[0, 10**12])}, b"abcd"),
    raw({"a": declared(offsets=[4, 8])}, b"abcdefgh"),
    raw({"a": declared(offsets=[-4, 0])}, b"abcd"),
    raw({"a": declared(offsets=[0])}, b"abcd"),
    raw({"a": declared(), "b": declared()}, b"abcd"),
    raw({"a": declared(shape=[True, 4])}, b"abcd"),
]
SHAPES = [[0, 2**62, 2**62], [1] * 70, [10**18, 10**18], [-1], [2.5], "x", None, [[1]]]
LOGS = [
    "{}",
    "[]",
    "7",
    '"text"',
    '{"stage": 7}',
    '{"stage": null}',
    '{"stage": "x", "dev_perplexity": 3.0}',
    '{"stage": "x", "dev_bits_per_byte": 3.0}',
    '{"stage": "x", "dev_perplexity": "3", "dev_bits_per_byte": 3}',
    '{"stage": "x", "dev_perplexity": null, "dev_bits_per_byte": null}',
    '{"stage": "x", "dev_perplexity": NaN, "dev_bits_per_byte": 1}',
    '{"stage": "x", "documents": "many"}',
    '{"stage": "x", "documents": -1}',
    '{"stage": "x", "documents": 1e400}',
    '{"stage": "x", "fold": [1]}',
    '{"stage": "x", "warnings": 7}',
    '{"stage": "x", "warnings": [7]}',
    '{"stage": "x", "seconds": "long"}',
    '{"stage": "x", "y": [[[[1]]]]}',
    f'{{"stage": "x", "y": {"9" * 400}}}',
    f'{{"stage": "x", "y": {"9" * 5000}}}',
    '{"stage": "x"',
]
SOURCES: list[object] = [[], 7, {"split": "word"}, {"split": 7}, {"split": ["line"]}, {"hold_out": "20"}]
SOURCES += [{"hold_out": -1}, {"hold_out": 1}, {"hold_out": 2.5}, {"hold_out": True}, {"hold_out": 2**64}]
SOURCES += [{"field": 7}, {"dev": []}]
PAPER = {"kind": "paper", "uses": CHECK}


def unsigned(file: str, what: str, change: Change, line: str = "is damaged") -> Damage:
    """A change that leaves the checksums as they were; whoever checks the folder notices it."""
    return Damage(file, what, change, line, CHECK, signed=False)


def setting(name: str, value: object, line: str = "", **how: Any) -> Damage:
    return Damage("config.json", f"{name}={value}"[:60], entry("settings", name, value=value), line, **how)


TABLE = [
    *(unsigned(file, what, edited(change)) for file in FILES for what, change in BYTES.items()),
    *(unsigned(file, "is missing", replaced("missing"), r"is missing|not a model folder") for file in FILES),
    *(
        unsigned(file, f"is {target}", replaced(target), r"regular file|Is a directory|missing|not a model|cannot read")
        for file in FILES
        for target in ("a pipe", "a link to a pipe", "a folder", "/dev/zero", "/", "/nowhere")
    ),
    *(
        unsigned(file, "is huge", lambda path, _: os.truncate(path, 10**12), "1,000,000,000,000 bytes, more than")
        for file in ("config.json", "tokenizer.json")  # sparse
    ),
    *(unsigned(file, "with a bit flipped", flipped, "") for file in FILES),
    *(unsigned(file, "cut", cut, "") for file in FILES),
    *(unsigned("config.json", text[:40], content(text.replace("%d", str(files.FORMAT)))) for text in MANIFESTS),
    *(
        unsigned("config.json", f"with another {'.'.join(names)}", entry(*names, value=value), "damaged or was edited")
        for names, value in {
            ("settings", "seed"): 1,
            ("classes",): 3,
            ("checksums",): {},
            ("checksums", "config.json"): 7,
            ("checksums", "model.safetensors"): ["x"],
        }.items()
    ),
    unsigned("config.json", "of an earlier format", entry("format", value=1), "earlier saffu"),
    unsigned("config.json", "of a later format", entry("format", value=files.FORMAT + 1), "newer than this saffu"),
    *(
        unsigned("config.json", f"names {name!r}", naming(name), "outside of")._replace(
            uses=(*UPDATE, *CHECK, "info {0}")
        )
        for name in ("../outside.txt", "/proc/self/pagemap", "a/b", "..", "", "nul\0", "back\\slash")
    ),
    *(
        Damage("config.json", f"source={source}", entry("source", value=source), "is damaged", (*CHECK, *UPDATE))
        for source in SOURCES
    ),
    *(
        Damage("config.json", f"settings={value}", entry("settings", value=value), "", CHECK)
        for value in (7, None, [], "radius", {})
    ),
    *(Damage("log.jsonl", row[:60], content(row + "\n"), uses=("info {0}", "compare {0}", *UPDATE)) for row in LOGS),
    *(Damage("model.safetensors", repr(data[8:60]), content(data), "not a safetensors", READ) for data in SAFETENSORS),
    *(Damage("model.safetensors", f"{shape}"[:60], shaped(shape), "not a safetensors", READ) for shape in SHAPES),
    *(
        Damage(
            "sums.safetensors", f"an empty {shape}", with_empty(shape), "a shape that no array has", (*CHECK, *UPDATE)
        )
        for shape in ([0, 2**60], [2**60, 0], [0, 2**31, 2**31])
    ),
    *(
        Damage(file, f"{how} {n}", reshaped(how, n / 6), "" if how in REFUSED else None, uses, kind=kind)
        for kind, names, uses in (
            ("counted", ARRAYS, UPDATE),
            ("paper", ("model.safetensors", "references.safetensors"), CHECK),  # which does not change
            ("network", ARRAYS, UPDATE),
        )
        for file in names
        for how in RESHAPED
        for n in range(6)
    ),
    *(
        Damage("model.safetensors", f"{name}={number}", last(name, number))
        for name, number in (
            ("encoder.plain", 1e308),
            ("encoder.plain", np.nan),
            ("frequencies", -1),
            ("frequencies", 2**62),
            ("counts", -5),
        )
    ),
    Damage("references.safetensors", "frequencies=-1", last("frequencies", -1)),
    Damage(
        "references.safetensors",
        "no word",
        rewritten(no_word_counted),
        "no vectors to write",
        ("embed {0} --out {out}",),
    ),
    *(
        Damage("sums.safetensors", change.__name__, rewritten(change), uses=COUNTS, kind=kind)
        for change in (larger_vocabulary, markers_counted)
        for kind in ("counted", "without classes")
    ),
    Damage("model.safetensors", "markers follow", rewritten(markers_follow), uses=READ),
    Damage("model.safetensors", "flat tables", rewritten(flat_tables), uses=(*READ, "explain {0} the")),
    *(  # any finite number may be what was learned; what follows may be nonsense
        Damage("model.safetensors", f"gate={weight}", rewritten(gate_of(weight)), None, READ, kind="network")
        for weight in (1e30, -1e30)
    ),
    *(setting(name, 16000, **PAPER) for name in ("block", "hidden_dimension")),
    setting("radius", 2**40, **PAPER),
    Damage("config.json", "some entry", some_entry, None),
    Damage("tokenizer.json", "some entry", some_entry, None),
    Damage("tokenizer.json", "with a normalizer", entry("normalizer", value=PARTS[1] | {"content": ""}), None),
    Damage("log.jsonl", "some rows", some_rows, None, ("info {0}",)),
    *(Damage(file, "some numbers", rewritten(some_numbers), None, uses=COUNTS) for file in ARRAYS),
    *(Damage(file, "some shape", rewritten(some_shape), None) for file in ARRAYS),
    *(Damage("sums.safetensors", f"some counts {n}", rewritten(some_counts), None, uses=COUNTS) for n in range(5)),
    *(Damage("model.safetensors", f"some tables {n}", rewritten(some_tables), None, uses=READ) for n in range(5)),
    *(Damage(file, "some header", headed(some_header), None) for file in ARRAYS),
]
