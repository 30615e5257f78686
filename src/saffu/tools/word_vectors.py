"""Token and word vectors of a model, and their nearest neighbors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.text.tokenizer import EOD, Tokenizer

Vectors = npt.NDArray[np.float32]


class WordVectors:
    """Vectors of one kind, by word.

    vectors["dog"]                     the vector of a word
    vectors.neighbors("dog", 5)        the nearest tokens by cosine: [(" cat", 0.83), …]
    vectors.vectors                    all of them, (N, D), one row per token id
    vectors.of("decoder")              the same for another of `kinds`

    `vectors` holds the model's own numbers. Similarities are cosines of centered vectors: the frequency-weighted mean
    is subtracted first.
    """

    def __init__(
        self, tokenizer: Tokenizer, frequencies: Array, sources: Mapping[str, Array], kind: str | None = None
    ) -> None:
        self.kind = next(iter(sources)) if kind is None else kind
        if self.kind not in sources:
            raise SaffuError(f"this model has no vectors of kind {kind!r}; choose one of {', '.join(sources)}")
        self.tokenizer = tokenizer
        self._frequencies = frequencies
        self._sources = sources

    @property
    def kinds(self) -> list[str]:
        """What `of` takes, the most useful first."""
        return list(self._sources)

    def of(self, kind: str) -> WordVectors:
        """Vectors of another kind."""
        return WordVectors(self.tokenizer, self._frequencies, self._sources, kind)

    @cached_property
    def vectors(self) -> Vectors:
        """(N, D), one row per token id."""
        return np.ascontiguousarray(self._sources[self.kind], dtype=np.float32)

    @cached_property
    def _directions(self) -> Vectors:
        """The same, centered and scaled to unit length."""
        share = self._frequencies / max(self._frequencies.sum(), 1)
        centered = self.vectors - (share @ self.vectors).astype(np.float32)
        return np.asarray(centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-12))

    def tokens(self, word: str) -> list[int]:
        """The ids of a word: within a sentence (after a space) or at its start, whichever takes fewer tokens."""
        if not word.strip():
            raise SaffuError("a word is empty; pass a word")
        within, start = self.tokenizer.encode_batch([" " + word, word])
        return within if len(within) <= len(start) else start

    def __getitem__(self, word: str) -> Vectors:
        """The vector of a word (D,), averaged over its tokens if it has several."""
        return np.asarray(self.vectors[self.tokens(word)].mean(0))

    def _direction(self, word: str) -> Vectors:
        mean = self._directions[self.tokens(word)].mean(0)
        return np.asarray(mean / max(float(np.linalg.norm(mean)), 1e-12))

    def similarity(self, word: str, other: str) -> float:
        """The cosine similarity of two words."""
        return float(self._direction(word) @ self._direction(other))

    def neighbors(self, word: str, number: int = 10) -> list[tuple[str, float]]:
        """The nearest tokens by cosine similarity, excluding the word's own tokens and tokens unseen in training."""
        if number < 1:
            raise SaffuError(f"`number` is {number}; it must be an integer of at least 1")
        cosines = self._directions @ self._direction(word)
        cosines[self.tokens(word)] = -np.inf
        cosines[: EOD + 1] = -np.inf
        cosines[self._frequencies == 0] = -np.inf
        nearest = np.argsort(-cosines, kind="stable")[:number]
        return [(self.tokenizer.token(int(id)), float(cosines[id])) for id in nearest if np.isfinite(cosines[id])]


def to_word2vec(words: Sequence[tuple[str, Vectors]]) -> str:
    """Vectors in word2vec's text format, which most tools read.

    >>> print(to_word2vec([("dog", np.array([1, 0.5], np.float32))]), end="")
    1 2
    dog 1 0.5
    """
    if not words:
        raise SaffuError("none of the words was counted, so there are no vectors to write; train on some text")
    lines = [f"{len(words)} {len(words[0][1])}"]
    lines += [f"{word} {' '.join(f'{value:.6g}' for value in vector)}" for word, vector in words]
    return "\n".join(lines) + "\n"
