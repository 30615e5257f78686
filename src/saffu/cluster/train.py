"""A calibrated model on a cluster: the steps of `saffu.calibrated.fit`, with counting and tables in tasks.

No process holds all counts. Tasks hold a range of them; the driver, this process, maps finished tables into memory,
finds classes from counts of pairs, and fits exponents on a sample of the held-out stretches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import calibrated_encoder, class_encoder, finished_stage, held_out_ranges
from saffu.calibrated.model import Encoder
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.storage import memory_limit
from saffu.calibrated.views import CalibratedSums, views_of
from saffu.cluster.corpus import learned_tokenizer, shards_of, surveyed, tokenized
from saffu.cluster.counts import BYTES, KNOWN, LEAST_LIMIT, NGRAM, WHOLE, Merged, Plan, count, remembered, summed_rows
from saffu.cluster.engine import (
    Cluster,
    connected,
    described_sources,
    require_usable,
    shared_sources,
    work_folder,
    write_arrays,
)
from saffu.cluster.tables import model_of, near_runs
from saffu.errors import SaffuError
from saffu.files import Array, map_arrays
from saffu.interface import Stage
from saffu.model.language_model import SaffuLM
from saffu.model.living import fingerprints
from saffu.model.recipe import Recipe
from saffu.model.solutions import described, solution
from saffu.text.corpus import TokenCorpus
from saffu.text.selection import TrainingText, warn_of_bad_files
from saffu.text.sources import Source
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

USUAL_LIMIT = 1 << 30  # bytes of memory for a task
TOO_LITTLE = "too little text to measure exponents; default values are used"


@contextmanager
def on_cluster(address: str, recipe: Recipe, text: TrainingText, limit: int | None) -> Iterator[OnCluster]:
    """An executor for a recipe on the Ray cluster at an address; what it finishes is kept next to the folder.

    Tasks hold at most `limit` bytes. Raises SaffuError if the recipe does more than count.
    """
    encoder = recipe.encoder
    if encoder and not solution(encoder.config.preset).scales:
        preset = described(encoder.config.preset)
        raise SaffuError(f"--ray counts only, but the encoder has the preset {preset}; remove --ray")
    require_usable(address)
    known = recipe.tokenizer if isinstance(recipe.tokenizer, Tokenizer) else None
    job = {
        **recipe.selection.seen_from(recipe.folder).to_dict(),
        "config": recipe.config.to_dict(),
        "tokenizer": None if isinstance(recipe.tokenizer, Tokenizer) else recipe.tokenizer.to_dict(),
        "known": known and known.to_json(),
        "sources": described_sources(list(text.text.sources or [])),
        "encoder": fingerprints(encoder) if encoder else None,
    }
    with work_folder(recipe.folder, job) as folder, connected(address, folder) as cluster:
        yield OnCluster(cluster, limit)


class OnCluster:
    """Tokenizes and counts in tasks of a cluster."""

    def __init__(self, cluster: Cluster, limit: int | None = None) -> None:
        self.cluster = cluster
        self.limit = limit

    def tokenize(
        self, text: TrainingText, tokenizer: Tokenizer | TokenizerConfig
    ) -> tuple[Tokenizer, TokenCorpus, TokenCorpus]:
        selection = text.selection
        cluster = self.cluster
        how = selection.reading.arguments | ({} if text.text.sources else {"split": "file"})
        shards = shards_of(sources_of(text, cluster.folder), how, selection.hold_out)
        if selection.hold_out or selection.reading.skip_bad_files:
            shards, bad = surveyed(cluster, shards, selection.reading.skip_bad_files)
            warn_of_bad_files(bad)
        learned = tokenizer if isinstance(tokenizer, Tokenizer) else learned_tokenizer(cluster, shards, tokenizer)
        parts = tokenized(cluster, shards, learned, selection.max_tokens)
        if text.dev_text is not None:
            text.dev_text.leave_out_bad_files()
            parts.dev = TokenCorpus.build(text.dev_text, learned, cluster.folder, None, "tokenize held-out text")
        text.text.skipped.update(parts.skipped)
        return learned, *text.checked(parts.corpus, parts.dev)

    def stages(self, lm: SaffuLM, corpus: TokenCorpus) -> Iterator[Stage]:
        config: Any = lm.config
        model: Any = lm.encoder.model_ if lm.encoder else None
        return stages(self.cluster, corpus, len(lm.tokenizer_), config, self.limit, model and model.encoder)


def sources_of(text: TrainingText, folder: Path) -> list[Source]:
    """The training text as files that all nodes can read."""
    if text.text.sources is not None:
        return shared_sources(list(text.text.sources), folder)
    path = folder / "default.jsonl"
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in text.text.default or []), "utf-8")
    return [Source(path, path.name)]


def stages(
    cluster: Cluster,
    corpus: TokenCorpus,
    vocabulary: int,
    config: CalibratedConfig,
    limit: int | None = None,
    encoder: Encoder | None = None,
) -> Iterator[Stage]:
    """Count a corpus in the cluster's folder and solve its model, in one stage; an encoder, if given, is kept."""
    views = encoder.views if encoder else tuple(views_of(config))
    rows = remembered(cluster, "rows", lambda: rows_of(cluster, corpus, config, limit))
    plan = Plan(config, views, vocabulary, rows)
    held_out = np.zeros((0, 2), dtype=np.int64) if encoder else held_out_ranges(corpus)
    merged = count(cluster, plan, corpus, held_out)
    with memory_limit(limit or USUAL_LIMIT, cluster.folder):
        fitted = encoder or kept_encoder(cluster, plan, corpus, held_out, merged)
        near = near_runs(cluster, plan, merged[NGRAM], WHOLE)
        model = model_of(cluster, plan, WHOLE, merged, near, fitted, sums_of(plan, merged))
        if encoder:
            yield Stage("recount", model, {})
        else:
            is_measured = measurable(plan, merged, held_out)
            yield finished_stage(model, [] if is_measured else [TOO_LITTLE])


def rows_of(cluster: Cluster, corpus: TokenCorpus, config: CalibratedConfig, limit: int | None) -> int:
    """The number of rows a task may hold: few enough for its memory and to keep all processors busy."""
    rows = max(LEAST_LIMIT, limit or USUAL_LIMIT) // (BYTES if config.order <= 5 else 2 * BYTES)
    return min(rows, corpus.targets // cluster.processors + 1)


def kept_encoder(
    cluster: Cluster, plan: Plan, corpus: TokenCorpus, held_out: Array, merged: Mapping[int, Merged]
) -> Encoder:
    """Fit classes to the known counts and exponents to the text held out of them; only once per run."""
    path = cluster.folder / "encoder.data"
    if not path.exists():
        near = near_runs(cluster, plan, merged[NGRAM], KNOWN)
        pairs = []
        for distance in range(1, min(3, plan.config.order)):
            rows = summed_rows(near, f"slot {distance}", 2, 0, plan.vocabulary)
            pairs.append(NgramCounts.joined(2, plan.vocabulary, [rows]))
        encoder = class_encoder(plan.config, pairs, merged[NGRAM].frequencies(KNOWN, plan.vocabulary))
        if measurable(plan, merged, held_out):
            model = model_of(cluster, plan, KNOWN, merged, near, encoder, None)
            encoder = calibrated_encoder(model, corpus, held_out)
        write_arrays(path, encoder.arrays())
    for left in (*cluster.folder.glob(f"{KNOWN}.*"), *cluster.folder.glob(f"{KNOWN}-*/*.data")):
        left.unlink()  # tables that are no longer needed
    return Encoder.from_arrays(plan.config, plan.vocabulary, map_arrays(path))


def measurable(plan: Plan, merged: Mapping[int, Merged], held_out: Array) -> bool:
    """Whether there is text to fit exponents to."""
    return len(held_out) > 0 and bool(merged[NGRAM].frequencies(KNOWN, plan.vocabulary).any())


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
    return CalibratedSums(counts.pop(NGRAM), counts)
