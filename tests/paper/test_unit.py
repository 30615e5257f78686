import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_data import VOCABULARY, as_corpus

from conftest import each
from reference import paper as reference
from reference.paper import EOD, PAD
from saffu.paper import equations
from saffu.paper.config import PaperConfig, UnitShape
from saffu.paper.counting import AttentionCounter, DecoderCounter, OutputCounter
from saffu.paper.equations import InitialVariation
from saffu.paper.network import Network
from saffu.paper.unit import Unit
from saffu.paper.windows import unit_windows

DIMENSION, BITS = 5, 4
DOCUMENTS = [[4, 5, 6, 7, 8, 9, 10, 11, 4, 6, 8, 10, 5, EOD], [EOD], [7, EOD], [11, 11, 9, EOD, 4, 4, 5, EOD]]
# 12 slots are windowed in groups of different widths, 3 in one
CASES = each(
    "name, slots, mode",
    [(name, slots, mode) for name in ("block", "radius") for slots in (3, 12) for mode in ("sum", "cat")],
)
Z = reference.bit_vectors(list(range(VOCABULARY)), BITS)


def random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def random_embeddings(generator: torch.Generator, dimension: int = DIMENSION) -> torch.Tensor:
    E = random(generator, VOCABULARY, dimension) + 0.05
    return E / E.sum(1, keepdim=True)


def config_of(name: str, slots: int, mode: str, **settings) -> PaperConfig:
    """One unit alone."""
    other = {"block": "radius", "radius": "block"}[name]
    own = {name: slots, f"{name}_mode": mode, f"{name}_dimension": DIMENSION, other: 0}
    return PaperConfig(**own, hidden_dimension=BITS, document_shards=0, dtype="float64", **settings)


def random_network(config: PaperConfig) -> tuple[Network, reference.Network]:
    """A network with random weights, and the reference's with the same."""
    generator = torch.Generator().manual_seed(1)
    embeddings = {name: random_embeddings(generator, shape.dimension) for name, shape in config.units().items()}
    network = Network(config, embeddings, VOCABULARY).requires_grad_(False)
    for weight in network.parameters():
        weight.copy_(4 * random(generator, *weight.shape) - 2)
    units = {
        name: reference.Unit(unit.E.numpy(), unit.W.numpy(), unit.U.numpy(), unit.mode)
        for name, unit in network.units.items()
    }
    D = network.document.D.numpy() if network.document else np.zeros(0)
    return network, reference.Network(config, units, D, network.M.numpy())


def windows_and_examples(network: Network, name: str, batch: int = 100):
    """Each window with the ids of its targets, and the reference's examples in the same order."""
    plain = iter(reference.examples(name, DOCUMENTS, network.config))
    for targets in network.batches(as_corpus(DOCUMENTS), batch):
        rows = [next(plain) for _ in targets.ids]
        for window in unit_windows(name, targets, network.config):
            yield window, targets.ids[window.rows], [rows[row] for row in window.rows.tolist()]


@CASES
@each("tabulated", [False, True])
def test_forward_is_equation_1(name, slots, mode, tabulated):
    network, plain = random_network(config_of(name, slots, mode))
    unit, expected = network.units[name], plain.units[name]
    tables = network.tables()[name] if tabulated else None
    for window, _, examples in windows_and_examples(network, name):
        features = unit.quadratic_features(window, tables)
        A, logits = unit.attention(window, tables), unit(window, tables)
        for row, example in enumerate(examples):
            Q = reference.quadratic_features(expected, example)
            np.testing.assert_allclose(features[row, : window.width], Q[window.slots], rtol=1e-12)
            if window.width < slots:
                assert features[row, -1].item() == pytest.approx(expected.E[example.query] @ expected.E[PAD], rel=1e-12)
            np.testing.assert_allclose(A[row], reference.attention(expected, example), rtol=1e-9)
            H = reference.hidden_state(expected, example)
            np.testing.assert_allclose(logits[row], H @ expected.U, rtol=1e-9, atol=1e-12)
            p = reference.unit_output(expected, example)
            np.testing.assert_allclose(torch.softmax(logits[row], 0), p, rtol=1e-9, atol=1e-12)
        assert torch.exp(-A).sum(1).numpy() == pytest.approx(1, rel=1e-12)
        if mode == "sum":
            states = [reference.hidden_state(expected, example) for example in examples]
            np.testing.assert_allclose(unit.weighted_sum(window, tables), states, rtol=1e-9)


@CASES
def test_tables_of_decoded_tokens_give_the_same_logits_in_float32(name, slots, mode):
    network, _ = random_network(config_of(name, slots, mode))
    network = network.float()
    tables = network.tables()
    assert tables[name].decoded is not None
    assert network.tables(decode=False)[name].decoded is None
    for targets in network.batches(as_corpus(DOCUMENTS), 100):
        plain = network.unit_logits(name, targets)
        np.testing.assert_allclose(network.unit_logits(name, targets, tables), plain, rtol=1e-4, atol=1e-4)


def test_attention_is_uniform_at_first():
    config = config_of("radius", 5, "sum")
    network, _ = random_network(config)
    embeddings = random_embeddings(torch.Generator().manual_seed(0))
    unit = Unit(embeddings, UnitShape(5, "sum", DIMENSION), BITS).requires_grad_(False)
    for window, _, _ in windows_and_examples(network, "radius"):
        np.testing.assert_allclose(unit.attention(window), math.log(5), rtol=1e-12)


@CASES
def test_variation_is_the_gradient_of_the_log_likelihood(name, slots, mode):
    network, plain = random_network(config_of(name, slots, mode))
    unit = network.units[name]
    wanted = torch.from_numpy(Z / Z.sum(1, keepdims=True))
    for window, target_ids, examples in windows_and_examples(network, name):
        V = unit.variation(window, wanted[target_ids] - torch.softmax(unit(window), dim=1))

        A = unit.attention(window).requires_grad_()
        weighted = A[:, :, None] * unit.E[torch.tensor([example.slots for example in examples])]
        H = weighted.sum(1) if mode == "sum" else weighted.flatten(1)
        (wanted[target_ids] * torch.log_softmax(H @ unit.U, dim=1)).sum().backward()
        np.testing.assert_allclose(V, A.grad, rtol=1e-9, atol=1e-12)

        for row, example in enumerate(examples):
            expected = reference.variation(plain.units[name], example, wanted[example.target].numpy(), c=0)
            np.testing.assert_allclose(V[row], expected, rtol=1e-9, atol=1e-12)


@CASES
def test_gradients_reach_all_weights_with_and_without_tables(name, slots, mode):
    network, _ = random_network(config_of(name, slots, mode))
    unit = network.units[name]
    targets = next(network.batches(as_corpus(DOCUMENTS), 100))
    gradients = []
    for tables in (None, network.tables(decode=False)):
        network.requires_grad_(True).zero_grad()
        unit.E.requires_grad_(True)
        torch.nn.functional.cross_entropy(network(targets, tables), targets.ids).backward()
        gradients.append([weight.grad.clone() for weight in (unit.W, unit.U, network.M)])
        if tables is None:
            assert unit.E.grad.abs().max() > 0
    for plain, tabulated in zip(*gradients, strict=True):
        assert torch.isfinite(plain).all()
        assert plain.abs().max() > 0
        np.testing.assert_allclose(plain, tabulated, rtol=1e-9, atol=1e-15)


def assert_counts(counts, expected) -> None:
    np.testing.assert_allclose(counts.F, expected.F, rtol=1e-9, atol=1e-9)
    assert counts.mean_norm == pytest.approx(expected.norm / expected.targets, rel=1e-9)
    assert counts.targets == expected.targets


@CASES
@each("sign", [1, -1])
@each("stage", ["initial", "tune"])
def test_attention_counts(name, slots, mode, sign, stage):
    network, plain = random_network(config_of(name, slots, mode, variation_sign=sign))
    counter = attention_counter(network, name, stage, sign)
    for targets in network.batches(as_corpus(DOCUMENTS), 7):
        counter.add(targets)
    examples = reference.examples(name, DOCUMENTS, network.config)
    features = [reference.quadratic_features(plain.units[name], example) for example in examples]
    c = reference.variation_bound(slots, VOCABULARY)
    if stage == "initial":
        V = [reference.initial_variation(plain.units[name].E, FREQUENCIES, e, c, sign) for e in examples]
    else:
        V = [reference.variation(plain.units[name], e, Z[e.target] / sum(Z[e.target]), c, sign) for e in examples]
    assert_counts(counter.counts, reference.count(features, V))


FREQUENCIES = list(range(VOCABULARY))


def attention_counter(network: Network, name: str, stage: str, sign: int = 1) -> AttentionCounter:
    unit = network.units[name]
    bound = equations.variation_bound(unit.slots, VOCABULARY)
    initial = InitialVariation(unit.E, torch.tensor(FREQUENCIES), bound, sign) if stage == "initial" else None
    return AttentionCounter(network, name, network.tables()[name], torch.from_numpy(Z), initial)


@pytest.mark.parametrize("stage", ["initial", "tune"])
@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_the_bound_is_inside_the_bracket(mode, stage):
    """[… + c]·X_k adds c‖X_k‖₁: where norms are not 1, F differs from that of […]·X_k + c."""
    network, _ = random_network(config_of("block", 4, mode))
    unit = network.units["block"]
    norms = torch.linspace(0.5, 2.0, VOCABULARY, dtype=torch.float64)
    unit.E.mul_(norms[:, None])
    E, U = unit.E.numpy(), unit.U.numpy()
    c = 2 * (1 + 1 / 4) * math.log(VOCABULARY)
    mean = np.array(FREQUENCIES) / sum(FREQUENCIES) @ np.log(E)
    inside, outside = np.zeros((4, 4)), np.zeros((4, 4))
    for example in reference.examples("block", DOCUMENTS, network.config):
        X, Q = E[example.slots], E[example.slots] @ E[example.query]
        weights = -np.log(reference.softmax(Q @ unit.W.numpy()))
        H = weights @ X if mode == "sum" else (weights[:, None] * X).ravel()
        residual = Z[example.target] / Z[example.target].sum() - reference.softmax(H @ U)
        by_slot = np.broadcast_to(U.reshape(-1, DIMENSION, BITS), (4, DIMENSION, BITS))
        bracket = (np.log(E[example.target]) - mean)[None] if stage == "initial" else by_slot @ residual  # (1 or K, D)
        inside += np.outer(Q, ((bracket + c) * X).sum(1))
        outside += np.outer(Q, (bracket * X).sum(1) + c)
    counter = attention_counter(network, "block", stage)
    for targets in network.batches(as_corpus(DOCUMENTS), 7):
        counter.add(targets)
    np.testing.assert_allclose(counter.counts.F, inside, rtol=1e-9)
    assert np.abs(inside / outside - 1).max() > 0.1


@CASES
@each("kind", ["raw", "normalized"])
def test_decoder_counts(name, slots, mode, kind):
    network, plain = random_network(config_of(name, slots, mode, hidden_targets=kind))
    tables = network.tables()[name]
    decoder, output = (
        DecoderCounter(network, name, tables, torch.from_numpy(Z)),
        OutputCounter(network, name, tables),
    )
    for targets in network.batches(as_corpus(DOCUMENTS), 7):
        decoder.add(targets)
        output.add(targets)
    examples = reference.examples(name, DOCUMENTS, network.config)
    rows = Z if kind == "raw" else Z / Z.sum(1, keepdims=True)
    states = [reference.hidden_state(plain.units[name], example) for example in examples]
    assert_counts(decoder.counts, reference.count(states, [rows[example.target] for example in examples]))
    outputs = [reference.unit_output(plain.units[name], example) for example in examples]
    assert_counts(output.counts, reference.count(outputs, [np.eye(VOCABULARY)[e.target] for e in examples]))


SHAPE = {"block": 5, "radius": 10, "block_dimension": 4, "radius_dimension": 5, "hidden_dimension": BITS}
SHAPE |= {"document_shards": 0, "dtype": "float64"}
SHAPES = [
    {"block_mode": "sum", "radius_mode": "cat"},
    {"block_mode": "cat", "radius_mode": "sum"},
    {"block_mode": "sum", "radius_mode": "sum", "block_advance": "shifted"},
    {"block_mode": "cat", "radius_mode": "cat", "block": 11, "radius": 2, "pad_side": "right"},
    {"block": 0},
    {"radius": 0, "block": 2, "block_mode": "cat"},
    {"document_shards": 3},
    {"document_shards": 2, "block": 0},
]


def predict(network: Network, batch: int) -> np.ndarray:
    runs = network.batches(as_corpus(DOCUMENTS), batch)
    return torch.cat([torch.softmax(network(targets), dim=1) for targets in runs]).numpy()


@each("settings", SHAPES)
def test_network_is_the_reference(settings):
    network, plain = random_network(PaperConfig(**SHAPE | settings))
    expected = reference.probabilities(plain, DOCUMENTS)
    for batch in (1, 7, 100):
        np.testing.assert_allclose(predict(network, batch), expected, rtol=1e-9, atol=1e-300)
    assert (expected[:, :EOD] == 0).all()
    (targets,) = network.batches(as_corpus(DOCUMENTS), 100)
    chosen = expected[np.arange(len(expected)), targets.ids.numpy()]
    np.testing.assert_allclose(network.log_probabilities(targets), np.log(chosen), rtol=1e-9)
    hidden = reference.outputs(plain, DOCUMENTS)
    np.testing.assert_allclose(network.hidden(targets), hidden, rtol=1e-9, atol=1e-25)
    sizes = [rows.stop - rows.start for rows in network.parts.values()]
    assert sum(sizes) == len(network.M) == len(hidden[0])


NETWORK, _ = random_network(PaperConfig(**SHAPE | {"document_shards": 3}))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30))
def test_network_does_not_depend_on_the_batch(batch):
    np.testing.assert_allclose(predict(NETWORK, batch), predict(NETWORK, 1000), rtol=1e-12)


def test_dropout_changes_logits_while_training_only():
    network, _ = random_network(PaperConfig(**SHAPE))
    (targets,) = network.batches(as_corpus(DOCUMENTS), 100)
    before = network.eval()(targets)
    network.set_dropout(0.5)
    assert torch.equal(network(targets), before)
    assert not torch.equal(network.train()(targets), before)
