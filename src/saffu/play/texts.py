"""The documents that a model has counted, kept so that they can be shown, searched, and forgotten."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.model.language_model import SaffuLM
from saffu.text.corpus import split_lines
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.decoding import Spelling, is_inside_word

SPLITS = ("auto", "line", "paragraph")
REACH = 8  # tokens of a context that are compared with those before a word in a document
EVERY = 10  # every tenth document is held out
WORD = re.compile(r"\w+(?:['’-]\w+)*")
BEGINNINGS, WORDS = 8, 3  # of documents, to try a model with, and words of each
SPEAKERS = 6  # documents shown that speak for a word
EXCERPT = 160  # characters shown on each side of a word


def split_text(text: str, split: str = "auto") -> list[str]:
    r"""Cut a text into documents: its lines, or its paragraphs if blank lines separate most of them ("auto").

    >>> split_text("one\ntwo\n"), split_text("one\ntwo\n\nthree\nfour\n")
    (['one', 'two'], ['one\ntwo', 'three\nfour'])
    """
    if split not in SPLITS:
        raise SaffuError(f"`split` must be one of {', '.join(SPLITS)}, got {split!r:.40}")
    lines = text.split("\n")
    if split == "auto":
        documents = split_text(text, "paragraph")
        longer = sum("\n" in document for document in documents)
        return documents if len(documents) > 1 and 2 * longer >= len(documents) else split_text(text, "line")
    documents = []
    for begins, line in split_lines(lines, split):
        if begins:
            documents.append(line)
        else:
            documents[-1] += "\n" + line
    return documents


def divided(documents: Mapping[int, str]) -> tuple[list[str], list[str]]:
    """Return the documents that a model is fitted to, and those that are held out, by their numbers."""
    fitted = [document for number, document in documents.items() if number % EVERY != EVERY - 1]
    return fitted, [document for number, document in documents.items() if number % EVERY == EVERY - 1]


def beginnings(documents: Sequence[str]) -> list[str]:
    """The first words of some documents, to try a model with; such that no other document begins so, if there are any.

    >>> beginnings(["the old king slept", "yes", "a dog saw the sea", "the old king ate", "the sea was calm"])
    ['a dog saw ', 'the sea was ']
    """
    split = [document.split(maxsplit=WORDS) for document in documents]
    often = Counter(" ".join(each[:WORDS]) + " " for each in split if len(each) > WORDS)
    unique = [beginning for beginning, count in often.items() if count == 1] or list(often)
    step = max(1, len(unique) // BEGINNINGS)
    return unique[step // 2 :: step][:BEGINNINGS]


@dataclass(frozen=True, eq=False)
class Texts:
    """Documents by number. Numbers are never reused; a changed collection is a new one."""

    documents: Mapping[int, str]
    ids: Mapping[int, Array]  # token ids of each document, `<eod>` after each line

    @classmethod
    def of(cls, documents: Mapping[int, str], lm: SaffuLM) -> Texts:
        corpus = lm.tokenize(list(documents.values()))
        parts = [corpus.ids[lo:hi] for lo, hi in pairwise(corpus.starts.tolist())]
        return cls(documents, dict(zip(documents, parts, strict=True)))

    def without(self, number: int) -> Texts:
        """All documents but one."""
        left = [other for other in self.documents if other != number]
        return Texts({other: self.documents[other] for other in left}, {other: self.ids[other] for other in left})

    def with_added(self, document: str, lm: SaffuLM, number: int) -> Texts:
        """One more document."""
        return Texts({**self.documents, number: document}, {**self.ids, number: lm.tokenize([document]).ids})

    def words_missing(self, document: str) -> list[str]:
        """The words of a document that none of these documents contains."""
        missing = dict.fromkeys(WORD.findall(document))
        for other in self.documents.values():
            if any(word in other for word in missing):
                for word in WORD.findall(other):
                    missing.pop(word, None)
        return list(missing)

    @cached_property
    def _flat(self) -> tuple[Array, Array, Array]:
        """The ids of all documents, and by place the number of its document and where that begins."""
        lengths = [len(ids) for ids in self.ids.values()]
        starts = np.cumsum([0, *lengths[:-1]])
        numbers = np.fromiter(self.ids, dtype=np.int64, count=len(self.ids))
        return np.concatenate(list(self.ids.values())), np.repeat(numbers, lengths), np.repeat(starts, lengths)

    def said(self, tokenizer: Tokenizer, context: Sequence[int], word: Sequence[int]) -> dict[str, Any] | None:
        """How often a word follows the longest end of a context that it ever follows, of whole words; None if never."""
        _, together = self._matches(context, word)
        length = _whole_words(tokenizer, context, int(together.max(initial=0)))
        if not length:
            return None
        end = list(context[len(context) - length :])
        return {
            "context": b"".join(tokenizer.decode_bytes([token]) for token in end).decode("utf-8", "replace"),
            "count": int((together >= length).sum()),
            "total": len(self._matches((), end)[0]),
        }

    def _matches(self, context: Sequence[int], word: Sequence[int]) -> tuple[Array, Array]:
        """The places of a word among all ids, and how many tokens before each are those at the end of the context."""
        ids, numbers, starts = self._flat
        places = np.flatnonzero(ids[: max(0, len(ids) - len(word) + 1)] == word[0])
        for offset, token in enumerate(word[1:], 1):
            places = places[(ids[places + offset] == token) & (numbers[places + offset] == numbers[places])]
        together = np.zeros(len(places), dtype=np.int64)
        for distance, token in enumerate(reversed(context[-REACH:]), 1):
            same = (places - distance >= starts[places]) & (ids[np.maximum(places - distance, 0)] == token)
            together += same & (together == distance - 1)
        return places, together

    def speaking_for(self, tokenizer: Tokenizer, context: Sequence[int], word: Sequence[int]) -> dict[str, Any]:
        """The documents in which a word follows the end of a context, those with the longest such end first.

        Also how many documents hold the word at all. Documents are compared by the tokens right before the word, then
        by how many of the last REACH tokens stand at the same distance from it.
        """
        ids, numbers, starts = self._flat
        places, together = self._matches(context, word)
        alike = np.zeros(len(places), dtype=np.int64)
        for distance, token in enumerate(reversed(context[-REACH:]), 1):
            alike += (places - distance >= starts[places]) & (ids[np.maximum(places - distance, 0)] == token)
        order = np.lexsort((places, -alike, -together))
        speakers: dict[int, dict[str, Any]] = {}
        for place in order.tolist():
            number = int(numbers[places[place]])
            at = int(places[place])
            if number not in speakers:
                length = _whole_words(tokenizer, context, int(together[place]))
                speakers[number] = {
                    "number": number,
                    "matched": [tokenizer.token(token) for token in context[len(context) - length :]],
                    **_excerpt(tokenizer, self.ids[number], at - int(starts[at]), length, len(word)),
                }
            if len(speakers) == SPEAKERS:
                break
        return {"documents": list(speakers.values()), "holding": len(set(numbers[places].tolist()))}


def _whole_words(tokenizer: Tokenizer, context: Sequence[int], length: int) -> int:
    """How many of the last `length` tokens of a context are left without those of a word that begins before them."""
    continues = Spelling.of(tokenizer).continues
    while length and is_inside_word(continues, context, len(context) - length):
        length -= 1
    return length


def _excerpt(tokenizer: Tokenizer, ids: Array, at: int, length: int, width: int) -> dict[str, str]:
    """What stands before, in, and after a match of `length` tokens of context and a word of `width` tokens."""

    def text(lo: int, hi: int) -> str:
        pieces = (b"\n" if token == EOD else tokenizer.decode_bytes([token]) for token in ids[max(0, lo) : hi].tolist())
        return b"".join(pieces).decode("utf-8", "replace")

    before, after = text(at - length - EXCERPT, at - length), text(at + width, min(at + width + EXCERPT, len(ids) - 1))
    return {
        "before": ("…" if len(before) > EXCERPT else "") + before[-EXCERPT:],
        "context": text(at - length, at),
        "word": text(at, at + width),
        "after": after[:EXCERPT] + ("…" if len(after) > EXCERPT else ""),
    }
