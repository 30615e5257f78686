"""A tokenized corpus: documents, their lines, and their token ids, in memory or memory-mapped.

Every line ends with `<eod>`, so a document of two lines, "a b" and "c", holds the ids `a b <eod> c <eod>`. Contexts
reach back to the start of their document and never further. Every entry of `ids` is one target of prediction.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.format import in_parts, plural, progress_bar
from saffu.text.tokenizer import EOD, PIECE, Tokenizer, WordTokenizer, pieces

Integers = npt.NDArray[Any]
Line = tuple[bool, str]
"""Whether it begins a document, and its text without the newline."""

SPLITS = ("file", "paragraph", "line")
BATCH = 1024  # lines tokenized at a time
DIGEST = 16  # bytes of the digest of a line's text
BEGINS, HELD_OUT = 1, 2  # flags of a line: it begins a document; it was held out


@dataclass(frozen=True, eq=False)
class TokenCorpus:
    """Documents as token ids, every line closed by `<eod>`."""

    ids: Integers  # (targets,) uint16 or int32
    starts: Integers  # (documents + 1,) int64: where each document begins; the last entry is the number of targets
    sizes: Integers  # (lines,) int64: bytes of each line in UTF-8, its newline included
    first_document: int = 0  # number of the first document, when this is a part of a larger corpus
    digests: Integers | None = None  # (lines, DIGEST) uint8: of each line's text, where ids do not determine it
    division: Division | None = None  # what was held out of the text, and where

    @classmethod
    def build(
        cls,
        lines: Iterable[Line],
        tokenizer: Tokenizer,
        folder: Path | None = None,
        max_tokens: int | None = None,
        progress: str | None = None,
    ) -> TokenCorpus:
        """Tokenize lines, stopping after the one that reaches `max_tokens` targets.

        With a `folder`, ids go to a temporary file there as they come and are memory-mapped: memory does not grow with
        the text. The file has no name, so that nothing is left if the process is killed.
        """
        dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.int32)
        end_of_line = np.array(EOD, dtype).tobytes()
        starts = array("q")
        sizes = array("q")
        digests = bytearray()
        total = 0
        source = iter(lines)
        lossless = not isinstance(tokenizer, WordTokenizer)
        file: IO[bytes] = tempfile.TemporaryFile(dir=folder) if folder else io.BytesIO()  # noqa: SIM115
        with file, progress_bar(progress) as bar:
            while (max_tokens is None or total < max_tokens) and (batch := list(islice(source, BATCH))):
                for (begins, text), ids in zip(
                    batch, encode_lines([text for _, text in batch], tokenizer), strict=True
                ):
                    if begins or not starts:
                        starts.append(total)
                    file.write(array(dtype.char, ids).tobytes() + end_of_line)
                    data = text.encode()
                    sizes.append(len(data) + 1)
                    if not lossless:
                        digests += hashlib.blake2b(data, digest_size=DIGEST).digest()
                    total += len(ids) + 1
                    bar.update(len(ids) + 1)
                    if max_tokens is not None and total >= max_tokens:
                        break
            if isinstance(file, io.BytesIO) or not total:
                flat: Integers = np.frombuffer(file.getvalue() if isinstance(file, io.BytesIO) else b"", dtype=dtype)
            else:
                file.flush()
                flat = np.memmap(file, dtype=dtype, mode="r")
        starts.append(total)
        texts = None if lossless else np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST)
        return cls(flat, np.array(starts, dtype=np.int64), np.array(sizes, dtype=np.int64), digests=texts)

    @property
    def documents(self) -> int:
        return len(self.starts) - 1

    @property
    def lines(self) -> int:
        return len(self.sizes)

    @property
    def targets(self) -> int:
        return len(self.ids)

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())

    def totals(self) -> dict[str, int]:
        """The numbers of documents, parts of them, lines, tokens, and bytes."""
        whole = self.division.documents(False, self.documents) if self.division else self.documents
        sizes = {"lines": self.lines, "tokens": self.targets, "bytes": self.bytes}
        return {"documents": whole, "parts": self.documents, **sizes}

    def require_text(self, purpose: str) -> None:
        """Raise SaffuError if there is none to score, to fit, or for any other purpose."""
        if not self.targets:
            raise SaffuError(f"there is no text to {purpose}; pass at least one document that is not blank")

    def described(self, documents: int) -> str:
        """How the text is divided: into documents of one line, or running text; all of, or parts of, `documents`."""
        if self.lines == documents:
            return f"{plural(documents, 'document')} of one line"
        return f"running text: {in_parts(documents, self.documents)}, {plural(self.lines, 'line')}"

    def line_starts(self) -> Integers:
        """Where each line begins, followed by the number of targets: (lines + 1,)."""
        return np.concatenate([[0], np.flatnonzero(self.ids == EOD) + 1])

    def slice(self, first: int, last: int) -> TokenCorpus:
        """Documents first … last−1, sharing storage."""
        return self._between([(first, last)]) if (first, last) != (0, self.documents) else self

    def select(self, documents: Sequence[int] | Integers) -> TokenCorpus:
        """The documents with these numbers, in this order, copied."""
        return self._between([(int(number), int(number) + 1) for number in documents])

    def _between(self, ranges: Sequence[tuple[int, int]]) -> TokenCorpus:
        """The documents of ranges of numbers, one range after the other."""
        lines = self.document_lines()
        spans = [(int(self.starts[a]), int(self.starts[b])) for a, b in ranges]
        lengths = [np.diff(self.starts[a : b + 1]) for a, b in ranges]
        starts = np.concatenate([[0], *lengths]).cumsum().astype(np.int64)
        sizes = np.concatenate([self.sizes[:0], *(self.sizes[lines[a] : lines[b]] for a, b in ranges)])
        digests = self.digests
        if digests is not None:
            digests = np.concatenate([digests[:0], *(digests[lines[a] : lines[b]] for a, b in ranges)])
        if len(ranges) == 1:
            (lo, hi), ((first, _),) = spans[0], ranges
            return TokenCorpus(self.ids[lo:hi], starts, sizes, self.first_document + first, digests)
        ids = np.concatenate([self.ids[:0], *(self.ids[lo:hi] for lo, hi in spans)])
        return TokenCorpus(ids, starts, sizes, digests=digests)

    def lines_as_documents(self, spans: Sequence[tuple[int, int]]) -> TokenCorpus:
        """Ranges of lines, each as a document."""
        ends = self.line_starts()
        ids = np.concatenate([self.ids[:0], *(self.ids[ends[lo] : ends[hi]] for lo, hi in spans)])
        sizes = np.concatenate([self.sizes[:0], *(self.sizes[lo:hi] for lo, hi in spans)])
        starts = np.cumsum([0, *(ends[hi] - ends[lo] for lo, hi in spans)], dtype=np.int64)
        digests = self.digests
        if digests is not None:
            digests = np.concatenate([digests[:0], *(digests[lo:hi] for lo, hi in spans)])
        return TokenCorpus(ids, starts, sizes, digests=digests)

    def divided(self, held_out: TokenCorpus, flags: bytearray | Integers) -> TokenCorpus:
        """The same corpus, with what was held out of its text: `flags` of all lines, none if it was not divided."""
        flags = np.frombuffer(flags, dtype=np.uint8)
        return replace(self, division=Division(held_out, flags)) if len(flags) else self

    def document_lines(self) -> Integers:
        """The number of each document's first line, followed by the number of lines: (documents + 1,)."""
        return np.searchsorted(self.line_starts(), self.starts)

    def head(self, targets: int) -> TokenCorpus:
        """The first documents, up to and including the one that reaches `targets`."""
        return self.slice(0, int(np.searchsorted(self.starts, min(targets, self.targets))))

    def every_nth(self, step: int) -> TokenCorpus:
        """Documents 0, step, 2·step, …"""
        return self.select(range(0, self.documents, step))

    def sample(self, targets: int) -> TokenCorpus:
        """Every nth document, with n chosen to leave about `targets`: a sample of all parts of the corpus."""
        return self if targets >= self.targets else self.every_nth(max(1, round(self.targets / targets)))

    def split(self, share: float) -> tuple[TokenCorpus, TokenCorpus]:
        """Two corpora, the first with this fraction of the documents, evenly spread."""
        numbers = np.arange(self.documents)
        in_first = np.floor((numbers + 1) * share) > np.floor(numbers * share)
        return self.select(np.flatnonzero(in_first)), self.select(np.flatnonzero(~in_first))

    def folds(self, targets: int) -> list[TokenCorpus]:
        """Contiguous parts of whole documents, of about equal size, with about `targets` each."""
        count = max(1, round(self.targets / targets))
        cuts = np.searchsorted(self.starts, np.arange(1, count) * self.targets // count).tolist()
        return [self.slice(a, b) for a, b in pairwise(sorted({0, *cuts, self.documents}))]

    def frequencies(self, vocabulary: int) -> npt.NDArray[np.int64]:
        """How often each token is a target: f (N,)."""
        counts = np.zeros(vocabulary, dtype=np.int64)
        for lo in range(0, self.targets, 1 << 22):
            counts += np.bincount(self.ids[lo : lo + (1 << 22)], minlength=vocabulary)
        return counts

    def fingerprint(self) -> str:
        """A hash that is equal for equal corpora."""
        digest = hashlib.sha256(np.ascontiguousarray(self.starts).tobytes())
        digest.update(np.ascontiguousarray(self.sizes).tobytes())
        for lo in range(0, self.targets, 1 << 22):
            digest.update(self.ids[lo : lo + (1 << 22)].astype("<i4").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Division:
    """What was held out of a text, and how the lines of both parts alternate."""

    held_out: TokenCorpus
    flags: Integers  # (lines of the whole text,) uint8: BEGINS and HELD_OUT

    def documents(self, held_out: bool, parts: int) -> int:
        """How many documents the first parts that were held out, or that were not, belong to."""
        runs = self.runs()
        return len(np.unique(np.cumsum(runs.begins)[runs.held_out == held_out][:parts]))

    def runs(self) -> Runs:
        """The parts of the whole text, in order."""
        side = (self.flags & HELD_OUT) > 0
        begins = (self.flags & BEGINS) > 0
        turns = np.flatnonzero(begins | np.append(True, side[1:] != side[:-1])[: len(side)])
        held_out = side[turns]
        begins = begins[turns]
        lines = np.diff(np.append(turns, len(side)))
        before = [np.cumsum(np.where(held_out == which, lines, 0)) - lines for which in (False, True)]
        document = np.cumsum(begins) - 1
        parts = np.bincount(document)[document] if len(turns) else turns
        return Runs(held_out, begins, lines, np.where(held_out, before[1], before[0]), parts)


@dataclass(frozen=True, eq=False)
class Runs:
    """The parts of a text: lines of one document that were all counted, or all held out. Arrays with one entry each."""

    held_out: Integers  # bool
    begins: Integers  # bool: whether its document begins with it
    lines: Integers  # how many
    first: Integers  # number of its first line in the text that was counted, or in the one that was held out
    parts: Integers  # of its document


def split_lines(lines: Iterable[str], split: str = "file") -> Iterator[Line]:
    r"""Divide lines into documents: one running text ("file"), "paragraph"s that end at blank lines, or each "line".

    >>> list(split_lines(["", "a", "b\n", " \n", "c"], "file"))
    [(True, 'a'), (False, 'b'), (False, ''), (False, 'c')]
    >>> list(split_lines(["", "a", "b\n", " \n", "c"], "paragraph"))
    [(True, 'a'), (False, 'b'), (True, 'c')]
    """
    begins, blanks = True, 0
    for line in lines:
        text = line.removesuffix("\n").removesuffix("\r")
        if not text or text.isspace():
            blanks += 1
            continue
        if split == "file" and not begins:
            yield from repeat((False, ""), blanks)
        yield begins or split == "line" or (split == "paragraph" and blanks > 0), text
        begins, blanks = False, 0


def lines_of(documents: Iterable[str]) -> Iterator[Line]:
    r"""The lines of documents given as strings; blank documents are skipped.

    >>> list(lines_of(["one line", "two\nlines\n", " "]))
    [(True, 'one line'), (True, 'two'), (False, 'lines')]
    """
    for document in documents:
        yield from split_lines(document.split("\n"))


def encode_lines(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[Sequence[int] | Integers]:
    """Token ids of each text; long ones in pieces, which bounds memory."""
    short = [text if len(text) <= PIECE else "" for text in texts]
    for text, ids in zip(texts, tokenizer.encode_batch(short), strict=True):
        if len(text) <= PIECE:
            yield ids
        else:
            yield np.concatenate([np.array(tokenizer.encode(piece), dtype=np.int32) for piece in pieces(text)])
