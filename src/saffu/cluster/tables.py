"""Tables on a cluster: each range of a view is measured, then built into its place in files that hold all ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saffu.calibrated.kneser_ney import (
    LEVEL_ARRAYS,
    Draft,
    Ranks,
    Table,
    TableStatistics,
    adjusted_counts,
    build_levels,
    close_levels,
    empty_levels,
    level_lengths,
    log_prior,
    table_statistics,
)
from saffu.calibrated.model import CalibratedModel, Encoder
from saffu.calibrated.ngrams import Rows, regroup_rows
from saffu.calibrated.views import View, rows_for_view
from saffu.cluster.corpus import create_sparse, mapped, path_of, write_at
from saffu.cluster.counts import (
    NGRAM,
    Merged,
    Plan,
    range_cuts,
    regrouped,
    remembered,
    rows_arrays,
    stored_rows,
    summed_rows,
)
from saffu.cluster.engine import Cluster, write_arrays
from saffu.files import Array, map_arrays


@dataclass(frozen=True)
class ViewRows:
    """Where the rows of a view come from."""

    view: View
    cuts: list[int]
    merged: Merged | None  # ranges that hold exactly the rows that the view regroups, or
    runs: list[Path]  # runs that have to be added up

    @property
    def order(self) -> int:
        return len(self.view.distances) + 1

    @property
    def is_merged(self) -> bool:
        """Whether its rows are those that were counted."""
        return self.merged is not None and (self.merged.distance != NGRAM or self.view.is_whole(self.merged.order))

    def rows(self, number: int, counts: str, classes: Array | None) -> Rows:
        """The rows of the view in a range."""
        lo, hi = self.cuts[number], self.cuts[number + 1]
        if self.merged is None:
            rows = summed_rows(self.runs, pairs(self.view).name, self.order, lo, hi)
        else:
            rows = self.merged.rows(number, counts)
            if not self.is_merged:
                rows = regroup_rows(rows, self.view.distances, (lo, hi), classes, self.view.exact)
        return rows_for_view(self.view, rows)


def pairs(view: View) -> View:
    """A view by its name in runs: a slot goes by its distance, because classes are made of the same pairs."""
    return View(f"slot {view.distances[0]}", view.distances) if view.is_slot else view


@dataclass(frozen=True)
class Range:
    """A range of a view, for the tasks that make its part of a table."""

    plan: Plan
    source: ViewRows
    number: int  # of the range in its view
    counts: str
    shared: Path  # what all tasks need: classes, and the order of tokens
    made: Path  # rows that were made for the view


def near_runs(cluster: Cluster, plan: Plan, ngrams: Merged, counts: str) -> list[Path]:
    """The pairs of tokens within reach of the n-grams, for each of their ranges."""
    views = [View(f"slot {distance}", (distance,)) for distance in plan.near]
    return regrouped(cluster, f"{counts}-near", plan, ngrams, counts, views, None, "pair tokens")


def keeps_buckets(view: View) -> bool:
    """Whether the rows of a range of n-grams make up that range of the view: both begin with the same token."""
    return view.distances[0] == 1 and not view.is_slot and (not view.classes or view.exact > 0)


def solved(
    cluster: Cluster, plan: Plan, counts: str, merged: Mapping[int, Merged], near: list[Path], encoder: Encoder
) -> tuple[list[Table], Array]:
    """The tables of all views that follow from the `known` or the `whole` counts, and how often each token occurs."""
    ranks = Ranks(encoder.output_classes)
    frequencies = merged[NGRAM].frequencies(counts, plan.vocabulary)
    shared = cluster.folder / f"{counts}.encoder"
    classes = {f"classes.{number}": array for number, array in encoder.context_classes.items()}
    write_arrays(shared, {"ranks": ranks.ranks, **classes})
    moved = [view for view in plan.views if not view.is_slot and not keeps_buckets(view)]
    runs = regrouped(cluster, f"{counts}-classes", plan, merged[NGRAM], counts, moved, shared, "count classes")
    sources = [placed(cluster, plan, counts, view, merged, near, runs) for view in plan.views]
    places = [(source, part) for source in sources for part in range(len(source.cuts) - 1)]
    stage = f"{counts}-rows"
    files = [path_of(cluster, stage, number) for number in range(len(places))]
    ranges = [
        Range(plan, source, part, counts, shared, path) for (source, part), path in zip(places, files, strict=True)
    ]
    measured = iter(cluster.map(stage, measure, [(own,) for own in ranges], "measure tables"))
    for path in runs:
        path.unlink(missing_ok=True)
    statistics = [[TableStatistics(*map(np.array, next(measured))) for _ in source.cuts[1:]] for source in sources]
    drafts = [Draft(source.view.distances, each) for source, each in zip(sources, statistics, strict=True)]
    layouts = [level_files(cluster, f"{counts}.{number}", draft.total.sizes) for number, draft in enumerate(drafts)]
    building = [
        (own, draft.discounts.tolist(), draft.places[own.number].tolist(), each[own.number].sizes.tolist(), layout)
        for source, draft, each, layout in zip(sources, drafts, statistics, layouts, strict=True)
        for own in ranges
        if own.source is source
    ]
    cluster.map(f"{counts}-tables", build, building, "build tables")
    prior = np.exp(log_prior(frequencies, ranks))
    tables = []
    for source, draft, layout in zip(sources, drafts, layouts, strict=True):
        levels = closed_levels(layout, draft.total.sizes)
        unigram = prior if source.view.is_slot else None
        tables.append(draft.table(levels, adjusted_counts(levels, plan.vocabulary), unigram))
    for path in files:
        path.unlink(missing_ok=True)
    return tables, frequencies


def placed(
    cluster: Cluster,
    plan: Plan,
    counts: str,
    view: View,
    merged: Mapping[int, Merged],
    near: list[Path],
    runs: list[Path],
) -> ViewRows:
    """Ranges of a view, and where their rows come from."""
    if view.is_slot and view.distances[0] in merged:
        source = merged[view.distances[0]]
        return ViewRows(view, source.cuts, source, [])
    if keeps_buckets(view):
        return ViewRows(view, merged[NGRAM].cuts, merged[NGRAM], [])
    pieces = near if view.is_slot else runs
    cuts = remembered(cluster, f"{counts}-cuts of {view.name}", lambda: range_cuts(plan, pieces, [pairs(view).name]))
    return ViewRows(view, cuts, None, pieces)


def measure(own: Range) -> list[Any]:
    """The statistics of a range of a view; its rows are written if they had to be made."""
    encoder = map_arrays(own.shared)
    source = own.source
    classes = encoder[f"classes.{source.view.classes}"] if source.view.classes else None
    rows = source.rows(own.number, own.counts, classes)
    if not source.is_merged:
        write_arrays(own.made, rows_arrays("rows", rows))
    statistics = table_statistics(rows, own.plan.vocabulary, encoder["ranks"], own.plan.config.prune)
    return [statistics.counts_of_counts.tolist(), statistics.sizes.tolist()]


Layout = list[dict[str, tuple[Path, int]]]
"""For each level, the file of each array and the number of its entries."""


def level_files(cluster: Cluster, table: str, sizes: Array) -> Layout:
    """Files for the levels of a table."""
    layout: Layout = []
    for level, lengths in enumerate(level_lengths(sizes, closed=True), 1):
        layout.append({})
        for name, length in lengths.items():
            path = cluster.folder / f"{table}.{level}.{name}"
            size = length * np.dtype(LEVEL_ARRAYS[name]).itemsize
            if not path.exists() or path.stat().st_size != size:
                create_sparse(path, size)
            layout[-1][name] = path, length
    return layout


def closed_levels(layout: Layout, sizes: Array) -> list[dict[str, Array]]:
    """The levels in finished files, after their last entries have been written."""
    last = [{name: np.empty(1, LEVEL_ARRAYS[name]) for name in level} for level in layout]
    close_levels(last, sizes)
    for level, entries in zip(layout, last, strict=True):
        for name in {"begin", "child"} & level.keys():
            write_at(level[name][0], level[name][1] - 1, entries[name])
    return [{name: mapped(file, LEVEL_ARRAYS[name]) for name, (file, _) in level.items()} for level in layout]


def build(
    own: Range,
    discounts: list[list[float]],
    places: list[list[int]],
    sizes: list[list[int]],
    layout: Layout,
) -> None:
    """Build a range of a table and write it to its place: after `places`, the sizes of all ranges before it."""
    source = own.source
    if source.is_merged:
        rows = source.rows(own.number, own.counts, None)
    else:
        rows = stored_rows(own.made, "rows", source.order, source.cuts[own.number])
    begin = np.array(places, dtype=np.int64)
    ranks = map_arrays(own.shared)["ranks"]
    levels = empty_levels(np.array(sizes, dtype=np.int64))
    build_levels(rows, own.plan.vocabulary, ranks, own.plan.config.prune, np.array(discounts), begin, levels)
    for number, (files, level) in enumerate(zip(layout, levels, strict=True), 1):
        for name, array in level.items():
            write_at(files[name][0], int(begin[number, int(name in ("follow", "mass"))]), array)


def model_of(
    cluster: Cluster,
    plan: Plan,
    counts: str,
    merged: Mapping[int, Merged],
    near: list[Path],
    encoder: Encoder,
    sums: Any,
) -> CalibratedModel:
    """The model with this encoder that follows from the counts."""
    tables, frequencies = solved(cluster, plan, counts, merged, near, encoder)
    distinct = sum(len(m.rows(n, counts).counts) for m in merged.values() for n in range(len(m.paths)))
    return CalibratedModel(plan.config, encoder, tables, frequencies, distinct, sums)
