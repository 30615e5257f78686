"""The paper's experiments (Sec. 4 and its appendices) as plain functions: training logs, figure, and tables.

Where the paper leaves a choice open, the defaults of `PaperConfig` apply. Documents are shuffled once: in the order of
BabyLM's files, a first fold or tenth would be of one or two domains, far from the "random development set".
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import learning_curves
from saffu.experiments.grid import DOCUMENT_SHARDS, grid
from saffu.experiments.learning_curves import Curve
from saffu.experiments.report import Report
from saffu.experiments.results import Results
from saffu.experiments.scoring import GridCorpus, run_grid, usual_memory
from saffu.model.language_model import SaffuLM
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import Lines, read_lines
from saffu.text.tokenizer import Tokenizer, TokenizerConfig
from saffu.training.checkpoint import read_checkpoint
from saffu.writing import require_new_file

BLOCK = 128
RADII = (8, 128)
DEV_TOKENS = 100_000  # "approximately 10^5 tokens from the development set"
LEARNING_RATE = 5e-6  # the paper prints 10^5/2
BPE_WORDS = {"10M": 2**17, "100M": 2**20}
TUNINGS = 10
STARTS: dict[str, dict[str, Any]] = {
    "explicit": {"init": "explicit"},
    "random": {"init": "random"},  # as in the paper: all layers, embeddings included
    "cipher": {"init": "random", "init_embeddings": "cipher"},
}
PRINTED_LOG = {"init": 43.33, "tune 1": 42.87, "tune 2": 42.67, "tune 3": 42.58, "tune 9": 42.46, "tune 10": 42.44}
PRINTED_TEST = {"explicit-8": 23.84, "explicit-128": 30.35, "random-8": 63.98, "random-128": 63.98}
PRINTED_TEST_100M = {"explicit-8": 58.05}

Say = Callable[[str], None]
"""What is called with each line of a result."""


@dataclass(frozen=True)
class Protocol:
    """What the experiments run on, and where their results go."""

    train: Sequence[Path]
    dev: Sequence[Path]
    test: Sequence[Path]
    out: Path
    device: str = "cpu"
    size: Literal["10M", "100M"] = "10M"  # 100M models are initialized on the first tenth of the text and not tuned
    max_tokens: int | None = None  # use only the first documents of the training text
    learning_rate: float | None = None
    max_folds: int | None = None


class Corpora(NamedTuple):
    """The tokenized text."""

    tokenizer: Tokenizer
    full_vocabulary: int  # before it was reduced to the merges that frequent words need
    text_tokens: int  # of the training text that it was learned from
    train: TokenCorpus
    dev: TokenCorpus
    test: TokenCorpus | None


def tokenized(protocol: Protocol) -> Corpora:
    """Tokenize all splits, one document per line, with a tokenizer learned from the training text, and shuffle that."""
    train, dev, test = (
        Lines(lambda paths=paths: read_lines(paths, "line"))  # type: ignore[misc]
        for paths in (protocol.train, protocol.dev, protocol.test)
    )
    config = TokenizerConfig(bpe_words=BPE_WORDS[protocol.size], bpe_count="types")
    tokenizer = Tokenizer.train((text for _, text in train), config)
    full = Tokenizer.train((text for _, text in train), replace(config, bpe_kept_words=0))
    corpora = {
        name: TokenCorpus.build(lines, tokenizer, Path(tempfile.gettempdir()), progress=f"tokenize {name}")
        for name, lines in {"train": train, "dev": dev, "test": test}.items()
    }
    shuffled = corpora["train"].select(np.random.default_rng(0).permutation(corpora["train"].documents))
    counted = shuffled.head(protocol.max_tokens or shuffled.targets)
    scored = corpora["test"] if corpora["test"].targets else None
    return Corpora(tokenizer, len(full), shuffled.targets, counted, corpora["dev"], scored)


def logs(protocol: Protocol, say: Say) -> dict[str, Any]:
    """The best model (b = 128, r = 8, with a document model): initialized, tuned, and trained; and its log."""
    run = train(protocol, tokenized(protocol), "explicit", RADII[0], say)
    say(f"vocabulary {run['full_vocabulary']:,}, reduced to {run['vocabulary']:,}; {run['parameters']:,} parameters")
    say(f"\n{'step':<16} {'dev ppl':>9} {'paper':>7}  sample")
    for row in run["log"]:
        if "dev_perplexity" in row:
            printed = PRINTED_LOG.get(row["stage"]) if protocol.size == "10M" else None
            sample = " ".join(row.get("sample", "").split())
            say(f"{row['stage']:<16} {row['dev_perplexity']:>9.2f} {printed or '–':>7}  {sample}")
    show_test(protocol, [run], say)
    return run


def figure(protocol: Protocol, say: Say) -> dict[str, Any]:
    """Explicit against random starts for both radii: learning curves and test perplexities.

    Random starts come in two kinds: with random embeddings that are trained, as in the paper, or the bit-cipher's.
    """
    learning_curves.require_figures(protocol.out / "figure", force=True)
    corpora = tokenized(protocol)
    runs = [train(protocol, corpora, name, radius, say) for radius in RADII for name in STARTS]
    curves = [Curve.read(Path(run["folder"])) for run in runs]
    rows = learning_curves.comparison(curves)
    drawn = learning_curves.draw(curves, protocol.out / "figure", title="Explicit and random starts")
    say(learning_curves.comparison_table(rows))
    show_test(protocol, runs, say)
    say(f"wrote {' and '.join(str(path) for path in drawn)}")
    tests = {run["run"]: run["test_perplexity"] for run in runs}
    return {"runs": rows, "test_perplexity": tests, "figures": [str(path) for path in drawn]}


def tables(protocol: Protocol, say: Say) -> dict[str, Any]:
    """The ablation of 245 models on the first tenth of the training text, and its report."""
    corpora = tokenized(protocol)
    counted = corpora.train if protocol.max_tokens else corpora.train.head(corpora.train.targets // 10)
    sizes = f"{corpora.full_vocabulary:,}, reduced to {len(corpora.tokenizer):,}"
    say(f"{counted.targets:,} tokens counted, vocabulary {sizes}")
    corpus = GridCorpus.build(counted, corpora.dev, corpora.tokenizer, DEV_TOKENS)
    folder = protocol.out / "grid"
    run_grid(folder, grid(), corpus, protocol.device, usual_memory(protocol.device))
    report = Report(Results(folder))
    report.write(folder / "report")
    if report.agreement:
        say(f"rank correlation with the paper's tables: {report.agreement.spearman:.3f}")
    say(f"wrote {folder / 'report' / 'index.html'}")
    return report.to_dict() | {"out": str(folder / "report")}


def train(protocol: Protocol, corpora: Corpora, start: str, radius: int, say: Say) -> dict[str, Any]:
    """Make one of the starts and train from it, or resume its run, or return its finished results.

    The results are also written to a file next to the model's folder.
    """
    name = f"{start}-{radius}"
    folder = protocol.out / name
    training = training_settings(protocol, start)
    dev = corpora.dev.sample(DEV_TOKENS)
    require_new_file(protocol.out / f"{name}.json", force=True, ours=r'\{"run": ')
    say(f"{name}: {folder}")

    def show(row: dict[str, Any]) -> None:
        say(f"  {row['stage']:<16} dev perplexity {row['dev_perplexity']:.2f}")

    if folder.exists():
        checkpoint = read_checkpoint(folder)
        if checkpoint.settings != training.to_dict():
            raise SaffuError(f"{folder} was trained with other settings; use another `out`")
        lm = SaffuLM.resume(folder, corpora.train, dev, device=protocol.device, on_fold=show)
    else:
        config = model_settings(protocol, corpora.train, start, radius)
        lm = SaffuLM(config, tokenizer=corpora.tokenizer, device=protocol.device)
        first_tenth = corpora.train.head(corpora.train.targets // 10)
        counted = first_tenth if protocol.size == "100M" and start == "explicit" else corpora.train
        lm.fit(counted, dev, references=False, training=training, on_stage=show)
        lm.backprop(corpora.train, dev, training, folder=folder, on_fold=show)
    score = None if corpora.test is None else lm.score(corpora.test)
    facts = {
        "run": name,
        "start": start,
        "radius": radius,
        "size": protocol.size,
        "seed": training.seed,
        "learning_rate": training.learning_rate,
        "tokens": corpora.train.targets,
        "text_tokens": corpora.text_tokens,
        "full_vocabulary": corpora.full_vocabulary,
        "vocabulary": len(corpora.tokenizer),
        "parameters": lm.parameters_,
        "log": lm.log_,
        "test_perplexity": score.perplexity if score else None,
        "test_targets": score.targets if score else 0,
    }
    files.write_file(protocol.out / f"{name}.json", (json.dumps(facts) + "\n").encode())
    return facts | {"folder": str(folder)}


def model_settings(protocol: Protocol, train: TokenCorpus, start: str, radius: int) -> PaperConfig:
    """The paper's best shape, with its document model; warm starts are tuned, except those of the 100M text."""
    if start == "explicit" and protocol.size == "10M":
        return tuned_settings(train, radius)
    return PaperConfig(block=BLOCK, radius=radius, document_shards=DOCUMENT_SHARDS)


def tuned_settings(corpus: TokenCorpus, radius: int) -> PaperConfig:
    """The paper's best shape, with its document model, tuned on ten folds after the one that initializes it.

    A text of ten folds or fewer is divided into eleven, so that no fold is counted twice.
    """
    fold = PaperConfig().fold_tokens
    if len(corpus.folds(fold)) <= TUNINGS:
        fold = max(2, corpus.targets // (TUNINGS + 1))
    tunings = min(TUNINGS, len(corpus.folds(fold)) - 1)
    shape = PaperConfig(block=BLOCK, radius=radius, document_shards=DOCUMENT_SHARDS)
    return replace(shape, tune_folds=tunings, fold_tokens=fold)


def training_settings(protocol: Protocol, start: str) -> TrainingConfig:
    """Adam as in the paper: constant learning rate, no dropout, no clipping; it stops after 2³ increases."""
    paper = {"learning_rate": protocol.learning_rate or LEARNING_RATE, "dropout": 0.0, "max_grad_norm": 0.0}
    limits = {"patience": 8, "max_folds": protocol.max_folds or 0}
    return TrainingConfig.from_dict({**STARTS[start], **paper, **limits})


def show_test(protocol: Protocol, runs: Sequence[dict[str, Any]], say: Say) -> None:
    printed = PRINTED_TEST if protocol.size == "10M" else PRINTED_TEST_100M
    for run in runs:
        if run["test_perplexity"] is not None:
            paper = printed.get(run["run"])
            say(f"{run['run']}: test perplexity {run['test_perplexity']:.2f}" + (f" (paper: {paper})" if paper else ""))
