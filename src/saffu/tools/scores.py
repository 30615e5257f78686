"""Scores for every line, every word, and every token of a stream of texts, in batches."""

from __future__ import annotations

import math
import operator
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from saffu.errors import SaffuError
from saffu.interface import Floats, Model, State
from saffu.text.corpus import Integers, TokenCorpus, lines_of
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.words import WordScore, word_scores

FIRST_BATCH = 64  # texts scored at a time: few at first, for early results
LARGEST_BATCH = 1 << 14
BATCH_CHARACTERS = 1 << 21
Item = TypeVar("Item")


@dataclass(frozen=True)
class LineScore:
    """How well a model predicts one text. For a blank text, the ratios are NaN."""

    bits: float  # −log2 p
    tokens: int  # `<eod>` at the end of each line included
    bytes: int  # of the text in UTF-8, one newline per line included
    bits_per_byte: float
    perplexity: float  # per token

    @classmethod
    def of(cls, nats: float, tokens: int, size: int) -> LineScore:
        bits = nats / math.log(2) + 0.0  # which turns −0.0 into 0.0
        if not tokens:
            return cls(bits, tokens, size, math.nan, math.nan)
        perplexity = 2 ** (bits / tokens) if bits / tokens < 1024 else math.inf
        return cls(bits, tokens, size, bits / size, perplexity)


@dataclass(frozen=True)
class TokenScore:
    """A token of a text; `<eod>` ends each line."""

    position: int  # in the text, from 1
    token: str
    bits: float  # surprisal: −log2 p


@dataclass(frozen=True)
class Scorer:
    """Scores texts, each as a document of its own, independently of the texts before it.

    If lines of the training text mostly followed other lines, a text of one line is scored as one that follows a blank
    line, because such a model has hardly seen the start of a document.
    """

    model: Model
    tokenizer: Tokenizer
    follows: bool = False

    def online(self) -> Scorer:
        """The same, remembering all texts before each."""
        return replace(self, model=self.model.online())

    def start(self) -> State:
        """The state in which a text of one line begins."""
        return self.model.start([EOD] if self.follows else [])

    def lines(self, texts: Sequence[str]) -> list[LineScore]:
        """Score each text as a whole."""
        _, log_p, spans = self._scored(texts)
        nats = log_p.tolist()
        return [LineScore.of(-math.fsum(nats[begin:hi]), hi - begin, size) for _, begin, hi, size in spans]

    def words(self, texts: Sequence[str]) -> list[list[WordScore]]:
        """Score the words of each text, and the end of each of its lines: see `saffu.tools.words`."""
        return [
            word_scores(self.model, self.tokenizer, ids.tolist(), log_p, begin) if len(ids) else []
            for ids, log_p, begin in self._documents(texts)
        ]

    def tokens(self, texts: Sequence[str]) -> list[list[TokenScore]]:
        """Score the tokens of each text."""
        name = self.tokenizer.token
        return [
            [
                TokenScore(position, name(token), -nats / math.log(2) + 0.0)
                for position, (token, nats) in enumerate(zip(ids.tolist(), log_p.tolist(), strict=True), 1 - begin)
                if position > 0
            ]
            for ids, log_p, begin in self._documents(texts)
        ]

    def _documents(self, texts: Sequence[str]) -> Iterator[tuple[Integers, Floats, int]]:
        """Token ids of each text and their ln p; how many tokens before it are only context."""
        corpus, log_p, spans = self._scored(texts)
        for lo, begin, hi, _ in spans:
            yield corpus.ids[lo:hi], log_p[lo:hi], begin - lo

    def _scored(self, texts: Sequence[str]) -> tuple[TokenCorpus, Floats, list[tuple[int, int, int, int]]]:
        """All texts, and ln p of their tokens (targets,).

        Of each text: its first token, the first that is not only context, its end, and its size in bytes.
        """
        documents = [list(lines_of([text])) for text in texts]
        alone = [self.follows and len(lines) == 1 for lines in documents]
        for lines, is_alone in zip(documents, alone, strict=True):
            if is_alone:
                lines[:] = [(True, ""), (False, lines[0][1])]
        corpus = TokenCorpus.build(chain.from_iterable(documents), self.tokenizer)
        log_p = self.model.log_probabilities(corpus) if corpus.targets else np.zeros(0)
        bounds = pairwise(corpus.starts.tolist())
        sizes = iter(corpus.sizes.tolist())
        spans = []
        for lines, is_alone in zip(documents, alone, strict=True):
            lo, hi = next(bounds) if lines else (0, 0)
            size = sum(islice(sizes, len(lines))) - is_alone  # without the newline of the blank line
            spans.append((lo, lo + is_alone, hi, size))
        return corpus, log_p, spans


def without_memory(model: Model) -> Model:
    """The same model, not using its memory of a document."""
    bare = model.without_memory()
    if bare is None:
        raise SaffuError("this model has no memory of a document; omit --no-memory")
    return bare


def score_texts(scorer: Scorer, texts: Iterable[str]) -> Iterator[LineScore]:
    """Score each text as a whole, in order, as they come in and without keeping them."""
    for batch in batches(checked(texts), len):
        yield from scorer.lines(batch)


def checked(texts: Iterable[str]) -> Iterator[str]:
    """The texts, if they are strings."""
    if isinstance(texts, str):
        raise SaffuError("a single string is not a collection of texts; pass a list of strings, such as [text]")
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise SaffuError(f"text {number} is not a string but {type(text).__name__!r}; convert or remove it")
        yield text


def batches(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Group items, in order: few at first, then more, but never more than a few million characters and one item."""
    batch: list[Item] = []
    most = FIRST_BATCH
    characters = 0
    for item in items:
        batch.append(item)
        characters += size(item)
        if len(batch) >= most or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters, most = [], 0, min(2 * most, LARGEST_BATCH)
    if batch:
        yield batch


class Arrivals(Generic[Item]):
    """Groups of the items that have come in so far, so that none waits for later ones; a thread reads ahead.

    While a group is processed, the next one gathers, up to the limits of `batches`: groups are small if items come
    slowly, and large if they come fast.
    """

    def __init__(self, items: Iterable[Item], size: Callable[[Item], int]):
        self._items = items
        self._size = size
        self._batch: list[Item] = []
        self._characters = 0
        self._error: BaseException | None = None
        self._ended = False
        self._changed = threading.Condition()

    def __iter__(self) -> Iterator[list[Item]]:
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batch or self._ended)
                batch = self._batch
                self._batch = []
                self._characters = 0
                self._changed.notify_all()
            if batch:
                yield batch
            elif self._error:
                raise self._error
            else:
                return

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._changed:
                    self._changed.wait_for(
                        lambda: len(self._batch) < LARGEST_BATCH and self._characters < BATCH_CHARACTERS
                    )
                    self._batch.append(item)
                    self._characters += self._size(item)
                    self._changed.notify_all()
        except BaseException as error:
            self._error = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """A comparison of one entry of a row: "bits_per_byte<1.9", "best==law"."""

    name: str
    comparison: str
    value: float | str

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Read a name, a comparison, and a number, or a name for `best`.

        >>> Condition.parse("bits_per_byte < 1.9")
        Condition(name='bits_per_byte', comparison='<', value=1.9)
        """
        match = re.fullmatch(r"\s*([a-z_]+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*", text, re.ASCII)
        try:
            if match and match[1] == "best" and match[2] in ("==", "!="):
                return cls(match[1], match[2], match[3])
            if match and re.fullmatch(r"[-+.\de]+", match[3]):
                return cls(match[1], match[2], float(match[3]))
        except ValueError:
            pass
        raise SaffuError(f"`keep` must be a name, a comparison, and a number, such as 'bits<9', got {text[:40]!r}")

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether a row meets the condition."""
        return COMPARISONS[self.comparison](row[self.name], self.value)
