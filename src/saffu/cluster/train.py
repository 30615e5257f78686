"""A calibrated model on a cluster: the steps of `saffu.calibrated.fit`, with counting and tables in tasks.

No process holds all counts. Tasks hold a range of them; the driver, this process, maps finished tables into memory,
finds classes from counts of pairs, and fits exponents on a sample of the held-out stretches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from saffu.arrays import Array, map_arrays
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import calibrated_encoder, class_encoder, finished_stage, held_out_ranges
from saffu.calibrated.model import Encoder
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.storage import memory_limit
from saffu.calibrated.views import CalibratedSums
from saffu.cluster.counts import BYTES, KNOWN, LEAST_LIMIT, MEMORY, WHOLE, Merged, Plan, count, remembered, summed_rows
from saffu.cluster.engine import Cluster, write_arrays
from saffu.cluster.tables import model_of, near_runs
from saffu.interface import Stage
from saffu.text.corpus import TokenCorpus

USUAL_LIMIT = 1 << 30  # bytes of memory for a task
TOO_LITTLE = "too little text to measure exponents; default values are used"


def stages(
    cluster: Cluster,
    corpus: TokenCorpus,
    vocabulary: int,
    config: CalibratedConfig,
    limit: int | None = None,
    encoder: Encoder | None = None,
) -> Iterator[Stage]:
    """Count a corpus in the cluster's folder and solve its model, in one stage; an encoder, if given, is kept."""
    plan = Plan(config, vocabulary, remembered(cluster, "rows", lambda: rows_of(cluster, corpus, config, limit)))
    held_out = np.zeros((0, 2), dtype=np.int64) if encoder else held_out_ranges(corpus)
    merged = count(cluster, plan, corpus, held_out)
    with memory_limit(limit or USUAL_LIMIT, cluster.folder):
        fitted = encoder or kept_encoder(cluster, plan, corpus, held_out, merged)
        near = near_runs(cluster, plan, merged[MEMORY], WHOLE)
        model = model_of(cluster, plan, WHOLE, merged, near, fitted, sums_of(plan, merged))
        if encoder:
            yield Stage("recount", model, {})
        else:
            known = measurable(plan, merged, held_out)
            yield finished_stage(model, [] if known else [TOO_LITTLE])


def rows_of(cluster: Cluster, corpus: TokenCorpus, config: CalibratedConfig, limit: int | None) -> int:
    """The number of rows a task may hold: few enough for its memory and to keep all processors busy."""
    room = max(LEAST_LIMIT, limit or USUAL_LIMIT) // (BYTES if config.order <= 5 else 2 * BYTES)
    return min(room, corpus.targets // cluster.processors + 1)


def kept_encoder(
    cluster: Cluster, plan: Plan, corpus: TokenCorpus, held_out: Array, merged: Mapping[int, Merged]
) -> Encoder:
    """Fit classes to the known counts and exponents to the text held out of them; only once per run."""
    path = cluster.folder / "encoder.data"
    if not path.exists():
        near = near_runs(cluster, plan, merged[MEMORY], KNOWN)
        pairs = []
        for distance in range(1, min(3, plan.config.order)):
            rows = summed_rows(near, f"slot {distance}", 2, 0, plan.vocabulary)
            pairs.append(NgramCounts.joined(2, plan.vocabulary, [rows]))
        encoder = class_encoder(plan.config, pairs, merged[MEMORY].frequencies(KNOWN, plan.vocabulary))
        if measurable(plan, merged, held_out):
            model = model_of(cluster, plan, KNOWN, merged, near, encoder, None)
            encoder = calibrated_encoder(model, corpus, held_out)
        write_arrays(path, encoder.arrays())
    for left in (*cluster.folder.glob(f"{KNOWN}.*"), *cluster.folder.glob(f"{KNOWN}-*/*.data")):
        left.unlink()  # tables that are no longer needed
    return Encoder.from_arrays(plan.config, map_arrays(path))


def measurable(plan: Plan, merged: Mapping[int, Merged], held_out: Array) -> bool:
    """Whether there is text to fit exponents to."""
    return len(held_out) > 0 and bool(merged[MEMORY].frequencies(KNOWN, plan.vocabulary).any())


def sums_of(plan: Plan, merged: Mapping[int, Merged]) -> CalibratedSums:
    """All counts, in memory-mapped files."""
    counts = {
        distance: NgramCounts.joined(
            plan.order(distance),
            plan.vocabulary,
            (part.rows(number, WHOLE) for number in range(len(part.paths))),
        )
        for distance, part in merged.items()
    }
    memory = counts.pop(MEMORY)
    return CalibratedSums(memory, counts)
