"""The explicit solution of a whole network: count, then solve, layer by layer from the bottom up (Sec. 2.4, 4).

*Initialization* solves attention from V̂, then the units' decoders, the document model, and the final decoder.
*Tuning* does the same on a further fold, with V of the decoders solved so far in place of V̂.

Embeddings E and bits Z follow from the frequencies of all of the text, as the vocabulary does; everything else follows
from the folds seen so far. The counts behind U, D, and M accumulate over folds; F(Q, V) begins anew with the first
tuning, because V̂ and V are different targets. Each fold is divided into Δ shards, and shard δ of every fold has the
same column of D.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.format import plural
from saffu.interface import Array, Stage
from saffu.paper import cipher, counting, solving
from saffu.paper.config import PaperConfig
from saffu.paper.model import PaperModel
from saffu.paper.network import Network
from saffu.paper.sums import Counts
from saffu.text.corpus import TokenCorpus


def fit(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    device: torch.device | str = "cpu",
    embeddings: Array | None = None,
) -> Iterator[Stage]:
    """Fit a model, stage by stage: "init", then "tune 1", "tune 2", …

    `embeddings` (N, D) are word vectors to use instead of the bit-cipher's.
    """
    frequencies = corpus.frequencies(vocabulary)
    for number, (network, counts) in enumerate(solve(corpus, vocabulary, config, device, embeddings)):
        model = PaperModel(copy.deepcopy(network).float(), frequencies)
        yield Stage(f"tune {number}" if number else "init", model, {"least_attention": _least_attention(counts)})


def solve(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    device: torch.device | str = "cpu",
    embeddings: Array | None = None,
) -> Iterator[tuple[Network, dict[str, Counts]]]:
    """Solve a network; after each stage, yield it with the counts of its layers. Both change with the next stage."""
    if not corpus.targets:
        raise SaffuError("there is no text to count; pass at least one document")
    network = unsolved_network(corpus, vocabulary, config, device, embeddings).requires_grad_(False)
    frequencies = torch.from_numpy(corpus.frequencies(vocabulary))
    bits = cipher.bit_vectors(frequencies, config.hidden_dimension, "hidden_dimension")
    bits = bits.double().to(device)  # Z (N, D_H)
    counts: dict[str, Counts] = {}  # by layer
    for number, fold in enumerate(folds_of(corpus, config)):
        observed = None if number else torch.from_numpy(fold.frequencies(vocabulary)).to(device)  # f, for ȳ
        if number or config.attention == "explicit":
            for name, new in counting.count_attention(network, fold, bits, observed).items():
                total = _added(counts, f"{name}.attention", new, restart=number == 1)
                remedy = "tune over fewer folds" if number else "use `attention` uniform"
                W = solving.solve_attention(total, config, f"V outgrew its bound c in the {name} unit: {remedy}")
                network.units[name].W.copy_(W)
        for name, new in counting.count_decoders(network, fold, bits).items():
            total = _added(counts, f"{name}.decoder", new)
            unit = network.units[name]
            unit.U.copy_(solving.solve_decoder(total, unit.slots, config))
        if network.document is not None:
            total = _added(counts, "document", counting.count_documents(network, fold))
            network.document.D.copy_(solving.solve_documents(total, config))
        final = Counts(counting.count_final(network, fold), 0.0, fold.targets)
        network.M.copy_(solving.solve_final(_added(counts, "final", final).F, config))
        yield network, counts


def folds_of(corpus: TokenCorpus, config: PaperConfig) -> list[TokenCorpus]:
    """The parts that initialize and tune a model: all of the corpus without tuning, otherwise the first folds of it."""
    if not config.tune_folds:
        return [corpus]
    folds = corpus.folds(config.fold_tokens)
    if len(folds) <= config.tune_folds:
        raise SaffuError(
            f"the text has {plural(len(folds), 'fold')} of about {config.fold_tokens:,} targets, but `tune_folds` "
            f"{config.tune_folds} needs {config.tune_folds + 1}; lower `tune_folds` or `fold_tokens`"
        )
    return folds[: config.tune_folds + 1]


def unsolved_network(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    device: torch.device | str = "cpu",
    embeddings: Array | None = None,
) -> Network:
    """A network that knows the embeddings of a corpus; its attention is uniform and its decoders are zero."""
    if embeddings is not None:
        if len(embeddings) != vocabulary:
            raise SaffuError(
                f"embeddings have {len(embeddings)} rows but the vocabulary has {vocabulary} tokens; "
                "pass one row per token id"
            )
        by_unit = dict.fromkeys(config.units(), cipher.coerced_embeddings(torch.tensor(embeddings)))
    else:
        by_unit = {name: unit_embeddings(name, corpus, vocabulary, config) for name in config.units()}
    dtype = getattr(torch, config.dtype)
    return Network(config, {name: E.to(device, dtype) for name, E in by_unit.items()}, vocabulary)


def unit_embeddings(unit: str, corpus: TokenCorpus, vocabulary: int, config: PaperConfig) -> Tensor:
    """E (N, D) of a unit: noised bit-vectors, float64.

    `<pad>`, `<sod>`, and `<frg>` are never targets, so they have f = 0, and their embedding is the noise p itself, as
    that of every token that does not occur.
    """
    f = torch.from_numpy(corpus.frequencies(vocabulary))
    return cipher.noised_embeddings(cipher.bit_vectors(f, config.units()[unit].dimension, f"{unit}_dimension"), f)


def _added(counts: dict[str, Counts], layer: str, new: Counts, restart: bool = False) -> Counts:
    """Add new counts to those of a layer, or replace them, and return the result."""
    counts[layer] = new if restart or layer not in counts else counts[layer] + new
    return counts[layer]


def _least_attention(counts: dict[str, Counts]) -> dict[str, float]:
    """The smallest entry of F(Q, V) per target, by unit."""
    attention = {layer.partition(".")[0]: c for layer, c in counts.items() if layer.endswith(".attention")}
    return {name: float(c.F.min()) / c.targets for name, c in attention.items()}
