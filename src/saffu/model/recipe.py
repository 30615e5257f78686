"""What "train" means: choose text, hold some out, tokenize, count, solve, score, sample, save, and perhaps train.

The steps are those of a `Recipe`. The command line prints between them; an `Executor` says where text is tokenized and
counted: in this process, or on a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from saffu.errors import SaffuError
from saffu.interface import Stage
from saffu.model.folder import read_tokenizer
from saffu.model.language_model import OnRow, SaffuLM
from saffu.model.solutions import solution
from saffu.settings import Settings
from saffu.text.corpus import TokenCorpus
from saffu.text.selection import TextSelection, TrainingText
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

if TYPE_CHECKING:
    from saffu.training.checkpoint import Checkpoint


class Corpora(NamedTuple):
    """A text as token ids."""

    tokenizer: Tokenizer
    train: TokenCorpus
    dev: TokenCorpus  # may be empty
    seconds: float  # that tokenizing took


class Executor(Protocol):
    """Where text is tokenized and counted."""

    @property
    def stages(self) -> Callable[[SaffuLM, TokenCorpus], Iterator[Stage]] | None:
        """The stages of a model that is fitted to a corpus; None for those of its solution."""
        ...

    def tokenize(
        self, text: TrainingText, tokenizer: Tokenizer | TokenizerConfig
    ) -> tuple[Tokenizer, TokenCorpus, TokenCorpus]:
        """The tokenizer, learned from the training text if it is given as settings, and both parts of the text."""
        ...


class ThisProcess:
    """Tokenizes and counts in the threads of this process."""

    stages = None

    def tokenize(
        self, text: TrainingText, tokenizer: Tokenizer | TokenizerConfig
    ) -> tuple[Tokenizer, TokenCorpus, TokenCorpus]:
        text.leave_out_bad_files()
        learned = text.learned(tokenizer)
        return learned, *text.tokenized(learned)


@dataclass(frozen=True)
class Recipe:
    """A text selection, settings, and a folder: all that decides what a model becomes."""

    selection: TextSelection
    config: Settings
    tokenizer: Tokenizer | TokenizerConfig
    folder: Path
    encoder: SaffuLM | None = None
    training: Any = None  # settings of the network's training, apart from `config`
    device: str = "cpu"
    compact: bool = False  # whether tables that follow from the counts are left out of the folder
    began: float = field(default_factory=time.perf_counter)  # when the minutes of training did

    @property
    def trains(self) -> bool:
        """Whether counting is followed by training."""
        return self.training is not None or solution(self.config.preset).always_trains

    def tokenize(self, text: TrainingText, executor: Executor) -> Corpora:
        began = time.perf_counter()
        tokenizer, train, dev = executor.tokenize(text, self.tokenizer)
        if self.trains and not dev.targets:
            raise SaffuError("training needs held-out text for early stopping; pass `dev` FILE or a smaller `hold_out`")
        return Corpora(tokenizer, train, dev, time.perf_counter() - began)

    def count(self, corpora: Corpora, on_row: OnRow, executor: Executor) -> SaffuLM:
        """Fit a model to the text, and save it after every stage."""
        if self.encoder:
            lm = SaffuLM(encoder=self.encoder, device=self.device)
        else:
            lm = SaffuLM(self.config, tokenizer=corpora.tokenizer, device=self.device)

        def on_stage(row: dict[str, Any]) -> None:
            lm.source_ = self.selection.summary(corpora.dev)
            lm.save(
                self.folder, compact=self.compact
            )  # before it is shown, because the reader of the log may have exited
            on_row(row)

        dev = corpora.dev if corpora.dev.targets else None
        training = self.training
        stages = executor.stages
        return lm.fit(corpora.train, dev, training=training, on_stage=on_stage, stages=stages)

    def train(self, lm: SaffuLM, corpora: Corpora, on_row: OnRow) -> SaffuLM:
        """Train the weights of a fitted model; the state of the run is saved with it, for `resume`."""
        source = self.selection.seen_from(self.folder).to_dict()
        return lm.backprop(
            *corpora[1:3], self.training, folder=self.folder, source=source, on_fold=on_row, began=self.began
        )


def stored_run(folder: Path, text: Sequence[str], dev: Sequence[str]) -> tuple[Checkpoint, TextSelection]:
    """The state of an interrupted run, and its text, which may have moved to files with other names."""
    from saffu.training.checkpoint import read_checkpoint, restored

    checkpoint = read_checkpoint(folder)
    if not checkpoint.source:
        raise SaffuError(f"{folder} was trained from Python; resume it there, with SaffuLM.resume")
    return checkpoint, restored(TextSelection, checkpoint.source).resolved_from(folder).instead(text, dev)


def stored_text(folder: Path, selection: TextSelection) -> tuple[TokenCorpus, TokenCorpus]:
    """The text of a run as token ids."""
    with TrainingText(selection) as text:
        text.leave_out_bad_files()
        return text.tokenized(read_tokenizer(folder))
