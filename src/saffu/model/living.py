"""Update, forget, and merge: the counts of the decoder are added and subtracted, and the encoder stays.

The *encoder* is what was fitted once: the tokenizer, and everything that `Model.solved` leaves unchanged. The *decoder*
is solved from sums over documents. Therefore

    update   solved(sums + count(documents))
    forget   solved(sums − count(documents))
    merge    solved(sums of one model + sums of another + …), all with the same encoder

and each gives, bit for bit, the model that counting the same documents at once with that encoder would have given.
"""

from __future__ import annotations

import copy
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from saffu.errors import SaffuError
from saffu.format import plural, progress_bar
from saffu.interface import Arrays, Model
from saffu.model.folder import Statistics, verify_and_load
from saffu.model.ledger import Ledger
from saffu.model.matching import Matches
from saffu.model.solutions import check, described, settings_of_counts
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM, Text


P = ParamSpec("P")
R = TypeVar("R")
CHANGES = threading.RLock()


def one_at_a_time(change: Callable[P, R]) -> Callable[P, R]:
    """A change of a model, for which other threads wait: each replaces all that a model has learned."""

    @wraps(change)
    def alone(*arguments: P.args, **options: P.kwargs) -> R:
        with CHANGES:
            return change(*arguments, **options)

    return alone


@one_at_a_time
def unchanging(lm: SaffuLM) -> SaffuLM:
    """The model as it is now, whatever other threads do to it."""
    verify_and_load(lm)
    return copy.copy(lm)


@one_at_a_time
def update(lm: SaffuLM, documents: Text) -> None:
    """Count these documents too."""
    began = time.perf_counter()
    ledger = require_changeable(lm)
    corpus = lm.tokenize(documents)
    model = lm.model_
    corpus.require_text("count")
    with progress_bar("update", unit=None):
        changed = model.solved(model.sums + model.count(corpus))
    added = corpus.totals()
    sizes = {name: number + lm.trained_on_[name] for name, number in added.items()}
    log = [*lm.log_, _row("update", added, began)]
    _replace(lm, changed, lm.statistics_ + statistics_of(lm, corpus), ledger.with_added(corpus), sizes, log)


def counted_by(lm: SaffuLM, documents: Text) -> TokenCorpus:
    """Return documents as token ids. Raises SaffuError unless a model counts all of them, each as often as here."""
    ledger = require_changeable(lm)
    corpus = lm.tokenize(documents, "tokenize")
    if missing := corpus.documents - len(ledger.counted(corpus)):
        raise SaffuError(
            f"{plural(missing, 'document')} of this text {'is' if missing == 1 else 'are'} not counted, or not that "
            "often; count them first (`update`), or pass text that the model counts"
        )
    return corpus


@dataclass(frozen=True)
class Removal:
    """What `forget` has done."""

    passed: int  # documents that were to be removed
    documents: int  # that were removed, whole or in part
    whole: int  # of which nothing is counted any more
    parts: int  # of them: what had not been held out
    held_out: int  # lines that had been held out, and so were never counted
    skipped: int  # lines that were not counted like this and are skipped
    tokens: Sequence[str] = ()  # of their text that no other document has; they remain in the tokenizer


@one_at_a_time
def forget(lm: SaffuLM, documents: Text, skip_uncounted: bool = False, drop_network: bool = False) -> Removal:
    """Remove these documents. Raises SaffuError if one of them, or any line, is not as it was counted.

    If `skip_uncounted`, what was not counted like this is skipped. If `drop_network`, a network trained on them is
    removed first.
    """
    began = time.perf_counter()
    ledger = require_changeable(lm)
    corpus = lm.tokenize(documents)
    model = lm.model_
    corpus.require_text("forget")
    if drop_network:
        model = model.without_network() or model
    matches = Matches.of(corpus, ledger, int(lm.source_.get("hold_out") or 0))
    if skip_uncounted:
        matches = matches.as_often_as_counted()
    else:
        matches.require_exact(model.ngrams, lm.tokenizer_.decode)
    parts, left = matches.left()
    owners = [match for match in matches.documents if match.counted]
    whole = sum(match.whole for match in owners)
    lines = matches.lines("held_out"), matches.lines("unknown")
    removal = Removal(corpus.documents, len(owners), whole, parts.documents, *lines)
    if not parts.documents:
        return removal
    if not left.documents:
        raise SaffuError("this would remove every document in the model; delete its folder instead")
    with progress_bar("forget", unit=None):
        changed = model.solved(model.sums - model.count(parts))
    removed = parts.totals() | {"documents": len(owners)}
    sizes = {name: lm.trained_on_[name] - number for name, number in removed.items()}
    sizes["documents"] = min(lm.trained_on_["documents"] - whole, left.most_documents)
    # Earlier samples may repeat the forgotten text.
    rows = [{key: value for key, value in row.items() if key != "sample"} for row in lm.log_]
    log = [*rows, _row("forget", removed, began)]
    _replace(lm, changed, lm.statistics_ - statistics_of(lm, parts), left, sizes, log)
    # Whoever has the rest of the held-out text could confirm a guess of the forgotten part by this hash of both.
    lm.source_ = {key: value for key, value in lm.source_.items() if key != "dev"}
    return replace(removal, tokens=_remaining_tokens(lm, parts))


def _remaining_tokens(lm: SaffuLM, removed: TokenCorpus) -> list[str]:
    """The tokens of removed text that are counted nowhere else. Single bytes are in every tokenizer."""
    tokens = [token for token in np.unique(removed.ids).tolist() if token > EOD and not lm.frequencies_[token]]
    return [lm.tokenizer_.token(token) for token in tokens if len(lm.tokenizer_.decode_bytes([token])) > 1]


@one_at_a_time
def merge(models: Iterable[SaffuLM]) -> SaffuLM:
    """Merge models that share their encoder. Models of an iterator are held one at a time, in addition to the sum."""
    began = time.perf_counter()
    added = 1
    shared = 0
    remaining = iter(models)
    first = counted_alone(next(remaining))
    ledger = require_changeable(first)
    sums = first.model_.sums
    statistics = first.statistics_
    sizes = dict(first.trained_on_)
    for other in remaining:
        added += 1
        check(others=(other, type(first)))
        other = counted_alone(other)
        if reason := difference(first, other):
            raise SaffuError(f"model {added} cannot be merged with the first: {reason}")
        entries = require_changeable(other)
        shared += ledger.shared_with(entries)
        ledger, sums, statistics = ledger + entries, sums + other.model_.sums, statistics + other.statistics_
        sizes = {name: number + other.trained_on_[name] for name, number in sizes.items()}
    merged = copy.copy(first)
    log = [{"stage": "merge", "models": added, "shared": shared, **sizes, **_seconds(began)}]
    with progress_bar("merge", unit=None):
        _replace(merged, first.model_.solved(sums), statistics, ledger, sizes, log)
    return merged


def counted_alone(lm: SaffuLM) -> SaffuLM:
    """Return a model whose network was removed, or never kept, as the counted model that it is."""
    if lm.model_.has_network or lm.model_.counted_part is None:
        return lm
    counted = copy.copy(lm)
    counted.model_ = lm.model_.counted_part
    counted.config = settings_of_counts(lm.config)
    return counted


def require_changeable(lm: SaffuLM) -> Ledger:
    """The model's ledger. Raises SaffuError with the reason if its counts are not those of whole documents."""
    remedy = "fit one with its encoder (SaffuLM(encoder=…), saffu train --encoder)"
    if lm.config.preset == "paper":
        raise SaffuError("models of the paper are solved once and do not change; count all of the text again")
    if lm.model_.sums is None:
        raise SaffuError(f"this model cannot be updated: it was exported without its counts; {remedy}")
    verify_and_load(lm)
    if lm.ledger_ is None:
        raise SaffuError(f"this model cannot be updated: it has no ledger of the documents it has counted; {remedy}")
    return lm.ledger_


def difference(one: SaffuLM, other: SaffuLM) -> str:
    """Why two models do not share an encoder; empty if they do."""
    if one.tokenizer_.to_json() != other.tokenizer_.to_json():
        return "their tokenizers differ; fit one with the encoder of the other"
    if one.config.preset != other.config.preset:
        presets = f"one is {described(one.config.preset)}, the other {described(other.config.preset)}"
        return f"{presets}; merge models of one preset, and train a network afterward"
    settings, others = (settings_of_counts(lm.config).to_dict() for lm in (one, other))
    if changed := [name for name, value in settings.items() if value != others[name]]:
        return f"{changed[0]} is {settings[changed[0]]} in one and {others[changed[0]]} in the other"
    here = one.model_.encoder_arrays()
    there = other.model_.encoder_arrays()
    if here.keys() != there.keys() or any(not np.array_equal(array, there[name]) for name, array in here.items()):
        return "their encoders were fitted on different text; fit one with the encoder of the other"
    return ""


def fingerprints(lm: SaffuLM) -> dict[str, str]:
    """Hashes of the tokenizer and of the encoder: models with equal ones can be merged."""
    settings = json.dumps([lm.config.preset, lm.config.to_dict()], sort_keys=True)
    return {"tokenizer": _digest(lm.tokenizer_.to_json(), {}), "encoder": _digest(settings, lm.model_.encoder_arrays())}


def counted_fingerprint(lm: SaffuLM) -> str | None:
    """A hash of the tokenizer and of all counts, which are integers; None for a model without its counts."""
    sums = lm.model_.sums
    if sums is None and lm.statistics_.ngrams is None:
        return None
    counts = {**lm.statistics_.arrays(), **({} if sums is None else sums.arrays())}
    return _digest(lm.tokenizer_.to_json(), {name: array for name, array in counts.items() if array.dtype.kind in "iu"})


def _digest(text: str, arrays: Arrays) -> str:
    """SHA-256 of a text and of arrays with their names, types, and shapes."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _replace(
    lm: SaffuLM, model: Model, statistics: Statistics, ledger: Ledger, sizes: dict[str, int], log: list[dict[str, Any]]
) -> None:
    """Change everything at once, so that an earlier failure leaves the model unchanged."""
    learned = {"model_": model, "statistics_": statistics, "ledger_": ledger, "trained_on_": sizes, "log_": log}
    vars(lm).update(learned)


def statistics_of(lm: SaffuLM, corpus: TokenCorpus) -> Statistics:
    """The statistics of a corpus that a model keeps."""
    return Statistics.of(corpus, len(lm.tokenizer_), ngrams=lm.statistics_.ngrams is not None)


def _row(stage: str, sizes: Mapping[str, int], began: float) -> dict[str, Any]:
    return {"stage": stage, **{name: sizes[name] for name in ("documents", "parts", "tokens")}, **_seconds(began)}


def _seconds(began: float) -> dict[str, float]:
    return {"seconds": round(time.perf_counter() - began, 3)}
