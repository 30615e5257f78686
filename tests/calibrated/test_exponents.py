from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saffu.calibrated.fit import Moments, fit_exponents, newton_step

seeds = st.integers(0, 2**32 - 1)


def quadratic(seed: int, size: int) -> tuple[np.ndarray, Moments]:
    """Random exponents, some of them zero, with a gradient and a covariance of full rank."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(size, size + 2))
    a = np.maximum(rng.normal(size=size), 0)
    return a, Moments(0.0, 10, rng.normal(size=size) * 3, root @ root.T)


def pulled(a, now: Moments, prior, strength: float):
    """Gradient and curvature of the objective with the pull toward the prior."""
    average = np.diag(now.covariance) / now.targets
    ridge = 1e-6 * np.diag(now.covariance).mean()
    return now.gradient + strength * average * (prior - a), now.covariance + np.diag(strength * average + ridge)


@given(seeds, st.integers(1, 9), st.sampled_from([0.0, 1.0, 100.0]))
def test_newton_steps_meet_the_optimality_conditions(seed, size, strength):
    """Within x ≥ 0, the slope is zero where x > 0 and not positive where x = 0 (Karush–Kuhn–Tucker)."""
    a, now = quadratic(seed, size)
    prior = np.random.default_rng(seed + 1).random(size)
    x = a + newton_step(a, now, prior, strength)
    gradient, curvature = pulled(a, now, prior, strength)
    slope = gradient - curvature @ (x - a)
    scale = np.abs(gradient).max() + 1e-9
    assert (x >= 0).all()
    assert np.abs(slope[x > 0]).max(initial=0) < 1e-6 * scale
    assert slope[x == 0].max(initial=-1) < 1e-6 * scale


@given(seeds, st.integers(1, 5))
def test_newton_steps_agree_with_trying_every_set_of_zeros(seed, size):
    a, now = quadratic(seed, size)
    gradient, curvature = pulled(a, now, a, 2.0)
    best = -np.inf
    for free in itertools.product([False, True], repeat=size):
        step, free = -a, np.array(free)
        if free.any():
            rest = gradient[free] - curvature[np.ix_(free, ~free)] @ step[~free]
            step[free] = np.linalg.solve(curvature[np.ix_(free, free)], rest)
        if (a + step >= -1e-12).all():
            best = max(best, gradient @ step - step @ curvature @ step / 2)
    step = newton_step(a, now, a, 2.0)
    assert gradient @ step - step @ curvature @ step / 2 == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_a_part_that_says_nothing_stays_where_it_is():
    now = Moments(0.0, 5, np.zeros(3), np.diag([1.0, 0.0, 1.0]))
    assert newton_step(np.array([0.5, 0.2, 0.0]), now, np.zeros(3), 0.0).tolist() == [0, 0, 0]


class Problem:
    """Random choices among n outputs with features φ (m, J, n)."""

    def __init__(self, seed: int, choices: int = 40, parts: int = 3, outputs: int = 5):
        rng = np.random.default_rng(seed)
        self.features = rng.normal(size=(choices, parts, outputs))
        scores = np.einsum("j,mjn->mn", rng.random(parts) * 2 - 0.4, self.features)
        self.targets = np.array([rng.choice(outputs, p=row) for row in np.exp(scores) / np.exp(scores).sum(1)[:, None]])

    def log_likelihood(self, a) -> float:
        scores = np.einsum("j,mjn->mn", a, self.features)
        return float((scores[np.arange(len(scores)), self.targets] - np.logaddexp.reduce(scores, axis=1)).sum())

    def moments(self, a) -> Moments:
        scores = np.einsum("j,mjn->mn", a, self.features)
        p = np.exp(scores - np.logaddexp.reduce(scores, axis=1)[:, None])
        expected = np.einsum("mjn,mn->mj", self.features, p)
        at_target = self.features[np.arange(len(p)), :, self.targets]
        covariance = np.einsum("mjn,mkn,mn->jk", self.features, self.features, p) - expected.T @ expected
        return Moments(self.log_likelihood(a), len(p), (at_target - expected).sum(0), covariance)


def best_on_a_grid(problem: Problem) -> np.ndarray:
    """The best exponents within [0, 4]³, by grids that halve around the best point; the problem is concave."""
    center, radius = np.full(3, 2.0), 2.0
    for _ in range(22):
        around = [np.clip(c + radius * np.linspace(-1, 1, 5), 0, 4) for c in center]
        center = np.array(max(itertools.product(*around), key=lambda a: problem.log_likelihood(np.array(a))))
        radius *= 0.6
    return center


@settings(max_examples=5, deadline=None)
@given(seeds)
def test_calibrated_exponents_agree_with_a_search(seed):
    problem = Problem(seed)
    start = np.full((1, 3), 0.5)
    (found,) = fit_exponents(lambda a: [problem.moments(a[0])], start, start, 0.0, tolerance=1e-9)
    best = best_on_a_grid(problem)
    if best.max() < 3.9:
        assert problem.log_likelihood(found) == pytest.approx(problem.log_likelihood(best), abs=1e-3)
        assert found == pytest.approx(best, abs=0.02)


def test_problems_are_independent():
    problems = [Problem(1), Problem(2)]
    start = np.full((2, 3), 0.3)
    together = fit_exponents(lambda a: [p.moments(x) for p, x in zip(problems, a, strict=True)], start, start, 5.0)
    for problem, x in zip(problems, together, strict=True):
        (alone,) = fit_exponents(lambda a, p=problem: [p.moments(a[0])], start[:1], start[:1], 5.0)
        assert x == pytest.approx(alone, abs=1e-6)


def test_a_problem_without_targets_keeps_its_start():
    problem, start = Problem(3), np.full((2, 3), 0.4)
    empty = Moments(0.0, 0, np.zeros(3), np.zeros((3, 3)))
    found = fit_exponents(lambda a: [empty, problem.moments(a[1])], start, start, 1.0)
    assert found[0].tolist() == [0.4, 0.4, 0.4]
    assert found[1] != pytest.approx(found[0], abs=0.01)


def test_the_stronger_the_pull_the_nearer_the_prior():
    problem, prior = Problem(4), np.full((1, 3), 0.2)
    distances = [
        np.linalg.norm(fit_exponents(lambda a: [problem.moments(a[0])], prior, prior, strength, tolerance=1e-9) - prior)
        for strength in (0.0, 10.0, 100.0, 1e4)
    ]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.1
    assert distances[-1] < 0.02


def test_calibration_never_lowers_the_likelihood():
    for seed in range(20):
        problem = Problem(seed, choices=6)
        start = np.array([[5.0, 0.0, 3.0]])  # far off: full steps overshoot
        (found,) = fit_exponents(lambda a, p=problem: [p.moments(a[0])], start, start, 0.0)
        assert problem.log_likelihood(found) >= problem.log_likelihood(start[0])
