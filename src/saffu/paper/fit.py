"""The explicit solution of a whole network: count, then solve, layer by layer from the bottom up (Sec. 2.4, 4).

*Initialization* solves attention from V̂, then the units' decoders, the document model, and the final decoder.
*Tuning* does the same on a further fold, with V of the decoders solved so far in place of V̂.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from saffu.errors import SaffuError
from saffu.interface import Array, Stage
from saffu.paper import cipher, counting, solving
from saffu.paper.config import COUNTED_MARKERS, PaperConfig
from saffu.paper.counting import counting_network
from saffu.paper.model import PaperModel, PaperSums
from saffu.paper.network import Network
from saffu.paper.sums import Counts
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import FRG, PAD, SOD

FAINT = 1e-4  # as good as zero for the embedding of `<pad>`, but its logarithm exists


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
    if not corpus.targets:
        raise SaffuError("there is no text to count; pass at least one document")
    frequencies = corpus.frequencies(vocabulary)
    network = unsolved_network(corpus, vocabulary, config, device, embeddings)
    network = counting_network(network).requires_grad_(False)
    bits = cipher.bit_vectors(torch.from_numpy(frequencies), config.hidden_dimension, "hidden_dimension")
    bits = bits.double().to(device)  # Z (N, D_H)
    folds = corpus.folds(config.fold_tokens) if config.tune_folds else [corpus]
    counts: dict[str, Counts] = {}  # by layer
    for number in range(config.tune_folds + 1):
        fold = folds[number % len(folds)]
        targets = torch.from_numpy(frequencies).to(device) if number == 0 else None
        if targets is None or config.attention == "explicit":
            restart = number == 1 and config.restart_attention
            counted = counting.count_attention(network, fold, bits, targets)
            for name, new in counted.items():
                total = _added(counts, f"{name}.attention", new, restart)
                remedy = "tune over fewer folds" if number else "use `attention` uniform"
                W = solving.solve_attention(total, config, f"V outgrew its bound c in the {name} unit: {remedy}")
                network.units[name].W.copy_(solving.stored(W, config))
        restart = not config.accumulate
        for name, new in counting.count_decoders(network, fold, bits).items():
            total = _added(counts, f"{name}.decoder", new, restart)
            unit = network.units[name]
            unit.U.copy_(solving.stored(solving.solve_decoder(total, unit.slots, config), config))
        if network.document is not None:
            new = counting.count_documents(network, fold)
            total = _added(counts, "document", new, restart)
            network.document.D.copy_(solving.stored(solving.solve_documents(total, config), config))
        F = counting.count_final(network, fold)
        total = _added(counts, "final", Counts(F, 0.0, fold.targets), restart)
        network.M.copy_(solving.stored(solving.solve_final(total.F, config), config))
        sums = None if config.tune_folds else PaperSums(total.F.cpu().numpy(), frequencies)
        model = PaperModel(copy.deepcopy(network).float(), frequencies, sums)
        yield Stage(f"tune {number}" if number else "init", model, {"least_attention": _least_attention(counts)})


def unsolved_network(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    device: torch.device | str = "cpu",
    embeddings: Array | None = None,
) -> Network:
    """A network that knows the embeddings of a corpus; its attention is uniform and its decoders are zero."""
    by_unit = {}
    if embeddings is not None:
        if len(embeddings) != vocabulary:
            raise SaffuError(
                f"embeddings have {len(embeddings)} rows but the vocabulary has {vocabulary} tokens; "
                "pass one row per token id"
            )
        by_unit = dict.fromkeys(config.units(), cipher.coerced_embeddings(torch.tensor(embeddings)))
    else:
        by_unit = {name: unit_embeddings(name, corpus, vocabulary, config) for name in config.units()}
    return Network(config, {name: E.float().to(device) for name, E in by_unit.items()}, vocabulary)


def unit_embeddings(unit: str, corpus: TokenCorpus, vocabulary: int, config: PaperConfig) -> Tensor:
    """E (N, D) of a unit: noised bit-vectors, float64."""
    seen = noise_frequencies(unit, corpus, vocabulary, config)
    bits = cipher.bit_vectors(seen, config.units()[unit].dimension, f"{unit}_dimension")
    E = cipher.noised_embeddings(bits, seen)
    if config.special_noise in ("zero", "zero-padding") or (config.special_noise, unit) == ("masked", "block"):
        E[PAD] *= FAINT
    return E


def noise_frequencies(unit: str, corpus: TokenCorpus, vocabulary: int, config: PaperConfig) -> Tensor:
    """f (N,) of a unit's noise model. `<pad>`, `<sod>`, and `<frg>` are never targets, so they have f = 0.

    With `special_noise` counted, they have the number of documents, and `<frg>` that of later blocks. A radius without
    the markers of blocks never sees `<frg>`, so the block size must not affect its embeddings. With "padding" and
    "zero-padding", `<pad>` alone has f = 0; with "counted-padding", and in the radius with "masked", the markers alone.
    """
    f = torch.from_numpy(corpus.frequencies(vocabulary))
    if config.special_noise in ("counted", "counted-padding") or (config.special_noise, unit) == ("masked", "radius"):
        f[PAD] = corpus.documents
    if config.special_noise in COUNTED_MARKERS:
        f[SOD] = corpus.documents
        sees_blocks = unit == "block" or config.radius_span in ("block", "blocks")
        f[FRG] = max(1, fragments(corpus, config)) if config.block and sees_blocks else 1
    return f


def fragments(corpus: TokenCorpus, config: PaperConfig) -> int:
    """The number of blocks that begin with `<frg>`: all but the first of each document."""
    last = np.diff(corpus.starts) - 1  # place of each document's last target
    if config.block_advance == "shifted":
        last = np.maximum(last - 1, 0)
    return int((last // (config.block - 1)).sum())


def _added(counts: dict[str, Counts], layer: str, new: Counts, restart: bool) -> Counts:
    """Add new counts to those of a layer, or replace them, and return the result."""
    counts[layer] = new if restart or layer not in counts else counts[layer] + new
    return counts[layer]


def _least_attention(counts: dict[str, Counts]) -> dict[str, float]:
    """The smallest entry of F(Q, V) per target, by unit."""
    attention = {layer.partition(".")[0]: c for layer, c in counts.items() if layer.endswith(".attention")}
    return {name: float(c.F.min()) / c.targets for name, c in attention.items()}
