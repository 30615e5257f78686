"""Backpropagation for the paper's network: Adam over shuffled folds of a corpus, with early stopping."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.format import plural, progress_bar
from saffu.interface import Array, Score
from saffu.paper.batches import ShuffledFold, folds_per_epoch
from saffu.paper.config import TrainingConfig
from saffu.paper.model import PaperModel
from saffu.paper.step import AdamStep, copy_weights
from saffu.paper.windows import Targets
from saffu.text.corpus import TokenCorpus
from saffu.training import cuda_graph, run
from saffu.training.run import Diverged, OnCheck, Row, Save

DEV_TARGETS = 100_000  # held-out targets scored after each fold
STEPS_PER_CHECK = 64  # after which losses are fetched from the device
REMEDY = "restart with a lower `learning_rate`"


@dataclass
class Progress(run.Progress):
    """The progress of a run, with the fit before it in `seconds`."""

    fold: int = 0  # being trained on; 0 until the initial weights have been scored
    step: int = 0  # steps done in this fold
    tokens: int = 0  # targets seen in all folds
    fold_tokens: int = 0
    fold_nll: float = 0.0
    fold_seconds: float = 0.0
    previous: float = math.inf  # dev perplexity before this fold
    best: float = math.inf
    best_fold: int = 0
    rises: int = 0  # increases of dev perplexity in all folds


class Backprop(run.Run[PaperModel, Progress]):
    """A training run of the paper's network; `step.network` holds the weights being trained."""

    def __init__(
        self,
        model: PaperModel,
        corpus: TokenCorpus,
        dev: TokenCorpus,
        settings: TrainingConfig,
        *,
        source: Any = None,
        seconds: float = 0.0,
    ):
        """`seconds` is the time already spent on the model."""
        super().__init__(corpus, dev, model.device, source, settings, settings.checkpoint_seconds)
        if settings.count_share < 1:
            corpus = corpus.split(settings.count_share)[1]
        if not corpus.targets:
            raise SaffuError("no documents are left to train on; lower `count_share` or add text")
        self.model = self.best = model
        self.corpus = corpus
        self.training = settings
        self.dev = dev.sample(DEV_TARGETS)
        self.folds = folds_per_epoch(corpus, model.config.fold_tokens)
        self.progress = Progress(seconds=seconds)
        self.step = AdamStep(copy.deepcopy(model.network), settings)
        self.take_step: Callable[..., Tensor] = lambda *targets: self.step(Targets(*targets))
        if cuda_graph.ENABLED and self.device.type == "cuda":
            self.take_step = cuda_graph.GraphedStep(self.take_step)
        self._losses: list[Tensor] = []  # of the latest steps, still on the device

    def arrays(self) -> dict[str, Array]:
        return self.step.arrays()

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.step.load(arrays)

    def moments(self, on_check: OnCheck[PaperModel] | None) -> Iterator[bool]:
        progress = self.progress
        if progress.fold == 0:
            self._end_fold(on_check)
            yield True
        progress.ended = self._reason_to_end()  # a resumed run may have a higher `max_folds` than before
        while not progress.ended:
            yield from self._train_fold()
            self._end_fold(on_check)
            progress.ended = self._reason_to_end()

    def _train_fold(self) -> Iterator[bool]:
        progress = self.progress
        batch_size = self.training.batch_size
        self.fold = ShuffledFold(self.corpus, self.folds, progress.fold, self.step.network, self.training.seed)
        self.read_clock()
        self._fold_began = progress.seconds - progress.fold_seconds
        with progress_bar(f"fold {progress.fold}", self.fold.targets, initial=progress.fold_tokens) as bar:
            while progress.step * batch_size < self.fold.targets:
                self.seed_step(self.training.seed)
                self._losses.append(self.take_step(*self._batch()))
                progress.step += 1
                progress.steps += 1
                if len(self._losses) == STEPS_PER_CHECK or progress.step * batch_size >= self.fold.targets:
                    self._add_losses()
                    bar.update(progress.fold_tokens - bar.n)
                    bar.note = f"train perplexity {self._train_perplexity():.1f}"
                    yield False
                elif self.device.type == "cpu":  # a GPU is asked now and then
                    yield False

    def save(self, save: Save | None) -> None:
        if self._losses:
            self._add_losses()
        if not all(torch.isfinite(weight).all() for weight in self.step.network.parameters()):
            raise Diverged(f"a weight is not finite after step {self.progress.steps}", REMEDY)
        super().save(save)

    def end(self, save: Save | None) -> None:
        """Keep the checkpoint, from which the run can continue with a higher `max_folds`."""
        self.save(save)

    def _batch(self) -> Targets:
        begin = self.progress.step * self.training.batch_size
        size = min(self.training.batch_size, self.fold.targets - begin)
        return self.fold.batch(begin, size)

    def _add_losses(self) -> None:
        """Fetch the losses of the latest steps and add them up; raise Diverged if one is not finite."""
        progress = self.progress
        losses = torch.stack(self._losses).tolist()
        self._losses = []
        for step, loss in enumerate(losses, progress.steps - len(losses) + 1):
            if not math.isfinite(loss):
                raise Diverged(f"the loss is {loss} at step {step}", REMEDY)
            progress.fold_nll += loss
        seen = min(progress.step * self.training.batch_size, self.fold.targets)
        progress.tokens += seen - progress.fold_tokens
        progress.fold_tokens = seen
        self.read_clock()
        progress.fold_seconds = progress.seconds - self._fold_began

    def _end_fold(self, on_check: OnCheck[PaperModel] | None) -> None:
        """Score the held-out text, keep the weights if they are the best so far, log, and turn to the next fold."""
        progress = self.progress
        model = self._current_model()
        score = self._score(model)
        dev = score.perplexity
        if not math.isfinite(dev):
            raise Diverged(f"the perplexity of the held-out text is {dev} after fold {progress.fold}", REMEDY)
        progress.rises += dev > progress.previous
        progress.previous = dev
        is_best = dev < progress.best
        if is_best:
            progress.best = dev
            progress.best_fold = progress.fold
            self.best = model
        self.read_clock()
        row: Row = {"stage": f"train {progress.fold}" if progress.fold else f"{self.training.init} start"}
        row |= {"fold": progress.fold, "step": progress.steps, "tokens": progress.tokens}
        if progress.fold:
            row |= {"train_perplexity": self._train_perplexity(), "learning_rate": self.training.learning_rate}
            row["tokens_per_second"] = round(progress.fold_tokens / progress.fold_seconds)
        row |= {"dev_perplexity": dev, "dev_bits_per_byte": score.bits_per_byte, "best": is_best}
        row |= {"rises": progress.rises, "seconds": round(progress.seconds, 3)}
        progress.fold += 1
        progress.step = progress.fold_tokens = 0
        progress.fold_nll = progress.fold_seconds = 0.0
        if on_check:
            on_check(row, model)

    def _current_model(self) -> PaperModel:
        """A model with the weights as they are now."""
        if self.progress.fold == 0:
            return self.model
        network = copy.deepcopy(self.model.network)
        copy_weights(self.step.network, network)
        return self.model.with_network(network)

    def _score(self, model: PaperModel) -> Score:
        return Score(-float(model.log_probabilities(self.dev, "evaluate").sum()), self.dev.targets, self.dev.bytes)

    def _train_perplexity(self) -> float:
        return Score(self.progress.fold_nll, max(1, self.progress.fold_tokens), 1).perplexity

    def _reason_to_end(self) -> str:
        progress = self.progress
        settings = self.training
        if progress.rises >= settings.patience:
            return f"held-out perplexity increased {plural(progress.rises, 'time')}"
        if settings.max_folds and progress.fold > settings.max_folds:
            return f"reached the limit of {plural(settings.max_folds, 'fold')}"
        return ""
