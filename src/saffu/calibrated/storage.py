"""Where the arrays of a fit lie: in memory or, within `memory_limit`, in temporary files that are memory-mapped.

The files have no names, so nothing is left of them when a process ends, however it ends.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from saffu.calibrated.kernels import Array, library
from saffu.calibrated.rows import even_cuts
from saffu.errors import SaffuError
from saffu.threads import cores

SMALL = 1 << 20  # bytes up to which an array stays in memory
PARTS = 4  # ranges of buckets for each thread: they bound memory, and even out the work
MAPPED = 0.25  # share of the memory left that pages of mapped files may take
SECONDS = 0.01  # between looks at these pages


@dataclass(frozen=True)
class Limit:
    """How much memory the process may use, and where larger arrays go."""

    size: int  # bytes
    folder: Path
    pages: int  # bytes of mapped files that may be in memory at a time

    def left(self) -> int:
        """Bytes that can still be allocated."""
        used, _ = memory_in_use()
        return self.size - self.pages - used


_limit: Limit | None = None
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


@contextmanager
def memory_limit(size: int | None, folder: str | Path | None = None) -> Iterator[None]:
    """Fit, update, and merge calibrated models within `size` bytes of memory; None for no limit.

    Counts and tables lie in unnamed temporary files in `folder`, and text is counted in as many parts as it takes. The
    results are the same, byte for byte.
    """
    global _limit
    if size is None:
        yield
        return
    before, stop = _limit, threading.Event()
    used, files = memory_in_use()
    if used + files >= size:
        raise too_small(used + files + (64 << 20))
    pages = int((size - used - files) * MAPPED) + files  # those of libraries, which stay, included
    _limit = Limit(size, Path(folder or tempfile.gettempdir()), pages)
    sweeper = threading.Thread(target=_sweep, args=(pages, stop), daemon=True)
    sweeper.start()
    try:
        yield
    finally:
        _limit = before
        stop.set()
        sweeper.join()


def _sweep(pages: int, stop: threading.Event) -> None:
    """Give mapped pages back whenever they take too much memory; whoever needs one again finds it in its file."""
    while not stop.wait(SECONDS):
        if memory_in_use()[1] > pages:
            for mapped in list(_mapped):
                with suppress(ValueError):  # closed meanwhile
                    mapped.madvise(mmap.MADV_DONTNEED)


def memory_in_use() -> tuple[int, int]:
    """Bytes of this process that lie in memory alone, and those that are pages of files."""
    try:
        fields = Path("/proc/self/statm").read_bytes().split()
    except OSError:  # not Linux: an estimate of what a process needs to begin with
        return 128 << 20, 0
    resident, shared = (int(number) * mmap.PAGESIZE for number in fields[1:3])
    return resident - shared, shared


def too_small(needed: int) -> SaffuError:
    size = -(-needed // 10**6)
    return SaffuError(f"`memory_limit` is too small for this text; give at least {size}M")


def plan(rows: Array, bytes_per_row: int, scratch: int = 0) -> tuple[list[int], int]:
    """Bounds of ranges of buckets, and how many of these may be worked on at a time.

    `rows` are, for each bucket, the most that there can be; a range takes `bytes_per_row` for all of its rows, and
    `scratch` for the rows of its largest bucket.
    """
    parts = even_cuts(rows + 1, PARTS * cores())
    if _limit is None:
        return parts, len(parts)
    library.saffu_trim()
    left, largest = _limit.left(), int(rows.max(initial=0))
    alone = largest * (bytes_per_row + scratch)
    if alone > left:
        raise too_small(_limit.size + math.ceil((alone - left) / (1 - MAPPED)))
    workers = max(1, min(cores(), left // max(1, alone)))
    most = (left // workers - largest * scratch) // bytes_per_row
    if int(rows.sum()) <= most:
        return parts, workers
    cuts, total = [0], 0
    for bucket, number in enumerate(rows.tolist()):
        if total and total + number > most:
            cuts.append(bucket)
            total = 0
        total += number
    return sorted({*cuts, *parts, len(rows)}), workers


def empty(shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An array to be filled; large ones, within a limit, in a file."""
    size = math.prod([shape] if isinstance(shape, int) else shape) * np.dtype(dtype).itemsize
    if _limit is None or size <= SMALL:
        return np.empty(shape, dtype=dtype)
    with tempfile.TemporaryFile(dir=_limit.folder) as file:
        reserve(file, size)
        return mapped_array(file, shape, dtype)


def reserve(file: IO[bytes], size: int) -> None:
    """Take the room on the disk now: a full disk is an error here, but a crash when a mapped page is written."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        for begin in range(0, size, SMALL):
            file.write(bytes(min(SMALL, size - begin)))
        file.flush()


def mapped_array(file: IO[bytes], shape: int | Sequence[int], dtype: npt.DTypeLike) -> Array:
    found = np.memmap(file, dtype, "r+", 0, tuple([shape] if isinstance(shape, int) else shape))
    watch(found)
    return np.asarray(found)


def watch(array: Array) -> None:
    """Count the pages of a mapped array among those that may be given back."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        _mapped.add(base)


def converted(array: Array, dtype: npt.DTypeLike) -> Array:
    """The same numbers in another type."""
    out = empty(array.shape, dtype)
    for begin in range(0, len(array), SMALL):
        out[begin : begin + SMALL] = array[begin : begin + SMALL]
    return out


class Growing:
    """An array that grows at its end."""

    def __init__(self, dtype: npt.DTypeLike, columns: Sequence[int] = ()) -> None:
        self.dtype, self.columns, self.length = np.dtype(dtype), tuple(columns), 0
        self.pieces: list[Array] = []
        self.file = None if _limit is None else tempfile.TemporaryFile(dir=_limit.folder)  # noqa: SIM115

    def append(self, piece: Array) -> None:
        self.length += len(piece)
        if self.file is None:
            self.pieces.append(piece)
        else:
            self.file.write(np.ascontiguousarray(piece, dtype=self.dtype).data)

    def array(self) -> Array:
        """All of it; nothing can be appended afterwards."""
        shape = self.length, *self.columns
        if self.file is not None:
            with self.file as file:
                file.flush()
                size = self.length * math.prod(self.columns) * self.dtype.itemsize
                if size > SMALL:
                    return mapped_array(file, shape, self.dtype)
                file.seek(0)
                return np.frombuffer(file.read(), dtype=self.dtype).reshape(shape)
        if len(self.pieces) == 1:
            return self.pieces.pop()
        whole, end = np.empty(shape, dtype=self.dtype), 0
        self.pieces.reverse()
        while self.pieces:  # each is freed as soon as it is copied, so that no two copies of everything exist
            piece = self.pieces.pop()
            begin, end = end, end + len(piece)
            whole[begin:end] = piece
        return whole
