"""Ten tunings of the paper's best model, fold after fold, and what the same text gives without tuning.

    python -m saffu.experiments.tunings --train FILES --dev FILES --out results.jsonl [--device cuda]

Every tuning adds a fold of text, so a model that is initialized on all folds at once shows how much of a gain is due to
the text alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.grid import DOCUMENT_SHARDS
from saffu.experiments.readings import Row, read_rows
from saffu.experiments.warm_starts import BLOCK, read_corpora
from saffu.paper.config import PaperConfig
from saffu.paper.devices import usable_device
from saffu.paper.fit import fit
from saffu.text.corpus import TokenCorpus
from saffu.tools.evaluate import evaluate
from saffu.training.loop import DEV_TARGETS

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
    parser = argparse.ArgumentParser(prog="python -m saffu.experiments.tunings", description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="training text, a document per line")
    parser.add_argument("--dev", nargs="+", required=True, metavar="FILE", help="held-out text")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, one line of JSON per run")
    parser.add_argument("--seeds", type=int, default=3, help="number of orders of the documents (default: 3)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")
    options = parser.parse_args(arguments)
    try:
        device = str(usable_device(options.device))
        tokenizer, corpus, dev = read_corpora(options.train, options.dev)
        dev = dev.sample(DEV_TARGETS)
        for radius in RADII:
            for seed in range(options.seeds):
                row = run(corpus, dev, len(tokenizer), tuned_settings(corpus, radius), seed, device)
                lines = [json.dumps(line) + "\n" for line in [*read_rows(options.out), row]]
                files.write_file(options.out, "".join(lines).encode())
                stages = list(row["dev_perplexities"].values())
                print(f"r = {radius}, seed {seed}: {stages[0]:.2f} → {stages[-1]:.2f}", flush=True)
    except SaffuError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
