"""Training: a budget of time or of epochs, a schedule that fits it, early stopping; the best weights are kept.

Everything random follows from the seed and the step, and a checkpoint holds the whole state of a run. So on a CPU, a
run with a fixed number of epochs ends with the same weights whether or not it was interrupted and resumed.

Several processes, started by torchrun, count the same text; they share cross-fitting, the rows of each step, and
scoring. Gradients are summed, and the first process keeps the time, so all take the same steps and decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saffu.companion.cross_fit import CrossFit, cross_fitted
from saffu.companion.division import Division
from saffu.companion.gate import constant_gate, loss
from saffu.companion.model import CompanionModel
from saffu.companion.optimizer import Optimizer
from saffu.companion.rows import excerpt
from saffu.companion.scoring import Flat, score
from saffu.companion.side import TrainedSide
from saffu.errors import SaffuError
from saffu.files import Content
from saffu.interface import Array
from saffu.processes import SINGLE, ProcessGroup
from saffu.progress import progress_bar
from saffu.text.corpus import TokenCorpus
from saffu.tools.evaluate import Score
from saffu.training.batches import seed_of
from saffu.training.checkpoint import Checkpoint, restored
from saffu.training.cuda_graph import no_garbage_collection, side_stream
from saffu.training.interrupts import deferred_interrupts

STATE = "optimizer "  # prefix of its arrays in a checkpoint
DEV_TARGETS = {"cpu": 25_000, "cuda": 100_000}  # held-out targets scored at each check
CHECKS = (0.05, *(0.1 * k for k in range(1, 11)))  # fractions of a run after which held-out text is scored
PATIENCE = 3  # checks that are worse than an earlier one, without a better one between, end a run …
PATIENT = 0.6  # … after this fraction of it: much is gained while the learning rate falls
ROUNDING = 1e-6  # bits per byte: a gate that is shut is not worse than the counts
WARMUP = 50  # steps
LEAST_SHARE = 0.5  # of the time is for training, however long counting took
SYNC = 8  # steps after which the clock is read
SAVE_SECONDS = 60.0
PLAIN_STEPS = 3  # before a CUDA graph is captured

Row = dict[str, Any]


@dataclass
class Progress:
    """The progress of a run."""

    steps: int = 0
    checks: int = 0
    seconds: float = 0.0  # of training, over all resumptions
    limit: float = 0.0  # of these seconds; 0 for none
    best: float = math.inf  # bits per byte of the held-out text
    lowest: float = math.inf  # of what was trained, whether or not it is better than what training started from
    worse: int = 0  # of the checks since the lowest
    ended: str = ""  # why


class Training:
    """A run that trains the network and the gate of a counted model. `best` is the best model so far."""

    def __init__(
        self,
        model: CompanionModel,
        corpus: TokenCorpus,
        dev: TokenCorpus,
        *,
        source: Any = None,
        seconds: float = 0.0,
        group: ProcessGroup = SINGLE,
        cross_fit: CrossFit | None = None,
    ):
        """`source` describes, in JSON, where the text came from; `seconds` is the time already spent on the model.

        `cross_fit` is what `cross_fitted` returned for the corpus; several runs can share it.
        """
        if not dev.targets:
            raise SaffuError("training needs held-out text for early stopping; pass some as `dev`")
        self.text = {"corpus": corpus.fingerprint(), "dev": dev.fingerprint()}
        self.model, self.best, self.config = model, model, model.config
        self.source, self.group, self.before = source, group, seconds
        self.device = torch.device(model.device)
        self.dev, self.progress = excerpt(dev, DEV_TARGETS[self.device.type]), Progress()
        began = time.perf_counter()
        cross_fit = cross_fitted(model.counted, corpus, "cross-fit", group) if cross_fit is None else cross_fit
        self.division = Division(corpus, cross_fit, self.config.context, self.device)
        counted = model.counted.log_probabilities_and_certainty(self.dev)
        self.dev_flat, self.counted_score = Flat(self.dev, *counted, self.device), self._score_of(counted[0])
        torch.manual_seed(seed_of(self.config.seed, "weights"))
        if model.side is None:
            self.side = TrainedSide.start(self.config, model.counted, self.device)
        else:
            self.side = TrainedSide.from_arrays(self.config, model.counted, model.side.arrays(), self.device)
        for weight in self.side.parameters():
            weight.data.copy_(group.sum(weight.data if group.is_first else torch.zeros_like(weight)))
        self.side.network.train()
        self.optimizer = Optimizer(self.side.network, self.side.gate, self.config.optimizer, self.config.decay or 0.0)
        rows = -(-len(self.division.kept) // self.division.length)
        self.rows = min(max(1, self.config.batch_tokens // self.division.length), rows)
        self.steps_per_epoch = rows // self.rows
        self.steps = max(1, round(self.config.epochs * self.steps_per_epoch))
        self.graph: torch.cuda.CUDAGraph | None = None
        if model.side is None:
            self._open_gate()
        self.before += time.perf_counter() - began
        whole = self.config.minutes * 60
        self.progress.limit = max(whole - self._of_first(self.before)[0], LEAST_SHARE * whole)

    @torch.no_grad()
    def _open_gate(self) -> None:
        """Fit the gate's constant to a sample of the training text."""
        positions = self.division.rows(np.random.default_rng(self.config.seed))[: self.rows]
        self.side.network.eval()
        _, trained, counted = self.division.flat.forward(self.side.network, self.side.gate, positions)
        self.side.network.train()
        self.side.gate.bias.fill_(constant_gate(trained, counted))

    @property
    def fraction(self) -> float:
        """The fraction of the run that is done, by steps or by time, whichever is larger."""
        progress = self.progress
        return max(progress.steps / self.steps, progress.seconds / progress.limit if progress.limit else 0.0)

    def run(
        self,
        save: Callable[[Mapping[str, Content]], None] | None = None,
        on_fold: Callable[[Row, CompanionModel], None] | None = None,
    ) -> CompanionModel:
        """Train until the run ends; return the best model.

        `on_fold` receives a row of the log and the model as it is now, at each check; `save`, called on the first
        process only, must store `best` together with the files it receives. SIGINT and SIGTERM take effect after a few
        steps, once a checkpoint is saved.
        """
        cuda = [self.device] if self.device.type == "cuda" else []
        with side_stream(self.device), torch.random.fork_rng(cuda), deferred_interrupts() as interrupts:
            self._run(save, on_fold, interrupts)
        return self.best

    def _run(self, save: Any, on_fold: Any, interrupts: list[int]) -> None:
        progress = self.progress
        if not progress.steps:
            found, alone = self._scores(self.side)
            start = found if self.model.side else self.counted_score  # trained before, or not
            progress.best = start.bits_per_byte
            self._log(on_fold, self.model, start, alone, 0.0)
        self._since = saved = time.perf_counter()
        with progress_bar("train", total=1000, unit="‰") as bar:
            while not progress.ended:
                self._step()
                progress.steps += 1
                stop = due = False
                if progress.steps % SYNC == 0 or self.device.type == "cpu" or progress.steps >= self.steps:
                    stop, due = self._read_clock(bool(interrupts), time.perf_counter() - saved > SAVE_SECONDS)
                    bar.update(round(1000 * min(1.0, self.fraction)) - bar.n)
                if self.fraction >= CHECKS[progress.checks] - 1e-9:
                    self._check(on_fold)
                    bar.set_postfix_str(f"{progress.best:.3f} bits/byte", refresh=False)
                if stop or due or progress.ended:
                    self._save(save)
                    saved = time.perf_counter()
                if stop:  # here or in another process
                    raise KeyboardInterrupt

    def _step(self) -> None:
        epoch, place = divmod(self.progress.steps, self.steps_per_epoch)
        if place == 0 or not hasattr(self, "_rows"):
            rng = np.random.default_rng(seed_of(self.config.seed, "rows", epoch))
            self._rows = self.division.rows(rng)
        self.optimizer.set_rate(min(1.0, (self.progress.steps + 1) / WARMUP) * max(0.0, 1 - self.fraction))
        positions = self._rows[place * self.rows : (place + 1) * self.rows]
        seed = seed_of(self.config.seed, "dropout", self.progress.steps, self.group.rank)
        if self.device.type != "cuda":
            torch.default_generator.manual_seed(seed)
            self._loss = self._plain_step(positions)
            return
        torch.cuda.manual_seed(seed)
        if self.group.size > 1 or self.progress.steps < PLAIN_STEPS or not hasattr(self, "_loss"):
            self._loss = self._plain_step(positions)
            return
        if self.graph is None:  # hundreds of small kernels become one launch
            self._positions, self.graph = positions.clone(), torch.cuda.CUDAGraph()
            with no_garbage_collection(), torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
                self._loss = self._plain_step(self._positions)
        self._positions.copy_(positions)
        self.graph.replay()

    def _plain_step(self, positions: Tensor) -> Tensor:
        own = positions[self.group.rank :: self.group.size]
        value = torch.zeros((), device=self.device)
        if len(own):
            value = loss(*self.division.flat.forward(self.side.network, self.side.gate, own))
            value = value * (len(own) / len(positions)) if self.group.size > 1 else value
            value.backward()
        if self.group.size > 1:
            self._sum_gradients()
        self.optimizer.step()
        return value.detach()

    def _sum_gradients(self) -> None:
        weights = self.side.parameters()
        gradients = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in weights]
        total = self.group.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        for weight, part in zip(weights, total.split([weight.numel() for weight in weights]), strict=True):
            weight.grad = part.view_as(weight)

    def _check(self, on_fold: Any) -> None:
        """Score the held-out text, keep the weights if they are the best so far, and log."""
        progress = self.progress
        if not math.isfinite(float(self.group.sum(self._loss))):
            raise SaffuError(f"training diverged: the loss is not finite at step {progress.steps}; train again")
        fraction = min(1.0, self.fraction)
        while progress.checks < len(CHECKS) - 1 and CHECKS[progress.checks] <= fraction + 1e-9:
            progress.checks += 1
        side = self.division.calibrated(self.side, self.group)
        model = self.model.with_side(side.networks(self.model.counted))
        found, alone = self._scores(side)
        is_best, is_lowest = found.bits_per_byte < progress.best, found.bits_per_byte < progress.lowest
        is_worse = found.bits_per_byte > progress.lowest + ROUNDING
        progress.worse = 0 if is_lowest else progress.worse + is_worse
        progress.lowest = min(progress.lowest, found.bits_per_byte)
        if is_best:
            progress.best, self.best = found.bits_per_byte, model
        self._read_clock()
        if fraction >= 1:
            progress.ended = "the budget is spent"
        elif progress.worse >= PATIENCE and fraction >= PATIENT:
            progress.ended = f"held-out text was not predicted better in {PATIENCE} checks"
        self._log(on_fold, model, found, alone, fraction, is_best)

    def _log(
        self, on_fold: Any, model: CompanionModel, found: Score, alone: Score, fraction: float, is_best: bool = False
    ) -> None:
        """Report how well held-out text is predicted by the model as it is now, and by its network alone."""
        progress = self.progress
        tokens = progress.steps * self.rows * self.division.length
        row: Row = {"stage": f"train {fraction:.0%}", "fold": progress.checks, "step": progress.steps}
        row |= {"tokens": tokens, "tokens_per_second": round(tokens / max(progress.seconds, 1e-9))}
        row |= {"dev_perplexity": found.perplexity, "dev_bits_per_byte": found.bits_per_byte, "best": is_best}
        row |= {"network_bits_per_byte": alone.bits_per_byte}
        row |= {"counted_bits_per_byte": self.counted_score.bits_per_byte}
        row["seconds"] = round(self.before + progress.seconds, 3)
        if on_fold:
            on_fold(row, model)

    def _scores(self, side: TrainedSide) -> tuple[Score, Score]:
        """Score the held-out text, with the mixture and with the network alone."""
        found = score(side.network, side.gate, self.dev, self.dev_flat, group=self.group)
        return self._score_of(found.mixture), self._score_of(found.trained)

    def _score_of(self, log_p: Array) -> Score:
        return Score(-float(log_p.sum()), self.dev.targets, self.dev.bytes)

    def _read_clock(self, stop: bool = False, due: bool = False) -> tuple[bool, bool]:
        """Add the time of the first process since the last call; whether any process must stop, or is due to save."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        now = time.perf_counter()
        passed, *flags = self._of_first(now - self._since, stop, due)
        self.progress.seconds += passed
        self._since = now
        return flags[0] > 0, flags[1] > 0

    def _of_first(self, number: float, *added: float) -> list[float]:
        """A number of the first process, and others summed over all processes."""
        numbers = self.group.sum(np.array([number if self.group.is_first else 0.0, *added], dtype=np.float64))
        return [float(number) for number in numbers]

    def _save(self, save: Any) -> None:
        if save is not None and self.group.is_first:
            save(self.checkpoint().files())
        self._read_clock()

    def checkpoint(self) -> Checkpoint:
        """The whole state of the run."""
        arrays = self.side.arrays()
        arrays |= {f"{STATE}{name}": value.cpu().numpy() for name, value in self.optimizer.arrays().items()}
        return Checkpoint(asdict(self.progress), self.source, self.text, str(self.device), arrays)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue a saved run; `self.model` must be the best model that was saved with it."""
        if checkpoint.text != self.text:
            raise SaffuError("this run was trained on different text; pass the original text or start a new run")
        state = {n.removeprefix(STATE): a for n, a in checkpoint.arrays.items() if n.startswith(STATE)}
        try:
            self.best, self.progress = self.model, restored(Progress, checkpoint.progress)
            if self.progress.checks >= len(CHECKS):
                raise ValueError(f"`checks` is {self.progress.checks}")
            self.side.load(checkpoint.arrays)
            self.optimizer.load({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SaffuError(f"the checkpoint is damaged ({error}); train again") from None
