"""Interpolated modified Kneser–Ney models (Chen & Goodman 1998, as KenLM's `lmplz`), solved into tables.

    p(t | c1 … cL) = mass(c1 … cL, t) + backoff(c1 … cL) · p(t | c1 … cL−1)

The longest n-grams, and those at the start of a document, which nothing precedes, keep their raw counts; any other
n-gram counts the distinct tokens that precede it. Unigrams back off to the uniform distribution over what can be
predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import numpy as np

from saffu.calibrated.kernels import Array, library, pointer
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.rows import checked_ids
from saffu.calibrated.tables import Table as Table
from saffu.interface import Floats
from saffu.progress import progress_bar
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.threads import cores, run_in_threads

CHUNK = 1 << 14  # targets scored at a time


def ranks_in_order(vocabulary: int) -> Array:
    """Tokens ranked by id, the three markers last: (N,) uint16."""
    return ((np.arange(vocabulary) - EOD) % vocabulary).astype(np.uint16)


class KneserNey:
    """A Kneser–Ney model of a given order, the baseline that models are compared with."""

    def __init__(self, counts: NgramCounts, order: int | None = None) -> None:
        counts = counts.lower_order(counts.order if order is None else order)
        self.order = counts.order
        self.vocabulary = counts.vocabulary
        self.ranks = ranks_in_order(counts.vocabulary)
        self.table = Table.solve(counts, range(1, counts.order), self.ranks)

    def log_probabilities(self, corpus: TokenCorpus, progress: str | None = None) -> Floats:
        """ln p of every target, (targets,)."""
        view = self.table.native()
        ids = checked_ids(corpus, self.vocabulary)

        def kernel(starts: Array, lo: int, hi: int, out: Array) -> None:
            library.saffu_view_score(
                view, pointer(self.ranks, np.uint16), pointer(ids, np.uint16), pointer(starts, np.int64),
                corpus.documents, lo, hi, pointer(out, np.float64),
            )  # fmt: skip

        return in_chunks(kernel, corpus, progress)


def in_chunks(kernel: Callable[[Array, int, int, Array], None], corpus: TokenCorpus, progress: str | None) -> Floats:
    """Run a scoring kernel over all targets, chunk by chunk, on all cores."""
    out = np.empty(corpus.targets)
    starts = np.ascontiguousarray(corpus.starts, dtype=np.int64)
    bounds = list(accumulate([CHUNK] * (corpus.targets // CHUNK), initial=0))
    with progress_bar(progress, total=corpus.targets) as bar:

        def work(number: int, stopped: Callable[[], bool]) -> None:
            for lo in bounds[number::workers]:
                if stopped():
                    return
                hi = min(lo + CHUNK, corpus.targets)
                kernel(starts, lo, hi, out[lo:hi])
                bar.update(hi - lo)

        workers = max(1, min(cores(), len(bounds)))
        run_in_threads(work, workers)
    return out
