"""Smoothing: interpolated modified Kneser–Ney models (Chen & Goodman 1998, as KenLM's `lmplz`), solved into tables.

    p(t | c1 … cL) = mass(c1 … cL, t) + backoff(c1 … cL) · p(t | c1 … cL−1)

The longest n-grams, and those at the start of a document, which nothing precedes, keep their raw counts; any other
n-gram counts the distinct tokens that precede it. Unigrams back off to the uniform distribution over what can be
predicted.

Tables are solved from rows in two phases over ranges of buckets: first the statistics of every range, whose sum gives
the discounts and the space that each range needs; then the levels, each range written to its own place. The masses and
back-offs themselves are computed in native/counts/tables.cpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np

from saffu.calibrated import kernels, storage
from saffu.calibrated.kernels import TOKEN, Array, library, pointer
from saffu.calibrated.ngrams import NgramCounts, Rows, checked_ids, key_width, require_by_token
from saffu.calibrated.storage import CHUNK
from saffu.errors import SaffuError
from saffu.files import require
from saffu.format import progress_bar
from saffu.interface import Floats
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.workers import cores, in_parallel, run_in_threads

TARGETS_AT_ONCE = 1 << 14, 1 << 17  # scored by a thread: at least, and at most; more of them share more contexts
FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts give none, as `lmplz --discount_fallback`
LEVEL_ARRAYS = {
    "token": TOKEN, "child": np.uint32, "begin": np.uint32, "backoff": np.float32, "follow": TOKEN,
    "mass": np.float32,
}  # fmt: skip
Levels = Sequence[Mapping[str, Array]]


def discounts(counts_of_counts: Sequence[int] | Array) -> tuple[float, float, float] | None:
    """The discounts of counts of 1, 2, and 3 or more, from the numbers of n-grams with count 1, 2, 3, and 4.

    Chen & Goodman's equation 26. None if they cannot be estimated: too little text, or text whose counts do not fall.

    >>> discounts([100, 40, 20, 12])
    (0.5555555555555556, 1.1666666666666665, 1.6666666666666665)
    >>> discounts([3, 0, 1, 0]) is None
    True
    """
    n1, n2, n3, n4 = (int(n) for n in counts_of_counts[:4])
    if 0 in (n1, n2, n3):
        return None
    y = n1 / (n1 + 2 * n2)
    estimate = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return estimate if all(0 < d <= k for k, d in enumerate(estimate, 1)) else None


def unigrams(adjusted: Array, discount: Array) -> Array:
    """The unigram distribution (N,) float32 from adjusted counts by rank; the three markers, ranked last, get none."""
    total = adjusted.sum()
    predicted = len(adjusted) - EOD
    taken = discount[np.minimum(adjusted, 3)]
    shares = (adjusted - taken) / total + taken.sum() / total / predicted
    shares[predicted:] = 0
    return np.asarray(shares, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class TableStatistics:
    """Statistics that give the discounts and the size of a table; those of several ranges add up."""

    counts_of_counts: Array  # (levels + 1, 5) int64: how many n-grams are counted 1, 2, 3, 4 times; more
    sizes: Array  # (levels + 1, 2) int64: contexts and followers

    def __add__(self, other: TableStatistics) -> TableStatistics:
        return TableStatistics(self.counts_of_counts + other.counts_of_counts, self.sizes + other.sizes)


def discounts_of(statistics: TableStatistics) -> tuple[Array, Array]:
    """The discounts of counts of 0, 1, 2, and 3 or more, (levels + 1, 4), and whether they were estimated."""
    values = np.zeros((len(statistics.sizes), 4))
    estimated = np.zeros(len(statistics.sizes), dtype=bool)
    for level in range(1, len(values)):
        estimate = discounts(statistics.counts_of_counts[level])
        values[level, 1:] = estimate or FALLBACK
        estimated[level] = estimate is not None
    return values, estimated


def table_statistics(rows: Rows, vocabulary: int, ranks: Array, prune: int = 0) -> TableStatistics:
    """The first phase, for a range of buckets; `ranks` (vocabulary,) order the tokens."""
    statistics = TableStatistics(*(np.zeros((rows.order, width), dtype=np.int64) for width in (5, 2)))
    if rows.order > 1:
        _build(rows, vocabulary, ranks, prune, None, statistics.counts_of_counts, statistics.sizes, None)
    return statistics


def build_levels(
    rows: Rows, vocabulary: int, ranks: Array, prune: int, discounts: Array, places: Array, levels: Levels
) -> None:
    """The second phase: write the levels of a range of buckets into arrays of exactly their size.

    `places` (levels + 1, 2) are the sizes of all ranges before this one. The levels of ascending ranges, one after the
    other, are those of the whole table except for the last entries (`close_levels`).
    """
    addresses = [level[name].ctypes.data if name in level else None for level in levels for name in LEVEL_ARRAYS]
    arrays = (ctypes.c_void_p * len(addresses))(*addresses)
    _build(rows, vocabulary, ranks, prune, discounts, None, np.ascontiguousarray(places), arrays)


def _build(
    rows: Rows,
    vocabulary: int,
    ranks: Array,
    prune: int,
    discounts: Array | None,
    statistics: Array | None,
    sizes: Array,
    arrays: ctypes.Array[ctypes.c_void_p] | None,
) -> None:
    limits = np.array([0, 0, *[prune] * 8], dtype=np.uint32)  # n-grams of two tokens are never pruned
    library.saffu_build_levels(
        pointer(rows.offsets, np.int64), pointer(rows.keys, rows.keys.dtype), pointer(rows.counts, np.uint32),
        rows.last - rows.first, rows.order, key_width(rows.order), pointer(ranks, TOKEN), vocabulary,
        pointer(limits, np.uint32), pointer(discounts, np.float64), pointer(statistics, np.int64),
        pointer(sizes, np.int64), arrays,
    )  # fmt: skip


def empty_levels(sizes: Array, closed: bool = False) -> list[dict[str, Array]]:
    """Empty arrays for a range or, if `closed`, for a whole table."""
    lengths = level_lengths(sizes, closed)
    return [{name: storage.empty(n, LEVEL_ARRAYS[name]) for name, n in own.items()} for own in lengths]


def level_names(level: int, depth: int) -> list[str]:
    """The arrays that a level has: contexts of one token are known by their place, the longest have none below."""
    return [name for name in LEVEL_ARRAYS if (name != "token" or level > 1) and (name != "child" or level < depth)]


def level_lengths(sizes: Array, closed: bool) -> list[dict[str, int]]:
    """The lengths of the arrays of each level."""
    if int(sizes.max()) >= 1 << 32:
        raise SaffuError("there are more than four billion n-grams; raise `prune`")
    lengths = []
    depth = len(sizes) - 1
    for level in range(1, depth + 1):
        contexts, followers = (int(n) for n in sizes[level])
        own = {"token": contexts, "child": contexts + closed, "begin": contexts + closed, "backoff": contexts}
        own |= {"follow": followers, "mass": followers}
        lengths.append({name: own[name] for name in level_names(level, depth)})
    return lengths


def level_slices(levels: Levels, places: Array, sizes: Array) -> Levels:
    """The places of one range in the arrays of a whole table."""

    def part(level: int, name: str, array: Array) -> Array:
        kind = int(name in ("follow", "mass"))
        begin = int(places[level, kind])
        return array[begin : begin + int(sizes[level, kind])]

    return [{name: part(n, name, array) for name, array in level.items()} for n, level in enumerate(levels, 1)]


def close_levels(levels: Levels, sizes: Array) -> None:
    """Write the last entries of a whole table of these sizes: where contexts and followers end."""
    for number, level in enumerate(levels, 1):
        level["begin"][-1] = sizes[number, 1]
        if "child" in level:
            level["child"][-1] = sizes[number + 1, 0]


class Draft:
    """A table between the phases: what the statistics of its ranges, in order, give."""

    def __init__(self, distances: Sequence[int], ranges: Sequence[TableStatistics]):
        self.distances = tuple(distances)
        self.total = reduce(add, ranges)
        self.discounts, self.estimated = discounts_of(self.total)
        sizes = np.stack([statistics.sizes for statistics in ranges])
        self.places = np.cumsum(sizes, axis=0) - sizes  # (ranges, levels + 1, 2) the sizes of all ranges before

    def table(self, levels: list[dict[str, Array]], adjusted: Array, unigram: Array | None = None) -> Table:
        """The table of closed levels. Unigrams follow from `adjusted` counts (vocabulary,) by rank, unless given."""
        estimate = discounts(np.bincount(np.minimum(adjusted, 5), minlength=6)[1:5])
        self.discounts[0, 1:] = estimate or FALLBACK
        self.estimated[0] = estimate is not None or unigram is not None
        solved = unigrams(adjusted, self.discounts[0]) if unigram is None else unigram.astype(np.float32)
        return Table(self.distances, levels, solved, self.discounts, self.estimated)


@dataclass(frozen=True, eq=False)
class Table:
    """A solved model: see native/counts/tables.cpp. Followers are known by their rank."""

    distances: tuple[int, ...]  # of the context tokens, nearest first
    levels: list[dict[str, Array]]  # from contexts of one token on
    unigram: Array  # (vocabulary,) float32, by rank
    discounts: Array  # (levels + 1, 4) float64: of counts of 0, 1, 2, and 3 or more
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
            raise SaffuError("no n-gram has been counted; pass some text")
        vocabulary = counts.vocabulary
        require_by_token(ranks, vocabulary)
        parts = list(pairwise(storage.plan(np.diff(counts.offsets), 1)[0]))
        each = in_parallel(lambda part: table_statistics(counts.slice(*part), vocabulary, ranks, prune), parts)
        draft = Draft(distances, each)
        levels = empty_levels(draft.total.sizes, closed=True)
        if not levels:
            adjusted = np.empty(vocabulary, dtype=np.int64)
            adjusted[ranks] = counts.frequencies()
            return draft.table(levels, adjusted, unigram)

        def build(number: int) -> None:
            places = draft.places[number]
            where = level_slices(levels, places, each[number].sizes)
            build_levels(counts.slice(*parts[number]), vocabulary, ranks, prune, draft.discounts, places, where)

        in_parallel(build, range(len(parts)))
        close_levels(levels, draft.total.sizes)
        return draft.table(levels, adjusted_counts(levels, vocabulary), unigram)

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
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Table:
        """The table whose `arrays()` these are. What kernels follow, they check when they make a model of it."""
        try:
            distances = tuple(int(d) for d in arrays["distances"])
            depth = len(distances)
            levels = [
                {name: arrays[f"{level}.{name}"] for name in level_names(level, depth)} for level in range(1, depth + 1)
            ]
            unigram = arrays["unigram"]
            require(all(array.ndim == 1 for own in levels for array in own.values()) and unigram.ndim == 1, "shapes")
            require(depth < kernels.MAX_LEVELS and arrays["discounts"].shape == (depth + 1, 4), "discounts")
            require(arrays["estimated"].shape == (depth + 1,) and arrays["estimated"].dtype == np.bool_, "discounts")
        except (KeyError, ValueError, TypeError) as error:
            raise SaffuError(f"a table of n-grams is damaged ({error}); restore the folder or train again") from None
        return cls(distances, levels, unigram, arrays["discounts"], arrays["estimated"])

    def alone(self) -> kernels.Model:
        """The table as kernels have it, checked: the only view of a model whose tokens are all in one class."""
        vocabulary = len(self.unigram)
        arrays = {f"table 0.{name}": array for name, array in self.arrays().items()}
        return kernels.Model(
            arrays
            | {
                "view 0": np.zeros(2, dtype=np.int32),
                "plain": np.zeros((2, 1 + kernels.EVIDENCE * len(self.levels))),
                "output_classes": np.zeros(vocabulary, dtype=TOKEN),
                "frequencies": np.zeros(vocabulary, dtype=np.int64),
            }
        )


def adjusted_counts(levels: Levels, vocabulary: int) -> Array:
    """The number of distinct tokens before each token, (vocabulary,) int64 by rank; those of several ranges add up."""
    followers = levels[0]["follow"]
    total = np.zeros(vocabulary, dtype=np.int64)
    for begin in range(0, len(followers), CHUNK):
        total += np.bincount(followers[begin : begin + CHUNK], minlength=vocabulary)
    return total


class Ranks:
    """The order of tokens: class by class, by id within a class, the three markers last."""

    def __init__(self, classes: Array):
        """`classes` (N,): the output class of each token; those of the markers do not matter."""
        order = np.lexsort((np.arange(EOD, len(classes)), classes[EOD:])) + EOD
        self.tokens = np.concatenate([order, np.arange(EOD)]).astype(TOKEN)  # by rank
        self.ranks = np.empty(len(classes), dtype=TOKEN)  # by token
        self.ranks[self.tokens] = np.arange(len(classes))
        self.classes = np.concatenate([classes[order], np.zeros(EOD)]).astype(TOKEN)  # by rank
        self.number = int(classes[EOD:].max()) + 1
        self.predicted = len(classes) - EOD
        bounds = np.searchsorted(self.classes[: self.predicted], np.arange(self.number + 1))
        self.first = bounds.astype(np.int32)  # (classes + 1,) rank at which each class begins
        self.sizes = np.diff(bounds)  # (classes,)

    def by_class(self, shares: Array) -> Array:
        """Sums over classes (…, classes) of what is given by rank (…, ≥ predicted)."""
        return np.add.reduceat(shares[..., : self.predicted].astype(np.float64), self.first[:-1], axis=-1)


def log_prior(frequencies: Array, ranks: Ranks) -> Array:
    """ln f by rank, (N,) float64: relative frequencies, with half a count for what never occurred."""
    prior = (frequencies + 0.5)[ranks.tokens].astype(np.float64)
    prior[ranks.predicted :] = 1e-30
    return np.asarray(np.log(prior / prior[: ranks.predicted].sum()))


def ranks_in_order(vocabulary: int) -> Array:
    """Tokens ranked by id, the three markers last: (N,) uint16."""
    return ((np.arange(vocabulary) - EOD) % vocabulary).astype(TOKEN)


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
        ids = checked_ids(corpus, self.vocabulary)
        if not self.table.levels:
            return np.log(self.table.unigram[self.ranks[ids]].astype(np.float64))
        native = self.table.alone()

        def kernel(starts: Array, lo: int, hi: int, out: Array) -> None:
            library.saffu_view_score(
                native, pointer(ids, TOKEN), pointer(starts, np.int64), corpus.documents, lo, hi,
                pointer(out, np.float64),
            )  # fmt: skip

        return in_chunks(kernel, corpus, progress)


def in_chunks(kernel: Callable[[Array, int, int, Array], None], corpus: TokenCorpus, progress: str | None) -> Floats:
    """Run a scoring kernel over all targets, chunk by chunk, on all cores."""
    out = np.empty(corpus.targets)
    starts = np.ascontiguousarray(corpus.starts, dtype=np.int64)
    least, most = TARGETS_AT_ONCE
    size = min(max(least, -(-corpus.targets // cores())), most)
    bounds = range(0, corpus.targets, size)
    with progress_bar(progress, total=corpus.targets) as bar:

        def work(number: int, stopped: Callable[[], bool]) -> None:
            for lo in bounds[number::workers]:
                if stopped():
                    return
                hi = min(lo + size, corpus.targets)
                kernel(starts, lo, hi, out[lo:hi])
                bar.update(hi - lo)

        workers = max(1, min(cores(), len(bounds)))
        run_in_threads(work, workers)
    return out
