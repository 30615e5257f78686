"""Training from a fitted model: its settings, its run, and what is logged and saved of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError
from saffu.files import Content
from saffu.format import progress_bar
from saffu.model.solutions import shown_name, solution
from saffu.settings import Settings
from saffu.tools.generate import short_documents

if TYPE_CHECKING:
    from saffu.interface import Model
    from saffu.model.language_model import OnRow, SaffuLM
    from saffu.text.corpus import TokenCorpus
    from saffu.text.tokenizer import Tokenizer
    from saffu.training.run import Run


def with_network(config: Settings, **length: float) -> Settings:
    """The settings of a model with a network next to its counts that is trained for some `minutes` or `epochs`."""
    own = solution(config.preset)
    kind = own if own.always_trains else solution(own.trained_as) if own.trained_as else None
    if kind is None:
        raise SaffuError(f"{config.preset} models have no network next to their counts; train them with `backprop`")
    if not any(length.values()):
        raise SaffuError("the length of training is missing; pass `minutes` or `epochs`")
    return kind.config.from_dict(config.to_dict() | length)


def new_run(
    model: Model,
    config: Settings,
    tokenizer: Tokenizer,
    training: Settings | None,
    *corpora: TokenCorpus,
    began: float | None = None,
    **options: Any,
) -> Run[Any, Any]:
    """Return a run that trains a model, with the settings that it resolves; `began`: when its time did."""
    train = solution(config.preset).train
    if train is None:
        raise SaffuError(
            f"{shown_name(config.preset)} models have no trainable weights; fit a companion or paper model"
        )
    with progress_bar("load PyTorch", unit=None):
        import saffu.training.run  # noqa: F401  which takes seconds
    seconds = 0.0 if began is None else time.perf_counter() - began
    return train(model, config, tokenizer, training, *corpora, seconds=seconds, **options)


def finish(lm: SaffuLM, run: Run[Any, Any], folder: str | Path | None, on_fold: OnRow | None) -> None:
    """Train to the end, logging every fold and saving into `folder` if there is one."""
    lm.config = run.best.config
    if lm.model_.without_network() is None:  # nothing keeps the counts: the weights no longer follow from them
        lm.ledger_ = None

    def log(row: dict[str, Any], model: Any) -> None:
        row["sample"] = short_documents(model, lm.tokenizer_, seed=0)
        lm.log_ = [*lm.log_, row]
        if on_fold:
            on_fold(row)

    def save(extra: Mapping[str, Content]) -> None:
        lm.model_ = run.best
        lm.save(folder or "", extra)

    try:
        run.run(save if folder is not None else None, log)
    finally:
        lm.model_ = run.best
