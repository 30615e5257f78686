"""How a model is fitted: tokenizer, corpus, and the stages of its solution, each scored and logged; its `repr`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from saffu.interface import Array, Stage
from saffu.model.ledger import Ledger
from saffu.model.solutions import recount, solution, trained_tokenizer
from saffu.model.statistics import Statistics, sums_ngrams, trained_on
from saffu.processes import ProcessGroup
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import documents_from
from saffu.tools import evaluate

if TYPE_CHECKING:
    from saffu.model.language_model import OnRow, SaffuLM, Text
    from saffu.training.config import TrainingConfig


def fit(
    lm: SaffuLM,
    documents: Text,
    dev: Text | None,
    references: bool,
    training: TrainingConfig | None,
    embeddings: Array | None,
    group: ProcessGroup,
    on_stage: OnRow | None,
    stages: Callable[[TokenCorpus], Iterator[Stage]] | None = None,
) -> None:
    """See `SaffuLM.fit`. A cluster passes its own function for the `stages` of a fit."""
    began = time.perf_counter()
    lm.set_params()
    text = documents if isinstance(documents, TokenCorpus) else documents_from(documents)  # read twice
    lm.tokenizer_, lm.tokenizer_settings_ = trained_tokenizer(lm._tokenizer, text, lm.config)
    corpus, scored = lm.tokenize(text, "tokenize"), None if dev is None else lm.tokenize(dev, "tokenize")
    evaluate.require_text(corpus, "fit")
    lm.trained_on_, lm.source_, lm.log_ = trained_on(corpus), {}, []
    for stage in stages(corpus) if stages else _stages(lm, corpus, group, training=training, embeddings=embeddings):
        lm.model_ = stage.model
        if not lm.log_:
            ngrams = references and sums_ngrams(stage.model) is None
            lm.statistics_ = Statistics.of(corpus, len(lm.tokenizer_), ngrams)
            lm.ledger_ = Ledger.of(corpus)
        if training is not None or stage.model.sums is None:  # then its counts are not those of whole documents
            lm.ledger_ = None
        seconds = round(time.perf_counter() - began, 3)
        row = {"stage": stage.name, "tokens": corpus.targets, **stage.facts}
        if scored is not None and group.is_first:
            row |= evaluate.dev_facts(evaluate.evaluate(stage.model, scored))
        lm.log_.append(row | {"seconds": seconds, "sample": lm.sample()})
        if on_stage and group.is_first:
            on_stage(lm.log_[-1])


def _stages(lm: SaffuLM, corpus: TokenCorpus, group: ProcessGroup, **options: Any) -> Iterator[Stage]:
    if lm._encoder is not None:
        return recount(lm._encoder.model_, corpus, **options)
    return solution(lm.config.preset).fit(corpus, len(lm.tokenizer_), lm.config, lm.device, group, **options)


def described(lm: SaffuLM) -> str:
    """What `repr` shows: the preset, the settings that differ from its defaults, and what the model was fitted to."""
    usual = type(lm.config)().to_dict()
    changed = [f"{name}={value!r}" for name, value in lm.config.to_dict().items() if value != usual[name]]
    settings = ", ".join([lm.config.preset, *changed])
    if "model_" not in lm.__dict__:
        return f"<SaffuLM {settings}; not fitted>"
    return f"<SaffuLM {settings}; {lm.trained_on_['tokens']:,} tokens, vocabulary {len(lm.tokenizer_):,}>"
