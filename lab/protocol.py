"""The paper's protocol on text that was tokenized before, several runs at a time on one device.

    python -m lab protocol --prepare --train FILES --dev FILES --out mixed.safetensors
    python -m lab protocol --texts mixed.safetensors small.safetensors --out results.jsonl --seconds 330 --device cuda

The runs of the first text have ten folds of backpropagation: warm and cold starts of both radii, the variant for 100M
words, other attention, and the printed learning rate. Those of the second text, which is smaller, go on until held-out
perplexity has risen eight times. When the time is up, a run ends after its fold, and its row says so.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from lab.rows import Row, append_row, read_rows
from saffu import files
from saffu.experiments.grid import DOCUMENT_SHARDS
from saffu.experiments.reproduce import (
    BLOCK,
    DEV_TOKENS,
    LEARNING_RATE,
    Protocol,
    tokenized,
    training_settings,
    tuned_settings,
)
from saffu.paper.backprop import Backprop
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.paper.devices import usable_device
from saffu.paper.model import PaperModel
from saffu.paper.start import start
from saffu.text.corpus import TokenCorpus
from saffu.text.sources import find_files
from saffu.tools.evaluate import evaluate
from saffu.training.run import Diverged

SPLITS = ("train", "dev", "test")
FOLDS = 10
RATES = {8: 0.01, 128: 0.003}  # the best of those that `warm-starts` tries


@dataclass(frozen=True)
class Run:
    """One start and the training after it."""

    start: str
    radius: int
    size: str = "10M"  # with "100M", the model is initialized on the first tenth of the text and not tuned
    learning_rate: float = 0.0  # 0: the best for its radius
    batch_size: int = 1024
    settings: dict[str, Any] = field(default_factory=dict)  # of the model
    until_stopped: bool = False

    @property
    def key(self) -> str:
        return json.dumps([self.start, self.radius, self.size, self.rate, self.batch_size, self.settings])

    @property
    def rate(self) -> float:
        return self.learning_rate or RATES[self.radius]

    def training(self, seed: int) -> TrainingConfig:
        settings = training_settings(Protocol((), (), (), Path(), learning_rate=self.rate), self.start)
        folds = 0 if self.until_stopped else FOLDS
        return replace(settings, batch_size=self.batch_size, max_folds=folds, seed=seed)

    def model(self, corpus: TokenCorpus) -> PaperConfig:
        if self.start == "explicit" and self.size == "10M":
            return replace(tuned_settings(corpus, self.radius), **self.settings)
        fold = tuned_settings(corpus, self.radius).fold_tokens
        shape: dict[str, Any] = {"block": BLOCK, "radius": self.radius, "document_shards": DOCUMENT_SHARDS}
        return PaperConfig(**shape, fold_tokens=fold, **self.settings)


FIRST = (
    Run("random", 128),
    Run("random", 8),
    Run("explicit", 128),
    Run("explicit", 8),
    Run("explicit", 8, "100M"),
    Run("explicit", 8, "100M", settings={"attention": "uniform"}),
    Run("explicit", 8, "100M", settings={"variation_shift": "smallest"}),
    Run("explicit", 8, settings={"variation_shift": "smallest"}),
    Run("explicit", 8, learning_rate=LEARNING_RATE, batch_size=128),
    Run("explicit", 8, learning_rate=LEARNING_RATE, batch_size=32),
)
SECOND = (
    Run("explicit", 8, until_stopped=True),
    Run("explicit", 128, until_stopped=True),
    Run("explicit", 8, "100M", until_stopped=True),
    Run("explicit", 8, "100M", settings={"attention": "uniform"}, until_stopped=True),
)


def prepare(out: Path, train: Sequence[str], dev: Sequence[str]) -> None:
    """Tokenize and shuffle a text once; every other held-out document is for testing."""
    paths = [[path for name in names for path in find_files([name])] for names in (train, dev)]
    corpora = tokenized(Protocol(paths[0], paths[1], (), out))
    held_out = np.arange(corpora.dev.documents)
    parts = (corpora.train, corpora.dev.select(held_out[::2]), corpora.dev.select(held_out[1::2]))
    facts = {"full_vocabulary": corpora.full_vocabulary, "vocabulary": len(corpora.tokenizer)}
    arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}
    for name, part in zip(SPLITS, parts, strict=True):
        lengths = np.diff(part.starts)
        arrays |= {f"{name}.ids": part.ids, f"{name}.lengths": lengths, f"{name}.sizes": part.sizes}
        print(f"{name}: {part.targets:,} tokens in {part.documents:,} documents")
    files.write_file(out, {name: np.ascontiguousarray(narrow(array)) for name, array in arrays.items()})


def narrow(array: Any) -> Any:
    """An array of counts in the fewest bytes that hold them."""
    return array.astype(np.min_scalar_type(int(array.max())))


def load(path: Path) -> tuple[dict[str, int], dict[str, TokenCorpus]]:
    """Facts about a prepared text, and its parts."""
    arrays = files.load_arrays(path)
    parts = {}
    for name in SPLITS:
        starts = np.concatenate([[0], arrays[f"{name}.lengths"].cumsum(dtype=np.int64)])
        sizes = arrays[f"{name}.sizes"].astype(np.int64)
        parts[name] = TokenCorpus(arrays[f"{name}.ids"].astype(np.uint16), starts, sizes)
    return json.loads(arrays["facts"].tobytes()), parts


def run_one(text: Path, run: Run, seed: int, device: str, deadline: float) -> Row:
    """Make the start, train from it, and test the best model; the row holds the log of all of it."""
    began = time.time()
    facts, parts = load(text)
    corpus = parts["train"]
    dev = parts["dev"].sample(DEV_TOKENS)
    config = run.model(corpus)
    training = run.training(seed)
    counted = corpus.head(corpus.targets // 10) if run.size == "100M" else corpus
    log: list[Row] = []
    for stage in start(counted, facts["vocabulary"], config, training, device):
        score = evaluate(stage.model, dev)
        log.append({"stage": stage.name, "dev_perplexity": score.perplexity, "seconds": round(time.time() - began, 2)})
    assert isinstance(stage.model, PaperModel)
    backprop = Backprop(stage.model, corpus, dev, training, seconds=time.time() - began)

    def note(row: Row, _: PaperModel) -> None:
        log.append({name: row[name] for name in row if name not in ("learning_rate", "step")})
        if time.time() > deadline:
            raise OutOfTime

    try:
        backprop.run(on_check=note)
        ended = backprop.progress.ended
    except (OutOfTime, Diverged) as error:
        ended = str(error) or "out of time"
    row: Row = {"text": text.stem, "run": f"{run.start}-{run.radius}", "start": run.start, "radius": run.radius}
    row |= {"size": run.size, "seed": seed, "learning_rate": run.rate, "batch_size": run.batch_size}
    row |= {"settings": run.settings, "key": run.key, "tokens": corpus.targets, "text_tokens": corpus.targets}
    row |= {**facts, "parameters": parameters(backprop.best), "dev_targets": dev.targets, "ended": ended, "log": log}
    test = evaluate(backprop.best, parts["test"])
    return row | {"test_perplexity": test.perplexity, "test_targets": test.targets, "until_stopped": run.until_stopped}


class OutOfTime(Exception):
    pass


def parameters(model: PaperModel) -> int:
    """All stored numbers, including the embeddings."""
    return sum(array.size for name, array in model.arrays().items() if name != "frequencies")


def pending(options: argparse.Namespace) -> Iterator[tuple[Path, Run]]:
    """The runs that are not in the results yet."""
    done = {(row["text"], row["key"], row["seed"]) for row in read_rows(options.out)}
    for text, runs in zip(options.texts, (FIRST, SECOND), strict=False):
        for run in runs[: options.runs]:
            run = replace(run, settings=json.loads(options.settings) | run.settings)
            if options.batch_size:
                run = replace(run, batch_size=options.batch_size)
            if (text.stem, run.key, options.seed) not in done:
                yield text, run


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prepare", action="store_true", help="write a tokenized text to --out")
    parser.add_argument("--train", nargs="+", default=[], metavar="FILE", help="training text, a document per line")
    parser.add_argument("--dev", nargs="+", default=[], metavar="FILE", help="held-out text")
    parser.add_argument("--texts", nargs="+", type=Path, default=[], metavar="FILE", help="one or two prepared texts")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, one line of JSON per run")
    parser.add_argument("--runs", type=int, help="only the first runs of each text")
    parser.add_argument("--settings", default="{}", metavar="JSON", help="of the model, other than the default ones")
    parser.add_argument("--batch-size", type=int, help="targets per step, where it is not what a run is about")
    parser.add_argument("--workers", type=int, default=8, help="runs at a time (default: 8)")
    parser.add_argument("--seconds", type=float, default=1e9, help="let runs end after this time (default: never)")
    parser.add_argument("--seed", type=int, default=0, help="of random weights and of the order of the data")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")


def run_command(options: argparse.Namespace) -> None:
    if options.prepare:
        prepare(options.out, options.train, options.dev)
        return
    device = str(usable_device(options.device))
    deadline = time.time() + options.seconds
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        jobs = [pool.submit(run_one, text, run, options.seed, device, deadline) for text, run in pending(options)]
        for job in as_completed(jobs):
            row = job.result()
            append_row(options.out, row)
            best = min(line["dev_perplexity"] for line in row["log"])
            words = (
                f"best {best:.1f}, test {row['test_perplexity']:.1f}, {row['log'][-1]['seconds']:.0f} s, {row['ended']}"
            )
            print(f"{row['text']}: {row['key']}: {words}", flush=True)
