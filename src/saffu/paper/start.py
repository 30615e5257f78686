"""Where training starts from: the explicit solution of the paper (warm), or random weights (cold)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from saffu.errors import SaffuError
from saffu.interface import Stage
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.paper.fit import fit, unsolved_network
from saffu.paper.model import PaperModel
from saffu.paper.network import Network
from saffu.text.corpus import TokenCorpus
from saffu.training.run import seed_of


def start(
    corpus: TokenCorpus,
    vocabulary: int,
    config: PaperConfig,
    training: TrainingConfig,
    device: str = "cpu",
) -> Iterator[Stage]:
    """Fit the model that training starts from: `paper.fit` on a share of the documents, or random weights."""
    if training.init == "explicit":
        counted = corpus if training.count_share == 1 else corpus.split(training.count_share)[0]
        if not counted.targets:
            raise SaffuError("no documents are left for the explicit solution; raise `count_share` or add text")
        yield from fit(counted, vocabulary, config, device)
        return
    network = unsolved_network(corpus, vocabulary, config, device).float()
    randomize(network, training)
    yield Stage("random", PaperModel(network, corpus.frequencies(vocabulary)), {})


@torch.no_grad()
def randomize(network: Network, training: TrainingConfig) -> None:
    """Draw all weights from normal distributions of standard deviation init_scale/√fan_in.

    Random embeddings are softmax(normal): all rows, that of `<pad>` included, are positive and sum to 1, like the
    bit-cipher's.
    """
    generator = torch.Generator().manual_seed(seed_of(training.seed, "random start"))
    for weight in network.parameters():
        normal = torch.randn(weight.shape, generator=generator)
        weight.copy_(normal * training.init_scale / math.sqrt(weight.shape[0]))
    if training.trains_embeddings:
        for unit in network.units.values():
            unit.E.copy_(torch.softmax(torch.randn(unit.E.shape, generator=generator), dim=1))
