"""Tables on a cluster: each range of a view is measured, then built into its place in files that hold all ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saffu.arrays import Array, map_arrays
from saffu.calibrated.layout import Ranks, log_prior
from saffu.calibrated.model import CalibratedModel, Encoder
from saffu.calibrated.rows import Rows, regroup_rows
from saffu.calibrated.tables import (
    LEVEL_ARRAYS,
    Table,
    TableStatistics,
    adjusted_counts,
    build_levels,
    close_levels,
    discounts_of,
    empty_levels,
    level_lengths,
    table_statistics,
)
from saffu.calibrated.views import NGRAM as NGRAM_VIEW
from saffu.calibrated.views import View, rows_for_view, views_of
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
        return self.merged is not None and (self.view.name == NGRAM_VIEW or self.merged.distance != NGRAM)

    def rows(self, number: int, counts: str, classes: Array | None) -> Rows:
        """The rows of the view in a range."""
        lo, hi = self.cuts[number], self.cuts[number + 1]
        if self.merged is None:
            rows = summed_rows(self.runs, self.view.name, self.order, lo, hi)
        else:
            rows = self.merged.rows(number, counts)
            if not self.is_merged:
                rows = regroup_rows(rows, self.view.distances, (lo, hi), classes, self.view.exact)
        return rows_for_view(self.view, rows)


def near_runs(cluster: Cluster, plan: Plan, memory: Merged, counts: str) -> list[Path]:
    """The pairs of tokens within reach of the memory, for each of its ranges."""
    views = [{"name": f"slot {d}", "columns": [d], "classes": None, "exact": 0} for d in plan.near]
    return regrouped(cluster, f"{counts}-near", plan, memory, counts, views, "pair tokens")


def solved(
    cluster: Cluster, plan: Plan, counts: str, merged: Mapping[int, Merged], near: list[Path], encoder: Encoder
) -> tuple[list[Table], Array]:
    """The tables of all views that follow from the `known` or the `whole` counts, and how often each token occurs."""
    ranks, views = Ranks(encoder.output_classes), views_of(plan.config)
    frequencies = merged[NGRAM].frequencies(counts, plan.vocabulary)
    shared = cluster.folder / f"{counts}.encoder"
    classes = {f"classes.{number}": array for number, array in encoder.context_classes.items()}
    write_arrays(shared, {"ranks": ranks.ranks, **classes})
    of_classes = [view for view in views if view.classes and not view.exact]
    asked = [
        {"name": v.name, "columns": v.distances, "classes": encoder.context_classes[v.classes], "exact": 0}
        for v in of_classes
    ]
    runs = regrouped(cluster, f"{counts}-classes", plan, merged[NGRAM], counts, asked, "count classes")
    found = [placed(cluster, plan, counts, view, merged, near, runs) for view in views]
    places = [(number, part) for number, rows in enumerate(found) for part in range(len(rows.cuts) - 1)]
    stage = f"{counts}-rows"
    files = [path_of(cluster, stage, number) for number in range(len(places))]
    items = [
        (plan, found[v], part, counts, str(shared), str(path)) for (v, part), path in zip(places, files, strict=True)
    ]
    measured = cluster.map(stage, measure, items, "measure tables")
    for path in runs:
        path.unlink(missing_ok=True)
    tables, building, unfinished = [], [], []
    for number, rows in enumerate(found):
        own = [n for n, (v, _) in enumerate(places) if v == number]
        statistics = [TableStatistics(*(np.array(part) for part in measured[n])) for n in own]
        total = statistics[0]
        for more in statistics[1:]:
            total = total + more
        discounts, estimated = discounts_of(total)
        layout = level_files(cluster, counts, number, total.sizes)
        at = np.zeros_like(total.sizes)
        for n, part in zip(own, statistics, strict=True):
            where = at.copy(), part.sizes
            building.append((plan, rows, places[n][1], counts, str(shared), str(files[n]), discounts, where, layout))
            at = at + part.sizes
        unfinished.append((rows.view, layout, discounts, estimated, total.sizes))
    cluster.map(f"{counts}-tables", build, building, "build tables")
    prior = np.exp(log_prior(frequencies, ranks))
    for view, layout, discounts, estimated, sizes in unfinished:
        closed = [{name: np.empty(1, LEVEL_ARRAYS[name]) for name in level} for level in layout]
        close_levels(closed, sizes)
        for level, last in zip(layout, closed, strict=True):
            for name in {"begin", "child"} & level.keys():
                write_at(Path(level[name][0]), level[name][1] - 1, last[name])
        levels = [
            {name: mapped(Path(file), LEVEL_ARRAYS[name]) for name, (file, _) in level.items()} for level in layout
        ]
        adjusted = adjusted_counts(levels, plan.vocabulary)
        unigram = prior if view.is_slot else None
        tables.append(Table.assembled(view.distances, levels, discounts, estimated, adjusted, unigram))
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
    if view.distances[0] == 1 and (not view.classes or view.exact):
        return ViewRows(view, merged[NGRAM].cuts, merged[NGRAM], [])
    pieces = near if view.is_slot else runs
    name = f"{counts}-cuts of {view.name}"
    return ViewRows(view, remembered(cluster, name, lambda: range_cuts(plan, pieces, [view.name])), None, pieces)


def measure(plan: Plan, source: ViewRows, part: int, counts: str, shared: str, path: str) -> list[Any]:
    """The statistics of a range of a view; its rows are written if they had to be made."""
    encoder = map_arrays(Path(shared))
    classes = encoder[f"classes.{source.view.classes}"] if source.view.classes else None
    rows = source.rows(part, counts, classes)
    if not source.is_merged:
        write_arrays(Path(path), rows_arrays("rows", rows))
    found = table_statistics(rows, plan.vocabulary, encoder["ranks"], plan.config.prune)
    return [found.counts_of_counts.tolist(), found.sizes.tolist()]


Layout = list[dict[str, tuple[str, int]]]
"""For each level, the file of each array and the number of its entries."""


def level_files(cluster: Cluster, counts: str, number: int, sizes: Array) -> Layout:
    """Files for the levels of a table."""
    layout: Layout = []
    for level, lengths in enumerate(level_lengths(sizes, closed=True), 1):
        layout.append({})
        for name, length in lengths.items():
            path, size = (
                cluster.folder / f"{counts}.{number}.{level}.{name}",
                length * np.dtype(LEVEL_ARRAYS[name]).itemsize,
            )
            if not path.exists() or path.stat().st_size != size:
                create_sparse(path, size)
            layout[-1][name] = str(path), length
    return layout


def build(
    plan: Plan,
    source: ViewRows,
    part: int,
    counts: str,
    shared: str,
    path: str,
    discounts: Array,
    where: tuple[Array, Array],
    layout: Layout,
) -> None:
    """Build a range of a table and write it to its place; `where` gives the sizes before it and its own sizes."""
    first = source.cuts[part]
    rows = source.rows(part, counts, None) if source.is_merged else stored_rows(Path(path), "rows", source.order, first)
    (begin, sizes), ranks = where, map_arrays(Path(shared))["ranks"]
    levels = empty_levels(sizes)
    build_levels(rows, plan.vocabulary, ranks, plan.config.prune, discounts, begin, levels)
    for number, (files, level) in enumerate(zip(layout, levels, strict=True), 1):
        for name, array in level.items():
            write_at(Path(files[name][0]), int(begin[number, int(name in ("follow", "mass"))]), array)


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
