"""Measured priming: exponents of a product of distributions, solved on text that the counts have not seen.

For features φ (one for each part, over the vocabulary) the log-likelihood Σ_m log softmax(Σ_j a_j φ_mj)_{i_m} is
concave in a: its gradient is what the target asks of each part beyond what the model expects (the paper's V, summed
over the targets), and its Hessian is minus the covariance of the features. So Newton's method needs no learning rate.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from saffu.errors import SaffuError

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
"""Gives batches of features (m, J, outputs) and of targets, anew at each call: ids (m,) or shares (m, outputs)."""


class Moments(NamedTuple):
    """What one Newton step needs: sums over targets."""

    log_likelihood: Tensor
    gradient: Tensor  # (J,) Σ_m φ_{m,·,i_m} − E φ
    covariance: Tensor  # (J, J) Σ_m Cov φ: minus the Hessian
    targets: int


def moments(batches: Iterable[tuple[Tensor, Tensor]], exponents: Tensor) -> Moments:
    """Log-likelihood, gradient and covariance at the given exponents, streamed."""
    J = len(exponents)
    likelihood, targets = torch.zeros((), dtype=torch.float64), 0
    gradient, covariance = torch.zeros(J, dtype=torch.float64), torch.zeros(J, J, dtype=torch.float64)
    for features, wanted in batches:
        weights = exponents.to(features).expand(len(wanted), 1, J)
        log_p = torch.log_softmax(torch.bmm(weights, features).squeeze(1), dim=1)
        if wanted.dim() == 1:
            at_target = features.gather(2, wanted[:, None, None].expand(-1, J, 1)).squeeze(2)  # (m, J)
            found = log_p.gather(1, wanted[:, None])
        else:
            at_target = torch.bmm(features, wanted[:, :, None]).squeeze(2)
            found = log_p * wanted
        p = log_p.exp()
        expected = torch.bmm(features, p[:, :, None])  # (m, J, 1)
        weighted = features * torch.sqrt_(p)[:, None, :]
        second = torch.bmm(weighted, weighted.transpose(1, 2)) - expected * expected.transpose(1, 2)
        likelihood = found.double().sum() + likelihood.to(found.device)
        gradient = (at_target - expected.squeeze(2)).double().sum(0) + gradient.to(found.device)
        covariance = second.double().sum(0) + covariance.to(found.device)
        targets += len(wanted)
    return Moments(likelihood.cpu(), gradient.cpu(), covariance.cpu(), targets)


def newton_step(a: Tensor, now: Moments) -> Tensor:
    """From exponents a ≥ 0 to where, within that bound, the likelihood would be highest if it were quadratic.

    On the way there an exponent that meets zero is held, and the others go on; one that would rather be above zero is
    let go again. Each leg gains; there are few, unless parts say the same and rounding makes the difference.
    """
    ridge = 1e-6 * now.covariance.diagonal().mean().clamp(min=1e-9)
    curvature = now.covariance + ridge * torch.eye(len(a))
    x, free, asked = a, (a > 0) | (now.gradient > 0), now.gradient
    for _ in range(4 * len(a)):
        leg = torch.zeros_like(a)
        leg[free] = torch.linalg.solve(curvature[free][:, free], asked[free])
        room = torch.where(leg < 0, x / -leg, torch.inf)
        x = (x + min(1.0, float(room.min())) * leg).clamp(min=0)
        asked = now.gradient - curvature @ (x - a)
        if room.min() < 1:
            x[room.argmin()] = 0
            free[room.argmin()] = False
        elif (asked[~free] > 1e-9 * now.gradient.abs().max()).any():
            free[torch.where(free, -torch.inf, asked).argmax()] = True
        else:
            break
    return x - a


def calibrated_exponents(batches: Batches, start: Tensor, tolerance: float = 1e-5, rounds: int = 30) -> Tensor:
    """The exponents a ≥ 0 that maximise the likelihood of the targets: projected Newton steps, halved if too long."""
    a = start.double()
    now = moments(batches(), a)
    if now.targets == 0:
        raise SaffuError("there is no held-out text to calibrate on; give more documents")
    for _ in range(rounds):
        step = newton_step(a, now)
        for _ in range(12):
            candidate = (a + step).clamp(min=0)
            after = moments(batches(), candidate)
            if after.log_likelihood >= now.log_likelihood:
                break
            step = step / 2
        else:
            break
        gained = float(after.log_likelihood - now.log_likelihood) / now.targets
        a, now = candidate, after
        if gained < tolerance:
            break
    return a.float()
