"""Sums over the training documents that no prediction needs: token frequencies and n-gram counts for the baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from saffu.arrays import are_counts, part_of
from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.text.corpus import TokenCorpus
from saffu.tools.evaluate import count_references

if TYPE_CHECKING:
    from saffu.calibrated.ngrams import NgramCounts

LARGEST_VOCABULARY = 1 << 16  # of n-gram counts
NGRAMS = "ngrams."  # begins the names of stored n-gram counts


@dataclass(frozen=True, eq=False)
class Statistics:
    """Additive, like the sums of a model."""

    frequencies: npt.NDArray[np.int64]  # (N,) how often each token is a target
    ngrams: NgramCounts | None  # None if not requested, or if the model's own sums hold them

    @classmethod
    def of(cls, corpus: TokenCorpus, vocabulary: int, ngrams: bool) -> Statistics:
        """Count a corpus."""
        counts = count_references(corpus, vocabulary) if ngrams and vocabulary <= LARGEST_VOCABULARY else None
        return cls(corpus.frequencies(vocabulary), counts)

    def __add__(self, other: Statistics) -> Statistics:
        ngrams = None if self.ngrams is None or other.ngrams is None else self.ngrams + other.ngrams
        return Statistics(self.frequencies + other.frequencies, ngrams)

    def __sub__(self, other: Statistics) -> Statistics:
        ngrams = None if self.ngrams is None or other.ngrams is None else self.ngrams - other.ngrams
        return Statistics(self.frequencies - other.frequencies, ngrams)

    def arrays(self) -> dict[str, Array]:
        """What is stored, by name."""
        ngrams: Mapping[str, Any] = {} if self.ngrams is None else self.ngrams.arrays()
        return {"frequencies": self.frequencies, **{NGRAMS + name: array for name, array in ngrams.items()}}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], vocabulary: int) -> Statistics:
        """The inverse of `arrays`."""
        frequencies = arrays["frequencies"]
        if not are_counts(frequencies, vocabulary):
            raise SaffuError("the token frequencies are damaged; restore the folder or train again")
        ngrams = part_of(arrays, NGRAMS)
        if not ngrams:
            return cls(frequencies, None)
        from saffu.calibrated.ngrams import NgramCounts

        counts = NgramCounts.from_arrays(ngrams)
        if counts.vocabulary != vocabulary:
            raise SaffuError("the n-gram counts have another vocabulary; restore the folder or train again")
        return cls(frequencies, counts)


def trained_on(corpus: TokenCorpus) -> dict[str, int]:
    """The size of a corpus."""
    sizes = {"documents": corpus.documents, "lines": corpus.lines, "tokens": corpus.targets, "bytes": corpus.bytes}
    return {name: int(size) for name, size in sizes.items()}
