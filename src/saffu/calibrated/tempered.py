"""Sampling at a temperature T from a prediction that comes class by class, without computing it for all tokens.

A token n has to be drawn in proportion to p(n)^a with a = 1/T. The tokens of class k together have

    Z_k = Σ_{n in k} p(n)^a ≤ B_k = P(k)^a · max(1, |k|^(1−a))

where P(k) is the probability of the class. So a class is drawn in proportion to B_k and accepted with probability
Z_k / B_k, which needs only its own tokens; if it is rejected, its bound becomes Z_k, and another is drawn. Whatever the
bounds are, accepted classes follow Z_k exactly (rejection sampling).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from saffu.interface import Array


class Prediction(NamedTuple):
    """The probabilities of the classes (classes,), and, on demand, of the tokens of one of them given their class."""

    classes: Array
    tokens: Callable[[int], Array]


def sample_at(
    temperature: float, top_k: int, prediction: Prediction, sizes: Array, rng: np.random.Generator
) -> tuple[int, int]:
    """A class and a place among its tokens, by one of the `top_k` most likely tokens unless 0.

    `sizes` (classes,) are the numbers of tokens. A token that is not among the most likely is drawn again.

    >>> prediction = Prediction(np.array([0.5, 0.5]), lambda k: np.array([[1.0, 0.0], [0.5, 0.5]])[k])
    >>> rng = np.random.default_rng(0)
    >>> drawn = [sample_at(0.5, 0, prediction, np.array([2, 2]), rng) for _ in range(1000)]
    >>> drawn.count((0, 1)), round(drawn.count((0, 0)) / 1000, 1)  # 0.5² / (0.5² + 0.25² + 0.25²)
    (0, 0.7)
    >>> sample_at(2.0, 1, prediction, np.array([2, 2]), rng)
    (0, 0)
    """
    power = 1 / temperature
    relative = prediction.classes.astype(np.float64) / prediction.classes.max()
    bounds = relative**power
    if power < 1:
        bounds *= sizes ** (1 - power)
    powers: dict[int, Array] = {}
    while True:
        k = draw(bounds, rng)
        if k not in powers:
            powers[k] = (relative[k] * prediction.tokens(k).astype(np.float64)) ** power
            bound, bounds[k] = bounds[k], powers[k].sum()
            if rng.random() * bound > bounds[k]:
                continue
        place = draw(powers[k], rng)
        if not top_k or is_among_top(top_k, prediction, float(prediction.classes[k] * prediction.tokens(k)[place])):
            return k, place


def is_among_top(top_k: int, prediction: Prediction, p: float) -> bool:
    """Whether fewer than `top_k` tokens are likelier than one with probability p; there is no room for 1/p of them."""
    if p * top_k >= 1:
        return True
    likelier = 0
    for k in np.argsort(-prediction.classes):
        if prediction.classes[k] <= p:
            break
        likelier += int((prediction.classes[k] * prediction.tokens(k) > p).sum())
        if likelier >= top_k:
            return False
    return True


def draw(weights: Array, rng: np.random.Generator) -> int:
    """A place, in proportion to weights (n,)."""
    below = weights.cumsum()
    return int(below.searchsorted(rng.random() * below[-1], side="right"))


def mixed(weights: Array, parts: list[Prediction]) -> Prediction:
    """Σ_c w_c·p_c of several predictions, with weights (parts,)."""
    shares = weights[:, None] * np.stack([part.classes for part in parts])  # (parts, classes)
    classes = shares.sum(0)

    def tokens(k: int) -> Array:
        return np.asarray(shares[:, k] / classes[k] @ np.stack([part.tokens(k) for part in parts]))

    return Prediction(classes, tokens)
