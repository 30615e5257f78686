"""Reading documents with their memory: the readers of native/query.cpp, and a corpus read in order by many threads."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from typing import Any

import numpy as np

from saffu.calibrated.kernels import Array, library, pointer
from saffu.calibrated.layout import NativeModel
from saffu.calibrated.rows import checked_ids
from saffu.interface import Floats
from saffu.progress import progress_bar
from saffu.text.corpus import TokenCorpus
from saffu.threads import cores, run_in_threads

CHUNK = 1 << 12  # targets read at a time
IDLE = 4  # readers kept for the next call: each remembers the document that it read last


class Reader:
    """A native reader, which remembers the document that it reads."""

    def __init__(self, native: NativeModel):
        self.structure = native.structure  # must outlive the reader
        self.handle = c_void_p(library.saffu_reader(self.structure))
        weakref.finalize(self, library.saffu_free_reader, self.handle)


class Readers:
    """Readers for documents that come and go. A reader that has just read the start of one continues from there."""

    def __init__(self, native: NativeModel):
        self.native, self.lock = native, threading.Lock()
        self.idle: list[Reader] = []

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """One that no other thread uses."""
        with self.lock:
            reader = self.idle.pop() if self.idle else None
        reader = reader or Reader(self.native)
        yield reader
        with self.lock:
            self.idle = [*self.idle, reader][-IDLE:]

    @contextmanager
    def at(self, state: tuple[int, bytes, bytes]) -> Iterator[tuple[Any, ...]]:
        """A reader, and a document's state as kernels take it."""
        age, tail, learned = state
        tokens, weights = np.frombuffer(tail, dtype=np.uint16), np.frombuffer(learned, dtype=np.float32)
        with self.reader() as reader:
            yield reader, pointer(tokens, np.uint16), len(tokens), age, pointer(weights, np.float32)


def initial_learning(exponents: Floats) -> Array:
    """What is known before a document is read, (4, J): fitted exponents, and ones as sums of squared gradients."""
    return np.concatenate([exponents, np.ones_like(exponents)]).astype(np.float32)


def read_corpus(
    native: NativeModel,
    corpus: TokenCorpus,
    vocabulary: int,
    progress: str | None,
    certainty: Array | None,
    continues: bool = False,
) -> Floats:
    """ln p of every target (targets,), and, if given, the `certainty` (targets, 2).

    Threads compute the views' shares of chunks, most of the work, in any order; one reader reads the chunks in turn.
    It begins each document with an empty memory, unless it `continues` from one to the next.
    """
    ids, starts = checked_ids(corpus, vocabulary), np.ascontiguousarray(corpus.starts, dtype=np.int64)
    out, reader, ranks = np.empty(corpus.targets), Reader(native), native.ranks
    widths = ranks.number + np.diff(ranks.first)[ranks.classes[ranks.ranks]]  # shares per target, by token
    bounds = range(0, corpus.targets, CHUNK)
    workers = max(1, min(cores(), len(bounds)))
    turn, change = 0, threading.Condition()

    def work(number: int, stopped: Callable[[], bool]) -> None:
        nonlocal turn
        for place in range(number, len(bounds), workers):
            lo, hi = bounds[place], min(bounds[place] + CHUNK, corpus.targets)
            shares = np.empty(int(widths[ids[lo:hi]].sum()), dtype=np.float32)
            text = pointer(ids, np.uint16), pointer(starts, np.int64), corpus.documents, lo, hi
            library.saffu_plain_shares(native.structure, *text, pointer(shares, np.float32))
            with change:
                while turn != place:
                    if stopped():
                        return
                    change.wait(0.1)
            part = None if certainty is None else certainty[lo:hi]
            library.saffu_read_targets(
                reader.handle, *text, continues, pointer(shares, np.float32), pointer(out[lo:hi], np.float64),
                pointer(part, np.float32),
            )  # fmt: skip
            with change:
                turn += 1
                change.notify_all()
            bar.update(hi - lo)

    with progress_bar(progress, total=corpus.targets) as bar:
        run_in_threads(work, workers)
    return out
