"""The smallest model that implements `saffu.interface`: a bigram model smoothed by the frequencies of its first text.

Its encoder is the prior, fitted once; its decoder follows from counts of pairs, which add and subtract.

    p(next | previous) = (count(previous, next) + a·prior(next)) / (count(previous) + a)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from saffu.errors import SaffuError
from saffu.interface import Capabilities, Explanation, Stage, State, Term, document_of
from saffu.model.solutions import Solution
from saffu.settings import Settings, setting
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, SOD, TokenizerConfig


@dataclass(frozen=True)
class ToyConfig(Settings):
    preset: ClassVar[str] = "toy"

    smoothing: float = setting(4.0, "pseudo-counts of the prior", low=1e-3)


@dataclass(frozen=True, eq=False)
class ToySums:
    pairs: np.ndarray  # (N, N) int64: how often a token follows another

    def __add__(self, other: ToySums) -> ToySums:
        return ToySums(self.pairs + other.pairs)

    def __sub__(self, other: ToySums) -> ToySums:
        if (self.pairs < other.pairs).any():
            raise SaffuError("cannot remove documents that were never counted; the model is unchanged")
        return ToySums(self.pairs - other.pairs)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"pairs": self.pairs}


@dataclass(frozen=True, eq=False)
class ToyModel(Capabilities):
    config: ToyConfig
    prior: np.ndarray  # (N,) the encoder
    sums: ToySums

    @property
    def vocabulary(self) -> int:
        return len(self.prior)

    @property
    def frequencies(self) -> np.ndarray:
        return self.sums.pairs.sum(0)

    @property
    def size(self) -> int:
        return int(np.count_nonzero(self.sums.pairs)) + self.vocabulary

    @cached_property
    def table(self) -> np.ndarray:
        """ln p(next | previous), (N, N)."""
        counts = self.sums.pairs + self.config.smoothing * self.prior
        with np.errstate(divide="ignore"):
            return np.log(counts / counts.sum(1, keepdims=True))

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> np.ndarray:
        return self.table[previous_tokens(corpus), corpus.ids]

    def start(self, context: Iterable[int] = ()) -> State:
        return State(self, [SOD, *context][-1])

    def advance(self, state: State, token: int) -> State:
        return State(self, token)

    def next_log_probabilities(self, states: Sequence[State]) -> np.ndarray:
        return self.table[[document_of(self, state) for state in states]].astype(np.float32)

    def explain(self, context: Sequence[int]) -> Explanation:
        last = self.start(context).document
        log_p = self.table[last]
        with np.errstate(divide="ignore", invalid="ignore"):
            prior = np.log(self.prior)
            terms = [
                Term("prior", prior, weight=1.0),
                Term("previous token", log_p - prior, (last,), reason="{} right before it"),
            ]
        return Explanation(tuple(context), terms, log_p, {})

    def vectors(self) -> dict[str, np.ndarray]:
        after = self.sums.pairs / np.maximum(self.sums.pairs.sum(1, keepdims=True), 1)
        before = self.sums.pairs.T / np.maximum(self.sums.pairs.T.sum(1, keepdims=True), 1)
        return {"context": np.sqrt(np.concatenate([before, after], axis=1)), "after": after}

    def count(self, corpus: TokenCorpus) -> ToySums:
        pairs = np.zeros((self.vocabulary, self.vocabulary), dtype=np.int64)
        np.add.at(pairs, (previous_tokens(corpus), corpus.ids), 1)
        return ToySums(pairs)

    def solved(self, sums: ToySums) -> ToyModel:
        return ToyModel(self.config, self.prior, sums)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"prior": self.prior}

    def encoder_arrays(self) -> dict[str, np.ndarray]:
        return {"prior": self.prior}


def previous_tokens(corpus: TokenCorpus) -> np.ndarray:
    """The token before each target; SOD at the start of a document."""
    before = np.concatenate([[SOD], corpus.ids[:-1]]).astype(np.int64)
    before[corpus.starts[:-1]] = SOD
    return before


def fit(corpus: TokenCorpus, vocabulary: int, config: ToyConfig, device: str, **options: Any) -> Iterator[Stage]:
    counts = corpus.frequencies(vocabulary) + 0.5
    counts[:EOD] = 0
    empty = ToyModel(config, counts / counts.sum(), ToySums(np.zeros((vocabulary, vocabulary), np.int64)))
    yield Stage("counted", empty.solved(empty.count(corpus)), {"smoothing": config.smoothing})


def from_arrays(config: ToyConfig, vocabulary: int, arrays: Mapping, sums: Mapping | None, device: str) -> ToyModel:
    return ToyModel(config, arrays["prior"], ToySums(sums["pairs"]))


TOY = Solution(ToyConfig, TokenizerConfig(), fit, from_arrays, "a smoothed bigram model")
