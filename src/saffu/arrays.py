"""Arrays in safetensors files, written in a stream and read with care: a damaged file is an error, not a crash."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError

Array = npt.NDArray[Any]
Place = tuple[str, tuple[int, ...], int, int]
"""Where an array lies in a file: its dtype, its shape, its first byte, and the byte after its last."""

LARGEST_HEADER = 100_000_000  # bytes
LARGEST_ARRAY = 1 << 47  # numbers, empty dimensions counted as one: as many as can be addressed
CHUNK = 1 << 22
DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
RESTORE = "restore it or train again"


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


def to_safetensors(arrays: Mapping[str, Array]) -> Iterator[Any]:
    """The content of a safetensors file in pieces: the header, then each array, copied only if it is not contiguous."""
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # so that each array is aligned
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers requires it
    end = 0
    for name in names:
        array = arrays[name]
        begin, end = end, end + array.nbytes
        dtype = DTYPE_NAMES[array.dtype.newbyteorder("<").str]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        little_endian = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        yield np.ascontiguousarray(little_endian).reshape(-1).view(np.uint8)


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
