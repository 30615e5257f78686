"""N-gram counts on a cluster: stretches of a corpus are counted into sorted runs, and runs are merged range by range.

A range is some buckets of rows, those whose nearest context token lies between two bounds (see
`saffu.calibrated.ngrams`). The rows that calibrate exponents are counted apart: `known` counts are those without them,
`whole` counts those with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.ngrams import Rows, count_rows, merge_rows, regroup_rows
from saffu.calibrated.storage import even_cuts
from saffu.calibrated.views import View, far_distances
from saffu.cluster.corpus import PARTS, mapped, path_of
from saffu.cluster.engine import Cluster, keep, write_arrays
from saffu.files import Array, map_arrays
from saffu.text.corpus import TokenCorpus

NGRAM = 0  # the rows of n-grams; any other number is the distance between the two tokens of a pair
KNOWN, WHOLE = "known", "whole"
LEAST_LIMIT = 64 << 20  # bytes of memory for a task
BYTES = 64  # of memory for each row that is counted or merged; twice as many beyond order 5


@dataclass(frozen=True)
class Plan:
    """How work is divided into tasks. It is kept, so that a resumed run divides it the same way."""

    config: CalibratedConfig
    views: tuple[View, ...]
    vocabulary: int
    rows: int  # that a task may hold

    @property
    def tables(self) -> list[int]:
        """The rows that are counted: n-grams, and pairs at distances that these do not reach."""
        return [NGRAM, *far_distances(self.views, self.config.order)]

    @property
    def near(self) -> list[int]:
        """Distances of the pairs that follow from n-grams: those of slots, and those that classes are made of."""
        slots = {view.distances[0] for view in self.views if view.is_slot}
        return sorted((slots | {1, 2}) & set(range(1, self.config.order)))

    def order(self, distance: int) -> int:
        return self.config.order if distance == NGRAM else 2

    @property
    def reach(self) -> int:
        """The number of tokens before a target that are counted with it."""
        return max(distance for view in self.views for distance in view.distances)


def remembered(cluster: Cluster, name: str, made: Callable[[], Any]) -> Any:
    """The value chosen when a run first needed it."""
    path = cluster.folder / f"{name}.json"
    if not path.exists():
        keep(path, made())
    return json.loads(path.read_bytes())


def rows_arrays(name: str, rows: Rows) -> dict[str, Array]:
    return {f"{name}.offsets": rows.offsets, f"{name}.keys": rows.keys, f"{name}.counts": rows.counts}


def stored_rows(path: Path, name: str, order: int, first: int = 0) -> Rows:
    """Rows that a task has written, memory-mapped."""
    arrays = map_arrays(path)
    offsets, keys, counts = (arrays[f"{name}.{part}"] for part in ("offsets", "keys", "counts"))
    if keys.ndim == 2 and keys.ctypes.data % 16:  # kernels read both words of a key at once
        keys = keys.copy()
    return Rows(order, first, offsets, keys, counts)


@dataclass(frozen=True)
class Merged:
    """Counts of one kind of row, in files by range."""

    distance: int
    order: int
    cuts: list[int]
    paths: list[Path]
    has_known: bool

    def rows(self, number: int, counts: str) -> Rows:
        """The rows of a range, `known` or `whole`."""
        name = counts if self.has_known else WHOLE
        return stored_rows(self.paths[number], name, self.order, self.cuts[number])

    def frequencies(self, counts: str, vocabulary: int) -> Array:
        """How often each token is a target."""
        total = np.zeros(vocabulary, dtype=np.int64)
        for number in range(len(self.paths)):
            total += map_arrays(self.paths[number])[f"{counts if self.has_known else WHOLE}.frequencies"]
        return total


def count(cluster: Cluster, plan: Plan, corpus: TokenCorpus, held_out: Array) -> dict[int, Merged]:
    """The counts of a corpus, by distance; `held_out` (n, 2) are the targets that are not known."""
    bounds = [*range(0, corpus.targets, plan.rows), corpus.targets]
    ranges = np.ascontiguousarray(held_out, dtype=np.int64)
    items = []
    for number, (begin, end) in enumerate(pairwise(bounds)):
        touched = ranges[(ranges[:, 1] > begin) & (ranges[:, 0] < end)].clip(begin, end)
        items.append((plan, cluster.folder, begin, end, touched.tolist(), path_of(cluster, "counts", number)))
    cluster.map("counts", count_stretch, items, "count")
    runs = [path_of(cluster, "counts", number) for number in range(len(items))]
    cuts = remembered(cluster, "cuts", lambda: {str(d): range_cuts(plan, runs, table_names(d)) for d in plan.tables})
    todo = [(d, lo, hi) for d in plan.tables for lo, hi in pairwise(cuts[str(d)])]
    merging = [
        (plan, runs, d, lo, hi, bool(len(ranges)), path_of(cluster, "merged", number))
        for number, (d, lo, hi) in enumerate(todo)
    ]
    cluster.map("merged", merge_range, merging, "merge counts")
    for run in runs:
        run.unlink(missing_ok=True)
    merged = {}
    at = 0
    for d in plan.tables:
        size = len(cuts[str(d)]) - 1
        paths = [path_of(cluster, "merged", number) for number in range(at, at + size)]
        merged[d] = Merged(d, plan.order(d), cuts[str(d)], paths, bool(len(ranges)))
        at += size
    return merged


def table_names(distance: int) -> list[str]:
    return [f"known.{distance}", f"held.{distance}"]


def count_stretch(plan: Plan, folder: Path, begin: int, end: int, held_out: list[list[int]], path: Path) -> None:
    """Count the targets from `begin` to `end`; those in ranges that are `held_out` are counted separately."""
    corpus, first = stretch_of(folder, begin, end, plan.reach)
    unknown = np.array(held_out, dtype=np.int64).reshape(-1, 2) - first
    known = np.stack([np.append(begin - first, unknown[:, 1]), np.append(unknown[:, 0], end - first)], axis=1)
    arrays: dict[str, Array] = {}
    for d in plan.tables:
        distances = None if d == NGRAM else [d]
        for name, ranges in zip(table_names(d), (known, unknown), strict=True):
            buckets = 0, plan.vocabulary
            rows = count_rows(corpus, plan.order(d), plan.vocabulary, buckets, distances, ranges)
            arrays |= rows_arrays(name, rows)
    write_arrays(path, arrays)


def stretch_of(folder: Path, begin: int, end: int, reach: int) -> tuple[TokenCorpus, int]:
    """The part of a corpus needed to count some targets with their full contexts, and where it begins."""
    ids, starts = (mapped(folder / f"train.{name}", PARTS[name]) for name in ("ids", "starts"))
    document = int(np.searchsorted(starts, begin, side="right")) - 1
    first = max(int(starts[document]), begin - reach)
    inside = starts[document + 1 : int(np.searchsorted(starts, end, side="left"))]
    bounds = np.concatenate([[first], inside, [end]]) - first
    return TokenCorpus(ids[first:end], bounds, np.zeros(0, dtype=np.int64)), first


def range_cuts(plan: Plan, runs: Sequence[Path], names: Sequence[str]) -> list[int]:
    """Bounds of ranges that hold, before equal rows are added up, at most as many rows as a task may hold."""
    weights = np.zeros(plan.vocabulary, dtype=np.int64)
    for run in runs:
        arrays = map_arrays(run)
        for name in names:
            weights += np.diff(arrays[f"{name}.offsets"])
    return even_cuts(weights + 1, int(weights.sum()) // plan.rows + 1)


def merge_range(plan: Plan, runs: Sequence[Path], distance: int, lo: int, hi: int, has_known: bool, path: Path) -> None:
    """Add up the rows of a range over all runs."""
    order = plan.order(distance)
    parts = []
    for name in table_names(distance):
        pieces = (stored_rows(run, name, order).slice(lo, hi) for run in runs)
        parts.append(merge_rows(list(pieces)))
    whole = merge_rows(parts) if has_known else parts[0]
    parts_by_name = {WHOLE: whole} | ({KNOWN: parts[0]} if has_known else {})
    arrays: dict[str, Array] = {}
    for name, rows in parts_by_name.items():
        arrays |= rows_arrays(name, rows)
        if distance == NGRAM:
            arrays[f"{name}.frequencies"] = rows.target_counts(plan.vocabulary)
    write_arrays(path, arrays)


def regrouped(
    cluster: Cluster,
    stage: str,
    plan: Plan,
    ngrams: Merged,
    counts: str,
    views: Sequence[View],
    classes: Path | None,
    title: str,
) -> list[Path]:
    """Coarser views of every range of the n-grams, each over all buckets: runs that `merge_rows` can add up.

    `classes`: a file that has the classes that views see, if any.
    """
    paths = [path_of(cluster, stage, number) for number in range(len(ngrams.paths))]
    items = [(plan, ngrams, number, counts, views, classes, path) for number, path in enumerate(paths)]
    cluster.map(stage, regroup_range, items, title)
    return paths


def regroup_range(
    plan: Plan,
    ngrams: Merged,
    number: int,
    counts: str,
    views: Sequence[View],
    classes: Path | None,
    path: Path,
) -> None:
    rows = ngrams.rows(number, counts)
    stored = map_arrays(classes) if classes else {}
    arrays: dict[str, Array] = {}
    for view in views:
        of_tokens = stored.get(f"classes.{view.classes}")
        made = regroup_rows(rows, view.distances, (0, plan.vocabulary), of_tokens, view.exact)
        arrays |= rows_arrays(view.name, made)
    write_arrays(path, arrays)


def summed_rows(paths: Sequence[Path], name: str, order: int, lo: int, hi: int) -> Rows:
    """The sum of a range over runs."""
    return merge_rows([stored_rows(path, name, order).slice(lo, hi) for path in paths])
