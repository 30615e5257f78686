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
from saffu.companion.scoring import DeviceCorpus, score
from saffu.companion.spelling import Spellings
from saffu.companion.weights import PREFIX
from saffu.errors import SaffuError
from saffu.interface import Array, Floats
from saffu.text.corpus import TokenCorpus

if TYPE_CHECKING:
    from saffu.companion.model import CompanionModel

_ON_DEVICE: WeakKeyDictionary[Networks, TorchNetworks] = WeakKeyDictionary()  # copies of networks that score there


class TorchNetworks:
    """Networks and their gates on a device."""

    def __init__(self, stack: NetworkStack, gates: Gates, device: torch.device) -> None:
        self.stack = stack.to(device)
        self.gates = gates.to(device)
        self.device = device

    @classmethod
    def plain(
        cls,
        config: CompanionConfig,
        counted: CalibratedModel,
        device: torch.device,
        spellings: Spellings | None = None,
    ) -> TorchNetworks:
        """With random weights, drawn from torch's generator."""
        frequencies = counted.frequencies + 0.5
        classes = counted.encoder.output_classes if config.class_first else None
        log_prior = np.log(frequencies / frequencies.sum())
        number = max(1, config.networks)
        dropout = config.network_dropout or 0.0
        stack = NetworkStack(log_prior, config.depth, config.context, dropout, classes, number, spellings)
        stack.training_dtype, stack.scoring_dtype = dtypes(device)
        return cls(stack, Gates(stack.width, number), device)

    @classmethod
    def start(
        cls,
        config: CompanionConfig,
        counted: CalibratedModel,
        device: torch.device,
        spellings: Spellings | None = None,
    ) -> TorchNetworks:
        """The networks that training starts from."""
        networks = cls.plain(config, counted, torch.device("cpu"), spellings)  # the same random weights on every device
        counted_start(networks.stack, counted)
        networks.stack.training_dtype, networks.stack.scoring_dtype = dtypes(device)
        return cls(networks.stack, networks.gates, device)

    @classmethod
    def from_arrays(
        cls,
        config: CompanionConfig,
        counted: CalibratedModel,
        arrays: Mapping[str, Array],
        device: torch.device,
        spellings: Spellings | None = None,
    ) -> TorchNetworks:
        networks = cls.plain(config, counted, device, spellings)
        networks.load(arrays)
        networks.stack.eval()
        return networks

    def arrays(self) -> dict[str, Array]:
        """The weights of a model, by name: what tokens owe to their spelling is part of their embeddings."""
        weights = self.trained_arrays()
        if weights.pop(f"{PREFIX}network.spelling", None) is not None:
            weights[f"{PREFIX}network.embedding"] = self.stack.embeddings().detach().cpu().numpy()
        return weights

    def trained_arrays(self) -> dict[str, Array]:
        """All weights as they are trained, by name."""
        parts = {"network": self.stack, "gate": self.gates}
        return {
            f"{PREFIX}{part}.{name}": weight.detach().cpu().numpy().copy()
            for part, module in parts.items()
            for name, weight in module.named_parameters()
        }

    def without_torch(self, counted: CalibratedModel) -> Networks:
        """A copy that needs no torch, for the model whose counts are given."""
        return Networks(self.arrays(), self.stack.context, counted.ranks)

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Restore the weights that `arrays` or `trained_arrays` returned, in place."""
        for part, module in {"network": self.stack, "gate": self.gates}.items():
            for name, weight in module.named_parameters():
                stored = arrays.get(f"{PREFIX}{part}.{name}")
                if stored is None and name == "spelling":  # which is part of the embedding
                    weight.data.zero_()
                    continue
                if stored is None or stored.shape != tuple(weight.shape) or stored.dtype != np.float32:
                    raise SaffuError("the network's weights do not fit its settings; restore the folder or train again")
                weight.data.copy_(torch.from_numpy(np.array(stored)))

    def copy(self) -> TorchNetworks:
        """An independent copy, ready to predict."""
        stack = copy.deepcopy(self.stack)
        stack.eval()
        return TorchNetworks(stack, copy.deepcopy(self.gates), self.device)

    def parameters(self) -> list[nn.Parameter]:
        return [*self.stack.parameters(), *self.gates.parameters()]

    @property
    def size(self) -> int:
        return sum(weight.numel() for weight in self.parameters())


def dtypes(device: torch.device) -> tuple[torch.dtype, torch.dtype]:
    """What a network computes with while it is trained, and while it scores.

    A CPU trains in bfloat16 if it has instructions for it. It always scores in float32, so that scores do not depend on
    how text is divided into batches.
    """
    if device.type == "cuda":
        return torch.bfloat16, torch.bfloat16
    fast = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return torch.bfloat16 if fast else torch.float32, torch.float32


def score_on_device(
    model: CompanionModel, corpus: TokenCorpus, counted: Floats, certainty: Array, progress: str | None
) -> Scores:
    """`Networks.score`, in torch, on the device of the model."""
    assert model.networks is not None
    if model.networks not in _ON_DEVICE:
        device = torch.device(model.device)
        _ON_DEVICE[model.networks] = TorchNetworks.from_arrays(
            model.config, model.counted, model.networks.restored_arrays(), device
        )
    networks = _ON_DEVICE[model.networks]
    scores = score(
        networks.stack, networks.gates, corpus, DeviceCorpus(corpus, counted, certainty, networks.device), progress
    )
    return Scores(scores.mixture, scores.network)
