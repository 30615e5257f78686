"""Storage for the arrays of a fit: in memory or, within `memory_limit`, in files whose pages the system manages.

The files have no names, so nothing is left of them when a process ends, however it ends.
"""

from __future__ import annotations

import math
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from saffu.calibrated.kernels import Array, library
from saffu.errors import SaffuError
from saffu.workers import cores

CHUNK = 1 << 20  # entries converted, and bytes reserved, at a time
SMALL = 1 << 18  # bytes up to which an array stays in memory
PARTS = 4  # ranges of buckets for each thread: they bound memory, and even out the work
SMALL_PART = 1 << 15  # rows that take about as long as starting threads for them
PLANNED = 0.8  # fraction of the limit that plans may use; what is too small to be planned takes the rest
UNPLANNED = 96 << 20  # bytes that finding classes and fitting exponents take, whatever the text
LATER = 4  # times what the largest bucket takes: more than that of any later step does


@dataclass(frozen=True)
class Limit:
    """How much memory the process may allocate, and where larger arrays go."""

    size: int  # bytes
    folder: Path

    def left(self) -> int:
        """Bytes that can still be allocated."""
        return int(self.size * PLANNED) - allocated()


_limit: Limit | None = None


@contextmanager
def memory_limit(size: int | None, folder: str | Path | None = None) -> Iterator[None]:
    """Fit, update, and merge counted models while allocating at most `size` bytes of memory; None for no limit.

    Counts and tables are kept in unnamed temporary files in `folder`, and text is counted in as many parts as needed.
    The results are the same, byte for byte. Pages of these files may stay in memory as long as nothing else needs it.

    with saffu.memory_limit(500_000_000):
        lm = saffu.SaffuLM().fit(documents)
        lm.save("model")
    """
    global _limit
    if size is None:
        yield
        return
    if not isinstance(size, int):
        raise SaffuError(f"`memory_limit` is {size!r}; pass a number of bytes, such as 500_000_000")
    before = _limit
    if (used := allocated()) >= size:
        raise too_small(used)
    _limit = Limit(size, Path(folder or tempfile.gettempdir()))
    try:
        yield
    finally:
        _limit = before


def allocated() -> int:
    """Resident bytes of this process that no file backs."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:  # not Linux: an estimate of what a process needs at the start
        return 128 << 20
    resident, shared = (int(number) * mmap.PAGESIZE for number in fields[1:3])
    return resident - shared


def too_small(used: int, largest: int = 0) -> SaffuError:
    """An error that names a limit that is enough, also for the steps to come, given the bytes of the largest bucket."""
    size = math.ceil(((used + LATER * largest) / PLANNED + UNPLANNED) / 10**6)
    return SaffuError(f"`memory_limit` is too small for this text; use {size}M or more")


def plan(rows: Array, bytes_per_row: int, scratch: int = 0) -> tuple[list[int], int]:
    """Bounds of ranges of buckets, and how many ranges may be processed at a time.

    `rows` is, for each bucket, the maximum number of its rows. A range takes `bytes_per_row` for each of its rows, and
    `scratch` for each row of its largest bucket.
    """
    parts = even_cuts(rows + 1, min(PARTS * cores(), 1 + int(rows.sum()) // SMALL_PART))
    if _limit is None:
        return parts, len(parts)
    library.saffu_trim()
    left = _limit.left()
    largest = int(rows.max(initial=0))
    alone = largest * (bytes_per_row + scratch)
    if alone > left:
        raise too_small(allocated(), alone)
    workers = max(1, min(cores(), left // max(1, alone)))
    most = (left // workers - largest * scratch) // bytes_per_row
    if int(rows.sum()) <= most:
        return parts, workers
    cuts = [0]
    total = 0
    for bucket, number in enumerate(rows.tolist()):
        if total and total + number > most:
            cuts.append(bucket)
            total = 0
        total += number
    return sorted({*cuts, *parts, len(rows)}), workers


def even_cuts(weights: Array, parts: int) -> list[int]:
    """Bounds of at most `parts` contiguous ranges of about equal weight.

    >>> even_cuts(np.array([1, 1, 1, 1]), 2)
    [0, 2, 4]
    """
    ends = np.cumsum(weights, dtype=np.float64)
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts, side="left") + 1
    return sorted({0, *(int(cut) for cut in cuts if cut < len(weights)), len(weights)})


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An array to be filled; within a limit, large arrays are in a file."""
    size = math.prod([shape] if isinstance(shape, int) else shape) * np.dtype(dtype).itemsize
    if _limit is None or size <= SMALL:
        return np.empty(shape, dtype=dtype)
    with tempfile.TemporaryFile(dir=_limit.folder) as file:
        reserve(file, size)
        return mapped_array(file, shape, dtype)


def reserve(file: IO[bytes], size: int) -> None:
    """Write zeros, so that a full disk is an error here, and not a crash when a mapped page is written."""
    zeros = bytes(CHUNK)
    for begin in range(0, size, CHUNK):
        file.write(zeros[: size - begin])
    file.flush()


def mapped_array(file: IO[bytes], shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """A file as an array, which outlives the file's name and handle."""
    return np.asarray(np.memmap(file, dtype, "r+", 0, shape if isinstance(shape, int) else tuple(shape)))


def converted(array: Array, dtype: npt.DTypeLike) -> Array:
    """The same numbers as another dtype."""
    out = empty(array.shape, dtype)
    for begin in range(0, len(array), CHUNK):
        out[begin : begin + CHUNK] = array[begin : begin + CHUNK]
    return out


class Growing:
    """An array that grows at its end; use it in a `with` statement."""

    def __init__(self, dtype: npt.DTypeLike, columns: Sequence[int] = ()) -> None:
        self.dtype = np.dtype(dtype)
        self.columns = tuple(columns)
        self.length = 0
        self.pieces: list[Array] = []
        self.file = None if _limit is None else tempfile.TemporaryFile(dir=_limit.folder)  # noqa: SIM115

    def __enter__(self) -> Growing:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.close()

    def append(self, piece: Array) -> None:
        self.length += len(piece)
        if self.file is None:
            self.pieces.append(piece)
        else:
            self.file.write(np.ascontiguousarray(piece, dtype=self.dtype).data)

    def array(self) -> Array:
        """The whole array; nothing can be appended afterward."""
        shape = self.length, *self.columns
        if self.file is not None:
            self.file.flush()
            if math.prod(shape) * self.dtype.itemsize > SMALL:
                return mapped_array(self.file, shape, self.dtype)
            self.file.seek(0)
            return np.frombuffer(self.file.read(), dtype=self.dtype).reshape(shape)
        if len(self.pieces) == 1:
            return self.pieces.pop()
        whole = np.empty(shape, dtype=self.dtype)
        end = 0
        self.pieces.reverse()
        while self.pieces:  # each is freed as soon as it is copied, so that no two copies of everything exist
            piece = self.pieces.pop()
            begin, end = end, end + len(piece)
            whole[begin:end] = piece
        return whole
