"""One step of Adam on the paper's network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from saffu.errors import SaffuError
from saffu.interface import Array
from saffu.paper.config import TrainingConfig
from saffu.paper.network import Network, Tables
from saffu.paper.windows import Targets


class AdamStep:
    """Callable with targets; changes the weights of a network in place."""

    def __init__(self, network: Network, settings: TrainingConfig):
        self.network = network
        self.settings = settings
        network.requires_grad_(True)
        network.set_dropout(settings.dropout)
        if settings.trains_embeddings:
            train_embeddings(network)
        on_gpu = network.device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            network.parameters(), lr=settings.learning_rate, fused=True, capturable=on_gpu
        )
        self.narrow = settings.matmul_dtype == "bfloat16" or (settings.matmul_dtype == "auto" and on_gpu)
        if self.narrow and not on_gpu:
            require_bfloat16()
        self.tables: Tables | None = None  # of embeddings that are not trained

    def __call__(self, targets: Targets) -> Tensor:
        """Return −Σ log p of the targets before the step, on the device."""
        if self.tables is None and not self.settings.trains_embeddings:
            self.tables = self.network.tables(decode=False)
        self.network.train()
        self.optimizer.zero_grad()
        with parametrize.cached():
            loss = total_loss(self.network, targets, self.tables, self.narrow)
        (loss / self.settings.batch_size).backward()  # a short last batch weighs less
        if self.settings.max_grad_norm:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        return loss.detach()

    def arrays(self) -> dict[str, Array]:
        """The network's weights and Adam's moments, by name."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": moment for name, moment in moments.items()}
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Return to the state that `arrays` described. Raises KeyError, ValueError, or RuntimeError if it cannot."""
        network: dict[str, Tensor] = {}
        adam: dict[int, dict[str, Tensor]] = {}
        for key, array in arrays.items():
            kind, name = key.split(".", 1)
            if kind == "network":
                network[name] = torch.from_numpy(array)
            else:
                number, moment = name.split(".")
                adam.setdefault(int(number), {})[moment] = torch.from_numpy(array)
        self.network.load_state_dict(network)
        self.tables = None
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": adam})


def total_loss(network: Network, targets: Targets, tables: Tables | None, narrow: bool) -> Tensor:
    """Return −Σ log p of targets; if `narrow`, multiply by the final decoder in bfloat16."""
    hidden = network.hidden(targets, tables)
    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=narrow):
        logits = network.decode(hidden)
    return nn.functional.cross_entropy(logits.to(hidden.dtype), targets.ids, reduction="sum")


class Simplex(nn.Module):
    """E = softmax(parameters): rows of E stay positive and sum to 1, whatever a step does."""

    def forward(self, parameters: Tensor) -> Tensor:
        return torch.softmax(parameters, dim=1)

    def right_inverse(self, embeddings: Tensor) -> Tensor:
        return torch.log(embeddings)


def train_embeddings(network: Network) -> None:
    """Turn the embeddings, which are constants, into trainable weights."""
    for unit in network.units.values():
        embeddings: Any = unit.E
        del unit.E
        unit.register_parameter("E", nn.Parameter(embeddings))
        parametrize.register_parametrization(unit, "E", Simplex())


@torch.no_grad()
def copy_weights(trained: Network, plain: Network) -> None:
    """Copy all weights of a network whose embeddings may be trained into one whose embeddings are constants."""
    weights = dict(trained.named_parameters())
    for name, weight in plain.named_parameters():
        weight.copy_(weights[name])
    for name, unit in plain.units.items():
        embeddings: Any = unit.E
        embeddings.copy_(trained.units[name].E)


def require_bfloat16() -> None:
    """Some CPUs advertise bfloat16 instructions that crash when executed, so probe them in a subprocess."""
    attempt = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"
    if subprocess.run([sys.executable, "-c", attempt], capture_output=True, check=False).returncode:
        raise SaffuError("this CPU cannot multiply in bfloat16; use `matmul_dtype` float32")
