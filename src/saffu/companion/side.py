"""The networks in torch, to train them or to score text on a GPU: from counts, or from stored arrays."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from saffu.calibrated.model import CalibratedModel
from saffu.companion.config import CompanionConfig
from saffu.companion.counted_start import counted_start
from saffu.companion.gate import Gates
from saffu.companion.network import NetworkStack
from saffu.companion.networks import Networks, Scores
from saffu.companion.scoring import Flat, score
from saffu.companion.weights import PREFIX
from saffu.errors import SaffuError
from saffu.interface import Array, Floats
from saffu.text.corpus import TokenCorpus

if TYPE_CHECKING:
    from saffu.companion.model import CompanionModel

_ON_DEVICE: WeakKeyDictionary[Networks, TrainedSide] = WeakKeyDictionary()  # copies of networks that score there


class TrainedSide:
    """Networks and their gates on a device."""

    def __init__(self, network: NetworkStack, gate: Gates, device: torch.device) -> None:
        self.network = network.to(device)
        self.gate = gate.to(device)
        self.device = device

    @classmethod
    def plain(cls, config: CompanionConfig, counted: CalibratedModel, device: torch.device) -> TrainedSide:
        """With random weights, drawn from torch's generator."""
        frequencies = counted.frequencies + 0.5
        classes = counted.encoder.output_classes if config.class_first else None
        log_prior = np.log(frequencies / frequencies.sum())
        number = max(1, config.networks)
        dropout = config.network_dropout or 0.0
        network = NetworkStack(log_prior, config.depth, config.context, dropout, classes, number)
        network.training_dtype, network.scoring_dtype = dtypes(config.precision, device)
        return cls(network, Gates(network.width, number), device)

    @classmethod
    def start(cls, config: CompanionConfig, counted: CalibratedModel, device: torch.device) -> TrainedSide:
        """The side that training starts from."""
        side = cls.plain(config, counted, torch.device("cpu"))  # the same random weights on every device
        counted_start(side.network, counted, config.network_start)
        side.network.training_dtype, side.network.scoring_dtype = dtypes(config.precision, device)
        return cls(side.network, side.gate, device)

    @classmethod
    def from_arrays(
        cls, config: CompanionConfig, counted: CalibratedModel, arrays: Mapping[str, Array], device: torch.device
    ) -> TrainedSide:
        side = cls.plain(config, counted, device)
        side.load(arrays)
        side.network.eval()
        return side

    def arrays(self) -> dict[str, Array]:
        """All weights, by name."""
        parts = {"network": self.network, "gate": self.gate}
        return {
            f"{PREFIX}{part}.{name}": weight.detach().cpu().numpy().copy()
            for part, module in parts.items()
            for name, weight in module.named_parameters()
        }

    def networks(self, counted: CalibratedModel) -> Networks:
        """A copy that needs no torch, for the model whose counts are given."""
        return Networks(self.arrays(), self.network.context, counted.ranks)

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the weights that `arrays` returned, in place."""
        for part, module in {"network": self.network, "gate": self.gate}.items():
            for name, weight in module.named_parameters():
                stored = arrays.get(f"{PREFIX}{part}.{name}")
                if stored is None and name == "head_gate":  # version 0.2 had none
                    weight.data.zero_()
                    continue
                if stored is not None and stored.ndim == weight.dim() - 1:  # version 0.2 had one network
                    stored = stored[None]
                if stored is None or stored.shape != tuple(weight.shape) or stored.dtype != np.float32:
                    raise SaffuError("the network's weights do not fit its settings; restore the folder or train again")
                weight.data.copy_(torch.from_numpy(np.array(stored)))

    def copy(self) -> TrainedSide:
        """An independent copy, ready to predict."""
        network = copy.deepcopy(self.network)
        network.eval()
        return TrainedSide(network, copy.deepcopy(self.gate), self.device)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.network.parameters(), *self.gate.parameters()]

    @property
    def size(self) -> int:
        return sum(weight.numel() for weight in self.parameters())


def dtypes(precision: str, device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """What a network computes with while it is trained, and while it scores.

    A CPU always scores in float32, so that scores do not depend on how text is divided into batches.

    >>> dtypes("bfloat16", torch.device("cpu"))
    (torch.bfloat16, torch.float32)
    """
    on_gpu = device.type == "cuda"
    fast = on_gpu or getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    short = precision == "bfloat16" or (precision == "auto" and fast)
    training = torch.bfloat16 if short else torch.float32
    return training, training if on_gpu else torch.float32


def score_on_device(
    model: CompanionModel, corpus: TokenCorpus, counted: Floats, certainty: Array, progress: str | None
) -> Scores:
    """`Networks.score`, in torch, on the device of the model."""
    assert model.side is not None
    if model.side not in _ON_DEVICE:
        device = torch.device(model.device)
        _ON_DEVICE[model.side] = TrainedSide.from_arrays(
            model.config, model.counted, model.side.restored_arrays(), device
        )
    side = _ON_DEVICE[model.side]
    scores = score(side.network, side.gate, corpus, Flat(corpus, counted, certainty, side.device), progress)
    return Scores(scores.mixture, scores.network)
