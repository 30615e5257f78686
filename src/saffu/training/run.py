"""A training run: what the paper's network and the networks next to the counts have in common.

A run goes from moment to moment, places where it could stop. In between are the steps, the checks of held-out text, and
the decision to end, which belong to each kind of run. Here are its clock, its checkpoints, and signals. Everything
random follows from a seed and the place in the run, and a checkpoint holds the whole state, so a run that was
interrupted and resumed ends with the weights of one that never was.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from saffu.errors import SaffuError, install_command
from saffu.files import Content
from saffu.interface import Array
from saffu.settings import Settings
from saffu.text.corpus import TokenCorpus
from saffu.training.checkpoint import Checkpoint, restored
from saffu.training.cuda_graph import side_stream
from saffu.writing import uninterrupted

Row = dict[str, Any]
Save = Callable[[Mapping[str, Content]], None]
M = TypeVar("M")
P = TypeVar("P", bound="Progress")
OnCheck = Callable[[Row, M], None]


@dataclass
class Progress:
    """The progress of a run."""

    steps: int = 0
    seconds: float = 0.0  # over all resumptions
    ended: str = ""  # why


class Diverged(SaffuError):
    """The loss is not a finite number anymore."""

    def __init__(self, symptom: str, remedy: str):
        super().__init__(f"training diverged: {symptom}; {remedy}; the best weights so far were kept")


class Run(ABC, Generic[M, P]):
    """`best` is the best model so far; `progress` says how far the run is."""

    progress: P
    best: M

    def __init__(
        self,
        corpus: TokenCorpus,
        dev: TokenCorpus,
        device: torch.device,
        source: Any,
        settings: Settings | None = None,
        save_seconds: float = 60.0,
    ) -> None:
        """`source` describes, in JSON, where the text came from; a checkpoint returns it to whoever resumes the run."""
        if not dev.targets:
            raise SaffuError("training needs held-out text for early stopping; pass some as `dev`")
        self.text = {"corpus": corpus.fingerprint(), "dev": dev.fingerprint()}
        self.device = device
        self.source = source
        self.settings = settings
        self.save_seconds = save_seconds
        self._since = 0.0

    @abstractmethod
    def moments(self, on_check: OnCheck[M] | None) -> Iterator[bool]:
        """Train to the end, yielding wherever the run could stop; True if a checkpoint must be saved now."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """The weights being trained and the state of their optimizer."""

    @abstractmethod
    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore what `arrays` returned; KeyError, TypeError, ValueError, or RuntimeError if it cannot."""

    def run(self, save: Save | None = None, on_check: OnCheck[M] | None = None) -> M:
        """Train until the run ends; return the best model.

        `on_check` receives a row of the log and the model as it is now, whenever held-out text was scored. `save` must
        store `best` together with the files it receives: checkpoints, or none after a divergence. Signals that end the
        run take effect at the next moment, once a checkpoint is saved.
        """
        cuda = [self.device] if self.device.type == "cuda" else []
        try:
            with side_stream(self.device), torch.random.fork_rng(cuda), uninterrupted(once=True) as interrupts:
                self._since = saved = time.perf_counter()
                for now in self.moments(on_check):
                    stop = bool(interrupts)
                    self.read_clock()
                    if stop or now or self._since - saved >= self.save_seconds:
                        self.save(save)
                        saved = self._since
                    if stop:
                        raise KeyboardInterrupt
                self.end(save)
        except Diverged:
            if save:
                save({})
            raise
        return self.best

    def read_clock(self) -> None:
        """Add the time since the last call."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        now = time.perf_counter()
        self.progress.seconds += now - self._since
        self._since = now

    def end(self, save: Save | None) -> None:
        """Save the result alone: a checkpoint says where the text lies, and whether a guess of it is right."""
        if save is not None:
            save({})
        self.read_clock()

    def save(self, save: Save | None) -> None:
        """Save a checkpoint; the time it takes counts."""
        if save is not None:
            save(self.checkpoint().files())
        self.read_clock()

    def checkpoint(self) -> Checkpoint:
        """The whole state of the run."""
        settings = None if self.settings is None else self.settings.to_dict()
        return Checkpoint(asdict(self.progress), self.source, self.text, str(self.device), self.arrays(), settings)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue a saved run; `best` must be the model that was saved with it."""
        if checkpoint.text != self.text:
            raise SaffuError("this run was trained on different text; pass the original text or start a new run")
        try:
            progress = restored(type(self.progress), checkpoint.progress)
            self.load(checkpoint.arrays)
            self.progress = progress
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise SaffuError(f"the checkpoint is damaged ({error}); train again") from None

    def seed_step(self, seed: int) -> None:
        """Seed dropout for the current step alone, so that a resumed run draws what the uninterrupted one draws."""
        value = seed_of(seed, "dropout", self.progress.steps, 0)  # the 0 keeps the weights of published runs
        if self.device.type == "cuda":
            torch.cuda.manual_seed(value)
        else:
            torch.default_generator.manual_seed(value)


def seed_of(*place: int | str) -> int:
    """A seed for one use at one place of a run.

    >>> seed_of(0, "targets", 3) == seed_of(0, "targets", 3), seed_of(0, "targets", 3) == seed_of(0, "targets", 4)
    (True, False)
    """
    words = [part if isinstance(part, int) else int.from_bytes(part.encode(), "big") for part in place]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


def open_tensorboard(folder: Path) -> Any:
    """A writer of curves into a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SaffuError(f"TensorBoard is missing; install it with `{install_command('tensorboard')}`") from None
    return SummaryWriter(folder)
