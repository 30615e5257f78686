"""Measures a model on a corpus, stage by stage, in one run: how long, how fast, how far from the floor."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from saffu import evaluate, floors, generate, train
from saffu.calibrated_network import CalibratedFit
from saffu.capture import side_stream
from saffu.config import SaffuConfig, TrainingConfig
from saffu.corpus import TokenCorpus
from saffu.devices import forget_peak, peak_memory, settle
from saffu.errors import SaffuError
from saffu.fit import ExplicitFit, stages
from saffu.floors import Machine, Work
from saffu.generate import Sampling
from saffu.model import SaffuLM
from saffu.network import Network
from saffu.product import fit_product
from saffu.shuffle import ShuffledFold
from saffu.tokenizer import Tokenizer

HOLD_OUT = 20  # every so-many-th document is scored, not counted
SCORED = 50_000  # targets
WARMING = 1 << 18  # tokens counted on a GPU before it is timed
UNTIMED = 8  # steps of Adam: the first are slower, and on a GPU captured
PROMPTS = 64  # written on from at the same time


@dataclass
class Stage:
    """One thing that was measured."""

    name: str
    seconds: float
    tokens: int
    work: Work | None = None  # that cannot be avoided
    note: str = ""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Bench:
    """All that one run measured."""

    machine: Machine
    config: SaffuConfig
    lm: SaffuLM
    corpus: TokenCorpus
    dev: TokenCorpus
    stages: dict[str, Stage] = field(default_factory=dict)
    bits_per_byte: float = 0.0
    peak_memory: int = 0
    peers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, seconds: float, tokens: int, work: Work | None = None, note: str = "") -> None:
        self.stages[name] = Stage(name, seconds, tokens, work, note)

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        explicit, adam = self.stages["explicit"], self.stages.get("adam epoch")
        facts: dict[str, Any] = {
            "machine": {
                "name": self.machine.name,
                "threads": self.machine.threads,
                "matmul_operations_per_second": self.machine.operations_per_second,
                "copy_bytes_per_second": self.machine.bytes_per_second,
                "gather_bytes_per_second": self.machine.gathered_per_second,
            },
            "config": self.config.to_dict(),
            "vocabulary": len(self.lm.tokenizer_),
            "parameters": self.lm.parameters_,
            "tokens": self.corpus.targets,
            "documents": self.corpus.documents,
            "explicit_seconds": explicit.seconds,
            "explicit_tokens_per_second": explicit.tokens_per_second,
            "adam_epoch_seconds": adam.seconds if adam else None,
            "adam_to_explicit_ratio": adam.seconds / explicit.seconds if adam else None,
            "peak_memory_bytes": self.peak_memory,
            "dev_bits_per_byte": self.bits_per_byte,
            "stages": {},
            "peers": self.peers,
        }
        for stage in self.stages.values():
            row = {"seconds": stage.seconds, "tokens": stage.tokens, "tokens_per_second": stage.tokens_per_second}
            if stage.work:
                floor = self.machine.floor(stage.work)
                row |= {"operations": stage.work.operations, "bytes": stage.work.bytes}
                row["gathered_bytes"] = stage.work.gathered
                row |= {"floor_seconds": floor, "times_floor": stage.seconds / floor}
            facts["stages"][stage.name] = row
        return facts


def measure(
    documents: Iterable[str], config: SaffuConfig, device: torch.device, tokens: int | None, adam_seconds: float
) -> Bench:
    """Run everything once, on all but the documents held out."""
    machine = Machine.measured(device)
    forget_peak(device)  # of measuring the machine
    began = time.perf_counter()
    tokenizer = Tokenizer.train(documents, words=config.words, kept_words=config.kept_words, count_by=config.count_by)
    learnt = time.perf_counter()
    whole = TokenCorpus.build(documents, tokenizer, limit=tokens, progress="tokenise")
    read = time.perf_counter()
    dev, corpus = whole.divided(1 / HOLD_OUT)
    if not (dev.targets and corpus.targets):
        raise SaffuError(f"{whole.documents} documents are too few to measure on; give at least {HOLD_OUT}")
    dev = dev.thinned(SCORED)
    lm = SaffuLM(config, tokenizer=tokenizer, device=str(device))
    lm.tokenizer_, lm.counts_, lm.log_, lm.references_ = tokenizer, {}, [], None
    bench = Bench(machine, config, lm, corpus, dev)
    bench.add("learn tokenizer", learnt - began, whole.targets)
    bench.add("tokenise", read - learnt, whole.targets)
    if device.type == "cuda":  # its first run loads kernels
        _explicit(Bench(machine, config, lm, corpus.first(WARMING), dev))
    _explicit(bench)
    began = time.perf_counter()
    score = evaluate.evaluate(lm.network_, dev)
    bench.bits_per_byte = score.bits_per_byte
    network = lm.network_
    batch = network.batch_size()
    decoder = len(network.M) * len(tokenizer) if isinstance(network, Network) and config.hidden_dimension else 0
    work = floors.decoding_work(decoder, dev.targets, batch) if decoder else None
    bench.add("evaluate", time.perf_counter() - began, dev.targets, work)
    bench.add("generate", *_generate(lm, 1))  # of one document at a time, no part of M need be read
    seconds, drawn = _generate(lm, PROMPTS)
    work = floors.decoding_work(decoder, drawn, PROMPTS) if decoder else None
    bench.add(f"generate {PROMPTS} at once", seconds, drawn, work)
    bench.peak_memory = peak_memory(device)
    if adam_seconds and isinstance(network, Network):
        _adam(bench, adam_seconds)
    return bench


def _explicit(bench: Bench) -> None:
    """The explicit solution, from token ids to weights."""
    lm, config, vocabulary, device = bench.lm, bench.config, len(bench.lm.tokenizer_), bench.lm.device
    began = time.perf_counter()
    if config.solution == "calibrated":
        lm.network_ = fit_product(config, bench.corpus, vocabulary, device=device)
        _ = lm.network_.parts  # solved
        settle(device)
        bench.add("explicit", time.perf_counter() - began, bench.corpus.targets)
        return
    corpus = bench.corpus.to(device)
    fragments = corpus.fragments(config.block) if config.block else 0
    kind = CalibratedFit if config.calibrate else ExplicitFit
    fit = kind(config, corpus.frequencies(vocabulary), corpus.documents, fragments, device=device)
    for _ in stages(fit, corpus):
        pass
    settle(device)
    seconds = time.perf_counter() - began
    lm.network_, lm.counts_ = fit.network, fit.counts
    once = not (config.tune or config.calibrate)
    work = floors.explicit_work(config, bench.corpus, vocabulary, bench.machine) if once else {}
    for name, taken in fit.seconds.items():
        bench.add(name, taken, corpus.targets, work.get(name))
    bench.add("tables and solving", seconds - sum(fit.seconds.values()), corpus.targets)
    bench.add("explicit", seconds, corpus.targets, sum(work.values(), start=Work()) if work else None)


def _generate(lm: SaffuLM, rows: int, tokens: int = 1000) -> tuple[float, int]:
    """Seconds and tokens of writing documents, one after the other or many at once."""
    drawn, seed = 0, 0
    began = 0.0
    while drawn < tokens:
        for step in generate.continue_prompts(lm.network_, [[]] * rows, Sampling(max_tokens=100, seed=seed)):
            if not began:  # the first step builds tables
                began = time.perf_counter()
                continue
            drawn += sum(token is not None for token in step)
            if drawn >= tokens:
                break
        seed += 1
    return time.perf_counter() - began, drawn


def _adam(bench: Bench, seconds: float) -> None:
    """An epoch of backpropagation, from as many of its steps as fit the time."""
    device = bench.lm.device
    run = train.Backprop(bench.lm, bench.corpus, bench.dev, TrainingConfig(max_folds=1))
    began, timed = time.perf_counter(), 0
    with side_stream(device):
        for steps, targets in enumerate(training_batches(run), 1):
            run.train_on(targets)
            if steps == UNTIMED:
                settle(device)
                began = time.perf_counter()
            elif steps > UNTIMED:
                timed += len(targets.ids)
                if steps % 4 == 0:
                    settle(device)
                    if time.perf_counter() - began > seconds:
                        break
        settle(device)
    if not timed:  # too little text for more than the first steps
        return
    epoch = (time.perf_counter() - began) * bench.corpus.targets / timed
    note = "" if timed >= bench.corpus.targets else f"from {timed:,} targets"
    bench.add("adam epoch", epoch, bench.corpus.targets, note=note)


def training_batches(run: train.Backprop) -> Iterator[Any]:
    """Batches as a run of backpropagation would see them, from its first fold on."""
    batch = run.settings.batch
    for number in range(1, run.folds + 1):
        fold = ShuffledFold(run.corpus, run.folds, number, run.network, run.lm.config.seed)
        for begin in range(0, fold.targets - batch + 1, batch):
            yield fold.batch(begin, batch)
