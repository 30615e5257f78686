"""Which documents a model has counted, as hashes: enough to reject documents that were never counted.

Where training held out lines of a document, the ledger also knows the document as a whole, where it was cut, and what
was held out, so that every line of a document can be verified before it is forgotten (see `saffu.model.matching`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.text.corpus import Division, TokenCorpus

SALT = bytes(16)  # of every ledger, so that those of different models can be compared
HASH = 16  # bytes; two documents share a hash with probability 2⁻¹²⁸
OPENING = 3  # lines at the beginning of a part, by which it is found in a text
TABLES = ("counted", "parts", "held_out", "openings")  # of a page
DAMAGED = "the ledger is damaged; restore the folder or train again"
Hashes = npt.NDArray[np.bytes_]
Times = npt.NDArray[np.int64]
Cuts = tuple[int, ...]
"""The lines of each part of a document, in order: positive if it was counted, negative if it was held out."""


class Divided(NamedTuple):
    """A document of which lines were held out."""

    whole: bytes  # its hash
    cuts: Cuts
    parts: tuple[bytes, ...]  # the hashes of those counted


@dataclass(frozen=True, eq=False)
class Tally:
    """Hashes with one key, sorted, and how often each occurs."""

    hashes: Hashes = field(default_factory=lambda: np.zeros(0, dtype=f"S{HASH}"))  # (n,) of HASH bytes
    times: Times = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (n,)

    @classmethod
    def of(cls, hashes: Hashes, times: Array | None = None) -> Tally:
        """From hashes in any order, repeated or not."""
        distinct, place = np.unique(hashes, return_inverse=True)
        counts = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(counts, place, 1 if times is None else times)
        return cls(distinct[counts > 0], counts[counts > 0])

    def __add__(self, other: Tally) -> Tally:
        return Tally.of(np.concatenate([self.hashes, other.hashes]), np.concatenate([self.times, other.times]))

    def places(self, hashes: Hashes) -> Array:
        """Where each hash is, or −1."""
        if not len(self.hashes):
            return np.full(len(hashes), -1)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[place] == hashes, place, -1)

    def without(self, hashes: Hashes) -> tuple[npt.NDArray[np.bool_], Tally]:
        """Remove one count for each hash that has any left. Return which hashes were removed, and the rest."""
        place = self.places(hashes)
        order = np.argsort(place, kind="stable")
        ranked = place[order]
        repetition = np.empty(len(place), dtype=np.int64)  # 0 for the first of equal hashes, 1 for the second, …
        repetition[order] = np.arange(len(place)) - np.searchsorted(ranked, ranked)
        removed = place >= 0
        removed[removed] = repetition[removed] < self.times[place[removed]]
        times = self.times.copy()
        np.subtract.at(times, place[removed], 1)
        return removed, Tally(self.hashes[times > 0], times[times > 0])

    def arrays(self) -> dict[str, Array]:
        """What is stored: the hashes (n, 16) and how often each occurs, in 32 bits where they suffice."""
        small = self.times.max(initial=0) < 1 << 31
        times = self.times.astype(np.int32) if small else self.times
        return {"hashes": self.hashes.view(np.uint8).reshape(-1, HASH), "times": times}

    @classmethod
    def from_arrays(cls, hashes: Array, times: Array) -> Tally:
        fits = times.ndim == 1 and hashes.shape == (len(times), HASH) and hashes.dtype == np.uint8
        if not fits or times.dtype not in (np.int32, np.int64) or (times < 1).any():
            raise SaffuError(DAMAGED)
        if times.sum(dtype=np.float64) >= 2.0**62:
            raise SaffuError(DAMAGED)
        flat = np.ascontiguousarray(hashes).reshape(-1).view(f"S{HASH}")
        if (flat[1:] <= flat[:-1]).any():
            raise SaffuError(DAMAGED)
        return cls(flat, times.astype(np.int64))


@dataclass(frozen=True, eq=False)
class Page:
    """What one ledger knows, hashed with one key."""

    counted: Tally = field(default_factory=Tally)  # whole documents
    parts: Tally = field(default_factory=Tally)  # what is counted of documents of which lines were held out
    held_out: Tally = field(default_factory=Tally)  # the parts that were held out, and documents held out as a whole
    openings: Tally = field(default_factory=Tally)  # the first lines of all these parts
    divided: tuple[Divided, ...] = ()  # whole documents of which lines were held out, sorted

    def __add__(self, other: Page) -> Page:
        tables = {table: getattr(self, table) + getattr(other, table) for table in TABLES}
        return Page(**tables, divided=tuple(sorted(self.divided + other.divided)))

    def arrays(self) -> dict[str, Array]:
        """What is stored."""
        stored = self.counted.arrays()
        for table in TABLES[1:]:
            stored |= {f"{table}.{name}": array for name, array in getattr(self, table).arrays().items()}
        wholes = [entry.whole for entry in self.divided]
        parts = [part for entry in self.divided for part in entry.parts]
        stored["divided.hashes"] = np.frombuffer(b"".join(wholes), dtype=np.uint8).reshape(-1, HASH)
        stored["divided.counted"] = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(-1, HASH)
        stored["divided.parts"] = np.array([len(entry.cuts) for entry in self.divided], dtype=np.int64)
        stored["divided.cuts"] = np.array([cut for entry in self.divided for cut in entry.cuts], dtype=np.int64)
        return stored

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Page:
        counted = Tally.from_arrays(arrays["hashes"], arrays["times"])
        hashes, own, numbers, cuts = (arrays[f"divided.{name}"] for name in ("hashes", "counted", "parts", "cuts"))
        fits = hashes.dtype == np.uint8 and hashes.shape == (len(numbers), HASH) and cuts.ndim == numbers.ndim == 1
        if not fits or numbers.dtype != np.int64 or cuts.dtype != np.int64:
            raise SaffuError(DAMAGED)
        if (numbers < 0).any() or int(numbers.sum()) != len(cuts) or numbers.max(initial=0) > len(cuts):
            raise SaffuError(DAMAGED)
        if own.dtype != np.uint8 or own.shape != (int((cuts > 0).sum()), HASH):
            raise SaffuError(DAMAGED)
        rows = iter(own)
        divided = []
        for whole, (a, b) in zip(hashes, pairwise(accumulate(numbers.tolist(), initial=0)), strict=True):
            lines = tuple(cuts[a:b].tolist())
            counted_parts = islice(rows, sum(cut > 0 for cut in lines))
            divided.append(Divided(whole.tobytes(), lines, tuple(row.tobytes() for row in counted_parts)))
        parts, held_out, openings = (
            Tally.from_arrays(arrays[f"{table}.hashes"], arrays[f"{table}.times"]) for table in TABLES[1:]
        )
        return cls(counted, parts, held_out, openings, tuple(sorted(divided)))


class Ledger:
    """How often each document is counted. A document is identified by its token ids, all its lines included, and by
    its text if a tokenizer of words has lost some of it.

    Whoever has the ledger can test a guess: hash a candidate document and look it up. The ledger reveals nothing
    about text that cannot be guessed, but it does not hide whether a known document was counted.
    """

    def __init__(self, pages: Mapping[bytes, Page] | None = None) -> None:
        self.pages = dict(pages or {SALT: Page()})

    @classmethod
    def of(cls, corpus: TokenCorpus) -> Ledger:
        """The ledger of a corpus."""
        return cls().with_added(corpus)

    @property
    def documents(self) -> int:
        return sum(int(page.counted.times.sum() + page.parts.times.sum()) for page in self.pages.values())

    @property
    def most_documents(self) -> int:
        """How many documents there are at most: parts that are not of whole documents may be of one each."""
        most = 0
        for page in self.pages.values():
            parts = sum(len(entry.parts) for entry in page.divided)
            others = max(0, int(page.parts.times.sum()) - parts)
            most += int(page.counted.times.sum()) + len(page.divided) + others
        return min(most, self.documents)

    def with_added(self, corpus: TokenCorpus) -> Ledger:
        """The ledger with these documents added, on the first page."""
        salt, page = next(iter(self.pages.items()))
        if corpus.division is not None:
            fresh = divided_page(corpus, corpus.division, salt)
        else:
            fresh = Page(Tally.of(hashed(corpus, salt)))
        return Ledger({**self.pages, salt: page + fresh})

    def counted(self, corpus: TokenCorpus) -> Array:
        """The numbers of the documents of a corpus that are counted whole, each at most as often as in the ledger."""
        return np.flatnonzero(self.without(corpus, "counted")[0])

    def knows(self, corpus: TokenCorpus) -> npt.NDArray[np.bool_]:
        """Whether each document of a corpus is counted whole, however often it occurs."""
        known = np.zeros(corpus.documents, dtype=bool)
        for salt, page in self.pages.items():
            known |= page.counted.places(hashed(corpus, salt)) >= 0
        return known

    def without(self, corpus: TokenCorpus, table: str, only: bytes | None = None) -> tuple[Array, Ledger]:
        """Whether each document was in a table, and the ledger without those that were.

        `only` is the salt of the page to remove them from, if it may not be another one.
        """
        removed = np.zeros(corpus.documents, dtype=bool)
        pages = dict(self.pages)
        for salt, page in self.pages.items():
            if only not in (None, salt):
                continue
            remaining = np.flatnonzero(~removed)
            known, left = getattr(page, table).without(hashed(corpus, salt)[remaining])
            removed[remaining[known]] = True
            pages[salt] = replace(page, **{table: left})
        return removed, Ledger(pages)

    def without_division(self, salt: bytes, entry: Divided) -> Ledger:
        """The ledger without one entry for a document of which lines were held out."""
        divided = list(self.pages[salt].divided)
        divided.remove(entry)
        return Ledger({**self.pages, salt: replace(self.pages[salt], divided=tuple(divided))})

    def without_remains(self) -> Ledger:
        """The ledger without entries for documents all parts of which have been removed one by one."""
        pages = {}
        for salt, page in self.pages.items():
            times = dict(zip(page.parts.hashes.tolist(), page.parts.times.tolist(), strict=True))
            kept: Counter[Divided] = Counter()
            for entry in page.divided:
                left = max((times.get(part.rstrip(b"\0"), 0) for part in entry.parts), default=0)
                kept[entry] += kept[entry] < left
            pages[salt] = replace(page, divided=tuple(kept.elements()))
        return Ledger(pages)

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
            place = one.counted.places(two.counted.hashes)
            known = place >= 0
            shared += int(np.minimum(one.counted.times[place[known]], two.counted.times[known]).sum())
            shared += (Counter(one.divided) & Counter(two.divided)).total()
        return shared

    def arrays(self) -> dict[str, Array]:
        """What is stored: for each page its salt and its hashes."""
        stored: dict[str, Array] = {}
        for number, (salt, page) in enumerate(self.pages.items()):
            stored[f"{number}.salt"] = np.frombuffer(salt, dtype=np.uint8)
            stored |= {f"{number}.{name}": array for name, array in page.arrays().items()}
        return stored

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Ledger:
        """The inverse of `arrays`."""
        pages: dict[bytes, Page] = {}
        parts: dict[str, dict[str, Array]] = {}
        for name, array in arrays.items():
            number, _, part = name.partition(".")
            parts.setdefault(number, {})[part] = array
        if not parts or parts.keys() != {str(number) for number in range(len(parts))}:
            raise SaffuError(DAMAGED)
        for number in map(str, range(len(parts))):
            salt = parts[number].pop("salt")
            if salt.shape != (HASH,) or salt.dtype != np.uint8:
                raise SaffuError(DAMAGED)
            pages[salt.tobytes()] = Page.from_arrays(parts[number])
        return cls(pages)


def line_contents(corpus: TokenCorpus, lo: int, hi: int, ends: Array) -> Iterator[bytes]:
    """What is hashed of each line from `lo` to `hi`: its ids as little-endian 32-bit integers, and its digest."""
    for line in range(lo, hi):
        ids = corpus.ids[ends[line] : ends[line + 1]].astype("<i4").tobytes()
        yield ids if corpus.digests is None else ids + corpus.digests[line].tobytes()


def hash_of(contents: Sequence[bytes] | Iterator[bytes], salt: bytes) -> bytes:
    """The hash of lines."""
    digest = hashlib.blake2b(key=salt, digest_size=HASH)
    for content in contents:
        digest.update(content)
    return digest.digest()


def hashed(corpus: TokenCorpus, salt: bytes) -> Hashes:
    """The hash of each document."""
    if corpus.digests is not None:
        ends = corpus.line_starts()
        lines = corpus.document_lines().tolist()
        each = (hash_of(line_contents(corpus, lo, hi, ends), salt) for lo, hi in pairwise(lines))
    else:  # the same, without a step per line
        spans = pairwise(corpus.starts.tolist())
        each = (hash_of([corpus.ids[lo:hi].astype("<i4").tobytes()], salt) for lo, hi in spans)
    return np.frombuffer(b"".join(each), dtype=f"S{HASH}")


def divided_page(corpus: TokenCorpus, division: Division, salt: bytes) -> Page:
    """The page of a text of which a part was held out.

    Documents of which `corpus` does not hold all lines (`max_tokens`) are not recorded as whole ones.
    """
    runs = division.runs()
    hashes = hashed(corpus, salt)
    sides = [(corpus, corpus.line_starts()), (division.held_out, division.held_out.line_starts())]
    openings = []
    contents = {}
    for number in np.flatnonzero(runs.held_out | (runs.parts > 1)).tolist():
        text, ends = sides[int(runs.held_out[number])]
        lo, hi = int(runs.first[number]), int(runs.first[number] + runs.lines[number])
        lines = list(line_contents(text, lo, min(hi, text.lines), ends))
        if lines:
            openings.append(hash_of(lines[:OPENING], salt))
        if hi <= text.lines:
            contents[number] = b"".join(lines)
    divided = []
    for begin in np.flatnonzero(runs.begins & (runs.parts > 1)).tolist():
        own = range(begin, begin + int(runs.parts[begin]))
        if all(number in contents for number in own):
            cuts = tuple(int(runs.lines[n]) * (-1 if runs.held_out[n] else 1) for n in own)
            parts = tuple(hash_of([contents[number]], salt) for number in own if not runs.held_out[number])
            divided.append(Divided(hash_of([contents[number] for number in own], salt), cuts, parts))
    part = (runs.parts > 1)[~runs.held_out][: len(hashes)]  # runs that are counted are the documents of the corpus
    return Page(
        Tally.of(hashes[~part]),
        Tally.of(hashes[part]),
        Tally.of(hashed(division.held_out, salt)),
        Tally.of(np.frombuffer(b"".join(openings), dtype=f"S{HASH}")),
        tuple(sorted(divided)),
    )
