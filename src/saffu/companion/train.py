"""Training: a budget of time or of epochs, a schedule that fits it, early stopping; the best weights are kept.

On a CPU, a run with a fixed number of epochs ends with the same weights whether or not it was interrupted and resumed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saffu.companion.config import COMPILED_FROM
from saffu.companion.cross_fit import CrossFit, cross_fitted
from saffu.companion.gate import constant_gate, loss
from saffu.companion.model import CompanionModel
from saffu.companion.optimizer import Optimizer
from saffu.companion.rows import ages_of, excerpt, gate_inputs
from saffu.companion.scoring import DeviceCorpus, Division, score
from saffu.companion.spelling import Spellings
from saffu.companion.torch_networks import TorchNetworks
from saffu.errors import SaffuError
from saffu.files import part_of
from saffu.format import plural, progress_bar, warn
from saffu.interface import Array, Score
from saffu.text.corpus import TokenCorpus
from saffu.training import run
from saffu.training.checkpoint import Checkpoint
from saffu.training.cuda_graph import GraphedStep
from saffu.training.run import Diverged, OnCheck, Row, seed_of

STATE = "optimizer "  # prefix of its arrays in a checkpoint
DEV_TARGETS = {"cpu": 25_000, "cuda": 100_000}  # held-out targets scored at each check
CHECKS = (0.05, *(0.1 * k for k in range(1, 11)))  # fractions of a run after which held-out text is scored
MIN_STEPS = 20  # between two checks, except for the last; a busy machine may take a step in seconds
PATIENCE = 3  # checks that are worse than an earlier one, without a better one between, end a run …
EARLY_STOP_AFTER = 0.6  # … after this fraction of it: much is gained while the learning rate falls
ROUNDING = 1e-6  # bits per byte: a gate that is shut is not worse than the counts
WARMUP = 50  # steps
COOLDOWN = 0.6  # of a run: the share at its end in which learning rates fall to zero
LEAST_SHARE = 0.25  # of the time is for training, however long counting and preparing took
PREPARING = 1.3  # times as long as cross-fitting, about: it and what follows before the first step
LATE = 1.1  # of the time asked for: a run that would take longer says so before it starts
CHECKS_SHARE = 0.25  # of a limited time at most is for checks before the last one
CALIBRATED = 2.0  # times as long as scoring the start: about what a check takes, which fits the gates first
SYNC = 8  # steps after which a GPU is waited for, and the clock read
FEW_STEPS = 200  # hardly enough to learn anything


@dataclass
class Progress(run.Progress):
    """The progress of a run; `seconds` are those of training."""

    checks: int = 0
    last_check: int = 0  # the steps then
    limit: float = 0.0  # of the seconds; 0 for none
    best: float = math.inf  # bits per byte of the held-out text
    lowest: float = math.inf  # of what was trained, whether or not it is better than what training started from
    worse: int = 0  # of the checks since the lowest
    checking: float = 0.0  # of the seconds, those of all checks
    check: float = 0.0  # the seconds that the latest check took


class Training(run.Run[CompanionModel, Progress]):
    """A run that trains the networks and the gates of a counted model."""

    def __init__(
        self,
        model: CompanionModel,
        corpus: TokenCorpus,
        dev: TokenCorpus,
        *,
        source: Any = None,
        seconds: float = 0.0,
        cross_fit: CrossFit | None = None,
        spellings: Spellings | None = None,
    ):
        """`seconds` is the time already spent on the model.

        `cross_fit` is what `cross_fitted` returned for the corpus; several runs can share it. With the `spellings` of
        the vocabulary, networks learn from what tokens have in common.
        """
        super().__init__(corpus, dev, torch.device(model.device), source)
        self.model = self.best = model
        self.config = model.config
        self.progress = Progress()
        began = time.perf_counter() - seconds
        whole = self.config.minutes * 60
        is_late = False

        def foresee(share: float) -> None:
            nonlocal is_late
            passed = time.perf_counter() - began
            is_late = is_late or warn_if_late(whole, passed, seconds + PREPARING * (passed - seconds) / share)

        self.dev = excerpt(dev, DEV_TARGETS[self.device.type])
        cross_fit = cross_fitted(model.counted, corpus, "cross-fit", foresee) if cross_fit is None else cross_fit
        with progress_bar("prepare the network", unit=None):
            self.division = Division(cross_fit, self.config.context, self.device)
            counted, certainty = model.counted.log_probabilities_and_certainty(self.dev)
            self.dev_flat = DeviceCorpus(self.dev, counted, gate_inputs(certainty, ages_of(self.dev)), self.device)
            self.counted_score = self._score_of(counted)
            torch.manual_seed(seed_of(self.config.seed, "weights"))
            if model.networks is None:
                self.networks = TorchNetworks.start(self.config, model.counted, self.device, spellings)
            else:
                self.networks = TorchNetworks.from_arrays(
                    self.config, model.counted, model.networks.restored_arrays(), self.device, spellings
                )
            self.networks.stack.train()
            factor = 1.0 if self.config.rate is None else self.config.rate
            decay = self.config.decay or 0.0
            self.optimizer = Optimizer(self.networks.stack, self.networks.gates, decay, factor)
            rows = -(-len(self.division.kept) // self.division.length)
            self.rows = min(max(1, self.config.batch_tokens // self.division.length), rows)
            self.steps_per_epoch = rows // self.rows
            self.steps = max(1, round(self.config.epochs * self.steps_per_epoch))
            graphed = self.device.type == "cuda"
            self.take_step = GraphedStep(self._plain_step) if graphed else self._plain_step
            self._rows: Tensor | None = None  # of the current epoch
            self._loss = torch.zeros((), device=self.device)  # of the latest step since the run was begun or resumed
            if model.networks is None:
                self._open_gate()
        if graphed and (not whole or whole - (time.perf_counter() - began) >= COMPILED_FROM):
            with progress_bar("compile the network", unit=None):
                self._compile()
        self.before = time.perf_counter() - began
        self.progress.limit = max(whole - self.before, LEAST_SHARE * whole)
        if not is_late:
            warn_if_late(whole, self.before, self.before)

    @torch.no_grad()
    def _open_gate(self) -> None:
        """Fit the gates' constants to a sample of the training text."""
        positions = self.division.rows(np.random.default_rng(self.config.seed))[0, : self.rows]
        self.networks.stack.eval()
        _, trained, counted = self.division.flat.forward(self.networks.stack, self.networks.gates, positions)
        self.networks.stack.train()
        constants = [constant_gate(*both) for both in zip(trained, counted, strict=True)]
        self.networks.gates.bias.copy_(torch.tensor(constants))

    def _compile(self) -> None:
        """Compile the networks: functions are compiled when they are called, and once more for their gradients."""
        self.networks.stack.is_compiled = True
        positions = self.division.rows(np.random.default_rng(0), self.networks.stack.number)[:, : self.rows]
        loss(*self.division.flat.forward(self.networks.stack, self.networks.gates, positions)).backward()
        for weight in self.networks.parameters():
            weight.grad = None

    @property
    def fraction(self) -> float:
        """The fraction of the run that is done, by steps or by time, whichever is larger."""
        progress = self.progress
        return max(progress.steps / self.steps, progress.seconds / self.last_second if progress.limit else 0.0)

    @property
    def last_second(self) -> float:
        """When training ends, if its time is limited: the last check, and the step that is being taken, come after."""
        progress = self.progress
        step = (progress.seconds - progress.checking) / max(1, progress.steps)
        return max(progress.limit - progress.check - step, LEAST_SHARE * progress.limit)

    def moments(self, on_check: OnCheck[CompanionModel] | None) -> Iterator[bool]:
        progress = self.progress
        if not progress.steps:
            mixture, alone = self._scores(self.networks, "score the start")
            start = mixture if self.model.networks else self.counted_score  # trained before, or not
            progress.best = start.bits_per_byte
            self._log(on_check, self.model, start, alone, 0.0)
            self.read_clock()
            progress.checking = progress.seconds
            progress.check = CALIBRATED * progress.seconds  # until there has been one
        with progress_bar("train", total=1000, unit="‰") as bar:
            while not progress.ended:
                if self._is_check_due():  # also if the run was interrupted just before the check
                    began = progress.seconds
                    self._check(on_check)
                    self.read_clock()
                    progress.check = progress.seconds - began
                    progress.checking += progress.check
                    bar.note = f"{progress.best:.3f} bits/byte"
                    continue
                self._step()
                progress.steps += 1
                if progress.steps % SYNC == 0 or self.device.type == "cpu" or progress.steps >= self.steps:
                    yield False
                    bar.update(round(1000 * min(1.0, self.fraction)) - bar.n)

    def _step(self) -> None:
        epoch, place = divmod(self.progress.steps, self.steps_per_epoch)
        if place == 0 or self._rows is None:
            rng = np.random.default_rng(seed_of(self.config.seed, "rows", epoch))
            self._rows = self.division.rows(rng, self.networks.stack.number)
        self.optimizer.set_rate(min(1.0, (self.progress.steps + 1) / WARMUP) * cooled(self.fraction))
        positions = self._rows[:, place * self.rows : (place + 1) * self.rows]
        self.seed_step(self.config.seed)
        self._loss = self.take_step(positions)

    def _plain_step(self, positions: Tensor) -> Tensor:
        value = loss(*self.division.flat.forward(self.networks.stack, self.networks.gates, positions))
        value.backward()
        self.optimizer.step()
        return value.detach()

    def _is_check_due(self) -> bool:
        """Whether the run is at its end, or at one of its `CHECKS`, far enough from the one before."""
        progress = self.progress
        steps = progress.steps - progress.last_check
        if self.fraction >= 1:
            return steps > 0
        if steps < MIN_STEPS or self.fraction < CHECKS[progress.checks] - 1e-9:
            return False
        return not progress.limit or (
            progress.checking <= CHECKS_SHARE * progress.seconds
            and progress.seconds + progress.check < self.last_second
        )

    def _check(self, on_check: OnCheck[CompanionModel] | None) -> None:
        """Score the held-out text, keep the weights if they are the best so far, and log."""
        progress = self.progress
        if not math.isfinite(float(self._loss)):
            raise Diverged(f"the loss is not finite at step {progress.steps}", "train again")
        fraction = min(1.0, self.fraction)
        while progress.checks < len(CHECKS) - 1 and CHECKS[progress.checks] <= fraction + 1e-9:
            progress.checks += 1
        progress.last_check = progress.steps
        networks = self.division.calibrated(self.networks)
        model = self.model.with_parts(networks=networks.without_torch(self.model.counted))
        mixture, alone = self._scores(networks)
        bits = mixture.bits_per_byte
        is_worse = bits > progress.lowest + ROUNDING
        progress.worse = 0 if bits < progress.lowest else progress.worse + is_worse
        progress.lowest = min(progress.lowest, bits)
        is_best = bits < progress.best
        if is_best:
            progress.best = bits
            self.best = model
        self.read_clock()
        if fraction >= 1:
            progress.ended = "the budget is spent"
        elif progress.worse >= PATIENCE and fraction >= EARLY_STOP_AFTER:
            progress.ended = f"held-out text was not predicted better in {PATIENCE} checks"
        self._log(on_check, model, mixture, alone, fraction, is_best)

    def _log(
        self,
        on_check: OnCheck[CompanionModel] | None,
        model: CompanionModel,
        mixture: Score,
        alone: Score,
        fraction: float,
        is_best: bool = False,
    ) -> None:
        """Report how well held-out text is predicted by the model as it is now, and by its networks alone."""
        progress = self.progress
        tokens = progress.steps * self.rows * self.division.length  # read by each network
        row: Row = {"stage": f"train {fraction:.0%}", "fold": progress.checks, "step": progress.steps}
        row |= {"tokens": tokens, "tokens_per_second": round(tokens / max(progress.seconds - progress.checking, 1e-9))}
        row |= {"dev_perplexity": mixture.perplexity, "dev_bits_per_byte": mixture.bits_per_byte, "best": is_best}
        row |= {"network_bits_per_byte": alone.bits_per_byte}
        row |= {"counted_bits_per_byte": self.counted_score.bits_per_byte, "dev_tokens": self.dev.targets}
        row["seconds"] = round(self.before + progress.seconds, 3)
        if progress.ended:
            row["outcome"] = self.outcome()
        if on_check:
            on_check(row, model)

    def outcome(self) -> str:
        """What training achieved, in one sentence."""
        counted = self.counted_score.bits_per_byte
        best = self.progress.best
        what = "the network" if self.networks.stack.number == 1 else f"the {self.networks.stack.number} networks"
        verb = "improves" if self.networks.stack.number == 1 else "improve"
        if self.best.networks is not None and best < counted:
            digits = 3 if f"{counted:.3f}" != f"{best:.3f}" else 6
            change = f"from {counted:.{digits}f} to {best:.{digits}f} bits per byte"
            text = f"({self.dev.targets:,} tokens of it) {change}"
            return f"{what} {verb} held-out text {text}; {self.progress.ended}"
        if self.best.networks is not None:  # those that training started from
            return f"{what} {verb} nothing: held-out text is predicted no better than by the counts alone"
        why = "held-out text is predicted no better with it than by the counts alone"
        if self.progress.steps < FEW_STEPS:
            remedy = "allow more time" if self.progress.steps < self.steps else "it needs a longer text, or more epochs"
            why = f"it took only {plural(self.progress.steps, 'step')} in {self.progress.seconds:.0f} s; {remedy}"
        return f"the network adds nothing and was not kept: {why}"

    def _scores(self, networks: TorchNetworks, progress: str | None = None) -> tuple[Score, Score]:
        """Score the held-out text, with the mixture and with the networks alone."""
        scores = score(networks.stack, networks.gates, self.dev, self.dev_flat, progress)
        return self._score_of(scores.mixture), self._score_of(scores.network)

    def _score_of(self, log_p: Array) -> Score:
        return Score(-float(log_p.sum()), self.dev.targets, self.dev.bytes)

    def arrays(self) -> dict[str, Array]:
        state = {f"{STATE}{name}": value.cpu().numpy() for name, value in self.optimizer.arrays().items()}
        return self.networks.trained_arrays() | state

    def load(self, arrays: Mapping[str, Array]) -> None:
        self.networks.load(arrays)
        state = part_of(arrays, STATE)
        self.optimizer.load({name: torch.from_numpy(np.array(array)) for name, array in state.items()})

    def restore(self, checkpoint: Checkpoint) -> None:
        super().restore(checkpoint)
        if self.progress.checks >= len(CHECKS):
            raise SaffuError("the checkpoint is damaged (the number of checks); train again")


def warn_if_late(whole: float, spent: float, ready: float) -> bool:
    """Say how long a run will take if it cannot keep to the `whole` time; return whether it cannot.

    `spent`: the seconds so far; `ready`: those after which training begins.
    """
    least = LEAST_SHARE * whole
    if not whole or ready + least <= LATE * whole:
        return False
    preparing = f", and preparing to train takes about {ready - spent:.0f} s" if ready > spent else ""
    warn(
        f"{spent:.0f} of {whole:.0f} s have passed{preparing}; with {least:.0f} s of training, it takes about "
        f"{ready + least:.0f} s in all; in {plural(math.ceil(2 * ready / 60), 'minute')}, half would be for training"
    )
    return True


def cooled(fraction: float) -> float:
    """The learning rate, relative to the highest, after a fraction of a run.

    >>> [round(cooled(fraction), 3) for fraction in (0.0, 0.4, 0.7, 1.0)]
    [1.0, 1.0, 0.5, 0.0]
    """
    return min(1.0, max(0.0, 1 - fraction) / COOLDOWN)
