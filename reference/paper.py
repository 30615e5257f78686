"""The paper in plain NumPy: the first file to read. `saffu.paper` computes the same numbers faster.

A document is a list of token ids that ends with `<eod>`. Equations are numbered as in the paper: 1 the unit, 2 the
co-occurrence, 3 the solution, 5 that of a decoder, 6 that of attention. It has neither the tokenizer nor Adam.
docs/paper.md lists what the paper leaves open, with the setting of each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from saffu.paper.config import PaperConfig

PAD, SOD, FRG, EOD = 0, 1, 2, 3
Array = npt.NDArray[np.float64]
Documents = list[list[int]]


def bit_cipher(tokens: int, bits: int) -> list[tuple[int, ...]]:
    """Bit-vectors in order of decreasing discernability (Fig. 2): unit vectors; then, norm by norm, each vector of the
    reversed basis added to the reversed list of the previous norm, keeping the new ones.

    >>> bit_cipher(7, 3)
    [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 1)]
    """
    basis = [tuple(int(i == j) for j in range(bits)) for i in range(bits)]
    found = list(basis)
    previous = basis
    for norm in range(2, bits + 1):
        new: list[tuple[int, ...]] = []
        for unit in reversed(basis):
            for vector in reversed(previous):
                added = tuple(a + b for a, b in zip(vector, unit, strict=True))
                if max(added) == 1 and sum(added) == norm and added not in new:
                    new.append(added)
        found = found + new
        previous = new
    return found[:tokens]


def bit_vectors(frequencies: Any, bits: int) -> Array:
    """Z: the most frequent token gets the first bit-vector; ties are broken by id.

    >>> bit_vectors([0, 2, 9], 2).tolist()
    [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    """
    order = sorted(range(len(frequencies)), key=lambda token: (-frequencies[token], token))
    Z = np.zeros((len(frequencies), bits))
    Z[order] = bit_cipher(len(frequencies), bits)
    return Z


def noised_embeddings(Z: Array, frequencies: Any) -> Array:
    """E_n = q_n Z_n/‖Z_n‖ + (1 − q_n) p with q = f/(f + 1), p = (1 − ē)/‖1 − ē‖, and ē the average embedding.

    Here ē = [¾, ¼], so p = [¼, ¾]. The last token has f = 0, as `<pad>`, `<sod>`, and `<frg>`, which are never targets,
    and every token that does not occur: it is all noise.

    >>> noised_embeddings(np.array([[1, 0], [0, 1], [1, 1]]), [3, 1, 0]).tolist()
    [[0.8125, 0.1875], [0.125, 0.875], [0.25, 0.75]]
    """
    f = np.array(frequencies)
    clean = Z / Z.sum(1, keepdims=True)
    average = f @ clean / f.sum()
    noise = np.maximum(1 - average, 1e-12)  # zero only if the whole text is a single token, repeated
    q = (f / (f + 1))[:, None]
    return np.asarray(q * clean + (1 - q) * noise / noise.sum())


class Example(NamedTuple):
    target: int
    slots: list[int]  # K token ids
    query: int  # token of the slot that queries attention


def examples(unit: str, documents: Documents, config: PaperConfig) -> list[Example]:
    """Every target with the context that a unit sees (Sec. 3).

    >>> config = PaperConfig(block=3, radius=2)
    >>> [example.slots for example in examples("block", [[7, 8, 9, EOD]], config)]
    [[1, 0, 0], [1, 7, 0], [2, 0, 0], [2, 9, 0]]
    >>> [example.slots for example in examples("radius", [[7, 8, 9, EOD]], config)]
    [[0, 0], [0, 7], [7, 8], [8, 9]]
    """
    found = []
    count = config.units()[unit].slots
    left = unit == "radius" and config.pad_side == "left"
    for document in documents:
        for at, target in enumerate(document):
            seen = block_before(document, at, config) if unit == "block" else document[max(0, at - count) : at]
            padding = [PAD] * (count - len(seen))
            found.append(Example(target, padding + seen if left else seen + padding, seen[-1] if seen else PAD))
    return found


def block_before(document: list[int], at: int, config: PaperConfig) -> list[int]:
    """The marker and the tokens before the target at position `at` = m − 1, within block i = ⌈m/(b − 1)⌉.

    Shifted blocks predict the tokens a place later.
    """
    content = config.block - 1
    place = max(0, at - 1) if config.block_advance == "shifted" else at
    begin = place // content * content
    return [SOD if begin == 0 else FRG, *document[begin:at]]


@dataclass
class Unit:
    E: Array  # (N, D)
    W: Array  # (K, K)
    U: Array  # (D or K·D, D_H)
    mode: str = "sum"


def softmax(scores: Any) -> Array:
    powers = np.exp(np.asarray(scores) - np.max(scores))
    return np.asarray(powers / powers.sum())


def quadratic_features(unit: Unit, example: Example) -> Array:
    """Q_m = X_h Xᵀ: the similarity of each slot to the query."""
    return np.array([unit.E[example.query] @ unit.E[slot] for slot in example.slots])


def attention(unit: Unit, example: Example) -> Array:
    """A_m = −log softmax(Q_m W): log K for each of K slots if attention is uniform."""
    return -np.log(softmax(quadratic_features(unit, example) @ unit.W))


def hidden_state(unit: Unit, example: Example) -> Array:
    """H_m: the slots weighted by attention, added or side by side.

    >>> unit = Unit(np.array([[0.5, 0.5], [1, 0]]), np.ones((2, 2)), np.zeros((2, 2)))
    >>> (hidden_state(unit, Example(target=0, slots=[0, 1], query=1)) / math.log(2)).round(9).tolist()
    [1.5, 0.5]
    """
    weighted = [A * unit.E[slot] for A, slot in zip(attention(unit, example), example.slots, strict=True)]
    return np.sum(weighted, axis=0) if unit.mode == "sum" else np.concatenate(weighted)


def unit_output(unit: Unit, example: Example) -> Array:
    """Eq. 1, SAFFU(X_m) = softmax(A_m X_m U) = softmax(H_m U)."""
    return softmax(hidden_state(unit, example) @ unit.U)


def variation_bound(slots: int, vocabulary: int) -> float:
    """c = 2 (1 + 1/K) log N (Sec. 2.4)."""
    return 2 * (1 + 1 / slots) * math.log(vocabulary)


def variation(unit: Unit, example: Example, wanted: Array, c: float, sign: int = 1) -> Array:
    """V_mk = [U z̃ − U softmax(HU) + c]·X_mk (Sec. 2.3, 2.4), the gradient in A; in mode "cat" slot k has its own U."""
    residual = sign * (wanted - unit_output(unit, example))
    by_slot = unit.U.reshape(-1, unit.E.shape[1], unit.U.shape[1])  # one for all slots, or one per slot
    own = [by_slot[k if unit.mode == "cat" else 0] for k in range(len(example.slots))]
    return np.array([(U @ residual + c) @ unit.E[slot] for U, slot in zip(own, example.slots, strict=True)])


def initial_variation(E: Array, frequencies: Any, example: Example, c: float, sign: int = 1) -> Array:
    """V̂_mk = [log E_{i_m} − log Eᵀ ȳ + c]·X_mk (Sec. 2.4), ȳ the mean target: V while there is no decoder.

    >>> E = np.array([[0.5, 0.5], [0.8, 0.2]])  # the difference is ½ [log .5/.8, log .5/.2]
    >>> initial_variation(E, [1, 1], Example(target=0, slots=[1], query=1), c=0).round(4).tolist()
    [-0.0964]
    """
    mean = (np.array(frequencies) / sum(frequencies)) @ np.log(E)
    return np.array([(sign * (np.log(E[example.target]) - mean) + c) @ E[slot] for slot in example.slots])


def smallest_shift(F: Array) -> Array:
    """F(Q, V) as if V had been shifted, row by row, by just so much that the least entry is a millionth of the range.

    >>> smallest_shift(np.array([[5.0, 7.0], [3.0, 3.0]])).round(3).tolist()
    [[0.0, 2.0], [3.0, 3.0]]
    """
    least = F.min(axis=1, keepdims=True)
    largest = F.max(axis=1, keepdims=True)
    return np.where(largest - least > 1e-5 * largest, F - least + 1e-6 * (largest - least), F)


class Counts(NamedTuple):
    F: Array  # (inputs, outputs)
    norm: float  # Σ_m ‖H_m‖₁
    targets: int


def count(inputs: Sequence[Array], targets: Any) -> Counts:
    """Eq. 2, F(H, Y) = Σ_m H_m ⊗ Y_m, and the sum of norms, which measures the priming number.

    >>> count([np.array([1, 2]), np.array([3, 0])], [[1, 0], [0, 1]]).F.tolist()
    [[1.0, 3.0], [2.0, 0.0]]
    """
    F = np.sum([np.outer(h, y) for h, y in zip(inputs, targets, strict=True)], axis=0, dtype=float)
    return Counts(F, float(sum(h.sum() for h in inputs)), len(inputs))


def solution(F: Array, priming: float) -> Array:
    """Eq. 3 (and 5, 6): log F_ji − (K − 1)/K log Σ_d F_di.

    >>> solution(np.array([[2.0], [6.0]]), priming=2).round(4).tolist()  # log 2 − ½ log 8, log 6 − ½ log 8
    [[-0.3466], [0.752]]
    """
    return np.asarray(np.log(F) - (priming - 1) / priming * np.log(F.sum(0)))


@dataclass
class Network:
    config: PaperConfig
    units: dict[str, Unit]
    D: Array  # (D, Δ) the document model
    M: Array  # (rows, N) the final decoder


def document_inputs(network: Network, documents: Documents) -> list[Array]:
    """x_m = (E_<pad> + Σ_{j<m} E_{i_j})/m, m from 1, with the first unit's embeddings (Sec. 3.1)."""
    E = next(iter(network.units.values())).E
    return [np.mean([E[PAD], *E[document[:at]]], axis=0) for document in documents for at in range(len(document))]


def outputs(network: Network, documents: Documents) -> list[Array]:
    """The inputs of M for each target: the outputs of the units and of the document model, side by side."""
    config = network.config
    units = network.units.items()
    parts = [[unit_output(unit, e) for e in examples(name, documents, config)] for name, unit in units]
    if config.document_shards:
        parts.append([softmax(x @ network.D) for x in document_inputs(network, documents)])
    return [np.concatenate(row) for row in zip(*parts, strict=True)]


def probabilities(network: Network, documents: Documents) -> Array:
    """The prediction of each target, (targets, N): softmax(h M) without `<pad>`, `<sod>`, and `<frg>`."""
    logits = np.array(outputs(network, documents)) @ network.M
    logits[:, :EOD] = -np.inf
    return np.array([softmax(row) for row in logits])


def perplexity(network: Network, documents: Documents) -> float:
    """exp of the mean negative log-likelihood per target: every token and each `<eod>`."""
    targets = [token for document in documents for token in document]
    return float(np.exp(-np.log(probabilities(network, documents)[np.arange(len(targets)), targets]).mean()))


def frequencies_of(documents: Documents, vocabulary: int) -> npt.NDArray[np.int64]:
    """f = Σ_m Y_m: how often each token is a target."""
    return np.bincount([token for document in documents for token in document], minlength=vocabulary)


def fit(folds: list[Documents], vocabulary: int, config: PaperConfig) -> Iterator[tuple[Network, dict[str, Counts]]]:
    """Initialize on the first fold, then tune on the following ones (Sec. 4); yields the network after each stage.

    >>> sizes = {"block": 3, "radius": 2, "block_dimension": 3, "radius_dimension": 3, "hidden_dimension": 3}
    >>> text = [[4, 5, 4, 5, EOD], [5, 4, 5, 4, EOD]]
    >>> network, counts = next(fit([text], 6, PaperConfig(**sizes, document_shards=2)))
    >>> round(perplexity(network, text), 3)
    2.485
    """
    f = frequencies_of([document for fold in folds for document in fold], vocabulary)
    Z = bit_vectors(f, config.hidden_dimension)
    network = Network(config, {}, np.zeros(0), np.zeros(0))
    for name, (slots, mode, dimension) in config.units().items():
        E = noised_embeddings(bit_vectors(f, dimension), f)
        network.units[name] = Unit(E, np.ones((slots, slots)), np.zeros(0), mode)
    counts: dict[str, Counts] = {}

    def add(layer: str, new: Counts, restart: bool = False) -> Counts:
        if (old := counts.get(layer)) and not restart:
            new = Counts(old.F + new.F, old.norm + new.norm, old.targets + new.targets)
        counts[layer] = new
        return new

    for stage, fold in enumerate(folds[: config.tune_folds + 1]):
        targets = [token for document in fold for token in document]
        for name, unit in network.units.items():
            K = len(unit.W)
            context = examples(name, fold, config)
            if stage or config.attention == "explicit":
                c = variation_bound(K, vocabulary)
                sign = config.variation_sign
                if stage:
                    V = [variation(unit, e, Z[e.target] / Z[e.target].sum(), c, sign) for e in context]
                else:
                    V = [initial_variation(unit.E, frequencies_of(fold, vocabulary), e, c, sign) for e in context]
                new = count([quadratic_features(unit, e) for e in context], V)
                total = add(f"{name}.attention", new, restart=stage == 1)
                F = total.F if config.variation_shift == "bound" else smallest_shift(total.F)
                primings = {"paper": math.log(K), "slots": K, "measured": total.norm / total.targets}
                unit.W = solution(F, primings[config.attention_priming])
            wanted = Z if config.hidden_targets == "raw" else Z / Z.sum(1, keepdims=True)
            total = add(f"{name}.decoder", count([hidden_state(unit, e) for e in context], wanted[targets]))
            priming = K * math.log(K) if config.decoder_priming == "paper" else total.norm / total.targets
            unit.U = solution(np.where(total.F.sum(0) > 0, total.F, config.smoothing), priming)
        if config.document_shards:
            shards = [at * config.document_shards // len(fold) for at, document in enumerate(fold) for _ in document]
            total = add("document", count(document_inputs(network, fold), np.eye(config.document_shards)[shards]))
            network.D = solution(np.where(total.F.sum(0) > 0, total.F, config.smoothing), 1)
        total = add("final", count(outputs(network, fold), np.eye(vocabulary)[targets]))
        network.M = solution(total.F + config.smoothing, len(network.units) + (config.document_shards > 0))
        yield copy.deepcopy(network), dict(counts)
