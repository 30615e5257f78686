"""Backpropagation from a fitted model, and its continuation after an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError
from saffu.files import Content
from saffu.model.folder import settle
from saffu.model.solutions import solution
from saffu.processes import ProcessGroup
from saffu.tools.generate import short_documents

if TYPE_CHECKING:
    from saffu.companion.train import Training
    from saffu.model.language_model import OnRow, SaffuLM, Text
    from saffu.paper.backprop import Backprop
    from saffu.paper.training import TrainingConfig
    from saffu.text.corpus import TokenCorpus


def backprop(
    lm: SaffuLM,
    documents: Text,
    dev: Text,
    training: TrainingConfig | None,
    folder: str | Path | None,
    source: Any,
    on_fold: OnRow | None,
    group: ProcessGroup,
) -> None:
    """Train the weights of a fitted model and keep the best ones."""
    if not solution(lm.config.preset).trainable:
        raise SaffuError(f"{lm.config.preset} models have no trainable weights; fit a companion or paper model")
    settle(lm)
    seconds = lm.log_[-1].get("seconds", 0.0) if lm.log_ else 0.0
    corpora = lm.tokenize(documents, "tokenize"), lm.tokenize(dev, "tokenize")
    finish(lm, new_run(lm, corpora, training, source=source, seconds=seconds, group=group), folder, on_fold)


def new_run(
    lm: SaffuLM, corpora: tuple[TokenCorpus, TokenCorpus], training: TrainingConfig | None, **options: Any
) -> Backprop | Training:
    """A run that trains the paper's network, or the one next to the counts."""
    model: Any = lm.model_
    if lm.config.preset == "companion":
        from saffu.companion.config import CompanionConfig, resolved
        from saffu.companion.train import Training

        assert isinstance(lm.config, CompanionConfig)
        lm.config = resolved(lm.config, corpora[0].targets, lm.device)
        return Training(model.with_config(lm.config), *corpora, **options)
    from saffu.paper.backprop import Backprop
    from saffu.paper.training import TrainingConfig

    return Backprop(model, *corpora, training or TrainingConfig(), **options)


def resume(
    kind: type[SaffuLM],
    folder: str | Path,
    documents: Text,
    dev: Text,
    training: TrainingConfig | None,
    device: str | None,
    on_fold: OnRow | None,
    group: ProcessGroup,
) -> SaffuLM:
    """Resume the run whose state is in a folder."""
    checkpoint: Any = stored_checkpoint(Path(folder))
    lm = kind.load(folder, device or checkpoint.device, check=True)
    corpora = lm.tokenize(documents, "tokenize"), lm.tokenize(dev, "tokenize")
    if checkpoint.text != {name: corpus.fingerprint() for name, corpus in zip(("corpus", "dev"), corpora, strict=True)}:
        raise SaffuError("this run was trained on different text; pass the original text or start a new run")
    settings = training if checkpoint.settings is None else training or stored_settings(checkpoint.settings)
    run = new_run(lm, corpora, settings, source=checkpoint.source, group=group)
    run.restore(checkpoint)
    settle(lm)
    finish(lm, run, folder, on_fold)
    return lm


def stored_settings(settings: Any) -> TrainingConfig:
    """The settings of a run of the paper's network, as its checkpoint has them."""
    from saffu.paper.training import TrainingConfig

    return TrainingConfig.from_dict(settings)


def stored_checkpoint(folder: Path) -> Any:
    """The checkpoint of a run of either kind."""
    from saffu.training.checkpoint import read_checkpoint

    return read_checkpoint(folder)


def finish(lm: SaffuLM, run: Backprop | Training, folder: str | Path | None, on_fold: OnRow | None) -> None:
    """Train to the end, logging every fold and saving into `folder` if there is one."""
    if lm.config.preset != "companion":  # its counts do not change
        lm.ledger_ = None  # the weights no longer follow from counts

    def log(row: dict[str, Any], model: Any) -> None:
        row["sample"] = short_documents(model, lm.tokenizer_, seed=0)
        lm.log_ = [*lm.log_, row]
        if on_fold and run.group.is_first:
            on_fold(row)

    def save(extra: Mapping[str, Content]) -> None:
        lm.model_ = run.best
        lm.save(folder or "", extra)

    try:
        run.run(save if folder is not None else None, log)
    finally:
        lm.model_ = run.best
