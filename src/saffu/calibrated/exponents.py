"""Exponents of a product of distributions, solved on text that the counts have not seen.

For features φ (one per part, over the outputs) the log-likelihood Σ_m log softmax(Σ_j a_j φ_mj)_{i_m} is concave in a.
Its gradient is the features of the targets minus their expectation (the paper's V, summed over targets), and its
Hessian is minus the covariance of the features. So Newton's method needs no learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from saffu.interface import Floats


@dataclass(frozen=True)
class Moments:
    """What one Newton step needs: sums over targets."""

    log_likelihood: float
    targets: int
    gradient: Floats  # (J,) Σ_m φ_{m,·,i_m} − E φ
    covariance: Floats  # (J, J) Σ_m Cov φ: minus the Hessian


def newton_step(a: Floats, now: Moments, prior: Floats, strength: float, precision: float = 0.0) -> Floats:
    """Maximize the quadratic approximation of the likelihood at exponents a, within the bound a ≥ 0.

    A quadratic pull toward `prior`, as strong as `strength` targets, keeps few targets from moving exponents far. So
    does a normal distribution of this `precision` around `prior`, also where few of many targets have a feature. An
    exponent that reaches zero is held there while the others move on, and released if its gradient is positive. Every
    step gains, and there are few.

    >>> now = Moments(0.0, 1, np.array([2.0, -1.0]), np.eye(2))
    >>> newton_step(np.zeros(2), now, np.zeros(2), 0.0).round(3)
    array([2., 0.])
    """
    average = np.diag(now.covariance) / max(1, now.targets)
    pull = strength * average + precision
    curvature = now.covariance + np.diag(pull + 1e-6 * max(float(np.diag(now.covariance).mean()), 1e-9))
    gradient = now.gradient + pull * (prior - a)
    x = a.copy()
    free = (a > 0) | (gradient > 0)
    residual = gradient
    for _ in range(4 * len(a)):
        direction = np.zeros_like(a)
        direction[free] = np.linalg.solve(curvature[np.ix_(free, free)], residual[free])
        max_step = np.where(direction < 0, x / np.where(direction < 0, -direction, 1), np.inf)
        x = np.maximum(x + min(1.0, float(max_step.min())) * direction, 0)
        residual = gradient - curvature @ (x - a)
        if max_step.min() < 1:
            x[max_step.argmin()] = 0
            free[max_step.argmin()] = False
        elif (residual[~free] > 1e-9 * np.abs(gradient).max()).any():
            free[np.where(free, -np.inf, residual).argmax()] = True
        else:
            break
    return x - a


def fit_exponents(
    moments: Callable[[Floats], list[Moments]],
    start: Floats,
    prior: Floats,
    strength: float,
    tolerance: float = 1e-5,
    rounds: int = 20,
    precision: float = 0.0,
) -> Floats:
    """Exponents (problems, J) that maximize the likelihood of several independent problems at once.

    `moments` returns those of every problem at the given exponents. Steps that would lose are halved; a problem is done
    once a step gains less than `tolerance` nats per target.
    """
    a = start.copy()
    now = moments(start)
    active = np.array([m.targets > 0 for m in now])

    def value(number: int, m: Moments, at: Floats) -> float:
        spread = np.diag(now[number].covariance) / max(1, now[number].targets)
        return m.log_likelihood - 0.5 * float((strength * spread + precision) @ (at - prior[number]) ** 2)

    for _ in range(rounds):
        if not active.any():
            break
        each = zip(active, a, now, prior, strict=True)
        steps = np.stack([newton_step(x, m, p, strength, precision) if on else 0 * x for on, x, m, p in each])
        for _ in range(12):
            after = moments(a + steps)
            lost = [g and value(i, m, a[i] + steps[i]) < value(i, n, a[i]) - 1e-9 * abs(n.log_likelihood)
                    for i, (g, m, n) in enumerate(zip(active, after, now, strict=True))]  # fmt: skip
            if not any(lost):
                break
            steps[lost] /= 2
        else:
            steps[lost] = 0
            after = moments(a + steps)
        gained = [(m.log_likelihood - n.log_likelihood) / max(1, n.targets) for m, n in zip(after, now, strict=True)]
        a = a + steps
        now = after
        active &= np.array(gained) > tolerance
    return a
