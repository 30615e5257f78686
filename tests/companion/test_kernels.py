"""The network's kernels against the plain definition, and against torch."""

import numpy as np
import pytest
import torch

from conftest import each
from network_data import CLASS_OF, CONTEXT, DEPTH, VOCABULARY, random_weights
from reference import companion as reference
from saffu import SaffuError
from saffu.calibrated.kernels import library
from saffu.calibrated.kneser_ney import Ranks
from saffu.companion.kernels import LAST, NativeNetwork, mixture
from saffu.companion.network import NetworkStack
from saffu.companion.weights import Weights, stored, stored_name, weights_of
from saffu.text.tokenizer import EOD


def native(weights: Weights) -> NativeNetwork:
    return NativeNetwork(weights, Ranks(CLASS_OF.astype(np.uint16)))


def tokens(number: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(EOD, VOCABULARY, number).astype(np.uint16)


def in_torch(*weights: Weights) -> NetworkStack:
    classes = CLASS_OF if weights[0].class_map is not None else None
    made = NetworkStack(np.zeros(VOCABULARY), DEPTH, CONTEXT, 0.0, classes, len(weights))
    for name, parameter in made.named_parameters():
        parameter.data.copy_(torch.from_numpy(np.stack([getattr(own, name) for own in weights])))
    return made.eval()


@pytest.fixture(params=[-1, 2, 1, 0], ids=["best", "avx512", "avx2", "portable"])
def level(request):
    """Each set of vector instructions that this machine has."""
    library.saffu_network_level(request.param)
    yield request.param
    library.saffu_network_level(-1)


def memory_of(network: NativeNetwork, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory for the tokens of a window, and its addresses."""
    memory = np.full((length, network.memory), np.nan, dtype=np.float32)
    return memory, memory.ctypes.data + np.arange(length, dtype=np.uint64) * memory.strides[0]


@pytest.mark.parametrize("with_classes", [False, True], ids=["plain", "classes"])
def test_the_reference_is_what_torch_computes(with_classes):
    """For each of two networks side by side."""
    networks, ids = [random_weights(with_classes, seed) for seed in (0, 1)], tokens(CONTEXT)
    targets = np.random.default_rng(2).integers(EOD, VOCABULARY, (20, CONTEXT))
    made, inputs = in_torch(*networks), torch.from_numpy(ids.astype(np.int64))[None]
    with torch.no_grad():
        hidden = made.hidden(inputs, torch.zeros_like(inputs))  # (2, T, d)
        log_p = np.stack([made.target_log_probabilities(hidden, torch.from_numpy(row)).numpy() for row in targets])
    for place, weights in enumerate(networks):
        states = reference.hidden(weights, ids)
        np.testing.assert_allclose(states, hidden[place].numpy(), rtol=1e-5, atol=2e-5)
        expected = reference.log_probabilities(weights, states, CLASS_OF if with_classes else None)
        np.testing.assert_allclose(log_p[:, place], expected[np.arange(CONTEXT), targets], atol=1e-4)


@each("rounded", [False, True])
@each("with_classes", [False, True])
@each("lengths", [[CONTEXT], [5, 30, 3, 31], [1]])
def test_windows_side_by_side_are_scored_as_the_reference_does(level, with_classes, lengths, rounded):
    weights = random_weights(with_classes)
    weights = weights.rounded() if rounded else weights
    inputs, targets = tokens(CONTEXT), tokens(CONTEXT, 1)
    begin, wanted = np.zeros(CONTEXT, dtype=np.int32), np.zeros(CONTEXT, dtype=bool)
    log_p, logit = np.zeros(CONTEXT), np.zeros(CONTEXT)
    place = 0
    for length in lengths:
        own = slice(place, place + length)
        begin[own] = place
        wanted[place + length // 3 : place + length] = True
        states = reference.hidden(weights, inputs[own])
        expected = reference.log_probabilities(weights, states, CLASS_OF if with_classes else None)
        log_p[own] = expected[np.arange(length), targets[own]]
        logit[own] = states @ weights.gate_weight[: weights.width]
        place += length
    rows = [np.stack([array, array]) for array in (inputs, begin, wanted, targets)]
    for found, expected in zip(native(weights).score(*rows), (log_p, logit), strict=True):
        for row in found:
            assert_close(row[wanted], expected[wanted], rounded)


def assert_close(found: np.ndarray, expected: np.ndarray, rounded: bool) -> None:
    """With int8 weights, a number in the middle between two steps is rounded up here and down there now and then."""
    if rounded:
        assert np.abs(found - expected).max() < 0.1
        assert np.median(np.abs(found - expected)) < 1e-4
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-5)


def test_a_window_is_scored_alike_wherever_it_stands():
    weights, window, targets = random_weights(True), tokens(20), tokens(CONTEXT, 1)
    found = []
    for place in (0, 1, 17, 32, CONTEXT - 20):
        inputs, begin = tokens(CONTEXT, place), np.zeros(CONTEXT, dtype=np.int32)
        own = slice(place, place + 20)
        inputs[own], targets[own], begin[place:], begin[place + 20 :] = window, window[::-1], place, place + 20
        log_p, _ = native(weights).score(*(a[None] for a in (inputs, begin, np.ones(CONTEXT, dtype=bool), targets)))
        found.append(log_p[0, own])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@each("rounded", [False, True])
@each("with_classes", [False, True])
@each("pieces", [[CONTEXT], [1] * 12, [9, 1, 1, 40, 3]])
def test_a_window_read_in_pieces(level, with_classes, pieces, rounded):
    weights, ids = random_weights(with_classes), tokens(CONTEXT)
    weights = weights.rounded() if rounded else weights
    network = native(weights)
    memory, addresses = memory_of(network, CONTEXT)
    past = 0
    for piece in pieces:
        before = memory[:past].copy()
        if piece < 5:
            for place in range(past, past + piece):
                network.step(int(ids[place]), addresses[: place + 1])
        else:
            network.read(ids[: past + piece], past, addresses)
        np.testing.assert_array_equal(memory[:past], before)
        past += piece
    assert np.isnan(memory[past:]).all()
    states = np.ascontiguousarray(memory[:past, -LAST - weights.width : -LAST])
    expected = reference.hidden(weights, ids[:past])
    assert_close(states, expected, rounded)
    assert_close(memory[:past, -LAST], expected @ weights.gate_weight[: weights.width], rounded)
    found = network.log_probabilities(states)
    assert np.isneginf(found[:, :EOD]).all()
    log_p = reference.log_probabilities(weights, expected, CLASS_OF if with_classes else None)
    assert_close(found[:, EOD:], log_p[:, EOD:], rounded)


@pytest.mark.parametrize("with_classes", [False, True], ids=["plain", "classes"])
def test_samples_follow_the_distribution(with_classes):
    weights = random_weights(with_classes)
    network, rng = native(weights), np.random.default_rng(0)
    state = reference.hidden(weights, tokens(9))[-1].astype(np.float32)
    p = np.exp(network.log_probabilities(state[None])[0].astype(np.float64))
    counts = np.bincount([network.sample(state, rng) for _ in range(20_000)], minlength=VOCABULARY)
    likely = p > 0.002
    assert likely.sum() > 20
    deviation = (counts - 20_000 * p)[likely] / np.sqrt(20_000 * p[likely])
    assert np.abs(deviation).max() < 4.5
    assert not counts[p == 0].any()


def test_mixtures():
    rng = np.random.default_rng(0)
    logits, log_p = rng.normal(0, 3, (2, 1)), rng.uniform(-150, -0.1, (3, 500))
    g = 1 / (1 + np.exp(-logits[:, 0]))
    weights = np.log(np.array([1 - g.mean(), g[0] / 2, g[1] / 2]))
    expected = np.logaddexp.reduce(weights[:, None] + log_p, axis=0)
    short = log_p[:, log_p.max(0) > -300]
    np.testing.assert_allclose(
        mixture(weights.astype(np.float32), log_p.astype(np.float32)), expected, rtol=1e-5, atol=2e-5
    )
    np.testing.assert_allclose(reference.mixture(logits, short[1:], short[0]), expected, atol=1e-9)


def test_networks_are_stored_side_by_side():
    one, other = random_weights(True), random_weights(True, 1)
    for found, given in zip(weights_of(stored([one, other]), CONTEXT), (one, other), strict=True):
        for name, array in given.arrays().items():
            np.testing.assert_array_equal(getattr(found, name), array)


def test_damaged_int8_weights_are_refused():
    arrays = stored([random_weights(True).rounded()])
    for name, change in {
        "mlp": lambda a: a.astype(np.int16),
        "attention": lambda a: a[..., :-1],
        "embedding_scale": lambda a: None,
        "mlp_scale": lambda a: a[..., :-1],
        "attention_scale": lambda a: np.where(a == a.max(), np.inf, a).astype(np.float32),
        "distance": lambda a: a.astype(np.int8),
    }.items():
        changed = change(arrays[stored_name(name)])
        damaged = {key: array for key, array in arrays.items() if key != stored_name(name)}
        with pytest.raises(SaffuError, match="weights"):
            weights_of(damaged if changed is None else damaged | {stored_name(name): changed}, CONTEXT)


@each("name", ["embedding", "mlp", "sink", "head_gate", "gate_weight", "gate_bias", "class_bias"])
@each("damage", ["missing", "shape", "dimensions", "dtype", "nan", "infinite"])
def test_damaged_weights_are_refused_in_one_line(name, damage):
    arrays = stored([random_weights(True)])
    array = arrays[stored_name(name)]
    changed = {
        "shape": lambda: np.concatenate([array, array], axis=-1),
        "dimensions": lambda: array.reshape(1, -1) if array.ndim > 2 else array[..., None],
        "dtype": lambda: array.astype(np.float64),
        "nan": lambda: np.where(np.arange(array.size).reshape(array.shape) == array.size // 2, np.nan, array),
        "infinite": lambda: np.where(np.arange(array.size).reshape(array.shape) == array.size // 2, np.inf, array),
    }
    del arrays[stored_name(name)]
    if damage != "missing":
        arrays[stored_name(name)] = changed[damage]().astype(np.float64 if damage == "dtype" else np.float32)
    with pytest.raises(SaffuError, match="weights") as refused:
        native(*weights_of(arrays, CONTEXT))
    assert "\n" not in str(refused.value)
