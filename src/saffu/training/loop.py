"""Backpropagation: Adam over shuffled folds of a corpus, with early stopping; the best weights are kept.

Everything random follows from the seed and the place in the run, and a checkpoint holds the whole state of a run, so a
run that was interrupted and resumed ends with the weights of one that never was.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.files import Content
from saffu.format import plural
from saffu.paper.model import PaperModel
from saffu.paper.windows import Targets
from saffu.processes import SINGLE, ProcessGroup
from saffu.progress import progress_bar
from saffu.text.corpus import TokenCorpus
from saffu.tools.evaluate import Score, evaluate
from saffu.training import cuda_graph
from saffu.training.batches import ShuffledFold, folds_per_epoch, seed_of
from saffu.training.checkpoint import Checkpoint, restored
from saffu.training.config import TrainingConfig
from saffu.training.interrupts import deferred_interrupts
from saffu.training.step import AdamStep, copy_weights

DEV_TARGETS = 100_000  # held-out targets scored after each fold
STEPS_PER_CHECK = 64  # after which losses are fetched from the device

Row = dict[str, Any]
OnFold = Callable[[Row, PaperModel], None]
Save = Callable[[Mapping[str, Content]], None]


@dataclass
class Progress:
    """Where a run stands."""

    fold: int = 0  # being trained on; 0 until the initial weights have been scored
    step: int = 0  # steps done in this fold
    steps: int = 0  # steps done in all folds
    tokens: int = 0  # targets seen in all folds
    fold_tokens: int = 0
    fold_nll: float = 0.0
    fold_seconds: float = 0.0
    seconds: float = 0.0  # of work over all sittings, including the fit before
    previous: float = math.inf  # dev perplexity before this fold
    best: float = math.inf
    best_fold: int = 0
    rises: int = 0  # increases of dev perplexity in all folds
    ended: str = ""  # why


class Diverged(SaffuError):
    """The loss is not a finite number anymore."""

    def __init__(self, symptom: str):
        super().__init__(
            f"training diverged: {symptom}; restart with a lower `learning_rate`; the best weights so far were kept"
        )


class Backprop:
    """A training run. `best` is the best model so far; `step.network` holds the weights being trained."""

    def __init__(
        self,
        model: PaperModel,
        corpus: TokenCorpus,
        dev: TokenCorpus,
        settings: TrainingConfig,
        *,
        source: Any = None,
        seconds: float = 0.0,
        group: ProcessGroup = SINGLE,
    ):
        """`source` describes, in JSON, where the text came from; a checkpoint returns it to whoever resumes the run.

        `seconds` is the time already spent on the model. With several processes, each trains on its part of every
        batch.
        """
        if not dev.targets:
            raise SaffuError("backpropagation needs held-out text for early stopping; pass some as `dev`")
        self.text = {"corpus": corpus.fingerprint(), "dev": dev.fingerprint()}
        if settings.count_share < 1:
            corpus = corpus.split(settings.count_share)[1]
        if not corpus.targets:
            raise SaffuError("no documents are left to train on; lower `count_share` or add text")
        self.model, self.best, self.corpus = model, model, corpus
        self.dev = dev.sample(DEV_TARGETS).share(group.rank, group.size)
        self.settings, self.source, self.group = settings, source, group
        self.folds = folds_per_epoch(corpus, model.config.fold_tokens)
        self.progress = Progress(seconds=seconds)
        self.device = model.device
        self.step = AdamStep(copy.deepcopy(model.network), settings, group)
        self.take_step: Callable[[Targets], Tensor] = self.step
        if cuda_graph.ENABLED and self.device.type == "cuda" and group.size == 1:
            self.take_step = cuda_graph.GraphedStep(self.step, settings.batch_size)
        self._losses: list[Tensor] = []  # of the latest steps, still on the device

    def checkpoint(self) -> Checkpoint:
        """The whole state of the run."""
        progress, arrays = asdict(self.progress), self.step.arrays()
        return Checkpoint(progress, self.source, self.text, str(self.device), arrays, self.settings)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from where a saved run stood."""
        if checkpoint.text != self.text:
            raise SaffuError("this run was trained on different text; pass the original text or start a new run")
        try:
            self.step.load(checkpoint.arrays)
            self.progress = restored(Progress, checkpoint.progress)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SaffuError(f"the checkpoint is damaged ({error}); train again") from None

    def run(self, save: Save | None = None, on_fold: OnFold | None = None) -> PaperModel:
        """Train until the run ends; return the best model.

        `on_fold` receives a row of the log and the model as it is now, after the initial weights have been scored and
        after every fold. `save`, called on the first process only, must store `best` together with the files it
        receives: checkpoints, or none after a divergence. SIGINT and SIGTERM take effect after the current step, once a
        checkpoint is saved.
        """
        cuda = [self.device] if self.device.type == "cuda" else []
        try:
            with cuda_graph.side_stream(self.device), torch.random.fork_rng(cuda), deferred_interrupts() as interrupts:
                self._run(save, on_fold, interrupts)
        except Diverged:
            if save and self.group.is_first:
                save({})
            raise
        finally:
            self.step.close()
        return self.best

    def _run(self, save: Save | None, on_fold: OnFold | None, interrupts: list[int]) -> None:
        progress = self.progress
        self._since = self._saved = time.perf_counter()
        if progress.fold == 0:
            self._end_fold(on_fold)
            self._save(save)
        progress.ended = self._reason_to_end()  # a resumed run may have a higher `max_folds` than before
        while not progress.ended:
            self._read_clock()  # the time of the fold starts here
            self._train_fold(save, interrupts)
            self._end_fold(on_fold)
            progress.ended = self._reason_to_end()
        self._save(save)

    def _train_fold(self, save: Save | None, interrupts: list[int]) -> None:
        progress, batch_size = self.progress, self.settings.batch_size
        fold = ShuffledFold(self.corpus, self.folds, progress.fold, self.step.network, self.settings.seed)
        with progress_bar(f"fold {progress.fold}", fold.targets, initial=progress.fold_tokens) as bar:
            while progress.step * batch_size < fold.targets:
                self._seed_dropout()
                self._losses.append(self.take_step(self._batch(fold)))
                progress.step += 1
                progress.steps += 1
                check = len(self._losses) == STEPS_PER_CHECK or progress.step * batch_size >= fold.targets
                stop = due = False
                if check or self.group.size == 1:  # several processes agree now and then
                    stop = self.group.any(bool(interrupts))
                    due = self.group.any(time.perf_counter() - self._saved >= self.settings.checkpoint_seconds)
                if check or stop or due:
                    self._add_losses(fold)
                    bar.update(progress.fold_tokens - bar.n)
                    bar.set_postfix_str(f"train perplexity {self._train_perplexity():.1f}", refresh=False)
                if stop or due:
                    self._save(save)
                if stop:  # here or in another process
                    raise KeyboardInterrupt

    def _batch(self, fold: ShuffledFold) -> Targets:
        """This process's part of the current batch."""
        begin, group = self.progress.step * self.settings.batch_size, self.group
        size = min(self.settings.batch_size, fold.targets - begin)
        first, last = (size * part // group.size for part in (group.rank, group.rank + 1))
        return fold.batch(begin + first, last - first)

    def _seed_dropout(self) -> None:
        """Seed the current step on its own, so that a resumed run draws what the uninterrupted one draws."""
        seed = seed_of(self.settings.seed, "dropout", self.progress.steps, self.group.rank)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def _add_losses(self, fold: ShuffledFold) -> None:
        """Fetch the losses of the latest steps and add them up; raise Diverged if one is not finite."""
        progress = self.progress
        losses = self.group.sum(torch.stack(self._losses)).tolist()
        self._losses = []
        for step, loss in enumerate(losses, progress.steps - len(losses) + 1):
            if not math.isfinite(loss):
                raise Diverged(f"the loss is {loss} at step {step}")
            progress.fold_nll += loss
        seen = min(progress.step * self.settings.batch_size, fold.targets)
        progress.tokens += seen - progress.fold_tokens
        progress.fold_tokens = seen
        progress.fold_seconds += self._read_clock()

    def _end_fold(self, on_fold: OnFold | None) -> None:
        """Score the held-out text, keep the weights if they are the best so far, log, and turn to the next fold."""
        progress = self.progress
        model = self._current_model()
        score = self._score(model)
        dev = score.perplexity
        if not math.isfinite(dev):
            raise Diverged(f"the perplexity of the held-out text is {dev} after fold {progress.fold}")
        progress.rises += dev > progress.previous
        progress.previous = dev
        is_best = dev < progress.best
        if is_best:
            progress.best, progress.best_fold, self.best = dev, progress.fold, model
        self._read_clock()
        row: Row = {"stage": f"train {progress.fold}" if progress.fold else f"{self.settings.init} start"}
        row |= {"fold": progress.fold, "step": progress.steps, "tokens": progress.tokens}
        if progress.fold:
            row |= {"train_perplexity": self._train_perplexity(), "learning_rate": self.settings.learning_rate}
            row["tokens_per_second"] = round(progress.fold_tokens / progress.fold_seconds)
        row |= {"dev_perplexity": dev, "dev_bits_per_byte": score.bits_per_byte, "best": is_best}
        row |= {"rises": progress.rises, "seconds": round(progress.seconds, 3)}
        progress.fold += 1
        progress.step, progress.fold_tokens, progress.fold_nll, progress.fold_seconds = 0, 0, 0.0, 0.0
        if on_fold:
            on_fold(row, model)

    def _current_model(self) -> PaperModel:
        """A model with the weights as they are now."""
        if self.progress.fold == 0:
            return self.model
        network = copy.deepcopy(self.model.network)
        copy_weights(self.step.network, network)
        return self.model.with_network(network)

    def _score(self, model: PaperModel) -> Score:
        score = evaluate(model, self.dev) if self.dev.targets else Score(0.0, 0, 0)
        if self.group.size == 1:
            return score
        nll, targets, size = self.group.sum(np.array([score.nll, score.targets, score.bytes], dtype=np.float64))
        return Score(float(nll), int(targets), int(size))

    def _train_perplexity(self) -> float:
        return Score(self.progress.fold_nll, max(1, self.progress.fold_tokens), 1).perplexity

    def _reason_to_end(self) -> str:
        progress, settings = self.progress, self.settings
        if progress.rises >= settings.patience:
            return f"held-out perplexity increased {plural(progress.rises, 'time')}"
        if settings.max_folds and progress.fold > settings.max_folds:
            return f"reached the limit of {plural(settings.max_folds, 'fold')}"
        return ""

    def _read_clock(self) -> float:
        """Seconds since the last call."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        self.progress.seconds += passed
        return passed

    def _save(self, save: Save | None) -> None:
        if not all(torch.isfinite(weight).all() for weight in self.step.network.parameters()):
            raise Diverged(f"a weight is not finite after step {self.progress.steps}")
        if save is not None and self.group.is_first:
            save(self.checkpoint().files())
        self._read_clock()
        self._saved = self._since
