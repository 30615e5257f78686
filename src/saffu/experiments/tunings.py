"""Ten tunings of the paper's best model, fold after fold, and what the same text gives without tuning.

    python -m saffu.experiments.tunings --train FILES --dev FILES --out results.jsonl [--device cuda]

Every tuning adds a fold of text, so a model that is initialized on all folds at once shows how much of a gain is due to
the text alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from saffu.experiments.grid import DOCUMENT_SHARDS
from saffu.experiments.readings import Row
from saffu.experiments.warm_starts import BLOCK, command, run_all
from saffu.paper.config import PaperConfig
from saffu.paper.fit import fit
from saffu.text.corpus import TokenCorpus
from saffu.tools.evaluate import evaluate

TUNINGS = 10
RADII = (8, 128)


def tuned_settings(corpus: TokenCorpus, radius: int, block: int = BLOCK, shards: int = DOCUMENT_SHARDS) -> PaperConfig:
    """The paper's best shape, with its document model, tuned on ten folds after the one that initializes it.

    A text of ten folds or fewer is divided into eleven, so that no fold is counted twice.
    """
    fold = PaperConfig().fold_tokens
    if len(corpus.folds(fold)) <= TUNINGS:
        fold = max(2, corpus.targets // (TUNINGS + 1))
    tunings = min(TUNINGS, len(corpus.folds(fold)) - 1)
    return PaperConfig(block=block, radius=radius, document_shards=shards, tune_folds=tunings, fold_tokens=fold)


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


def main(arguments: Sequence[str] | None = None) -> None:
    options = command("tunings", __doc__.split("\n")[0]).parse_args(arguments)

    def runs(corpus: TokenCorpus, dev: TokenCorpus, vocabulary: int, device: str) -> Iterator[tuple[Row, str]]:
        for radius, seed in product(RADII, range(options.seeds)):
            row = run(corpus, dev, vocabulary, tuned_settings(corpus, radius), seed, device)
            stages = list(row["dev_perplexities"].values())
            yield row, f"r = {radius}, seed {seed}: {stages[0]:.2f} → {stages[-1]:.2f}"

    run_all(options, runs)


if __name__ == "__main__":
    main()
