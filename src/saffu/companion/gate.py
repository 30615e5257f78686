"""The gates: how much of a prediction comes from the networks.

    p   = mean over networks k of g_k·p_k + (1 − g_k)·p_counted
    g_k = σ(w_k · [h_k, entropy, largest log-probability, ln(1 + age), exp(−age / 32)] + a_k)

where h_k is the network's state, the next two numbers measure how certain the counted model is, for any target, and the
last two say how much of the document it remembers. A gate starts at w = 0 and the constant that fits the untrained
network best (`constant_gate`). The loss of each network is −log(g_k·p_k + (1 − g_k)·p_counted) − w log p_k: the second
term keeps it learning where the counted model is already right. Networks are trained as if each were alone; only their
predictions are averaged. Without torch, `networks.py` mixes in the same way.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saffu.companion.weights import CERTAINTIES

LEAST = 0.005  # weight of either side at the start
SHUT = -20.0  # logit of a gate that uses only the counts
CLEAR = 2.0  # standard errors above which a gain counts as real
LEANS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)  # of gates toward the networks at the start of a document
LEAN_COST = 0.02  # of what networks gain there over the counts: how much a lean may cost
OWN_WEIGHT = {"cpu": 0.5, "cuda": 2.0}  # of the network's own loss: a small one had better learn what the counts lack


class Gates(nn.Module):
    """For each network, a logistic regression on its state and on the counted model's certainty."""

    def __init__(self, width: int, number: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(number, width + CERTAINTIES))
        self.bias = nn.Parameter(torch.full((number,), -2.0))

    def forward(self, hidden: Tensor, certainty: Tensor) -> Tensor:
        """The logits (K, n) from states (K, n, d) and certainties (K, n, 4), or (n, 4) for all networks."""
        width = hidden.shape[-1]
        of_states = hidden.float() @ self.weight[:, :width, None]  # (K, n, 1)
        of_certainty = certainty @ self.weight[:, width:, None]
        return (of_states + of_certainty).squeeze(-1) + self.bias[:, None]

    @torch.no_grad()
    def calibrate(self, logit: Tensor, trained: Tensor, counted: Tensor, youth: Tensor) -> Tensor:
        """Change the gates, which gave `logit` (K, n), to those that are best for targets not trained on.

        `youth` (n,) is that of the targets' documents. Returns the new logits.
        """
        scale, constant = calibration(logit, trained, counted)
        logit = scale * logit + constant
        lean = 0.0 if constant == SHUT else lean_of(logit, trained, counted, youth)
        self.weight.mul_(scale)
        self.weight[:, -1] += lean
        self.bias.mul_(scale).add_(constant)
        return logit + lean * youth


def mixed(logit: Tensor, trained: Tensor, counted: Tensor) -> Tensor:
    """log p of the mixture with one network, from the gate's logit and both log-probabilities.

    >>> mixed(torch.tensor(0.0), torch.tensor(0.5).log(), torch.tensor(0.1).log()).exp()
    tensor(0.3000)
    """
    return torch.logaddexp(F.logsigmoid(logit) + trained, F.logsigmoid(-logit) + counted)


def averaged(log_p: Tensor) -> Tensor:
    """log of the mean probability over networks: (K, …) to (…).

    >>> averaged(torch.tensor([0.2, 0.4]).log()).exp()
    tensor(0.3000)
    """
    return torch.logsumexp(log_p, 0) - math.log(len(log_p))


def constant_gate(trained: Tensor, counted: Tensor, rounds: int = 50) -> float:
    """The logit of the constant g that makes targets most likely, found by expectation maximization.

    >>> trained, counted = torch.tensor([0.9, 0.1, 0.1, 0.1]).log(), torch.tensor([0.1, 0.9, 0.9, 0.9]).log()
    >>> round(1 / (1 + math.exp(-constant_gate(trained, counted))), 3)
    0.188
    >>> round(constant_gate(torch.zeros(4), torch.full((4,), -40.0)), 3)  # counts that predict nothing keep a little
    5.293
    """
    ratio = (counted - trained).double().exp()
    g = 0.5
    for _ in range(rounds):
        g = min(max(LEAST, float((g / (g + (1 - g) * ratio)).mean())), 1 - LEAST)
    return math.log(g / (1 - g))


def calibration(logit: Tensor, trained: Tensor, counted: Tensor) -> tuple[float, float]:
    """The a and b for which gates of a·logit + b make targets most likely, given `logit` and `trained` (K, n).

    The gate stays as it is unless that clearly helps, and is shut if it does not clearly help even then.

    >>> logit, counted = torch.tensor([[2.0, 2.0, -2.0, -2.0] * 100]), torch.full((400,), 0.1).log()
    >>> trained = torch.tensor([[0.9, 0.01, 0.9, 0.01] * 100]).log()  # right as often where the gate expects it least
    >>> "{:.2f}, {:.2f}".format(*calibration(logit, trained, counted))
    '0.00, -0.03'
    >>> calibration(logit * 0, trained, counted)  # nothing to improve
    (1.0, 0.0)
    >>> calibration(logit, torch.full((1, 400), 0.01).log(), counted)  # the network does not help
    (0.0, -20.0)
    """
    given = logit.double()
    trained = trained.double()
    counted = counted.double()
    start = torch.tensor([1.0, 0.0]).to(given)
    spread = torch.tensor([1.0, 3.0]).to(given)
    factors = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([factors], max_iter=30, line_search_fn="strong_wolfe")

    def gains() -> Tensor:
        return averaged(mixed(factors[0] * given + factors[1], trained, counted)) - counted

    def closure() -> float:
        optimizer.zero_grad()
        doubt = (factors - start).div(spread).square().sum() / (2 * len(counted))  # few targets prove little
        value = doubt - gains().mean()
        value.backward()
        return float(value.detach())

    optimizer.step(closure)
    fitted = (factors[0].item(), factors[1].item())
    gain = gains().detach()
    as_it_is = averaged(mixed(given, trained, counted)) - counted
    if not is_clear(gain - as_it_is):
        fitted = (1.0, 0.0)
        gain = as_it_is
    return fitted if is_clear(gain) else (0.0, SHUT)


def lean_of(logit: Tensor, trained: Tensor, counted: Tensor, youth: Tensor) -> float:
    """The largest lean toward the networks, lean·youth added to `logit` (K, n), that costs next to nothing.

    Counts prefer frequent phrases, whether or not a sentence is grammatical, so where a document begins, they should
    have a say only if that is worth more than a small share of what the networks gain.

    >>> half, tenth, youth = torch.tensor([[0.5] * 10]).log(), torch.tensor([0.1] * 10).log(), torch.ones(10)
    >>> lean_of(half * 0, half, tenth, youth), lean_of(half * 0, tenth[None], half[0], youth)
    (16.0, 0.0)
    """
    log_p = {lean: averaged(mixed(logit + lean * youth, trained, counted)) for lean in LEANS}
    best = max(log_p.values(), key=lambda found: found.sum().item())
    least = best.sum() - LEAN_COST * (youth * (best - counted)).sum()
    return max(lean for lean, found in log_p.items() if found is best or found.sum() >= least)


def is_clear(gains: Tensor) -> bool:
    """Whether the gains at some targets (n,) are unlikely to be due to chance."""
    return bool(gains.mean() > CLEAR * gains.std() / len(gains) ** 0.5)


def loss(logit: Tensor, trained: Tensor, counted: Tensor) -> Tensor:
    """The sum over networks of their mean loss, given log-probabilities of targets on both sides (K, n)."""
    return -(mixed(logit, trained, counted) + OWN_WEIGHT[trained.device.type] * trained).mean(1).sum()
