"""Files of arrays, and the manifest of a folder: checked before use. A damaged file is an error, not a crash."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saffu.errors import SaffuError
from saffu.writing import DTYPES
from saffu.writing import Array as Array
from saffu.writing import Content as Content
from saffu.writing import to_safetensors as to_safetensors
from saffu.writing import write_file as write_file

Place = tuple[str, tuple[int, ...], int, int]
"""Where an array lies in a file: its dtype, its shape, its first byte, and the byte after its last."""

LARGEST_HEADER = 100_000_000  # bytes
LARGEST_ARRAY = 1 << 47  # numbers, empty dimensions counted as one: as many as can be addressed
CHUNK = 1 << 22
RESTORE = "restore it or train again"

FORMAT = 8  # of a model folder, the only one that can be read; raised when the files change their meaning
MANIFEST = "config.json"
BY_CONTENT = re.compile(r"-[0-9a-f]{16}(?=\.|$)")  # the part of a file's name that follows from its content
LARGEST_MANIFEST = 100_000_000  # bytes
LARGEST_FILE = 1 << 30  # bytes, of a file that does not hold arrays


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read config.json of a model folder, after verifying its checksum and its format."""
    folder = Path(folder)
    path = folder / MANIFEST
    if folder.is_file():
        raise SaffuError(f"{folder} is a file, not a model folder; pass a folder that saffu has written")
    if not folder.is_dir():
        raise SaffuError(f"no model in {folder}; create one with `saffu train … --out {folder}`")
    if not path.exists():
        raise SaffuError(f"{folder} is not a model folder (no {MANIFEST}); check the path")
    document = _read_document(path)
    version = document.get("format")
    recorded = document.get("checksums")
    if "auto_map" in document and recorded is None:  # saved by transformers, which records no checksums
        usual = ("model.safetensors", "references.safetensors", "tokenizer.json", "log.jsonl")
        names = [name for name in usual if (folder / name).is_file()]
        recorded = document["checksums"] = {name: _checksum_of(folder / name) for name in names}
        recorded[MANIFEST] = manifest_digest(document)
    if not isinstance(version, int) or not isinstance(recorded, dict):
        raise SaffuError(f"{path} is damaged; {RESTORE}")
    if not all(map(_is_plain, recorded.keys() - {MANIFEST})):  # no file elsewhere is opened
        raise SaffuError(f"{path} names files outside of {folder}; do not use this model")
    if version < FORMAT:
        raise SaffuError(f"{folder} was made by an earlier saffu; train again")
    if version > FORMAT:
        raise SaffuError(f"{folder} has format {version}, newer than this saffu's {FORMAT}; upgrade saffu to read it")
    if recorded.get(MANIFEST) != manifest_digest(document):
        raise SaffuError(f"{path} is damaged or was edited: its checksum does not match; {RESTORE}")
    return document


def read_file(folder: Path, name: str, manifest: Mapping[str, Any]) -> bytes:
    """Read a file of a model folder after verifying its checksum."""
    path, expected = _recorded(folder, name, manifest)
    with open_regular(path) as file:
        data = read_at_most(file, LARGEST_FILE, path)
    if hashlib.sha256(data).hexdigest() != expected:
        raise SaffuError(f"{path} is damaged: its checksum does not match; {RESTORE}")
    return data


def read_arrays(folder: Path, name: str, manifest: Mapping[str, Any]) -> dict[str, Array]:
    """Read the arrays of a model folder's safetensors file into memory after verifying its checksum."""
    path, expected = _recorded(folder, name, manifest)
    return load_arrays(path, expected)


def holds(manifest: Mapping[str, Any], name: str) -> bool:
    """Return whether a manifest names a file."""
    return name in stored_names(manifest)


def stored_names(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the names in a folder of the files that a manifest names, by their plain names.

    >>> stored_names({"checksums": {"config.json": "12", "log-0123456789abcdef.jsonl": "34"}})
    {'log.jsonl': 'log-0123456789abcdef.jsonl'}
    """
    return {BY_CONTENT.sub("", name): name for name in manifest["checksums"] if name != MANIFEST}


def path_of(folder: Path, name: str, manifest: Mapping[str, Any]) -> Path:
    """Return the path of a file that a manifest names."""
    if not holds(manifest, name):
        raise SaffuError(f"{Path(folder) / name} is not recorded in {MANIFEST}; {RESTORE}")
    stored = stored_names(manifest)[name]
    require_plain(stored)
    return Path(folder) / stored


def verify(folder: Path, name: str, manifest: Mapping[str, Any]) -> None:
    """Raise SaffuError unless a file is as its manifest says."""
    path, expected = _recorded(folder, name, manifest)
    if _checksum_of(path) != expected:
        raise SaffuError(f"{path} is damaged: its checksum does not match; {RESTORE}")


def _recorded(folder: Path, name: str, manifest: Mapping[str, Any]) -> tuple[Path, str]:
    """Return the path of a file and the checksum that its manifest records."""
    path = path_of(folder, name, manifest)
    return path, str(manifest["checksums"][path.name])


def require_plain(name: str) -> None:
    if not _is_plain(name):
        raise SaffuError(f"{name!r} is not the name of a file in a model folder; use a plain name")


def _is_plain(name: str) -> bool:
    return name == Path(name).name and name not in ("", "..", MANIFEST) and not {"\\", "\0"} & set(name)


def _read_document(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        data = read_at_most(file, LARGEST_MANIFEST, path)
    try:
        return dict(json.loads(data))
    except (ValueError, TypeError, RecursionError):
        raise SaffuError(f"{path} is damaged; {RESTORE}") from None


def _checksum_of(path: Path) -> str:
    with open_regular(path) as file:
        return checksum(file)


def manifest_digest(document: Mapping[str, Any]) -> str:
    """The checksum of a manifest: of everything it says except this checksum itself."""
    others = {name: entry for name, entry in document["checksums"].items() if name != MANIFEST}
    return hashlib.sha256(json.dumps({**document, "checksums": others}, sort_keys=True).encode()).hexdigest()


def load_arrays(path: Path, expected: str | None = None) -> dict[str, Array]:
    """Read the arrays of a safetensors file into memory, after verifying its SHA-256 if one is expected."""
    with open_regular(path) as file:
        if expected is not None and checksum(file) != expected:
            raise SaffuError(f"{path} is damaged: its checksum does not match; {RESTORE}")
        layout, _, size = _read_layout(file, path)
        try:
            buffer = np.empty(size, dtype=np.uint8)
        except MemoryError:
            raise SaffuError(f"{path} does not fit into memory ({size:,} bytes); use a larger machine") from None
        if file.readinto(buffer.data) != size:
            raise SaffuError(f"{path} changed while it was read; try again")
    return _views(buffer, layout)


def map_arrays(path: Path) -> dict[str, Array]:
    """Map the arrays of a safetensors file into memory, read-only: only the pages that are used are ever read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a.safetensors"
    ...     _ = path.write_bytes(b"".join(map(bytes, to_safetensors({"f": np.arange(3)}))))
    ...     map_arrays(path)
    {'f': array([0, 1, 2])}
    """
    with open_regular(path) as file:
        layout, begin, size = _read_layout(file, path)
        buffer = np.memmap(file, np.uint8, "r", begin, (size,)) if size else np.empty(0, dtype=np.uint8)
    return _views(np.asarray(buffer), layout)


def part_of(arrays: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    """The arrays whose names begin with a prefix, by the rest of their names.

    >>> part_of({"a.x": np.zeros(1), "b.x": np.ones(1)}, "a.")
    {'x': array([0.])}
    """
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def are_counts(array: Array, size: int) -> bool:
    """Whether an array can be what was counted: of this size, never negative, and with a sum that is a number."""
    sound = array.shape == (size,) and array.dtype == np.int64
    return sound and int(array.min(initial=0)) >= 0 and float(array.sum(dtype=np.float64)) < 2.0**62


def require(condition: bool, what: str) -> None:
    """Raise SaffuError, which says `what` is wrong, unless a condition holds."""
    if not condition:
        raise SaffuError(what)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading if it is a regular one: a pipe might never answer and a device might never end."""
    flag = getattr(os, "O_NONBLOCK", 0)  # so that opening a pipe without a writer returns
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | flag))  # noqa: SIM115
    except FileNotFoundError:
        raise SaffuError(f"{path} is missing; {RESTORE}") from None
    except OSError as error:
        raise SaffuError(f"cannot read {path}: {error.strerror or error}; check the file") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise SaffuError(f"{path} is not a regular file; {RESTORE}")
    return file


def read_at_most(file: io.BufferedReader, limit: int, path: Path) -> bytes:
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise SaffuError(f"{path} is damaged: it has {size:,} bytes, more than the {limit:,} it may have; {RESTORE}")
    return file.read(size)


def checksum(file: io.BufferedReader) -> str:
    """The SHA-256 of a whole file, which is then back at its beginning."""
    digest = hashlib.sha256()
    file.seek(0)
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    file.seek(0)
    return digest.hexdigest()


def _read_layout(file: io.BufferedReader, path: Path) -> tuple[dict[str, Place], int, int]:
    """Parse and check a header; returns where each array lies, where the data begins, and how long it is."""
    whole = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    try:
        if length > min(LARGEST_HEADER, whole - 8):
            raise ValueError("no header")
        header = dict(json.loads(file.read(length)))
        header.pop("__metadata__", None)
        layout = {name: _place(entry) for name, entry in header.items()}
        end = 0
        for first, last in sorted(place[2:] for place in layout.values()):
            if first != end:
                raise ValueError("a gap or an overlap")
            end = last
        if end != whole - 8 - length:
            raise ValueError(f"{end:,} bytes of arrays are declared, but there are {whole - 8 - length:,}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = error if type(error) is ValueError else "no header"
        raise SaffuError(f"{path} is damaged or not a safetensors file ({reason}); {RESTORE}") from None
    return layout, 8 + length, end


def _place(entry: Mapping[str, Any]) -> Place:
    dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError("sizes that are not counts")
    if len(shape) > 8 or math.prod(max(1, number) for number in shape) > LARGEST_ARRAY:
        raise ValueError("a shape that no array has")
    if dtype not in DTYPES:
        raise ValueError("an unknown dtype")
    if math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize != end - begin:
        raise ValueError("a shape that does not fit its bytes")
    return dtype, shape, begin, end


def _views(buffer: Array, layout: Mapping[str, Place]) -> dict[str, Array]:
    return {name: _view(buffer[begin:end], dtype).reshape(shape) for name, (dtype, shape, begin, end) in layout.items()}


def _view(data: Array, dtype: str) -> Array:
    array = data.view(DTYPES[dtype])
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # a copy only on big-endian machines
    if dtype == "BF16":  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array if array.flags.aligned else array.copy()
