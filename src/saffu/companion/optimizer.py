"""Muon for matrices, AdamW for the rest.

Muon (Jordan 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, found by five Newton–Schulz
steps. Here matrices of one shape are stacked in one parameter (…, rows, columns) and take these steps together: on a
GPU, dozens of small products become three large ones. `torch.optim.Muon`, which takes one matrix at a time, is the
reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from saffu.companion.gate import Gates
from saffu.companion.network import NetworkStack

MATRIX_RATE, EMBEDDING_RATE, VECTOR_RATE = 0.01, 2e-3, 1e-2
EMBEDDING_DECAY = 1 / 6  # of the weight decay of matrices
BETAS = (0.9, 0.95)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of Newton–Schulz steps, as in torch.optim.Muon
ROUNDS = 5  # of them


class Muon(torch.optim.Optimizer):
    """Muon over stacks of matrices; its updates are as large as AdamW's (Liu et al. 2025, as `match_rms_adamw`)."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: Tensor,
        weight_decay: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype  # of Newton–Schulz steps

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                average = self.state[weight].setdefault("momentum_buffer", torch.zeros_like(weight))
                average.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonal(weight.grad.lerp(average, group["momentum"]), self.dtype)
                scale = 0.2 * max(weight.shape[-2:]) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(update * (group["lr"] * scale))


def orthogonal(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """About the nearest matrices (…, rows, columns) whose singular values are all one."""
    a, b, c = COEFFICIENTS
    x = matrices.reshape(-1, *matrices.shape[-2:]).to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype).view_as(matrices)


@torch.no_grad()
def clip_gradients(weights: Sequence[Tensor], limit: float) -> None:
    """Scale the gradients of each network, the first dimension of all weights, to a norm of at most `limit`.

    >>> weight = torch.nn.Parameter(torch.zeros(2, 2))
    >>> weight.grad = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> clip_gradients([weight], 1.0)
    >>> weight.grad
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    squares = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in gradients])
    factor = (limit / squares.sum(0).sqrt().clamp(min=limit)).clamp(max=1.0)  # (K,)
    for gradient in gradients:
        gradient.mul_(factor.view(-1, *[1] * (gradient.dim() - 1)))


class Optimizer:
    """Both optimizers in one. Learning rates are tensors, so that a captured CUDA graph follows the schedule."""

    def __init__(self, network: NetworkStack, gate: Gates, weight_decay: float, factor: float) -> None:
        """`factor` multiplies all learning rates."""
        self.parameters = [*network.parameters(), *gate.parameters()]
        matrices = [network.attention, network.mlp, network.output_map]
        named = {id(weight) for weight in [*matrices, network.embedding, network.spelling]}
        vectors = [weight for weight in self.parameters if id(weight) not in named]
        device = network.embedding.device
        self.rates: list[tuple[Tensor, float]] = []

        def rate(value: float) -> Tensor:
            self.rates.append((torch.tensor(value * factor, device=device), value * factor))
            return self.rates[-1][0]

        groups = [
            {"params": [network.embedding], "lr": rate(EMBEDDING_RATE), "weight_decay": weight_decay * EMBEDDING_DECAY},
            {"params": vectors, "lr": rate(VECTOR_RATE)},
        ]
        if network.spelling is not None:
            groups.append(groups[0] | {"params": [network.spelling]})
        fused = device.type == "cuda"
        adam = torch.optim.AdamW(groups, betas=BETAS, weight_decay=0.0, fused=fused, capturable=fused)
        muon = Muon(matrices, rate(MATRIX_RATE), weight_decay, dtype=network.training_dtype)
        self.all: dict[str, torch.optim.Optimizer] = {"adam": adam, "muon": muon}

    def set_rate(self, factor: float) -> None:
        """Scale all learning rates."""
        for tensor, value in self.rates:
            tensor.fill_(value * factor)

    def step(self) -> None:
        """Clip the gradients of each network, take a step, and clear them."""
        clip_gradients(self.parameters, 1.0)
        for optimizer in self.all.values():
            optimizer.step()
        for optimizer in self.all.values():
            optimizer.zero_grad(set_to_none=True)

    def arrays(self) -> dict[str, Tensor]:
        """The state, by parameter number and name."""
        stored: dict[str, Tensor] = {}
        for kind, optimizer in self.all.items():
            for number, values in optimizer.state_dict()["state"].items():
                stored |= {f"{kind}.{number}.{name}": value for name, value in values.items()}
        return stored

    def load(self, arrays: dict[str, Tensor]) -> None:
        """Restore the state that `arrays` returned."""
        for kind, optimizer in self.all.items():
            state = optimizer.state_dict()
            for name, value in arrays.items():
                of, number, key = name.split(".")
                if of == kind:
                    state["state"].setdefault(int(number), {})[key] = value
            rates = [group["lr"] for group in optimizer.param_groups]
            optimizer.load_state_dict(state)
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate  # the tensor that `set_rate` changes
