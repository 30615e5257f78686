import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from reference import PAD, as_corpus
from saffu.config import SaffuConfig
from saffu.corpus import block_windows, radius_windows
from saffu.counters import AttentionCounter, DecoderCounter, HiddenTargets
from saffu.explicit import InitialVariation, variation_bound
from saffu.network import Network
from saffu.unit import Unit

VOCABULARY, DIMENSION, BITS = 12, 3, 4
DOCUMENTS = [[4, 5, 6, 7, 8, 9, 10, 11, 4, 6, 8, 10, 5], [], [7], [11, 11, 9, 4, 4, 5]]
KINDS = {"block": (block_windows, reference.block_examples), "radius": (radius_windows, reference.radius_examples)}
MODES = ["sum", "cat"]
# 12 slots are windowed in groups of different widths, 3 in one
CASES = pytest.mark.parametrize(
    ("kind", "slots", "mode"), [(kind, slots, mode) for kind in KINDS for slots in (3, 12) for mode in MODES]
)


def random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def random_embeddings(generator: torch.Generator, dimension: int = DIMENSION) -> torch.Tensor:
    E = random(generator, VOCABULARY, dimension) + 0.05
    return E / E.sum(1, keepdim=True)


def random_unit(slots: int, mode: str, outputs: int) -> Unit:
    generator = torch.Generator().manual_seed(slots)
    unit = Unit(random_embeddings(generator), slots, mode, outputs).requires_grad_(False)
    unit.W.copy_(4 * random(generator, *unit.W.shape))
    unit.U.copy_(6 * random(generator, *unit.U.shape) - 3)
    return unit


def windows_and_examples(kind: str, slots: int, batch: int = 100):
    """Each window with the ids of its targets, and the plain examples in the same order."""
    windows, examples = KINDS[kind]
    plain = iter(examples(DOCUMENTS, slots))
    pairs = []
    for targets in as_corpus(DOCUMENTS).batches(batch, slots):
        rows = [next(plain) for _ in targets.ids]
        for window in windows(targets, slots):
            pairs.append((window, targets.ids[window.rows], [rows[row] for row in window.rows.tolist()]))
    return pairs


def hidden_targets(bits: int) -> tuple[HiddenTargets, np.ndarray]:
    """For the library and as plain rows: the bits of each token, or with no bits the token itself."""
    if not bits:
        return HiddenTargets(None, VOCABULARY), np.eye(VOCABULARY)
    Z = reference.assigned_bits(list(range(VOCABULARY)), bits)
    return HiddenTargets(torch.from_numpy(Z), VOCABULARY), Z


@CASES
def test_forward_is_equation_1(kind, slots, mode):
    unit = random_unit(slots, mode, BITS)
    E, W, U = unit.E.numpy(), unit.W.numpy(), unit.U.numpy()
    for window, _, examples in windows_and_examples(kind, slots):
        features = unit.quadratic_features(window)
        A, logits = unit.attention(window), unit(window)
        for row, example in enumerate(examples):
            Q = reference.quadratic_features(E, example)
            np.testing.assert_allclose(features[row, : window.width], Q[window.slots], rtol=1e-12)
            if window.width < slots:
                assert features[row, -1].item() == pytest.approx(E[example.head] @ E[PAD], rel=1e-12)
            np.testing.assert_allclose(A[row], reference.attention(E, W, example), rtol=1e-9)
            H = reference.hidden_state(E, W, example, mode)
            np.testing.assert_allclose(logits[row], H @ U, rtol=1e-9, atol=1e-12)
        assert torch.exp(-A).sum(1).numpy() == pytest.approx(1, rel=1e-12)
        if mode == "sum":
            expected = [reference.hidden_state(E, W, example, mode) for example in examples]
            np.testing.assert_allclose(unit.weighted_sum(window), expected, rtol=1e-9)


def test_attention_is_uniform_at_first():
    unit = Unit(random_embeddings(torch.Generator().manual_seed(0)), 5, "sum", BITS).requires_grad_(False)
    for window, _, _ in windows_and_examples("radius", 5):
        np.testing.assert_allclose(unit.attention(window), math.log(5), rtol=1e-12)


@CASES
@pytest.mark.parametrize("bits", [BITS, 0])
def test_variation_is_the_gradient_of_the_log_likelihood(kind, slots, mode, bits):
    hidden, Z = hidden_targets(bits)
    unit = random_unit(slots, mode, hidden.outputs)
    E, W, U = unit.E.numpy(), unit.W.numpy(), unit.U.numpy()
    for window, target_ids, examples in windows_and_examples(kind, slots):
        surprise = hidden.surprise(torch.softmax(unit(window), dim=1), target_ids)
        V = unit.variation(window, surprise)

        A = unit.attention(window).requires_grad_()
        weighted = A[:, :, None] * unit.E[torch.tensor([example.slots for example in examples])]
        H = weighted.sum(1) if mode == "sum" else weighted.flatten(1)
        wanted = torch.from_numpy(Z / Z.sum(1, keepdims=True))[target_ids]
        (wanted * torch.log_softmax(H @ unit.U, dim=1)).sum().backward()
        np.testing.assert_allclose(V, A.grad, rtol=1e-9, atol=1e-12)

        for row, example in enumerate(examples):
            z = Z[example.target] / sum(Z[example.target])
            plain = reference.variation(E, W, U, example, mode, z)
            np.testing.assert_allclose(V[row], plain, rtol=1e-9, atol=1e-12)


@CASES
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("stage", ["initial", "tune"])
def test_attention_counts(kind, slots, mode, sign, stage):
    hidden, Z = hidden_targets(BITS)
    unit = random_unit(slots, mode, BITS)
    E, W, U = unit.E.numpy(), unit.W.numpy(), unit.U.numpy()
    frequencies = torch.arange(VOCABULARY, dtype=torch.float64)
    initial = InitialVariation(unit.E, frequencies) if stage == "initial" else None
    counter = AttentionCounter(unit, hidden, sign, initial)
    features, variations = [], []
    for window, target_ids, examples in windows_and_examples(kind, slots):
        counter.add(window, target_ids)
        for example in examples:
            if initial:
                V = reference.initial_variation(E, frequencies.tolist(), example)
            else:
                V = reference.variation(E, W, U, example, mode, Z[example.target] / sum(Z[example.target]))
            features.append(reference.quadratic_features(E, example))
            variations.append(sign * V + reference.bound(slots, VOCABULARY))
    assert counter.bound == variation_bound(slots, VOCABULARY) == reference.bound(slots, VOCABULARY)
    assert_counts(counter.counts, reference.count(features, variations))


@CASES
@pytest.mark.parametrize("bits", [BITS, 0])
def test_decoder_counts(kind, slots, mode, bits):
    hidden, Z = hidden_targets(bits)
    unit = random_unit(slots, mode, hidden.outputs)
    counter = DecoderCounter(unit, hidden)
    inputs, targets = [], []
    for window, target_ids, examples in windows_and_examples(kind, slots):
        counter.add(window, target_ids)
        inputs += [reference.hidden_state(unit.E.numpy(), unit.W.numpy(), example, mode) for example in examples]
        targets += [Z[example.target] for example in examples]
    assert_counts(counter.counts, reference.count(inputs, targets))


def assert_counts(counts, expected) -> None:
    np.testing.assert_allclose(counts.F, expected.F, rtol=1e-9, atol=1e-12)
    assert counts.mean_norm == pytest.approx(expected.norm / expected.targets, rel=1e-9)
    assert counts.targets == expected.targets


# The network


def random_network(**settings) -> tuple[Network, reference.Fit]:
    """A network with random weights, and the plain one with the same."""
    shape = {"block": 5, "radius": 10, "block_dimension": 4, "radius_dimension": 5, "hidden_dimension": BITS}
    config = SaffuConfig(**shape | settings)
    generator = torch.Generator().manual_seed(1)
    dimensions = {"block": config.block_dimension, "radius": config.radius_dimension}
    embeddings = {
        name: random_embeddings(generator, size) for name, size in dimensions.items() if getattr(config, name)
    }
    network = Network(config, embeddings, VOCABULARY).requires_grad_(False)
    plain = reference.Fit(config, DOCUMENTS, VOCABULARY)
    for name, tensor in network.state_dict().items():
        if not name.endswith("E"):
            tensor.copy_(4 * random(generator, *tensor.shape) - 2)
        plain.weights[name.removeprefix("units.")] = tensor.numpy()
    return network, plain


def predict(network: Network, batch: int) -> np.ndarray:
    runs = as_corpus(DOCUMENTS).batches(batch, network.lookback)
    return torch.cat([torch.softmax(network(targets), dim=1) for targets in runs]).numpy()


SHAPES = [
    {"block_mode": "sum", "radius_mode": "cat"},
    {"block_mode": "cat", "radius_mode": "sum"},
    {"block_mode": "sum", "radius_mode": "sum", "head": "first"},
    {"block_mode": "cat", "radius_mode": "cat", "block": 11, "radius": 2},
    {"block": 0},
    {"radius": 0, "block": 2, "block_mode": "cat"},
    {"documents": 3},
    {"documents": 2, "block": 0},
    {"hidden_dimension": 0},
    {"hidden_dimension": 0, "block": 0},
]


@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_network_is_the_plain_loop(settings):
    network, plain = random_network(**settings)
    expected = plain.probabilities(DOCUMENTS)
    for batch in (1, 7, 100):
        np.testing.assert_allclose(predict(network, batch), expected, rtol=1e-9)
    targets = next(as_corpus(DOCUMENTS).batches(100, network.lookback))
    chosen = expected[np.arange(len(expected)), targets.ids.numpy()]
    np.testing.assert_allclose(network.log_probabilities(targets), np.log(chosen), rtol=1e-9)


NETWORK, _ = random_network(documents=3)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30))
def test_network_does_not_depend_on_the_batch(batch):
    np.testing.assert_allclose(predict(NETWORK, batch), predict(NETWORK, 1000), rtol=1e-12)


@pytest.mark.parametrize("batch", [1, 2, 5, 9, 15, 100])
def test_document_inputs_of_runs_that_start_anywhere(batch):
    network, plain = random_network(documents=3)
    expected = reference.document_inputs(plain.weights["block.E"], DOCUMENTS)
    runs = as_corpus(DOCUMENTS).batches(batch, network.lookback)
    found = torch.cat([network.document_inputs(targets) for targets in runs])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


def test_given_document_inputs_are_used():
    network, _ = random_network(documents=3)
    targets = next(as_corpus(DOCUMENTS).batches(100, network.lookback))
    inputs = network.document_inputs(targets)
    assert torch.equal(network(targets, inputs), network(targets))
    assert not torch.equal(network(targets, inputs.flip(0)), network(targets))


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        # E 12·4 + 12·5, W 5² + 10², U 4·4 + 50·4, M 8·12
        ({}, 48 + 60 + 25 + 100 + 16 + 200 + 96),
        # U 20·4 + 5·4; and with 3 shards D 4·3, M (8 + 3)·12
        ({"block_mode": "cat", "radius_mode": "sum", "documents": 3}, 48 + 60 + 25 + 100 + 80 + 20 + 12 + 132),
        # only E 12·5, W 10², U 50·12, and the prior
        ({"block": 0, "hidden_dimension": 0}, 60 + 100 + 600 + 12),
    ],
)
def test_parameter_count(settings, count):
    assert random_network(**settings)[0].parameter_count() == count


def test_loaded_weights_replace_all_that_was_computed():
    network, _ = random_network()
    other = copy.deepcopy(network)
    other.units["radius"].E.copy_(random_embeddings(torch.Generator().manual_seed(9), 5))
    expected = predict(other, 100)
    assert not np.allclose(predict(network, 100), expected)
    network.load_state_dict(other.state_dict())
    np.testing.assert_allclose(predict(network, 100), expected, rtol=1e-12)
