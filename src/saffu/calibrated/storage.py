"""Storage for the arrays of a fit: in memory or, within `memory_limit`, in memory-mapped temporary files.

The files have no names, so nothing is left of them when a process ends, however it ends.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import tempfile
import threading
import weakref
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

CHUNK = 1 << 20  # entries converted at a time
SMALL = 1 << 18  # bytes up to which an array stays in memory
PARTS = 4  # ranges of buckets for each thread: they bound memory, and even out the work
SMALL_PART = 1 << 15  # rows that take about as long as starting threads for them
FILLED = 0.7  # fraction of the limit that may be allocated; pages of mapped files take the rest
SWEPT = 0.86  # fraction of the limit at which these pages are given back
SECONDS = 0.01  # between checks of the memory in use, where kernels do not check it themselves


@dataclass(frozen=True)
class Limit:
    """How much memory the process may use, and where larger arrays go."""

    size: int  # bytes
    folder: Path
    libraries: int  # bytes of files that the process had mapped before

    def left(self) -> int:
        """Bytes that can still be allocated."""
        return int(self.size * FILLED) - self.libraries - memory_in_use()[0]


_limit: Limit | None = None


@contextmanager
def memory_limit(size: int | None, folder: str | Path | None = None) -> Iterator[None]:
    """Fit, update, and merge calibrated models within `size` bytes of memory; None for no limit.

    Counts and tables are kept in unnamed temporary files in `folder`, and text is counted in as many parts as needed.
    The results are the same, byte for byte.

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
    stop = threading.Event()
    used, files = memory_in_use()
    if used + files >= size:
        raise too_small(used + files + (64 << 20))
    _limit = Limit(size, Path(folder or tempfile.gettempdir()), files)
    library.saffu_limit(int(size * SWEPT))
    sweeper = threading.Thread(target=_sweep, args=(stop,), daemon=True)
    sweeper.start()
    try:
        yield
    finally:
        _limit = before
        library.saffu_limit(0 if before is None else int(before.size * SWEPT))
        stop.set()
        sweeper.join()


def _sweep(stop: threading.Event) -> None:
    while not stop.wait(SECONDS):
        library.saffu_give_back()


def memory_in_use() -> tuple[int, int]:
    """Resident bytes of this process that are not backed by files, and those that are."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:  # not Linux: an estimate of what a process needs at the start
        return 128 << 20, 0
    resident, shared = (int(number) * mmap.PAGESIZE for number in fields[1:3])
    return resident - shared, shared


def too_small(needed: int) -> SaffuError:
    size = -(-needed // 10**6)
    return SaffuError(f"`memory_limit` is too small for this text; use at least {size}M")


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
        raise too_small(_limit.size + math.ceil((alone - left) / FILLED))
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
    """Allocate the disk space now: a full disk is an error here, but a crash when a mapped page is written.

    The file is written page by page: of a larger write, Linux would map a megabyte where one byte is read.
    """
    page = bytes(mmap.PAGESIZE)
    for _ in range(0, size, len(page)):
        os.write(file.fileno(), page)


def mapped_array(file: IO[bytes], shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """A file as an array whose pages the kernels give back if necessary."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    size = math.prod(shape) * np.dtype(dtype).itemsize
    address = library.saffu_map(file.fileno(), size)
    if address is None:
        return np.asarray(np.memmap(file, dtype, "r+", 0, shape))
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, library.saffu_unmap, address).atexit = False
    return np.frombuffer(memoryview(memory), dtype=dtype).reshape(shape)


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
