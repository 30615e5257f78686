"""The network and the gate in plain NumPy and float64: the definition that the kernels and torch are tested against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from saffu.companion import neural_cache as cache
from saffu.companion.weights import HEAD, Weights
from saffu.interface import Array
from saffu.text.tokenizer import EOD

ROTARY_BASE = 10_000.0


def hidden(network: Weights, tokens: Sequence[int]) -> Array:
    """h (T, d) after each of the tokens (T,) of one window."""
    given = given_to(network)
    scales = np.ones((network.layers, 1)) if network.mlp_scale is None else network.mlp_scale[:, 1]  # of inner units
    network = network.restored()
    x = network.embedding[list(tokens)].astype(np.float64)  # (T, d)
    for layer in range(network.layers):
        query, key, value, output = network.attention[layer].astype(np.float64)
        up, down = network.mlp[layer].astype(np.float64)
        n = norm(x)
        r = given(n)
        heads = []
        for h in range(network.width // HEAD):
            own = slice(h * HEAD, (h + 1) * HEAD)
            q = r @ query[own].T  # (T, 64)
            k = r @ key[own].T
            v = r @ value[own].T
            heads.append(attended(q, k, v, network.distance[layer, h], network.sink[layer, h]))
        factors = 2 / (1 + np.exp(-n @ network.head_gate[layer]))  # (T, H)
        heads = [factors[:, h, None] * head for h, head in enumerate(heads)]
        x = x + given(np.concatenate(heads, axis=1)) @ output.T
        inner = np.maximum(given(norm(x)) @ up.T, 0) ** 2  # (T, 4·d)
        x = x + given(inner * scales[layer]) / scales[layer] @ down
    return norm(x)


def given_to(network: Weights) -> Callable[[Array], Array]:
    """What the inputs of products become: themselves, or rounded if weights are int8."""
    return rounded if network.is_rounded else np.asarray


def rounded(x: Array) -> Array:
    """Each row in steps of 1/127 of its largest number, or of 1/255 if none is negative.

    >>> rounded(np.array([[-1.0, 0.5], [1.0, 0.5]])) * [[127], [255]]
    array([[-127.,   64.],
           [ 255.,  128.]])
    """
    largest = np.abs(x).max(axis=-1, keepdims=True)
    steps = np.where(x.min(axis=-1, keepdims=True) < 0, 127, 255) / np.where(largest > 0, largest, 1)
    return np.asarray(np.floor(x * steps + 0.5) / steps)


def attended(query: Array, key: Array, value: Array, distance: Array, sink: float) -> Array:
    """What one head reads: (T, 64) from queries, keys, and values (T, 64). The sink is a key without a value."""
    places = np.arange(len(query))
    apart = places[:, None] - places  # (T, T)
    scores = rotated(norm(query)) @ rotated(norm(key)).T / HEAD**0.5
    scores = np.where(apart >= 0, scores + distance[np.maximum(apart, 0)], -np.inf)
    weights = np.exp(scores)
    return np.asarray(weights @ value / (np.exp(sink) + weights.sum(1, keepdims=True)))


def rotated(x: Array) -> Array:
    """Rotary positions (Su et al. 2021): the halves of each row (T, 64) are turned by an angle that grows with T."""
    speeds = ROTARY_BASE ** -(np.arange(0, HEAD, 2) / HEAD)
    angles = np.arange(len(x))[:, None] * speeds  # (T, 32)
    one, other = np.split(x, 2, axis=1)
    cos = np.cos(angles)
    sin = np.sin(angles)
    return np.concatenate([one * cos - other * sin, one * sin + other * cos], axis=1)


def norm(x: Array) -> Array:
    """RMSNorm without parameters."""
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + np.finfo(np.float32).eps))


def log_probabilities(network: Weights, states: Array, classes: Array | None = None) -> Array:
    """ln p (n, N) of every token after states h (n, d); −inf for what is never predicted.

    With `classes` (N,), that of the class, ln p(k | c), and that of the token in it, ln p(n | k, c), are added.
    """
    log_p = np.full((len(states), len(network.embedding)), -np.inf)
    mapped = given_to(network)(states @ network.output_map)
    network = network.restored()
    logits = mapped @ network.embedding[EOD:].T + network.output_bias
    if classes is None or network.class_map is None:
        log_p[:, EOD:] = log_softmax(logits)
        return log_p
    of_classes = log_softmax(states @ network.class_map.T + network.class_bias)
    for k in range(of_classes.shape[1]):
        own = np.flatnonzero(classes[EOD:] == k)
        log_p[:, EOD + own] = of_classes[:, k, None] + log_softmax(logits[:, own])
    return log_p


def log_softmax(x: Array) -> Array:
    top = x.max(axis=-1, keepdims=True)
    return np.asarray(x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True)))


def gate_logit(network: Weights, states: Array, certainty: Array) -> Array:
    """The logit of g (n,) from states (n, d) and what measures the certainty of the counted model (n, certainties)."""
    return np.asarray(np.concatenate([states, certainty], axis=1) @ network.gate_weight + network.gate_bias)


def mixture(logits: Array, trained: Array, counted: Array) -> Array:
    """ln of the mean over networks of g·p_trained + (1 − g)·p_counted.

    `logits` and `trained`, ln p, are (networks, …); `counted`, ln p, is (…).

    >>> mixture(np.zeros((1, 1)), np.log([[0.5]]), np.log([0.1])).round(4) == np.log([0.3]).round(4)
    array([ True])
    """
    g = 1 / (1 + np.exp(-logits))
    return np.asarray(np.log(np.mean(g * np.exp(trained) + (1 - g) * np.exp(counted), axis=0)))


def with_neural_cache(log_p: Array, states: Array, targets: Sequence[int]) -> Array:
    """ln p (n,) of the targets of one document with a neural cache, from ln p without it and the states (n, K, d)."""
    share = cache.START
    out = []
    for t, target in enumerate(targets):
        before = range(max(0, t - cache.WINDOW), t)
        similar = [np.mean([cosine(*both) for both in zip(states[t], states[i], strict=True)]) for i in before]
        weights = np.exp(cache.SHARPNESS * np.array(similar))
        known = len(before) / (len(before) + cache.FEW)
        cached = weights @ [targets[i] == target for i in before] / weights.sum() if before else 0.0
        p = (1 - share * known) * np.exp(log_p[t]) + share * known * cached
        out.append(np.log(p))
        gain = share * known * cached / p - share * known
        share = min(max(cache.LEAST, share + cache.RATE * known * gain), cache.MOST)
    return np.array(out)


def cosine(one: Array, other: Array) -> float:
    """The cosine of the angle between two states."""
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))
