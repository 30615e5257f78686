"""Documents against a ledger: which of their lines are counted, which were held out, and which it does not know."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from saffu.calibrated.ngrams import NgramCounts
from saffu.errors import SaffuError
from saffu.format import plural, warn
from saffu.model.ledger import DAMAGED, HASH, OPENING, TABLES, Divided, Ledger, hash_of, line_contents
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import STRETCH

SEARCHED = 5  # the longest n-grams by which changed lines are found: those whose keys are single numbers
LONGEST = 19 * STRETCH  # lines of a part, unless more were held out or fewer
MOST_SEARCHED = 50_000  # lines of a text that should be new, for parts that are counted
QUOTED = 12  # tokens of a document that an error quotes
UNCHANGED = "the model is unchanged"
Span = tuple[int, int]
"""A range of lines of a document, from 0."""


@dataclass(frozen=True)
class Match:
    """What a ledger knows of a document."""

    lines: int
    counted: Sequence[Span] = ()  # its parts that are counted; all of it, if nothing was held out
    held_out: Sequence[Span] = ()
    whole: bool = False  # whether it ends where the document that was counted ends
    division: tuple[bytes, Divided] | None = None  # the salt and the entry of its page

    @property
    def unknown(self) -> list[Span]:
        """The lines that were neither counted nor held out like this."""
        spans = sorted([*self.counted, *self.held_out])
        ends = [0, *(hi for _, hi in spans)]
        begins = [*(lo for lo, _ in spans), self.lines]
        return [(lo, hi) for lo, hi in zip(ends, begins, strict=True) if lo < hi]

    @property
    def table(self) -> str:
        """The table of the ledger that what is counted of it is in."""
        return "counted" if self.whole and not self.division else "parts"

    @property
    def page(self) -> bytes | None:
        """The salt of the page that knows it; None if that may be any."""
        return self.division[0] if self.division else None

    @property
    def openings(self) -> list[Span]:
        """The beginnings of its parts."""
        parts = [*(self.counted if self.table == "parts" else ()), *self.held_out]
        return [(lo, min(hi, lo + OPENING)) for lo, hi in parts]

    @property
    def exact(self) -> bool:
        """Whether every line is known, and no line is missing."""
        return self.whole and not self.unknown

    @property
    def share(self) -> str:
        """How much of it is known."""
        matches = self.lines - sum(hi - lo for lo, hi in self.unknown)
        return f"{matches:,} of its {plural(self.lines, 'line')} match ({100 * matches // self.lines}%)"

    @property
    def partial(self) -> bool:
        return bool(self.counted) and not self.exact


@dataclass(frozen=True)
class Matches:
    """What a ledger knows of the documents of a corpus."""

    corpus: TokenCorpus
    ledger: Ledger
    every: int  # how many stretches one was held out: no part of a document is longer than the others
    documents: Sequence[Match]

    @classmethod
    def of(cls, corpus: TokenCorpus, ledger: Ledger, every: int) -> Matches:
        """Look up every document."""
        bounds = corpus.document_lines().tolist()
        documents = [Match(hi - lo) for lo, hi in pairwise(bounds)]
        counted = ledger.counted(corpus).tolist()
        for number in counted:
            lines = documents[number].lines
            documents[number] = Match(lines, [(0, lines)], whole=True)
        others = sorted({*range(len(documents))} - {*counted})
        known, _ = ledger.without(corpus.select(others), "held_out")
        held_out = [others[place] for place in np.flatnonzero(known)]
        for number in held_out:
            lines = documents[number].lines
            documents[number] = Match(lines, held_out=[(0, lines)], whole=True)
        search = _Search(ledger, every)
        ends = corpus.line_starts()
        for number in sorted({*others} - {*held_out}):
            lo, hi = bounds[number : number + 2]
            documents[number] = search.match(list(line_contents(corpus, lo, hi, ends)))
        return cls(corpus, ledger, every, documents)

    def as_often_as_counted(self) -> Matches:
        """The same, without what is passed more often than the ledger has it."""
        documents = list(self.documents)
        left = self.ledger
        for kind, table in (("counted", "counted"), ("counted", "parts"), ("held_out", "held_out")):
            removed, left = self._removed(left, kind, table)
            for number, span, was_removed in removed:
                if not was_removed:
                    known: dict[str, Any] = {kind: [own for own in getattr(documents[number], kind) if own != span]}
                    documents[number] = replace(documents[number], **known)
        return replace(self, documents=documents)

    def left(self) -> tuple[TokenCorpus, Ledger]:
        """The parts that are removed, and the ledger without them and what it recorded next to them."""
        counted, left = self._removed(self.ledger, "counted", "counted")
        parts, left = self._removed(left, "counted", "parts")
        for kind in ("held_out", "openings"):
            _, left = self._removed(left, kind, kind)
        for match in self.documents:
            if match.division:
                left = left.without_division(*match.division)
        left = left.without_remains()
        firsts = self.corpus.document_lines().tolist()
        known = [(number, span) for number, span, removed in [*counted, *parts] if removed]
        spans = [(firsts[number] + lo, firsts[number] + hi) for number, (lo, hi) in known]
        return self.corpus.lines_as_documents(spans), left

    def _removed(self, left: Ledger, kind: str, table: str) -> tuple[list[tuple[int, Span, bool]], Ledger]:
        """Remove lines of one kind from a table of the ledger; if their document is on a certain page, from there.

        Returns the document and the lines of each, and whether they were in it; and the ledger without them.
        """
        owned: dict[bytes | None, list[tuple[int, Span]]] = {page: [] for page in (*left.pages, None)}
        for number, match in enumerate(self.documents):
            if kind != "counted" or match.table == table:
                owned[match.page] += [(number, span) for span in getattr(match, kind)]
        removed: list[tuple[int, Span, bool]] = []
        firsts = self.corpus.document_lines().tolist()
        for page, own in owned.items():
            lines = [(firsts[number] + lo, firsts[number] + hi) for number, (lo, hi) in own]
            known, left = left.without(self.corpus.lines_as_documents(lines), table, page)
            for span, found in zip(own, known.tolist(), strict=True):
                if not found and page is not None and kind != "counted":  # an equal one of another page was taken
                    owned[None].append(span)
                else:
                    removed.append((*span, found))
        return removed, left

    def lines(self, kind: str) -> int:
        return sum(hi - lo for match in self.documents for lo, hi in getattr(match, kind))

    def require_exact(
        self, ngrams: NgramCounts | None = None, decode: Callable[[Sequence[int]], str] = lambda _: ""
    ) -> None:
        """Raise SaffuError unless these documents can be forgotten as they are; see `problem`."""
        cause, remedy = self.problem(ngrams, decode)
        if cause:
            raise SaffuError(f"{cause}; {remedy}")

    def problem(
        self, ngrams: NgramCounts | None = None, decode: Callable[[Sequence[int]], str] = lambda _: ""
    ) -> tuple[str, str]:
        """Why not all of these documents are counted, line by line, each as often as it is passed; empty if they are.

        Returns also how the others can be forgotten. The model's `ngrams` help to say which lines were changed, and
        `decode` to quote how a document begins.
        """
        if all(match.held_out and not match.counted and match.exact for match in self.documents):
            return "these documents were held out and never counted", "there is nothing to remove"
        limited = self.as_often_as_counted().documents
        able = [len(match.counted) == len(own.counted) for match, own in zip(self.documents, limited, strict=True)]
        missing = [n for n, match in enumerate(self.documents) if not able[n] or not (match.exact or match.counted)]
        for number, match in enumerate(self.documents):
            if match.partial and able[number]:
                remedy = f"{UNCHANGED}; `skip_uncounted` removes the parts that match"
                return self._mismatch(number, match, ngrams), remedy
        if not missing:
            return "", ""
        first = missing[0]
        (alone,) = Matches.of(self.corpus.select([first]), self.ledger, self.every).documents
        lines = f"; {self._lines(first, ngrams)}" if able[first] and not alone.exact and alone.lines > 1 else ""
        if len(self.documents) == 1:
            often = "" if able[0] else " that often"
            return f"this document is not in the model{often}{lines}", "pass it as it was counted"
        if len(missing) == len(self.documents):
            of_first = lines.replace("; ", "; of the first, ", 1)
            return f"none of these documents is in the model{of_first}", "pass them exactly as they were counted"
        begin = self.corpus.starts[first]
        opening = decode(self.corpus.ids[begin : begin + QUOTED].tolist()).split("\n")[0].strip()
        quote = f", “{opening}…”" if opening else ""
        cause = (
            f"{len(missing):,} of {len(self.documents):,} documents {'was' if len(missing) == 1 else 'were'} never "
            f"counted, or not that often (the first is document {first + 1}{quote}{lines})"
        )
        return cause, f"{UNCHANGED}; `skip_uncounted` removes only the others"

    def _mismatch(self, number: int, match: Match, ngrams: NgramCounts | None) -> str:
        """Why a document is counted only in part."""
        which = f"document {number + 1}" if len(self.documents) > 1 else "this document"
        if match.division:
            return f"{which} was counted, but {_shown(match.unknown)} of it no longer are"
        if match.unknown:
            return f"{which} is not the one that was counted: {self._lines(number, ngrams)}; pass it as it was"
        return f"{which} was not counted as a whole: it consists of parts of one or more others; {match.share}"

    def _lines(self, number: int, ngrams: NgramCounts | None) -> str:
        """How many lines of a document match, and where those are that do not."""
        match = self.documents[number]
        where = match.share + (f", but not {_shown(match.unknown)}" if match.counted or match.held_out else "")
        if ngrams is None or ngrams.order > SEARCHED:
            return where
        lines = uncounted_lines(self.corpus.select([number]), match.unknown, ngrams)
        if not lines:
            return f"{where}; all phrases were counted, so lines were moved, repeated, or left out"
        return where + (f"; phrases in {_shown(lines)} were never counted" if lines != match.unknown else "")


def warn_if_counted(corpus: TokenCorpus, ledger: Ledger | None) -> None:
    """Warn if most of a text that should be new to a model is counted."""
    share = counted_share(corpus, ledger) if ledger else 0.0
    if share > 0.5:
        effect = "it predicts it better than it would predict new text; pass text that it has not counted"
        warn(f"the model has counted {share:.0%} of this text, so {effect}")


def counted_share(corpus: TokenCorpus, ledger: Ledger) -> float:
    """The share of the tokens of a corpus that are counted, in whole documents or in parts that the ledger knows."""
    whole = ledger.knows(corpus)
    divides = any(len(page.parts.hashes) for page in ledger.pages.values())
    in_parts = share_in_parts(corpus, np.flatnonzero(~whole).tolist(), ledger) if divides else 0.0
    return float((np.diff(corpus.starts) * np.where(whole, 1, in_parts)).sum()) / max(1, corpus.targets)


def share_in_parts(corpus: TokenCorpus, documents: Sequence[int], ledger: Ledger) -> float:
    """The share of the tokens of documents that are in parts that are counted; of many lines, that of the first."""
    search = _Search(ledger, every=0)
    ends = corpus.line_starts()
    bounds = corpus.document_lines().tolist()
    lines = 0
    searched = 0
    counted = 0
    for number in documents:
        lo = bounds[number]
        hi = min(bounds[number + 1], lo + MOST_SEARCHED - lines)
        found = search.tiled(list(line_contents(corpus, lo, hi, ends))).counted
        lines += hi - lo
        searched += int(ends[hi] - ends[lo])
        counted += sum(int(ends[lo + b] - ends[lo + a]) for a, b in found)
        if lines == MOST_SEARCHED:
            break
    return counted / max(1, searched)


def uncounted_lines(document: TokenCorpus, spans: Sequence[Span], ngrams: NgramCounts) -> list[Span]:
    """Which lines within spans of a document have n-grams that no counted text has; so they were changed.

    The ledger knows parts of up to thousands of lines as one hash; more hashes would make shorter texts easier to
    guess. The n-grams are in the folder anyway. All lines of a span where most have such n-grams, as where all of them
    were held out; none where all that was changed occurs elsewhere.
    """
    lines: list[Span] = []
    for lo, hi in spans:
        changes = _uncounted_lines(document.lines_as_documents([(lo, hi)]), ngrams)
        lines += [(lo, hi)] if 2 * len(changes) > hi - lo else [(lo + line, lo + line + 1) for line in changes]
    return lines


def _uncounted_lines(part: TokenCorpus, ngrams: NgramCounts) -> list[int]:
    """Halves a part until every half that has new n-grams is one line."""
    ends = part.line_starts().tolist()
    order = ngrams.order
    lines: list[int] = []
    pending = [(0, part.lines)]

    def counted(lo: int, hi: int) -> bool:
        ranges = np.array([[lo, max(lo, hi)]], dtype=np.int64)
        return ngrams.holds(NgramCounts.count(part, order, ngrams.vocabulary, ranges=ranges))

    while pending:
        lo, hi = pending.pop()
        follows = bool(lines) and lines[-1] == lo - 1
        # The first n-grams of a line hold the end of the line before it, which may be the only one that was changed.
        begin = min(ends[lo] + order - 1, ends[lo + 1]) if follows else ends[lo]
        if counted(begin, ends[hi]):
            continue
        if hi - lo > 1:
            middle = (lo + hi) // 2
            pending += [(middle, hi), (lo, middle)]
            continue
        lines.append(lo)
        if 2 * len(lines) > part.lines:
            break
    return lines


def _shown(spans: Sequence[Span]) -> str:
    """Ranges of lines, from 1.

    >>> _shown([(0, 1), (4, 9)])
    'lines 1, 5–9'
    """
    shown = [f"{lo + 1:,}" if hi - lo == 1 else f"{lo + 1:,}–{hi:,}" for lo, hi in spans]
    word = "line" if len(spans) == 1 and spans[0][1] - spans[0][0] == 1 else "lines"
    return f"{word} {', '.join(shown[:8])}" + (f", and {len(shown) - 8} more ranges" if len(shown) > 8 else "")


class _Search:
    """Finds documents of which lines were held out, whole or in parts."""

    def __init__(self, ledger: Ledger, every: int) -> None:
        self.ledger = ledger
        self.divided: dict[bytes, defaultdict[bytes, list[Divided]]] = {}
        for salt, page in ledger.pages.items():
            self.divided[salt] = defaultdict(list)
            for entry in page.divided:
                self.divided[salt][entry.whole].append(entry)
        self.known = {
            name: {salt: frozenset(getattr(page, name).hashes.tolist()) for salt, page in ledger.pages.items()}
            for name in TABLES
        }
        usual = max(LONGEST, (every - 1) * STRETCH)  # also of a document that was cut and so is not known as a whole
        self.longest = {
            salt: max((usual, *(abs(cut) for entry in page.divided for cut in entry.cuts)))
            for salt, page in ledger.pages.items()
        }

    def match(self, lines: list[bytes]) -> Match:
        """Match a document given as the contents of its lines."""
        for salt, wholes in self.divided.items():
            if entries := wholes[hash_of(lines, salt)]:
                return self._divided(lines, salt, entries.pop())
        return self.tiled(lines)

    def _divided(self, lines: list[bytes], salt: bytes, entry: Divided) -> Match:
        """A document that is known as a whole; of its parts, those that have not been removed by themselves."""
        if sum(map(abs, entry.cuts)) != len(lines):
            raise SaffuError(DAMAGED)
        counted = []
        held_out = []
        for lo, cut in zip(accumulate(map(abs, entry.cuts), initial=0), entry.cuts, strict=False):
            span = (lo, lo + abs(cut))
            if cut < 0:
                held_out.append(span)
            elif hash_of(lines[slice(*span)], salt).rstrip(b"\0") in self.known["parts"][salt]:
                counted.append(span)
        return Match(len(lines), counted, held_out, whole=True, division=(salt, entry))

    def tiled(self, lines: list[bytes]) -> Match:
        """The parts of other documents that occur in this one, from its first line on, the longest first."""
        spans: dict[str, list[Span]] = {"parts": [], "held_out": []}
        at = 0
        while at < len(lines):
            end, kind = max((self._part(lines, at, salt) for salt in self.ledger.pages), default=(0, ""))
            if end:
                spans[kind].append((at, end))
            at = end or at + 1
        return Match(len(lines), spans["parts"], spans["held_out"])

    def _part(self, lines: list[bytes], at: int, salt: bytes) -> tuple[int, str]:
        """Where the longest part that begins here ends, and its kind; 0 if there is none."""
        openings = self.known["openings"][salt]
        longest = (0, "")
        opened = False
        digest = hashlib.blake2b(key=salt, digest_size=HASH)
        for end in range(at + 1, min(at + self.longest[salt], len(lines)) + 1):
            digest.update(lines[end - 1])
            opened = opened or digest.digest().rstrip(b"\0") in openings
            if end - at >= OPENING and not opened:
                break
            if opened:
                here = digest.digest().rstrip(b"\0")
                longest = next(
                    ((end, kind) for kind in ("parts", "held_out") if here in self.known[kind][salt]), longest
                )
        return longest
