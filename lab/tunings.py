"""Ten tunings of the paper's best model, fold after fold, and what the same text gives without tuning.

    python -m lab tunings --train FILES --dev FILES --out results.jsonl [--device cuda]

Every tuning adds a fold of text, so a model that is initialized on all folds at once shows how much of a gain is due to
the text alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from lab.rows import Row
from lab.warm_starts import add_common_options, run_all
from saffu.experiments.reproduce import tuned_settings
from saffu.paper.config import PaperConfig
from saffu.paper.fit import fit
from saffu.text.corpus import TokenCorpus
from saffu.tools.evaluate import evaluate

RADII = (8, 128)


def run(corpus: TokenCorpus, dev: TokenCorpus, vocabulary: int, config: PaperConfig, seed: int, device: str) -> Row:
    """Dev perplexities of every stage as JSON values; the seed shuffles the documents."""
    shuffled = corpus.select(np.random.default_rng(seed).permutation(corpus.documents))
    seen = joined_head(shuffled, config)

    def scored(settings: PaperConfig) -> dict[str, float]:
        stages = fit(seen, vocabulary, settings, device)
        return {stage.name: evaluate(stage.model, dev).perplexity for stage in stages}

    return {
        "radius": config.radius,
        "seed": seed,
        "tokens": seen.targets,
        "fold_tokens": config.fold_tokens,
        "dev_targets": dev.targets,
        "vocabulary": vocabulary,
        "dev_perplexities": scored(config),
        "without_tuning": scored(replace(config, tune_folds=0))["init"],
    }


def joined_head(corpus: TokenCorpus, config: PaperConfig) -> TokenCorpus:
    """The folds that tuning sees, as one corpus."""
    folds = corpus.folds(config.fold_tokens)[: config.tune_folds + 1]
    return corpus.slice(0, sum(fold.documents for fold in folds))


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)


def run_command(options: argparse.Namespace) -> None:
    def runs(corpus: TokenCorpus, dev: TokenCorpus, vocabulary: int, device: str) -> Iterator[tuple[Row, str]]:
        for radius, seed in product(RADII, range(options.seeds)):
            row = run(corpus, dev, vocabulary, tuned_settings(corpus, radius), seed, device)
            stages = list(row["dev_perplexities"].values())
            yield row, f"r = {radius}, seed {seed}: {stages[0]:.2f} → {stages[-1]:.2f}"

    run_all(options, runs)
