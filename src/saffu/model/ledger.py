"""Which documents a model has counted, as keyed hashes: enough to reject documents that were never counted."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.text.corpus import TokenCorpus

HASH = 16  # bytes; two documents share a hash with probability 2⁻¹²⁸
Hashes = npt.NDArray[np.bytes_]
Times = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Page:
    """Hashes with one key, sorted, and how often each document is counted."""

    hashes: Hashes  # (n,) of HASH bytes
    times: Times  # (n,)

    @classmethod
    def of(cls, hashes: Hashes, times: Array | None = None) -> Page:
        """From hashes in any order, repeated or not."""
        distinct, place = np.unique(hashes, return_inverse=True)
        counts = np.zeros(len(distinct), dtype=np.int32)
        np.add.at(counts, place, 1 if times is None else times)
        return cls(distinct[counts > 0], counts[counts > 0])

    def __add__(self, other: Page) -> Page:
        return Page.of(np.concatenate([self.hashes, other.hashes]), np.concatenate([self.times, other.times]))

    def places(self, hashes: Hashes) -> Array:
        """Where each hash is, or −1."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[place] == hashes, place, -1)

    def strike(self, hashes: Hashes) -> tuple[npt.NDArray[np.bool_], Page]:
        """Remove one count for each hash that has any left. Return which hashes were removed, and the rest."""
        place = self.places(hashes)
        order = np.argsort(place, kind="stable")
        ranked = place[order]
        repetition = np.empty(len(place), dtype=np.int64)  # 0 for the first of equal hashes, 1 for the second, …
        repetition[order] = np.arange(len(place)) - np.searchsorted(ranked, ranked)
        struck = place >= 0
        struck[struck] = repetition[struck] < self.times[place[struck]]
        times = self.times.copy()
        np.subtract.at(times, place[struck], 1)
        return struck, Page(self.hashes[times > 0], times[times > 0])


class Ledger:
    """How often each document is counted. A document is identified by its token ids, all its lines included.

    Hashes are keyed by a random salt, and a merged model keeps one page per salt. The salt is stored with the hashes,
    so whoever has the ledger can test a guess: hash a candidate document and look it up. The ledger reveals nothing
    about text that cannot be guessed, but it does not hide whether a known document was counted.
    """

    def __init__(self, pages: Mapping[bytes, Page] | None = None) -> None:
        empty = Page(np.zeros(0, dtype=f"S{HASH}"), np.zeros(0, dtype=np.int32))
        self.pages = dict(pages or {secrets.token_bytes(HASH): empty})

    @classmethod
    def of(cls, corpus: TokenCorpus) -> Ledger:
        """The ledger of a corpus, with a new salt."""
        return cls().with_added(corpus)

    @property
    def documents(self) -> int:
        return sum(int(page.times.sum()) for page in self.pages.values())

    def with_added(self, corpus: TokenCorpus) -> Ledger:
        """The ledger with these documents added, on the first page."""
        salt, page = next(iter(self.pages.items()))
        return Ledger({**self.pages, salt: page + Page.of(hashed(corpus, salt))})

    def counted(self, corpus: TokenCorpus) -> Array:
        """The numbers of the documents of a corpus that are counted, each at most as often as in the ledger."""
        return np.flatnonzero(self._struck(corpus)[0])

    def without(self, corpus: TokenCorpus) -> Ledger:
        """The ledger without these documents. Raises SaffuError if one is passed more often than it is counted."""
        struck, left = self._struck(corpus)
        missing = np.flatnonzero(~struck)
        if len(missing) and len(missing) == corpus.documents:
            raise SaffuError("none of these documents is in the model; pass them exactly as they were counted")
        if len(missing):
            raise SaffuError(
                f"{len(missing):,} of {corpus.documents:,} documents {'was' if len(missing) == 1 else 'were'} never "
                f"counted, or not that often (the first is document {missing[0] + 1}); the model is unchanged; "
                "`skip_uncounted` removes only the others"
            )
        return left

    def cut(self, corpus: TokenCorpus, part: int, gap: int) -> TokenCorpus:
        """Documents as they were counted: in the parts between held-out lines, where there are any.

        `part` and `gap` are the most lines of a part and of what was held out between two of them. A document that is
        counted whole, or of which not all other lines are counted, stays whole.
        """
        known = {salt: set(page.hashes.tolist()) for salt, page in self.pages.items()}
        whole, ends, spans = {*self.counted(corpus).tolist()}, corpus.line_starts(), []
        for number, (begin, end) in enumerate(pairwise(np.searchsorted(ends, corpus.starts).tolist())):
            lines = [corpus.ids[lo:hi].astype("<i4").tobytes() for lo, hi in pairwise(ends[begin : end + 1].tolist())]
            parts = [] if number in whole else counted_parts(lines, known, part, gap)
            spans += [(begin + lo, begin + hi) for lo, hi in parts or [(0, len(lines))]]
        ids = np.concatenate([corpus.ids[:0], *(corpus.ids[ends[lo] : ends[hi]] for lo, hi in spans)])
        sizes = np.concatenate([corpus.sizes[:0], *(corpus.sizes[lo:hi] for lo, hi in spans)])
        starts = np.cumsum([0, *(ends[hi] - ends[lo] for lo, hi in spans)], dtype=np.int64)
        return TokenCorpus(ids, starts, sizes)

    def _struck(self, corpus: TokenCorpus) -> tuple[npt.NDArray[np.bool_], Ledger]:
        """Which documents could be removed, and the ledger without them."""
        struck, pages = np.zeros(corpus.documents, dtype=bool), {}
        for salt, page in self.pages.items():
            remaining = np.flatnonzero(~struck)
            found, pages[salt] = page.strike(hashed(corpus, salt)[remaining])
            struck[remaining[found]] = True
        return struck, Ledger(pages)

    def __add__(self, other: Ledger) -> Ledger:
        pages = dict(self.pages)
        for salt, page in other.pages.items():
            pages[salt] = pages[salt] + page if salt in pages else page
        return Ledger(pages)

    def shared_with(self, other: Ledger) -> int:
        """The number of documents known to be in both: those on pages with the same salt."""
        shared = 0
        for salt in self.pages.keys() & other.pages.keys():
            one, two = self.pages[salt], other.pages[salt]
            place = one.places(two.hashes)
            shared += int(np.minimum(one.times[place], two.times)[place >= 0].sum())
        return shared

    def arrays(self) -> dict[str, Array]:
        """What is stored: for each page its salt, its hashes (n, 16), and how often each is counted."""
        stored: dict[str, Array] = {}
        for number, (salt, page) in enumerate(self.pages.items()):
            stored[f"{number}.salt"] = np.frombuffer(salt, dtype=np.uint8)
            stored[f"{number}.hashes"] = page.hashes.view(np.uint8).reshape(-1, HASH)
            stored[f"{number}.times"] = page.times
        return stored

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Ledger:
        """The inverse of `arrays`."""
        pages = {}
        if not arrays or len(arrays) % 3:
            raise SaffuError("the ledger is damaged; restore the folder or train again")
        for number in range(len(arrays) // 3):
            salt, hashes, times = (arrays[f"{number}.{part}"] for part in ("salt", "hashes", "times"))
            fits = salt.shape == (HASH,) and hashes.shape == (len(times), HASH) and times.shape == (len(hashes),)
            if not fits or salt.dtype != np.uint8 or hashes.dtype != np.uint8 or times.dtype != np.int32:
                raise SaffuError("the ledger is damaged; restore the folder or train again")
            pages[salt.tobytes()] = Page(np.ascontiguousarray(hashes).reshape(-1).view(f"S{HASH}"), times)
        return cls(pages)


def hashed(corpus: TokenCorpus, salt: bytes) -> Hashes:
    """The hash of each document: of its token ids as little-endian 32-bit integers, whatever their width here."""
    joined = b"".join(
        hashlib.blake2b(corpus.ids[lo:hi].astype("<i4").tobytes(), key=salt, digest_size=HASH).digest()
        for lo, hi in pairwise(corpus.starts.tolist())
    )
    return np.frombuffer(joined, dtype=f"S{HASH}")


def counted_parts(lines: list[bytes], known: Mapping[bytes, set[bytes]], part: int, gap: int) -> list[tuple[int, int]]:
    """The parts of a document that are known, as ranges of lines; empty unless they are all of it except for gaps.

    Gaps have `gap` lines at most and do not become shorter, as `hold_out` leaves them.
    """
    found: list[tuple[int, int]] = []
    start, end, shortest = 0, 0, 0
    while end < len(lines):
        starts = range(end + shortest, min(end + gap, len(lines) - 1) + 1)
        start, stop = next(((a, b) for a in starts if (b := _longest(lines[a : a + part], known, a))), (0, 0))
        if not stop:
            break
        found.append((start, stop))
        shortest, end = max(1, shortest, start - end if end else 0), stop
    return found if len(lines) - end <= gap else []


def _longest(lines: list[bytes], known: Mapping[bytes, set[bytes]], start: int) -> int:
    """Where the longest known document that begins here ends; 0 if there is none."""
    longest = 0
    for salt, hashes in known.items():
        digest = hashlib.blake2b(key=salt, digest_size=HASH)
        for number, line in enumerate(lines, start + 1):
            digest.update(line)
            if digest.digest().rstrip(b"\0") in hashes:
                longest = max(longest, number)
    return longest
