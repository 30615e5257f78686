"""Models that learn, forget and merge: their decoder's counts are added and subtracted, their encoder stays.

The *encoder* is what was fitted once: the tokenizer, the embeddings E, attention W, the units' decoders U and the
document model where a final decoder reads them; of a calibrated model the exponents and the classes. The *decoder*
is solved from counts that add over documents: M, or U where units decode straight to the vocabulary; the n-gram
counts of a calibrated model and its prior. So

    update   decoder of (counts held + counts of the documents)
    forget   decoder of (counts held − counts of the documents)
    merge    decoder of (counts of one model + counts of another + …), all with one encoder
    recount  decoder of (counts of the documents) alone

and each gives the model that counting the same documents at once, with that encoder, would have given.
"""

import copy
import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saffu import evaluate, store
from saffu.corpus import TokenCorpus
from saffu.errors import SaffuError
from saffu.explicit import Counts
from saffu.fit import ExplicitFit
from saffu.ledger import Ledger
from saffu.ngram import NgramCounts
from saffu.product import Product, log_prior
from saffu.views import ViewCounts

if TYPE_CHECKING:
    from saffu.model import SaffuLM, Text

NOISE = 1e-4  # of what is taken away: a count so far below zero is rounding; further, it was never counted


@dataclass
class Tally:
    """All that a model knows of its documents: sums over them."""

    layers: dict[str, Counts]  # behind the decoder of a network
    views: ViewCounts  # behind a calibrated product
    references: NgramCounts | None  # for the reference perplexities, where the views do not hold them
    frequencies: Tensor  # (N,) of the targets
    trained_on: dict[str, int]  # documents, tokens and bytes

    @classmethod
    def held_by(cls, lm: "SaffuLM") -> "Tally":
        return cls(
            {layer: on_device(lm.counts_[layer], "cpu") for layer in decoder_layers(lm)},
            lm.network_.counts.to("cpu") if isinstance(lm.network_, Product) else ViewCounts(),
            None if views_hold_references(lm) else lm.references_,
            lm.frequencies_,
            {key: lm.trained_on_[key] for key in ("documents", "tokens", "bytes")},
        )

    @classmethod
    def of(cls, corpus: TokenCorpus, lm: "SaffuLM") -> "Tally":
        """What the documents of a corpus add to a model, seen through its encoder."""
        vocabulary, layers, views = len(lm.tokenizer_), {}, ViewCounts()
        if isinstance(lm.network_, Product):
            views = ViewCounts.count(corpus, lm.config, vocabulary)
        else:
            layers = ExplicitFit.of(lm.network_).count_last(corpus.to(lm.device))
        wanted = lm.references_ is not None and not views_hold_references(lm)
        return cls(
            {layer: on_device(counts, "cpu") for layer, counts in layers.items()},
            views,
            evaluate.count_references(corpus, vocabulary) if wanted else None,
            corpus.frequencies(vocabulary),
            {"documents": corpus.documents, "tokens": corpus.targets, "bytes": corpus.bytes},
        )

    def __add__(self, other: "Tally") -> "Tally":
        references = None
        if self.references is not None and other.references is not None:
            references = self.references + other.references
        return Tally(
            {layer: summed(counts + other.layers[layer]) for layer, counts in self.layers.items()},
            self.views + other.views,
            references,
            self.frequencies + other.frequencies,
            {key: number + other.trained_on[key] for key, number in self.trained_on.items()},
        )

    def __sub__(self, other: "Tally") -> "Tally":
        """Refused where a count would fall below zero; a token that no longer occurs leaves nothing at all."""
        frequencies = self.frequencies - other.frequencies
        layers = {layer: counts - other.layers[layer] for layer, counts in self.layers.items()}
        if frequencies.min() < 0 or any(
            (counts.F < -NOISE * (1 + other.layers[layer].F)).any() for layer, counts in layers.items()
        ):
            raise SaffuError("cannot forget what was never counted: a count would fall below zero; nothing was changed")
        for counts in layers.values():
            counts.F.clamp_(min=0)[:, frequencies == 0] = 0
        references = None
        if self.references is not None and other.references is not None:
            references = self.references - other.references
        return Tally(
            {layer: summed(counts) for layer, counts in layers.items()},
            self.views - other.views,
            references,
            frequencies,
            {key: number - other.trained_on[key] for key, number in self.trained_on.items()},
        )


def summed(counts: Counts) -> Counts:
    """With the norm that F has, so that it too is the same whatever the order of additions."""
    return Counts(counts.F, counts.F.sum(), counts.targets)


def on_device(counts: Counts, device: torch.device | str) -> Counts:
    return Counts(counts.F.to(device), counts.norm.to(device), counts.targets.to(device))


def views_hold_references(lm: "SaffuLM") -> bool:
    """Whether a calibrated model's memory is long enough to give the reference counts."""
    return lm.config.solution == "calibrated" and lm.config.memory >= 3


def decoder_layers(lm: "SaffuLM") -> list[str]:
    """The layers whose counts the decoder of a network follows from."""
    if isinstance(lm.network_, Product):
        return []
    return ["final"] if lm.config.hidden_dimension else [f"{name}.decoder" for name in lm.network_.units]


def update(lm: "SaffuLM", documents: "Text") -> None:
    """Count these documents too."""
    began, ledger, corpus = time.perf_counter(), ledger_of(lm), _tokenized(lm, documents)
    changed = _solved(lm, Tally.held_by(lm) + Tally.of(corpus, lm))
    changed.ledger_ = ledger.with_added(corpus)
    changed.log_ = [*lm.log_, _row("update", corpus, began)]
    _become(lm, changed)


def forget(lm: "SaffuLM", documents: "Text", skip_uncounted: bool = False) -> int:
    """Count these documents no more; gives how many that were. Refused if one of them is not counted that often.

    With `skip_uncounted` such documents are left out instead.
    """
    began, ledger, corpus = time.perf_counter(), ledger_of(lm), _tokenized(lm, documents)
    if skip_uncounted:
        corpus = corpus.take(ledger.counted(corpus))
        if not corpus.documents:
            return 0
    left = ledger.without(corpus)
    if not left.documents:
        raise SaffuError("that is all the model has counted, and nothing would be left; delete its folder instead")
    changed = _solved(lm, Tally.held_by(lm) - Tally.of(corpus, lm))
    changed.ledger_ = left
    # What the model wrote while it still knew the documents may repeat them.
    kept = [{key: value for key, value in row.items() if key != "sample"} for row in lm.log_]
    changed.log_ = [*kept, _row("forget", corpus, began)]
    _become(lm, changed)
    return corpus.documents


def merge(models: "Iterable[SaffuLM]") -> "SaffuLM":
    """One model that counts the documents of all; they must share their encoder. Each is held only while added."""
    began, added, shared, remaining = time.perf_counter(), 1, 0, iter(models)
    first = next(remaining)
    ledger, tally = ledger_of(first), Tally.held_by(first)
    for other in remaining:
        added += 1
        if reason := difference(first, other):
            raise SaffuError(f"model {added} cannot be merged with the first: {reason}")
        shared += ledger.shared_with(ledger_of(other))
        ledger, tally = ledger + ledger_of(other), tally + Tally.held_by(other)
    merged = _solved(first, tally)
    merged.ledger_ = ledger
    merged.log_ = [{"stage": "merge", "models": added, "shared": shared, **tally.trained_on, **_seconds(began)}]
    return merged


def recount(encoder: "SaffuLM", corpus: TokenCorpus) -> "SaffuLM":
    """A model with another's encoder whose decoder is counted from these documents alone."""
    if encoder.config.calibrate:
        raise SaffuError("a network with measured exponents cannot lend its encoder; take one of another preset")
    counted = _solved(encoder, Tally.of(corpus, encoder))
    counted.ledger_, counted.log_ = Ledger.of(corpus), []
    return counted


def ledger_of(lm: "SaffuLM") -> Ledger:
    """The model's ledger; refused with the reason if it has none, for then its counts are not those of documents."""
    if lm.ledger_ is not None:
        return lm.ledger_
    if any("fold" in row for row in lm.log_):
        why = "its weights were trained by backpropagation and no longer follow from counts"
    elif lm.config.tune:
        why = "tuning counted its decoder with several encoders, over parts of the text"
    elif lm.config.calibrate:
        why = "measured exponents are part of its weights, which no longer follow from counts alone"
    else:
        why = "it keeps no ledger of the documents it has counted"
    remedy = (
        "fit one of another preset"
        if lm.config.calibrate
        else "fit one with its encoder (saffu train --encoder, SaffuLM(encoder=…))"
    )
    raise SaffuError(f"this model cannot change: {why}; {remedy}")


def difference(one: "SaffuLM", other: "SaffuLM") -> str:
    """Why two models do not share an encoder; empty if they do."""
    here, there = fingerprints(one), fingerprints(other)
    if here["tokenizer"] != there["tokenizer"]:
        return "their tokenizers differ; fit one with the encoder of the other"
    settings, others = one.config.to_dict(), other.config.to_dict()
    if changed := [name for name, value in settings.items() if value != others[name]]:
        return f"{changed[0]} is {settings[changed[0]]} in one and {others[changed[0]]} in the other"
    if here["encoder"] != there["encoder"]:
        return "their encoders were fitted on different text; fit one with the encoder of the other"
    return ""


def fingerprints(lm: "SaffuLM") -> dict[str, str]:
    """Hashes of the tokenizer and of the encoder, which tell whether models can be merged."""
    decoder = {"M"} if lm.config.hidden_dimension else {"log_prior", *(f"units.{n}.U" for n in ("block", "radius"))}
    state = lm.network_.state_dict()
    if isinstance(lm.network_, Product):
        decoder = {name for name in state if name == "prior" or name.startswith("counts.")}
    digest = hashlib.sha256(json.dumps(lm.config.to_dict(), sort_keys=True).encode())
    for name in sorted(state.keys() - decoder):
        weight = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.numpy().tobytes())
    tokenizer = hashlib.sha256(lm.tokenizer_.to_json().encode())
    return {"tokenizer": tokenizer.hexdigest(), "encoder": digest.hexdigest()}


def _solved(encoder: "SaffuLM", tally: Tally) -> "SaffuLM":
    """The model with this encoder and the decoder that follows from the tally. Nothing of the given one is changed."""
    lm = copy.copy(encoder)
    lm.frequencies_, lm.counts_ = tally.frequencies, tally.layers
    lm.trained_on_ = dict(tally.trained_on)
    if isinstance(encoder.network_, Product):
        product, prior = encoder.network_.to("cpu"), log_prior(tally.frequencies)
        lm.network_ = Product(lm.config, tally.views, product.classes, prior, product.exponents).to(lm.device)
        lm.references_ = lm.network_.references() or tally.references
        return lm
    lm.network_ = copy.deepcopy(encoder.network_)
    counts = {layer: on_device(counts, lm.device) for layer, counts in tally.layers.items()}
    ExplicitFit.of(lm.network_).solve_last(counts, tally.frequencies.to(lm.device))
    if lm.config.store == "float16":  # as `fit` does
        lm.network_.load_state_dict(store.narrowed(lm.network_.state_dict()))
    lm.references_ = tally.references
    return lm


def _become(lm: "SaffuLM", changed: "SaffuLM") -> None:
    """All at once, so that whatever fails before leaves the model as it was."""
    changed.trained_on_ = {**lm.trained_on_, **changed.trained_on_}
    vars(lm).update(vars(changed))


def _tokenized(lm: "SaffuLM", documents: "Text") -> TokenCorpus:
    corpus = lm.tokenize(documents)
    if corpus.targets == 0:
        raise SaffuError("the text holds no documents; give files with at least one non-empty line")
    return corpus


def _row(stage: str, corpus: TokenCorpus, began: float) -> dict[str, Any]:
    return {"stage": stage, "documents": corpus.documents, "tokens": corpus.targets, **_seconds(began)}


def _seconds(began: float) -> dict[str, float]:
    return {"seconds": round(time.perf_counter() - began, 3)}
