"""Reading with a model: the readers of native/counted, many threads for a corpus.

A document must be read in order, because the memory learns from it. But its tokens are known, so the shares of views,
most of the work, can be computed in advance; and documents do not depend on each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_void_p
from itertools import pairwise
from typing import Any

import numpy as np

from saffu.calibrated import kernels
from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.kneser_ney import Ranks
from saffu.calibrated.ngrams import checked_ids
from saffu.format import progress_bar
from saffu.interface import Floats
from saffu.text.corpus import TokenCorpus
from saffu.workers import cores, run_in_threads

CHUNK = 1 << 10  # targets read at a time
AHEAD = 8  # chunks of a document whose shares may wait to be read
IDLE = 4  # readers kept for the next call: each remembers the document that it read last


class Reader:
    """A native reader, which remembers the document that it reads and, if it is online, those before it."""

    def __init__(self, native: kernels.Model, is_online: bool = False):
        self.native = native  # must outlive the reader
        self.handle = c_void_p(library.saffu_reader(native, is_online))
        weakref.finalize(self, library.saffu_free_reader, self.handle)


class Readers:
    """Readers for documents that come and go. A reader that has just read the start of one continues from there."""

    def __init__(self, native: kernels.Model):
        self.native = native
        self.lock = threading.Lock()
        self.idle: list[Reader] = []

    def take(self) -> Reader:
        """One that no other thread uses."""
        with self.lock:
            reader = self.idle.pop() if self.idle else None
        return reader or Reader(self.native)

    def give_back(self, reader: Reader) -> None:
        with self.lock:
            self.idle = [*self.idle, reader][-IDLE:]

    @contextmanager
    def reader(self) -> Iterator[Reader]:
        """One that no other thread uses, for a while."""
        reader = self.take()
        yield reader
        self.give_back(reader)

    @contextmanager
    def at(self, document: tuple[int, bytes, bytes]) -> Iterator[tuple[Any, ...]]:
        """A reader, and a document so far as kernels take it."""
        age, tail, learned = document
        tokens = np.frombuffer(tail, dtype=TOKEN)
        weights = np.frombuffer(learned, dtype=np.float32)
        with self.reader() as reader:
            yield reader, pointer(tokens, TOKEN), len(tokens), age, pointer(weights, np.float32)


def initial_learning(exponents: Floats) -> Array:
    """What is known before a document is read, (4, J): fitted exponents, and ones as sums of squared gradients."""
    return np.concatenate([exponents, np.ones_like(exponents)]).astype(np.float32)


class Course:
    """A range of targets that one reader reads in order, chunk by chunk: a long document, or several short ones."""

    def __init__(self, lo: int, hi: int):
        self.lo = lo
        self.hi = hi
        self.chunks = -(-(hi - lo) // CHUNK)
        self.begun = 0  # chunks whose shares without the memory someone computes or has computed
        self.read = 0  # chunks that were read
        self.shares: dict[int, Array] = {}  # of chunks that wait to be read
        self.reader: Reader | None = None  # while it is being read, between chunks

    def bounds(self, place: int) -> tuple[int, int]:
        """The range of targets of a chunk."""
        return self.lo + place * CHUNK, min(self.lo + (place + 1) * CHUNK, self.hi)


class Schedule:
    """What each thread does next, so that all are busy and the longest courses come first.

    The shares of views, most of the work, are computed in any order, at most `AHEAD` chunks before they are read.
    """

    def __init__(self, native: kernels.Model, courses: list[Course], online: Reader | None):
        self.waiting = sorted(courses, key=lambda course: course.chunks)
        self.open: list[Course] = []
        self.readers = Readers(native)
        self.readers.idle += [online] if online else []
        self.change = threading.Condition()

    def next(self, stopped: Callable[[], bool]) -> tuple[Course, int, Reader | None] | None:
        """A chunk of a course to compute the shares of or, with its reader, to read; None at the end."""
        with self.change:
            while not stopped() and (self.open or self.waiting):
                ready = [course for course in self.open if course.reader and course.read in course.shares]
                if ready:
                    course = max(ready, key=lambda course: course.chunks - course.read)
                    reader = course.reader
                    course.reader = None
                    return course, course.read, reader
                behind = [course for course in self.open if course.begun < min(course.chunks, course.read + AHEAD)]
                behind += self.waiting[-1:]
                if behind:
                    course = max(behind, key=lambda course: course.chunks - course.begun)
                    if course in self.waiting[-1:]:
                        course.reader = self.readers.take()
                        self.open.append(self.waiting.pop())
                    course.begun += 1
                    return course, course.begun - 1, None
                self.change.wait(0.1)
        return None

    def computed(self, course: Course, place: int, shares: Array) -> None:
        with self.change:
            course.shares[place] = shares
            self.change.notify_all()

    def was_read(self, course: Course, reader: Reader) -> None:
        with self.change:
            del course.shares[course.read]
            course.read += 1
            if course.read < course.chunks:
                course.reader = reader
            else:
                self.open.remove(course)
                self.readers.give_back(reader)
            self.change.notify_all()


def courses_of(starts: Array, is_online: bool) -> list[Course]:
    """Courses of about `CHUNK` targets, longer where a document is; online, the whole text is one.

    >>> [(course.lo, course.hi) for course in courses_of(np.array([0, 3000, 6000, 9000, 9500]), False)]
    [(0, 3000), (3000, 6000), (6000, 9000), (9000, 9500)]
    """
    targets = int(starts[-1])
    first = np.searchsorted(starts, np.arange(0, targets, CHUNK)) if targets and not is_online else [0]
    bounds = sorted({*starts[first].tolist(), targets})
    return [Course(lo, hi) for lo, hi in pairwise(bounds)]


def read_corpus(
    native: kernels.Model,
    ranks: Ranks,
    corpus: TokenCorpus,
    progress: str | None,
    certainty: Array | None,
    online: Reader | None = None,
) -> Floats:
    """ln p of every target (targets,), and, if given, the `certainty` (targets, 2).

    Documents are independent of each other, unless a reader is given that is `online`.
    """
    ids = checked_ids(corpus, len(ranks.ranks))
    starts = np.ascontiguousarray(corpus.starts, dtype=np.int64)
    out = np.empty(corpus.targets)
    courses = courses_of(starts, online is not None)
    widths = ranks.number + np.diff(ranks.first)[ranks.classes[ranks.ranks]]  # shares per target, by token
    schedule = Schedule(native, courses, online)

    def work(_: int, stopped: Callable[[], bool]) -> None:
        while task := schedule.next(stopped):
            course, place, reader = task
            lo, hi = course.bounds(place)
            text = pointer(ids, TOKEN), pointer(starts, np.int64), corpus.documents, lo, hi
            if reader is None:
                shares = np.empty(int(widths[ids[lo:hi]].sum()), dtype=np.float32)
                library.saffu_plain_shares(native, *text, pointer(shares, np.float32))
                schedule.computed(course, place, shares)
            else:
                part = None if certainty is None else certainty[lo:hi]
                library.saffu_read_targets(
                    reader.handle, *text, pointer(course.shares[place], np.float32),
                    pointer(out[lo:hi], np.float64), pointer(part, np.float32),
                )  # fmt: skip
                schedule.was_read(course, reader)
                bar.update(hi - lo)

    with progress_bar(progress, total=corpus.targets) as bar:
        run_in_threads(work, max(1, min(cores(), sum(course.chunks for course in courses))))
    return out
