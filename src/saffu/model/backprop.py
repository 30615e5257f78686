"""Backpropagation from a fitted model, and its continuation after an interruption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError
from saffu.files import Content
from saffu.model.folder import verify_and_load
from saffu.model.solutions import next_to_counts, solution
from saffu.processes import ProcessGroup
from saffu.settings import Settings
from saffu.tools.generate import short_documents

if TYPE_CHECKING:
    from saffu.model.language_model import OnRow, SaffuLM, Text
    from saffu.text.corpus import TokenCorpus
    from saffu.training.run import Run


def backprop(
    lm: SaffuLM,
    documents: Text,
    dev: Text,
    training: Settings | None,
    folder: str | Path | None,
    source: Any,
    on_fold: OnRow | None,
    group: ProcessGroup,
) -> None:
    """Train the weights of a fitted model and keep the best ones."""
    verify_and_load(lm)
    seconds = lm.log_[-1].get("seconds", 0.0) if lm.log_ else 0.0
    corpora = lm.tokenize(documents, "tokenize"), lm.tokenize(dev, "tokenize")
    run = new_run(lm, training, *corpora, source=source, seconds=seconds, group=group)
    finish(lm, run, folder, on_fold)


def train(
    lm: SaffuLM,
    documents: Text,
    dev: Text,
    length: Mapping[str, float],
    folder: str | Path | None,
    on_row: OnRow | None,
) -> None:
    """Count documents, unless the model is fitted, and train a network next to the counts."""
    own = solution(lm.config.preset)
    kind = own if own.always_trains else solution(own.trained_as) if own.trained_as else None
    if kind is None:
        raise SaffuError(f"no network is trained next to {lm.config.preset} models; see `backprop`")
    if not any(length.values()):
        raise SaffuError("how long shall the network be trained? pass `minutes` or `epochs`")
    config = kind.config.from_dict(lm.config.to_dict() | dict(length))
    if not lm.__sklearn_is_fitted__():
        lm.set_params(config=config).fit(documents, dev)
    elif own.trained_as:
        verify_and_load(lm)
        lm.model_ = next_to_counts(lm.model_, config, lm.device)
    lm.config = config
    lm.backprop(documents, dev, folder=folder, on_fold=on_row)


def new_run(lm: SaffuLM, training: Settings | None, *corpora: TokenCorpus, **options: Any) -> Run[Any, Any]:
    """A run that trains a model, with the settings that it resolves."""
    train = solution(lm.config.preset).train
    if train is None:
        raise SaffuError(f"{lm.config.preset} models have no trainable weights; fit a companion or paper model")
    run = train(lm.model_, lm.config, training, *corpora, **options)
    lm.config = run.best.config
    return run


def resume(
    kind: type[SaffuLM],
    folder: str | Path,
    documents: Text,
    dev: Text,
    training: Settings | None,
    device: str | None,
    on_fold: OnRow | None,
    group: ProcessGroup,
) -> SaffuLM:
    """Resume the run whose state is in a folder."""
    from saffu.training.checkpoint import read_checkpoint

    checkpoint = read_checkpoint(Path(folder))
    lm = kind.load(folder, device or checkpoint.device, check=True)
    corpora = lm.tokenize(documents, "tokenize"), lm.tokenize(dev, "tokenize")
    if checkpoint.text != {name: corpus.fingerprint() for name, corpus in zip(("corpus", "dev"), corpora, strict=True)}:
        raise SaffuError("this run was trained on different text; pass the original text or start a new run")
    of_training = solution(lm.config.preset).training
    if training is None and of_training is not None and checkpoint.settings is not None:
        training = of_training.from_dict(dict(checkpoint.settings))
    run = new_run(lm, training, *corpora, source=checkpoint.source, group=group)
    run.restore(checkpoint)
    verify_and_load(lm)
    finish(lm, run, folder, on_fold)
    return lm


def finish(lm: SaffuLM, run: Run[Any, Any], folder: str | Path | None, on_fold: OnRow | None) -> None:
    """Train to the end, logging every fold and saving into `folder` if there is one."""
    if lm.model_.without_network() is None:  # nothing keeps the counts: the weights no longer follow from them
        lm.ledger_ = None

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
