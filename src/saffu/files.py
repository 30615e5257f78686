"""Files of arrays and model folders: replaced atomically, verified by checksums, locked while they change.

A damaged file is an error, not a crash.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from saffu.errors import SaffuError
from saffu.writing import (
    DTYPES,
    exchange,
    keep_permissions,
    locked,
    recover,
    remove,
    require_outside_models,
    uninterrupted,
    write_durably,
    written,
)
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
LARGEST_MANIFEST = 100_000_000  # bytes
LARGEST_FILE = 1 << 30  # bytes, of a file that does not hold arrays


def require_writable(folder: Path, force: bool) -> None:
    """Fail before the work rather than after it if a model folder cannot be written here."""
    folder = Path(folder)
    place = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise SaffuError(f"{folder} is a file; a model needs a folder")
    require_outside_models(folder)
    with suppress(FileNotFoundError):  # the current folder may have been deleted
        if Path.cwd().is_relative_to(place):
            raise SaffuError(f"{place} is the current folder and cannot be replaced; name a folder inside it")
    if os.path.ismount(folder):  # Path.is_mount does not support Windows before Python 3.12
        raise SaffuError(f"{folder} cannot be replaced as a whole; name a folder inside it")
    if folder.exists() and any(folder.iterdir()):
        if not force:
            raise SaffuError(f"{folder} is not empty; choose another folder, or replace it with `force`")
        _require_permission(folder)
        _require_ours(folder)
    place.parent.mkdir(parents=True, exist_ok=True)
    with uninterrupted():
        remove(Path(tempfile.mkdtemp(prefix=f".{place.name}.writing-", dir=place.parent)), "which is empty")


def write_folder(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, Content]) -> None:
    """Replace a folder atomically: a reader, or a crash at any point, sees either the old version or the new one.

    The manifest goes into config.json, with the format's version and the checksum of every file, itself included.
    """
    folder = Path(folder).resolve()  # a link stays a link to the folder that is replaced
    for name in files:
        _require_plain(name)
    require_writable(folder, force=True)
    with locked(folder, wait=True):
        recover(folder)
        _replace(folder, manifest, files)


@contextmanager
def changing(folder: Path, wait: bool) -> Iterator[None]:
    """Lock an existing model folder against other writers, from reading it to replacing it."""
    if not Path(folder).resolve().parent.is_dir():
        read_manifest(folder)  # raises the error that fits
    _require_permission(folder)
    with locked(folder, wait):
        recover(folder)
        yield


def _replace(folder: Path, manifest: Mapping[str, Any], files: Mapping[str, Content]) -> None:
    fresh = None
    try:
        with uninterrupted():
            fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.writing-", dir=folder.parent))
        checksums = {name: write_durably(fresh / name, content) for name, content in files.items()}
        document = json.loads(json.dumps({"format": FORMAT, **manifest, "checksums": checksums}))  # as it is read back
        document["checksums"][MANIFEST] = _digest(document)
        text = (json.dumps(document, indent=2) + "\n").encode()
        if len(text) > LARGEST_MANIFEST:
            raise SaffuError(f"{MANIFEST} would have {len(text):,} bytes, more than can be read; remove some facts")
        write_durably(fresh / MANIFEST, text)
        _permit(fresh, folder)
        with uninterrupted():
            if folder.exists():
                exchange(fresh, folder)
            else:
                fresh.rename(folder)
            written.append(folder)
            remove(fresh, "the previous version")
            fresh = None
    finally:
        if fresh is not None:
            with uninterrupted():
                remove(fresh, "which is half written")


def _permit(fresh: Path, folder: Path) -> None:
    """Give a folder that is about to replace another one its permissions; those of a new one follow the umask."""
    if not folder.exists():
        inherited = fresh.stat().st_mode & stat.S_ISGID  # of the folder that it lies in
        fresh.chmod(0o777 & ~_umask() | inherited)
        return
    for path in fresh.iterdir():
        old = next((old for old in (folder / path.name, folder / MANIFEST) if old.is_file()), None)
        if old:
            keep_permissions(old, path)
    keep_permissions(folder, fresh)


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
        recorded[MANIFEST] = _digest(document)
    if not isinstance(version, int) or not isinstance(recorded, dict):
        raise SaffuError(f"{path} is damaged; {RESTORE}")
    if not all(map(_is_plain, recorded.keys() - {MANIFEST})):  # no file elsewhere is opened
        raise SaffuError(f"{path} names files outside of {folder}; do not use this model")
    if version < FORMAT:
        raise SaffuError(f"{folder} was made by an earlier saffu; train again")
    if version > FORMAT:
        raise SaffuError(f"{folder} has format {version}, newer than this saffu's {FORMAT}; upgrade saffu to read it")
    if recorded.get(MANIFEST) != _digest(document):
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


def _recorded(folder: Path, name: str, manifest: Mapping[str, Any]) -> tuple[Path, str]:
    """The path of a file and the checksum that its manifest records."""
    _require_plain(name)
    path = Path(folder) / name
    if name not in manifest.get("checksums", {}):
        raise SaffuError(f"{path} is not recorded in {MANIFEST}; {RESTORE}")
    return path, str(manifest["checksums"][name])


def _require_plain(name: str) -> None:
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


def _digest(document: Mapping[str, Any]) -> str:
    """The checksum of a manifest: of everything it says except this checksum itself."""
    others = {name: entry for name, entry in document["checksums"].items() if name != MANIFEST}
    return hashlib.sha256(json.dumps({**document, "checksums": others}, sort_keys=True).encode()).hexdigest()


def _require_ours(folder: Path) -> None:
    """Fail unless saffu wrote all of a folder. A name is not proof: config.json must list the files next to it.

    Arrays may be damaged, but other files that were changed since are not ours any more: a model card, for example.
    """
    refused = f"will not replace {folder}:"
    try:
        document = _read_document(folder / MANIFEST)
    except SaffuError:
        document = {}
    recorded = document.get("checksums")
    if not (isinstance(document.get("format"), int) and isinstance(recorded, dict) and MANIFEST in recorded):
        name = min(path.name for path in folder.iterdir())
        raise SaffuError(f"{refused} it is not a saved model, but holds {name!r}; move it first")
    for path in sorted(folder.iterdir()):
        if path.name not in recorded or path.is_dir() or not stat.S_ISREG(path.lstat().st_mode):
            raise SaffuError(f"{refused} {path.name!r} is not part of a saved model; move it first")
        changed = path.suffix != ".safetensors" and path.name != MANIFEST
        if changed and _checksum_of(path) != recorded[path.name]:
            raise SaffuError(f"{refused} {path.name!r} was changed after saffu wrote it; move it first")


def _require_permission(folder: Path) -> None:
    """Fail if a folder is write-protected. Whoever may write to its parent could still replace it, but not clean up."""
    if Path(folder).is_dir() and not os.access(folder, os.W_OK):
        raise SaffuError(f"{folder} is write-protected; change its permissions first, or choose another folder")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
