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
    level_slices,
    table_statistics,
)
from saffu.calibrated.views import MEMORY as MEMORY_VIEW
from saffu.calibrated.views import View, seen_rows, views_of
from saffu.cluster.corpus import blank, mapped, path_of
from saffu.cluster.counts import (
    MEMORY,
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

    def rows(self, number: int, counts: str, classes: Array | None) -> Rows:
        """What the view saw in a range."""
        lo, hi = self.cuts[number], self.cuts[number + 1]
        if self.merged is None:
            rows = summed_rows(self.runs, self.view.name, self.order, lo, hi)
        else:
            rows = self.merged.rows(number, counts)
            if self.view.name != MEMORY_VIEW and self.merged.distance == MEMORY:
                rows = regroup_rows(rows, self.view.distances, (lo, hi), classes, self.view.exact)
        return seen_rows(self.view, rows)


def near_runs(cluster: Cluster, plan: Plan, memory: Merged, counts: str) -> list[Path]:
    """Pairs of tokens that the memory sees, of each of its ranges."""
    views = [{"name": f"slot {d}", "columns": [d], "classes": None, "exact": 0} for d in plan.near]
    return regrouped(cluster, f"{counts}-near", plan, memory, counts, views, "pair tokens")


def solved(
    cluster: Cluster, plan: Plan, counts: str, merged: Mapping[int, Merged], near: list[Path], encoder: Encoder
) -> tuple[list[Table], Array]:
    """The tables of all views that follow from the `known` or the `whole` counts, and how often each token occurs."""
    ranks, views = Ranks(encoder.output_classes), views_of(plan.config)
    frequencies = merged[MEMORY].frequencies(counts, plan.vocabulary)
    shared = cluster.folder / f"{counts}.encoder"
    classes = {f"classes.{number}": array for number, array in encoder.context_classes.items()}
    write_arrays(shared, {"ranks": ranks.ranks, **classes})
    of_classes = [view for view in views if view.classes and not view.exact]
    asked = [
        {"name": v.name, "columns": v.distances, "classes": encoder.context_classes[v.classes], "exact": 0}
        for v in of_classes
    ]
    runs = regrouped(cluster, f"{counts}-classes", plan, merged[MEMORY], counts, asked, "count classes")
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
            building.append(
                (plan, rows.order, rows.cuts[places[n][1]], str(files[n]), str(shared), discounts, where, layout)
            )
            at = at + part.sizes
        unfinished.append((rows.view, layout, discounts, estimated, total.sizes))
    cluster.map(f"{counts}-tables", build, building, "build tables")
    prior = np.exp(log_prior(frequencies, ranks))
    for view, layout, discounts, estimated, sizes in unfinished:
        levels = opened(layout, writable=True)
        close_levels(levels, sizes)
        levels = opened(layout)
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
        return ViewRows(view, merged[MEMORY].cuts, merged[MEMORY], [])
    pieces = near if view.is_slot else runs
    name = f"{counts}-cuts of {view.name}"
    return ViewRows(view, remembered(cluster, name, lambda: range_cuts(plan, pieces, [view.name])), None, pieces)


def measure(plan: Plan, source: ViewRows, part: int, counts: str, shared: str, path: str) -> list[Any]:
    """Write the rows of a range of a view; gives their statistics."""
    encoder = map_arrays(Path(shared))
    classes = encoder[f"classes.{source.view.classes}"] if source.view.classes else None
    rows = source.rows(part, counts, classes)
    write_arrays(Path(path), rows_arrays("rows", rows))
    found = table_statistics(rows, plan.vocabulary, encoder["ranks"], plan.config.prune)
    return [found.counts_of_counts.tolist(), found.sizes.tolist()]


Layout = list[dict[str, tuple[str, int]]]
"""Of each level, the file of each array and how many entries it has."""


def level_files(cluster: Cluster, counts: str, number: int, sizes: Array) -> Layout:
    """Files for the levels of a table."""
    depth, layout = len(sizes) - 1, []
    for level in range(1, depth + 1):
        contexts, followers = (int(n) for n in sizes[level])
        room = {"token": contexts, "child": contexts + 1, "begin": contexts + 1, "backoff": contexts}
        room |= {"follow": followers, "mass": followers}
        if level == 1:
            del room["token"]
        if level == depth:
            del room["child"]
        files = {}
        for name, size in room.items():
            path = cluster.folder / f"{counts}.{number}.{level}.{name}"
            length = size * np.dtype(LEVEL_ARRAYS[name]).itemsize
            if not path.exists() or path.stat().st_size != length:
                blank(path, length)
            files[name] = str(path), size
        layout.append(files)
    return layout


def opened(layout: Layout, writable: bool = False) -> list[dict[str, Array]]:
    return [
        {name: mapped(Path(path), LEVEL_ARRAYS[name], writable) for name, (path, _) in level.items()}
        for level in layout
    ]


def build(
    plan: Plan,
    order: int,
    first: int,
    path: str,
    shared: str,
    discounts: Array,
    sizes: tuple[Array, Array],
    layout: Layout,
) -> None:
    """Build a range of a table where it belongs."""
    rows, (begin, size) = stored_rows(Path(path), "rows", order, first), sizes
    levels = level_slices(opened(layout, writable=True), begin, size)
    ranks = map_arrays(Path(shared))["ranks"]
    build_levels(rows, plan.vocabulary, ranks, plan.config.prune, discounts, begin, levels)


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
