"""The paper, word for word: plain loops over targets, slots and dimensions in float64, to test the fast path against.

Equations are numbered as in the paper: 1 the unit, 2 co-occurrence, 3 the solution, 5 its decoder, 6 its attention.
Documents are lists of token ids, without `<eod>`.
"""

import math
from typing import NamedTuple

import numpy as np
import torch

from saffu.config import SaffuConfig
from saffu.corpus import TokenCorpus

PAD, SOD, FRG, EOD = 0, 1, 2, 3

Documents = list[list[int]]


def as_corpus(documents: Documents) -> TokenCorpus:
    """The same documents for the library. Their sizes in bytes are made up: one a token, and the newline."""
    ids = [token for document in documents for token in [*document, EOD]]
    starts = [0]
    for document in documents:
        starts.append(starts[-1] + len(document) + 1)
    sizes = [len(document) + 1 for document in documents]
    return TokenCorpus(
        torch.tensor(ids, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int64),
        torch.tensor(sizes, dtype=torch.int64),
    )


# Embeddings


def bit_cipher(tokens: int, bits: int) -> list[tuple[int, ...]]:
    """Fig. bit-cipher with its slips mended: unit vectors; then, norm by norm, add each vector of the reversed basis
    to the reversed list of the norm before, and keep what is new."""
    basis = [tuple(int(i == j) for j in range(bits)) for i in range(bits)]
    last, found = basis, list(basis)
    for norm in range(2, bits + 1):
        new = []
        for unit in reversed(basis):
            for vector in reversed(last):
                added = tuple(a + b for a, b in zip(vector, unit, strict=True))
                if max(added) == 1 and sum(added) == norm and added not in new:
                    new.append(added)
        found, last = found + new, new
    return found[:tokens]


def assigned_bits(frequencies, bits: int) -> np.ndarray:
    """Z: the most frequent token gets the first bit-vector; of equally frequent ones, the first id."""
    order = sorted(range(len(frequencies)), key=lambda token: (-frequencies[token], token))
    Z = np.zeros((len(frequencies), bits))
    for token, vector in zip(order, bit_cipher(len(frequencies), bits), strict=True):
        Z[token] = vector
    return Z


def noised_embeddings(Z: np.ndarray, frequencies) -> np.ndarray:
    """E_n = q_n Z_n/‖Z_n‖ + (1−q_n) p with q = f/(f+1), p = (1−ē)/(D−1), ē the average embedding."""
    tokens, dimension = Z.shape
    average = [0.0] * dimension
    for n in range(tokens):
        for d in range(dimension):
            average[d] += frequencies[n] * Z[n, d] / sum(Z[n]) / sum(frequencies)
    E = np.zeros((tokens, dimension))
    for n in range(tokens):
        q = frequencies[n] / (frequencies[n] + 1)
        for d in range(dimension):
            E[n, d] = q * Z[n, d] / sum(Z[n]) + (1 - q) * (1 - average[d]) / (dimension - 1)
    return E


# Contexts


class Example(NamedTuple):
    target: int
    slots: list[int]  # K token ids
    head: int  # the token of the querying slot
    document: int
    position: int  # of the target in its document


def block_examples(documents: Documents, block: int, head: str = "previous") -> list[Example]:
    """Build each block, marker and b−1 tokens; hide the target and what follows it in its block behind `<pad>`."""
    examples = []
    for number, document in enumerate(documents):
        tokens = [*document, EOD]
        for begin in range(0, len(tokens), block - 1):
            content = [SOD if begin == 0 else FRG, *tokens[begin : begin + block - 1]]
            for at in range(1, len(content)):
                slots = content[:at] + [PAD] * (block - at)
                query = slots[at - 1] if head == "previous" else slots[0]
                examples.append(Example(content[at], slots, query, number, begin + at - 1))
    return examples


def radius_examples(documents: Documents, radius: int, head: str = "previous") -> list[Example]:
    """The r tokens before the target in its document, whatever block they are in; `<pad>` where there are none."""
    examples = []
    for number, document in enumerate(documents):
        tokens = [*document, EOD]
        for at, target in enumerate(tokens):
            slots = [tokens[at - back] if back <= at else PAD for back in range(radius, 0, -1)]
            query = slots[-1] if head == "previous" else slots[0]
            examples.append(Example(target, slots, query, number, at))
    return examples


def document_inputs(E: np.ndarray, documents: Documents) -> list[np.ndarray]:
    """x_m = (E_pad + Σ_{j<m} E_{i_j})/m, m counted from 1, for each target of each document."""
    inputs = []
    for document in documents:
        tokens = [*document, EOD]
        for at in range(len(tokens)):
            inputs.append(sum([E[token] for token in tokens[:at]], E[PAD].copy()) / (at + 1))
    return inputs


# The unit


def softmax(scores) -> np.ndarray:
    powers = [math.exp(score - max(scores)) for score in scores]
    return np.array([power / sum(powers) for power in powers])


def quadratic_features(E: np.ndarray, example: Example) -> np.ndarray:
    """Q_m = X_h Xᵀ, slot by slot."""
    return np.array([sum(a * b for a, b in zip(E[example.head], E[s], strict=True)) for s in example.slots])


def attention(E: np.ndarray, W: np.ndarray, example: Example) -> np.ndarray:
    """A_m = −log softmax(Q_m W), the inner part of Eq. 1."""
    Q, slots = quadratic_features(E, example), len(example.slots)
    scores = [sum(Q[j] * W[j, i] for j in range(slots)) for i in range(slots)]
    return np.array([-math.log(weight) for weight in softmax(scores)])


def hidden_state(E: np.ndarray, W: np.ndarray, example: Example, mode: str) -> np.ndarray:
    """H_m: the weighted slots, added or side by side."""
    A = attention(E, W, example)
    weighted = [A[k] * E[slot] for k, slot in enumerate(example.slots)]
    return sum(weighted) if mode == "sum" else np.concatenate(weighted)


def unit_output(E: np.ndarray, W: np.ndarray, U: np.ndarray, example: Example, mode: str) -> np.ndarray:
    """Eq. 1."""
    return softmax(hidden_state(E, W, example, mode) @ U)


def variation(E, W, U, example: Example, mode: str, wanted) -> np.ndarray:
    """V_mk − c = [U z̃ − U softmax(HU)]·X_mk; in mode "cat" slot k has its own D rows of U."""
    surprise = wanted - unit_output(E, W, U, example, mode)
    dimension = E.shape[1]
    V = np.zeros(len(example.slots))
    for k, slot in enumerate(example.slots):
        rows = U if mode == "sum" else U[k * dimension : (k + 1) * dimension]
        for d in range(dimension):
            V[k] += sum(rows[d, o] * surprise[o] for o in range(len(surprise))) * E[slot, d]
    return V


def initial_variation(E: np.ndarray, frequencies, example: Example) -> np.ndarray:
    """V̂_mk − c = [log E_{i_m} − log Eᵀ·ȳ]·X_mk, ȳ the mean target."""
    tokens, dimension = E.shape
    total = sum(frequencies)
    V = np.zeros(len(example.slots))
    for k, slot in enumerate(example.slots):
        for d in range(dimension):
            mean = sum(math.log(E[n, d]) * frequencies[n] / total for n in range(tokens))
            V[k] += (math.log(E[example.target, d]) - mean) * E[slot, d]
    return V


def bound(slots: int, vocabulary: int) -> float:
    """c = 2 (1 + 1/K) log N."""
    return 2 * (1 + 1 / slots) * math.log(vocabulary)


# Counting and solving


class Counts(NamedTuple):
    F: np.ndarray
    norm: float
    targets: int


def count(inputs, targets) -> Counts:
    """Eq. 2, one outer product a target, and what measures the priming number."""
    F = np.zeros((len(inputs[0]), len(targets[0])))
    for h, y in zip(inputs, targets, strict=True):
        for j in range(len(h)):
            F[j] += h[j] * np.asarray(y)
    return Counts(F, float(sum(sum(h) for h in inputs)), len(inputs))


def solution(F: np.ndarray, priming: float) -> np.ndarray:
    """Eq. 3 (and 5, 6): log F_ji − (K−1)/K log Σ_d F_di."""
    U = np.zeros(F.shape)
    for i in range(F.shape[1]):
        column = sum(F[d, i] for d in range(F.shape[0]))
        for j in range(F.shape[0]):
            U[j, i] = math.log(F[j, i]) - (priming - 1) / priming * math.log(column)
    return U


def single(weight: np.ndarray) -> np.ndarray:
    """As the weights are stored: in float32."""
    return weight.astype(np.float32).astype(np.float64)


class Fit:
    """The whole fit, stage by stage from the bottom up; `weights` and `counts` by the library's names."""

    def __init__(self, config: SaffuConfig, documents: Documents, vocabulary: int):
        self.config, self.vocabulary, self.documents = config, vocabulary, len(documents)
        self.frequencies = [0] * vocabulary
        for document in documents:
            for token in [*document, EOD]:
                self.frequencies[token] += 1
        fragments = sum(
            example.slots[0] == FRG and example.slots[1] == PAD
            for example in (block_examples(documents, config.block) if config.block else [])
        )
        seen = list(self.frequencies)
        seen[PAD], seen[SOD], seen[FRG] = len(documents), len(documents), max(1, fragments)
        self.units = [name for name in ("block", "radius") if getattr(config, name)]
        self.weights: dict[str, np.ndarray] = {}
        for name in self.units:
            if name == "radius":
                seen[FRG] = 1  # no radial unit ever sees it
            Z = assigned_bits(seen, getattr(config, f"{name}_dimension"))
            self.weights[f"{name}.E"] = single(noised_embeddings(Z, seen))
            self.weights[f"{name}.W"] = np.ones((getattr(config, name),) * 2)
        bits = config.hidden_dimension  # the markers are never targets, so they count for nothing here
        self.Z = assigned_bits(self.frequencies, bits) if bits else np.eye(vocabulary)
        self.counts: dict[str, Counts] = {}

    def unit(self, name: str):
        return (self.weights.get(f"{name}.{letter}") for letter in "EWU")

    def mode(self, name: str) -> str:
        return getattr(self.config, f"{name}_mode")

    def examples(self, name: str, documents: Documents) -> list[Example]:
        build = block_examples if name == "block" else radius_examples
        return build(documents, getattr(self.config, name), self.config.head)

    def add(self, layer: str, new: Counts, restart: bool) -> Counts:
        if layer in self.counts and not restart:
            new = Counts(*(a + b for a, b in zip(self.counts[layer], new, strict=True)))
        self.counts[layer] = new
        return new

    def initialise(self, documents: Documents, first: int = 0) -> None:
        if self.config.attention == "explicit":
            self.solve_attention(documents, "initial", restart=False)
        self.solve_decoders(documents, first)

    def tune(self, documents: Documents, number: int, first: int = 0) -> None:
        """V in place of V̂; the first tuning forgets V̂'s counts."""
        self.solve_attention(documents, "tune", restart=number == 1 and self.config.restart_attention)
        self.solve_decoders(documents, first)

    def solve_attention(self, documents: Documents, stage: str, restart: bool) -> None:
        for name in self.units:
            E, W, U = self.unit(name)
            slots = len(W)
            inputs, targets = [], []
            for example in self.examples(name, documents):
                if stage == "initial":
                    V = initial_variation(E, self.frequencies, example)
                else:
                    z = self.Z[example.target]
                    V = variation(E, W, U, example, self.mode(name), z / sum(z))
                inputs.append(quadratic_features(E, example))
                targets.append(self.config.variation_sign * V + bound(slots, self.vocabulary))
            counts = self.add(f"{name}.attention", count(inputs, targets), restart)
            primings = {"paper": math.log(slots), "slots": slots, "measured": counts.norm / counts.targets}
            priming = primings[self.config.attention_priming]
            self.weights[f"{name}.W"] = single(solution(counts.F, priming))

    def solve_decoders(self, documents: Documents, first: int) -> None:
        restart, smoothing = not self.config.accumulate, self.config.smoothing
        for name in self.units:
            E, W, _ = self.unit(name)
            slots, examples = len(W), self.examples(name, documents)
            inputs = [hidden_state(E, W, example, self.mode(name)) for example in examples]
            new = count(inputs, [self.Z[example.target] for example in examples])
            counts = self.add(f"{name}.decoder", new, restart)
            measured = self.config.decoder_priming == "measured"
            priming = counts.norm / counts.targets if measured else slots * math.log(slots)
            F = counts.F.copy()
            for column in F.T:  # noise keeps F(H, Z) positive, but for bits that no target has
                if not self.config.hidden_dimension or sum(column) == 0:
                    column += smoothing
            self.weights[f"{name}.U"] = single(solution(F, priming))
        if not self.config.hidden_dimension:
            prior = [f + smoothing for f in self.frequencies]
            self.weights["log_prior"] = np.log(prior) - math.log(sum(prior))
            return
        targets = [token for document in documents for token in [*document, EOD]]
        if self.config.documents:
            shards = []
            for number, document in enumerate(documents):
                shard = (first + number) * self.config.documents // self.documents
                shards += [np.eye(self.config.documents)[shard]] * (len(document) + 1)
            inputs = document_inputs(self.weights[f"{self.units[0]}.E"], documents)
            counts = self.add("document", count(inputs, shards), restart)
            self.weights["D"] = single(solution(counts.F, 1))
        new = count(self.outputs(documents), [np.eye(self.vocabulary)[target] for target in targets])
        counts = self.add("final", new, restart)
        parts = len(self.units) + (self.config.documents > 0)
        self.weights["M"] = single(solution(counts.F + smoothing, parts))

    def outputs(self, documents: Documents) -> list[np.ndarray]:
        """The inputs of M: the outputs of the units and the document model, side by side."""
        parts = []
        for name in self.units:
            E, W, U = self.unit(name)
            parts.append([unit_output(E, W, U, example, self.mode(name)) for example in self.examples(name, documents)])
        if self.config.documents:
            inputs = document_inputs(self.weights[f"{self.units[0]}.E"], documents)
            parts.append([softmax(x @ self.weights["D"]) for x in inputs])
        return [np.concatenate(row) for row in zip(*parts, strict=True)]

    def probabilities(self, documents: Documents) -> np.ndarray:
        """What the network predicts for each target, (targets, N)."""
        if self.config.hidden_dimension:
            return np.array([softmax(h @ self.weights["M"]) for h in self.outputs(documents)])
        rows = []
        for output in self.outputs(documents):
            experts = output.reshape(len(self.units), self.vocabulary)
            rows.append(softmax(np.log(experts).sum(0) - (len(experts) - 1) * self.weights["log_prior"]))
        return np.array(rows)
