"""Mixtures of fitted models: a large general model and a small one of your own text make the best of both."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from saffu.errors import SaffuError
from saffu.model.ledger import PAGES
from saffu.model.living import one_at_a_time, require_changeable
from saffu.model.matching import warn_if_counted
from saffu.model.solutions import check, described, solution
from saffu.tools.evaluate import dev_facts, evaluate

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM, Text


@one_at_a_time
def mix(models: Sequence[SaffuLM], dev: Text, names: Sequence[str] = ()) -> SaffuLM:
    """A mixture of calibrated models with one tokenizer, its weights fitted on `dev`, which none of them counted.

    Messages call the models by their `names`, or else by number.
    """
    from saffu.calibrated.mixture import fitted_mixture

    began = time.perf_counter()
    first = models[0]
    names = names or [f"model {number}" for number in range(1, len(models) + 1)]
    for name, other in zip(names, models, strict=True):
        check(models=(other, type(first)))
        if reason := obstacle(first, other):
            raise SaffuError(f"{name} cannot be part of a mixture: {reason}")
    if len(models) < 2:
        raise SaffuError("there is nothing to mix; list at least two models")
    ledgers = [require_changeable(lm) for lm in models]
    corpus = first.tokenize(dev)
    corpus.require_text("fit the weights on")
    for name, ledger in zip(names, ledgers, strict=True):
        effect = "the mixture relies on it more than new text would warrant; hold out text that it has not counted"
        warn_if_counted(corpus, ledger, name, "the held-out text", effect)
    mixed = copy.copy(first)
    mixed.encoder = None
    model = fitted_mixture([lm.model_.counted_part for lm in models], corpus)
    mixed.model_ = model
    mixed.config = model.config
    mixed.statistics_ = sum((lm.statistics_ for lm in models[1:]), first.statistics_)
    mixed.ledger_ = sum(ledgers[1:], ledgers[0])
    if len(mixed.ledger_.pages) < sum(len(ledger.pages) for ledger in ledgers):
        raise SaffuError("two of the models have counted the same text (one was made from the other); mix others")
    mixed.trained_on_ = {name: sum(lm.trained_on_[name] for lm in models) for name in first.trained_on_}
    mixed.source_ = {**first.source_, PAGES: [len(ledger.pages) for ledger in ledgers]}
    score = dev_facts(evaluate(mixed.model_, corpus))
    row = {"stage": "mix", "models": len(models), "members": model.names, "tokens": mixed.trained_on_["tokens"]}
    row |= score
    mixed.log_ = [row | {"seconds": round(time.perf_counter() - began, 3), "sample": mixed.sample()}]
    return mixed


def obstacle(first: SaffuLM, other: SaffuLM) -> str:
    """Why a model cannot be mixed with the first; empty if it can."""
    if not solution(other.config.preset).mixes:
        return f"it has the preset {described(other.config.preset)}; mix counted models, without a network"
    if first.tokenizer_.to_json() != other.tokenizer_.to_json():
        return "its tokenizer is another one; train it with --tokenizer or --base"
    settings = first.config.to_dict()
    others = other.config.to_dict()
    if changed := [name for name, value in settings.items() if value != others[name]]:
        return f"its {changed[0]} is {others[changed[0]]}, and {settings[changed[0]]} in the first"
    return ""
