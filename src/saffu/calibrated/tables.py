"""Tables: Kneser–Ney models solved from rows, in two phases over ranges of buckets (see native/tables.cpp).

First the statistics of every range, whose sum gives the discounts and the space that each range needs; then the levels,
each range written to its own place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import add

import numpy as np

from saffu.calibrated import kernels, storage
from saffu.calibrated.discounts import FALLBACK, discounts, unigrams
from saffu.calibrated.kernels import Array, library, pointer
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.rows import CHUNK, Rows, key_width
from saffu.errors import SaffuError
from saffu.text.tokenizer import EOD
from saffu.threads import in_parallel

LEVEL_ARRAYS = {
    "token": np.uint16, "child": np.uint32, "begin": np.uint32, "backoff": np.float32, "follow": np.uint16,
    "mass": np.float32,
}  # fmt: skip
Levels = Sequence[Mapping[str, Array]]


@dataclass(frozen=True, eq=False)
class TableStatistics:
    """Statistics that give the discounts and the size of a table; those of several ranges add up."""

    counts_of_counts: Array  # (levels + 1, 5) int64: how many n-grams are counted 1, 2, 3, 4 times; more
    sizes: Array  # (levels + 1, 2) int64: contexts and followers

    def __add__(self, other: TableStatistics) -> TableStatistics:
        return TableStatistics(self.counts_of_counts + other.counts_of_counts, self.sizes + other.sizes)


def discounts_of(statistics: TableStatistics) -> tuple[Array, Array]:
    """The discounts of counts of 0, 1, 2, and 3 or more, (levels + 1, 4), and whether they were estimated."""
    found, estimated = np.zeros((len(statistics.sizes), 4)), np.zeros(len(statistics.sizes), dtype=bool)
    for level in range(1, len(found)):
        estimate = discounts(statistics.counts_of_counts[level])
        found[level, 1:], estimated[level] = estimate or FALLBACK, estimate is not None
    return found, estimated


def table_statistics(rows: Rows, vocabulary: int, ranks: Array, prune: int = 0) -> TableStatistics:
    """The first phase, for a range of buckets; `ranks` (vocabulary,) order the tokens."""
    found = TableStatistics(*(np.zeros((rows.order, width), dtype=np.int64) for width in (5, 2)))
    if rows.order > 1:
        _build(rows, vocabulary, ranks, prune, None, found.counts_of_counts, found.sizes, None)
    return found


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
        rows.last - rows.first, rows.order, key_width(rows.order), pointer(ranks, np.uint16), vocabulary,
        pointer(limits, np.uint32), pointer(discounts, np.float64), pointer(statistics, np.int64),
        pointer(sizes, np.int64), arrays,
    )  # fmt: skip


def empty_levels(sizes: Array, closed: bool = False) -> list[dict[str, Array]]:
    """Empty arrays for a range or, if `closed`, for a whole table."""
    rooms = level_lengths(sizes, closed)
    return [{name: storage.empty(n, LEVEL_ARRAYS[name]) for name, n in room.items()} for room in rooms]


def level_lengths(sizes: Array, closed: bool) -> list[dict[str, int]]:
    """The lengths of the arrays of each level."""
    if int(sizes.max()) >= 1 << 32:
        raise SaffuError("there are more than four billion n-grams; raise `prune`")
    lengths, depth = [], len(sizes) - 1
    for level in range(1, depth + 1):
        contexts, followers = (int(n) for n in sizes[level])
        room = {"token": contexts, "child": contexts + closed, "begin": contexts + closed, "backoff": contexts}
        room |= {"follow": followers, "mass": followers}
        if level == 1:
            del room["token"]
        if level == depth:
            del room["child"]
        lengths.append(room)
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


@dataclass(frozen=True, eq=False)
class Table:
    """A solved model: see native/tables.cpp. Followers are known by their rank."""

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
        vocabulary, parts = counts.vocabulary, list(pairwise(storage.plan(np.diff(counts.offsets), 1)[0]))
        each = in_parallel(lambda part: table_statistics(counts.in_buckets(*part), vocabulary, ranks, prune), parts)
        total = reduce(add, each)
        found, estimated = discounts_of(total)
        levels = empty_levels(total.sizes, closed=True)
        if not levels:
            adjusted = np.empty(vocabulary, dtype=np.int64)
            adjusted[ranks] = counts.frequencies()
            return cls.assembled(distances, levels, found, estimated, adjusted, unigram)
        sizes = np.stack([statistics.sizes for statistics in each])
        places = np.cumsum(sizes, axis=0) - sizes

        def build(number: int) -> None:
            where = level_slices(levels, places[number], sizes[number])
            build_levels(counts.in_buckets(*parts[number]), vocabulary, ranks, prune, found, places[number], where)

        in_parallel(build, range(len(parts)))
        close_levels(levels, total.sizes)
        return cls.assembled(distances, levels, found, estimated, adjusted_counts(levels, vocabulary), unigram)

    @classmethod
    def assembled(
        cls,
        distances: Sequence[int],
        levels: list[dict[str, Array]],
        discount: Array,
        estimated: Array,
        adjusted: Array,
        unigram: Array | None = None,
    ) -> Table:
        """A table of closed levels. Unigrams follow from `adjusted` counts (vocabulary,) by rank, unless given."""
        estimate = discounts(np.bincount(np.minimum(adjusted, 5), minlength=6)[1:5])
        discount[0, 1:], estimated[0] = estimate or FALLBACK, estimate is not None or unigram is not None
        solved = unigrams(adjusted, discount[0]) if unigram is None else unigram.astype(np.float32)
        return cls(tuple(distances), levels, solved, discount, estimated)

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
        """The distances as an array for kernels, which keep its address."""
        return np.array(self.distances, dtype=np.int32)

    def native(self, classes: Array | None = None, exact: int = 0) -> kernels.View:
        """The table for kernels, which see contexts by class if classes are given; the arrays must outlive it."""
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
    """Whether all numbers are finite and at least `least`."""
    return not len(numbers) or bool(least <= float(numbers.min()) <= float(numbers.max()) < np.inf)


def adjusted_counts(levels: Levels, vocabulary: int) -> Array:
    """The number of distinct tokens before each token, (vocabulary,) int64 by rank; those of several ranges add up."""
    followers, total = levels[0]["follow"], np.zeros(vocabulary, dtype=np.int64)
    for begin in range(0, len(followers), CHUNK):
        total += np.bincount(followers[begin : begin + CHUNK], minlength=vocabulary)
    return total
