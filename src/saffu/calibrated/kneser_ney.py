"""Interpolated modified Kneser–Ney models (Chen & Goodman 1998, as KenLM's `lmplz`), solved into tables.

    p(t | c1 … cL) = mass(c1 … cL, t) + backoff(c1 … cL) · p(t | c1 … cL−1)

The longest n-grams, and those at the start of a document, which nothing precedes, keep their raw counts; any other
n-gram counts the distinct tokens that precede it. Unigrams back off to the uniform distribution over what can be
predicted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from saffu.calibrated import kernels
from saffu.calibrated.kernels import Array, library, pointer
from saffu.calibrated.ngrams import PARTS, NgramCounts, checked_ids, even_cuts, key_width
from saffu.errors import SaffuError
from saffu.interface import Floats
from saffu.progress import progress_bar
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.threads import cores, run_in_threads

FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts give none, as `lmplz --discount_fallback`
CHUNK = 1 << 14  # targets scored at a time
LEVEL_ARRAYS = {
    "token": np.uint16, "child": np.uint32, "begin": np.uint32, "backoff": np.float32, "follow": np.uint16,
    "mass": np.float32,
}  # fmt: skip


def discounts(counts_of_counts: Sequence[int] | Array) -> tuple[float, float, float] | None:
    """What to take off a count of 1, of 2, and of 3 or more, from how many n-grams have count 1, 2, 3 and 4 (eq. 26).

    None if they cannot be estimated: too little text, or text whose counts do not fall.

    >>> discounts([100, 40, 20, 12])
    (0.5555555555555556, 1.1666666666666665, 1.6666666666666665)
    >>> discounts([3, 0, 1, 0]) is None
    True
    """
    n1, n2, n3, n4 = (int(n) for n in counts_of_counts[:4])
    if 0 in (n1, n2, n3):
        return None
    y = n1 / (n1 + 2 * n2)
    found = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return found if all(0 < d <= k for k, d in enumerate(found, 1)) else None


@dataclass(frozen=True, eq=False)
class Table:
    """A solved model: see native/tables.cpp. Followers are known by their rank."""

    distances: tuple[int, ...]  # of the context tokens, nearest first
    levels: list[dict[str, Array]]  # from contexts of one token on
    unigram: Array  # (vocabulary,) float32, by rank
    discounts: Array  # (levels + 1, 4) float64: what was taken off a count of 0, 1, 2, 3 or more
    estimated: Array  # (levels + 1,) bool: whether the level's discounts were estimated, or are the fallback

    @classmethod
    def solve(
        cls,
        counts: NgramCounts,
        distances: Sequence[int],
        ranks: Array,
        prune: int = 0,
        unigram: Array | None = None,
    ) -> Table:
        """Solve counts of rows whose context tokens stand at these distances; `ranks` (vocabulary,) order the tokens.

        N-grams of three tokens or more that were counted `prune` times or less are dropped. A `unigram` distribution by
        rank takes the place of Kneser–Ney's.
        """
        if not counts.distinct and unigram is None:
            raise SaffuError("no n-gram has been counted; give some text")
        depth, vocabulary = counts.order - 1, counts.vocabulary
        limits = np.array([0, 0, *[prune] * 8], dtype=np.uint32)
        cuts = even_cuts(np.diff(counts.offsets) + 1, PARTS * cores()) if depth else [0, 0]
        parts = len(cuts) - 1
        statistics = np.zeros((parts, depth + 1, 5), dtype=np.int64)
        sizes = np.zeros((parts, depth + 1, 2), dtype=np.int64)

        def pass_over(found: Array | None, arrays: ctypes.Array[ctypes.c_void_p] | None) -> None:
            def work(number: int, stopped: Callable[[], bool]) -> None:
                for part in range(number, parts, workers):
                    if stopped():
                        return
                    library.saffu_build_table(
                        pointer(counts.offsets, np.int64), pointer(counts.keys, counts.keys.dtype),
                        pointer(counts.counts, np.uint32), counts.order, key_width(counts.order),
                        pointer(ranks, np.uint16), vocabulary, pointer(limits, np.uint32), cuts[part], cuts[part + 1],
                        pointer(found, np.float64), pointer(statistics[part], np.int64),
                        pointer(sizes[part], np.int64), arrays,
                    )  # fmt: skip

            workers = min(cores(), parts)
            run_in_threads(work, workers)

        if depth:
            pass_over(None, None)
        adjusted = counts.frequencies() if depth == 0 else None
        found, estimated = np.zeros((depth + 1, 4)), np.zeros(depth + 1, dtype=bool)
        for level in range(1, depth + 1):
            estimate = discounts(statistics[:, level].sum(0))
            found[level, 1:], estimated[level] = estimate or FALLBACK, estimate is not None
        ends, levels = sizes.sum(0), []
        for level in range(1, depth + 1):
            contexts, followers = (int(n) for n in ends[level])
            if followers >= 1 << 32 or contexts >= 1 << 32:
                raise SaffuError("there are more than four billion n-grams; raise `prune`")
            room = {"token": contexts, "child": contexts + 1, "begin": contexts + 1, "backoff": contexts}
            room |= {"follow": followers, "mass": followers}
            if level == 1:
                del room["token"]
            if level == depth:
                del room["child"]
            levels.append({name: np.empty(n, dtype=LEVEL_ARRAYS[name]) for name, n in room.items()})
        if depth:
            sizes[:] = np.cumsum(sizes, axis=0) - sizes  # where each part begins to write
            addresses = [
                level[name].ctypes.data if name in level else None for level in levels for name in LEVEL_ARRAYS
            ]
            pass_over(found, (ctypes.c_void_p * len(addresses))(*addresses))
            for number, arrays in enumerate(levels, 1):
                arrays["begin"][-1] = ends[number, 1]
                if "child" in arrays:
                    arrays["child"][-1] = ends[number + 1, 0]
            adjusted_by_rank = np.bincount(levels[0]["follow"], minlength=vocabulary)
        else:
            assert adjusted is not None
            adjusted_by_rank = np.zeros(vocabulary, dtype=np.int64)
            adjusted_by_rank[ranks] = adjusted
        estimate = discounts(np.bincount(np.minimum(adjusted_by_rank, 5), minlength=6)[1:5])
        found[0, 1:], estimated[0] = estimate or FALLBACK, estimate is not None or unigram is not None
        solved = unigrams(adjusted_by_rank, found[0]) if unigram is None else unigram.astype(np.float32)
        return cls(tuple(distances), levels, solved, found, estimated)

    @property
    def ngrams(self) -> int:
        return sum(len(level["follow"]) for level in self.levels)

    def arrays(self) -> dict[str, Array]:
        stored = {"distances": np.array(self.distances, dtype=np.int32), "unigram": self.unigram}
        stored |= {"discounts": self.discounts, "estimated": self.estimated}
        for number, level in enumerate(self.levels, 1):
            stored |= {f"{number}.{name}": array for name, array in level.items()}
        return stored

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], vocabulary: int) -> Table:
        """The table whose `arrays()` these are; shapes and offsets are checked before any kernel follows them."""
        try:
            distances = tuple(int(d) for d in arrays["distances"])
            depth = len(distances)
            levels: list[dict[str, Array]] = []
            for number in range(1, depth + 1):
                missing = ["token"] * (number == 1) + ["child"] * (number == depth)
                names = [name for name in LEVEL_ARRAYS if name not in missing]
                level = {name: arrays[f"{number}.{name}"] for name in names}
                contexts, followers = len(level["backoff"]), len(level["follow"])
                sound = all(level[name].dtype == LEVEL_ARRAYS[name] and level[name].ndim == 1 for name in names)
                sound = sound and len(level["begin"]) == contexts + 1 and len(level["mass"]) == followers
                sound = sound and len(level.get("token", level["backoff"])) == contexts
                sound = sound and (number > 1 or contexts == vocabulary)
                sound = sound and len(level.get("child", level["begin"])) == contexts + 1
                deeper = len(arrays[f"{number + 1}.backoff"]) if number < depth else 0
                sound = sound and level_is_sound(level, deeper, levels[-1]["child"] if levels else None, vocabulary)
                if not sound:
                    raise ValueError(f"level {number}")
                levels.append(level)
            unigram = arrays["unigram"]
            if unigram.shape != (vocabulary,) or unigram.dtype != np.float32 or depth >= kernels.MAX_LEVELS:
                raise ValueError("unigram")
            if not within(unigram[: vocabulary - EOD], 1e-30) or arrays["discounts"].shape != (depth + 1, 4):
                raise ValueError("unigram")
            if arrays["estimated"].shape != (depth + 1,) or arrays["estimated"].dtype != np.bool_:
                raise ValueError("unigram")
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise SaffuError(f"a table of n-grams is damaged ({error}); restore the folder or train again") from None
        return cls(distances, levels, unigram, arrays["discounts"], arrays["estimated"])

    @cached_property
    def _distances(self) -> Array:
        """For kernels, which keep its address."""
        return np.array(self.distances, dtype=np.int32)

    def native(self, classes: Array | None = None, exact: int = 0) -> kernels.View:
        """For kernels, which see contexts by class if classes are given; the arrays must outlive it."""
        view = kernels.View(len(self.levels), exact)
        view.distances, view.classes = pointer(self._distances, np.int32), pointer(classes, np.uint16)
        view.unigram = pointer(self.unigram, np.float32)
        for number, level in enumerate(self.levels):
            for name, array in level.items():
                setattr(view.level[number], name, pointer(array, LEVEL_ARRAYS[name]))
        return view


def level_is_sound(level: Mapping[str, Array], deeper: int, parent: Array | None, vocabulary: int) -> bool:
    """Whether kernels can follow a level that has `deeper` contexts below it, and `parent` offsets into it."""
    pointers = [pointer(level.get(name), dtype) for name, dtype in LEVEL_ARRAYS.items()]
    contexts, parents = len(level["backoff"]), 0 if parent is None else len(parent) - 1
    above = pointer(parent, np.uint32)
    followers = len(level["follow"])
    return bool(library.saffu_check_level(*pointers, contexts, followers, deeper, above, parents, vocabulary))


def within(numbers: Array, least: float) -> bool:
    """Whether all are finite and not below `least`."""
    return not len(numbers) or bool(least <= float(numbers.min()) <= float(numbers.max()) < np.inf)


def unigrams(adjusted: Array, discount: Array) -> Array:
    """The unigram distribution (N,) float32 from adjusted counts by rank; the three markers, ranked last, get none."""
    total, predicted = adjusted.sum(), len(adjusted) - EOD
    taken = discount[np.minimum(adjusted, 3)]
    shares = (adjusted - taken) / total + taken.sum() / total / predicted
    shares[predicted:] = 0
    return np.asarray(shares, dtype=np.float32)


def ranks_in_order(vocabulary: int) -> Array:
    """Tokens ranked by id, the three markers last: (N,) uint16."""
    return ((np.arange(vocabulary) - EOD) % vocabulary).astype(np.uint16)


class KneserNey:
    """A Kneser–Ney model of a given order: the baseline next to which models are judged."""

    def __init__(self, counts: NgramCounts, order: int | None = None) -> None:
        counts = counts.lower_order(counts.order if order is None else order)
        self.order, self.vocabulary = counts.order, counts.vocabulary
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
    out, starts = np.empty(corpus.targets), np.ascontiguousarray(corpus.starts, dtype=np.int64)
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
