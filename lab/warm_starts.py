"""Explicit (warm) against random (cold) starts of the paper's best models, at several learning rates.

    python -m lab warm-starts --train FILES --dev FILES --out results.jsonl [--device cuda]

Unlike `saffu reproduce figure`, which follows the paper's protocol, this neither tunes nor waits for early stopping: it
shows all starts after the same number of folds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from lab.rows import Row, append_row
from saffu.experiments.reproduce import STARTS
from saffu.paper.backprop import DEV_TARGETS, Backprop
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.paper.devices import usable_device
from saffu.paper.model import PaperModel
from saffu.paper.start import start
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import Tokenizer, TokenizerConfig
from saffu.training.run import Diverged

BLOCK = 128
RATES = {8: (0.01, 0.003), 128: (0.003, 0.001)}


def run(
    corpus: TokenCorpus,
    dev: TokenCorpus,
    vocabulary: int,
    name: str,
    radius: int,
    settings: dict[str, Any],
    device: str,
) -> Row:
    """Make one of the starts and train from it; its learning curve as JSON values."""
    began = time.perf_counter()
    training = TrainingConfig.from_dict(STARTS[name] | settings)
    *_, stage = start(corpus, vocabulary, PaperConfig(block=BLOCK, radius=radius), training, device)
    assert isinstance(stage.model, PaperModel)
    curve: list[dict[str, Any]] = []

    def note(row: dict[str, Any], _: PaperModel) -> None:
        curve.append({name: row[name] for name in ("fold", "tokens", "seconds", "dev_perplexity")})

    backprop = Backprop(stage.model, corpus, dev, training, seconds=time.perf_counter() - began)
    try:
        backprop.run(on_check=note)
        ended = backprop.progress.ended
    except Diverged as error:
        ended = str(error)
    return {
        "start": name,
        "radius": radius,
        "learning_rate": training.learning_rate,
        "seed": training.seed,
        "tokens": corpus.targets,
        "dev_targets": dev.targets,
        "dev_bytes": dev.bytes,
        "vocabulary": vocabulary,
        "best_dev_perplexity": min(row["dev_perplexity"] for row in curve),
        "curve": curve,
        "ended": ended,
    }


def read_corpora(train: Sequence[str], dev: Sequence[str]) -> tuple[Tokenizer, TokenCorpus, TokenCorpus]:
    """Training and held-out text, one document per line, with a tokenizer learned from the training text."""
    paths, held_out = (find_files(names) for names in (train, dev))
    tokenizer = Tokenizer.train((text for _, text in read_lines(paths, "line")), TokenizerConfig(bpe_count="types"))
    corpus, scored = (TokenCorpus.build(read_lines(found, "line"), tokenizer) for found in (paths, held_out))
    return tokenizer, corpus, scored


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """The options that studies of runs have in common."""
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="training text, a document per line")
    parser.add_argument("--dev", nargs="+", required=True, metavar="FILE", help="held-out text")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, one line of JSON per run")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")


def run_all(options: argparse.Namespace, runs: Callable[..., Iterator[tuple[Row, str]]]) -> None:
    """Append the rows of `runs`(corpus, dev, vocabulary, device) to a file, one by one, and print their summaries."""
    device = str(usable_device(options.device))
    tokenizer, corpus, dev = read_corpora(options.train, options.dev)
    for row, summary in runs(corpus, dev.sample(DEV_TARGETS), len(tokenizer), device):
        append_row(options.out, row)
        print(summary, flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)
    parser.add_argument("--max-folds", type=int, default=6, help="folds of a million targets per run (default: 6)")


def run_command(options: argparse.Namespace) -> None:
    def runs(corpus: TokenCorpus, dev: TokenCorpus, vocabulary: int, device: str) -> Iterator[tuple[Row, str]]:
        for seed, (radius, rates), name in product(range(options.seeds), RATES.items(), STARTS):
            for rate in rates:
                settings = {"learning_rate": rate, "max_folds": options.max_folds, "seed": seed}
                row = run(corpus, dev, vocabulary, name, radius, settings, device)
                best = f"{row['best_dev_perplexity']:.1f}"
                yield row, f"{name} start, r = {radius}, rate {rate:g}, seed {seed}: {best}"

    run_all(options, runs)
