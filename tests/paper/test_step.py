"""A step of Adam: its gradients, what it changes, and embeddings that are trained."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

from conftest import each
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.paper.network import Network
from saffu.paper.step import AdamStep, copy_weights, total_loss, train_embeddings
from training_data import CONFIG, QUICK, TRAIN, VOCABULARY, started

COLD = TrainingConfig(init="random", dropout=0.0)


def first_targets(network, size):
    return next(network.batches(TRAIN, size))


@each(
    "settings",
    [
        {"block_mode": "sum", "radius_mode": "cat"},
        {"block_mode": "cat", "radius_mode": "sum", "pad_side": "right"},
        {"document_shards": 3},
        {"block": 12, "radius": 0, "block_mode": "cat"},
    ],
)
@each("trained", [False, True])
def test_gradients_are_finite_differences(settings, trained):
    """Through −log softmax, sum and cat, the document model, and embeddings on the simplex."""
    torch.manual_seed(0)
    shape = {"block": 4, "radius": 3, "block_dimension": 3, "radius_dimension": 3, "hidden_dimension": 3}
    config = PaperConfig(**(shape | settings))
    embeddings = {name: torch.softmax(torch.randn(VOCABULARY, 3).double(), 1) for name in config.units()}
    network = Network(config, embeddings, VOCABULARY)
    targets = first_targets(network, 12)
    if trained:
        train_embeddings(network)
    names = [name for name, _ in network.named_parameters()]
    assert any("parametrizations.E" in name for name in names) == trained
    weights = [torch.randn_like(weight) * 0.5 for weight in network.parameters()]

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self):
            return total_loss(self.network, targets, None, narrow=False)

    def total(*weights):
        values = {f"network.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return functional_call(Loss(), values, ())

    assert torch.autograd.gradcheck(total, [weight.requires_grad_() for weight in weights])


def test_the_first_step_moves_each_weight_by_the_learning_rate():
    """Adam's first step has the size of the learning rate, against the sign of the gradient."""
    model = started()
    network = copy.deepcopy(model.network)
    step = AdamStep(network, TrainingConfig(learning_rate=1e-3, dropout=0.0, max_grad_norm=0.0))
    targets = first_targets(network, 256)
    plain = copy.deepcopy(model.network).requires_grad_(True)
    loss = -plain.log_probabilities(targets).sum()
    gradients = torch.autograd.grad(loss, list(plain.parameters()))
    assert float(step(targets)) == pytest.approx(loss.item(), rel=1e-5)
    for before, after, gradient in zip(plain.parameters(), network.parameters(), gradients, strict=True):
        clear = gradient.abs() > 1e-3
        assert clear.any()
        torch.testing.assert_close((after - before)[clear], -1e-3 * gradient.sign()[clear], rtol=0.02, atol=1e-5)


def test_gradients_are_clipped():
    """With a tiny limit, Adam's ε outweighs the gradient, and weights hardly move."""
    moved = {}
    for limit in (0.0, 1e-12):
        network = copy.deepcopy(started().network)
        AdamStep(network, TrainingConfig(dropout=0.0, max_grad_norm=limit))(first_targets(network, 256))
        moved[limit] = float((network.M.detach() - started().network.M).abs().max())
    assert moved[0.0] > 0.009
    assert moved[1e-12] < 1e-5


def test_dropout_applies_to_training_only():
    network = copy.deepcopy(started().network)
    AdamStep(network, TrainingConfig(dropout=0.5))
    targets = first_targets(network, 64)
    with torch.no_grad():
        assert torch.equal(network.eval()(targets), started().network(targets))
        assert not torch.allclose(network.train()(targets), started().network(targets))


def test_constant_embeddings_stay():
    network = copy.deepcopy(started().network)
    step = AdamStep(network, QUICK)
    for targets in network.batches(TRAIN, 64):
        step(targets)
    for name, weight in started().network.state_dict().items():
        assert torch.equal(weight, network.state_dict()[name]) == name.endswith(".E"), name


def test_trained_embeddings_move_on_the_simplex():
    model = started(CONFIG, COLD)
    network = copy.deepcopy(model.network)
    step = AdamStep(network, replace(COLD, learning_rate=1.0))
    for targets in network.batches(TRAIN, 64):
        step(targets)
    plain = copy.deepcopy(model.network)
    copy_weights(network, plain)
    for name, unit in plain.units.items():
        assert not unit.E.requires_grad
        assert torch.equal(unit.E, network.units[name].E)
        assert (unit.E - model.network.units[name].E).abs().max() > 0.1
        assert float(unit.E.min()) >= 0
        torch.testing.assert_close(unit.E.sum(1), torch.ones(VOCABULARY))
    with torch.no_grad():
        torch.testing.assert_close(plain(targets), network.eval()(targets))


@pytest.mark.parametrize("training", [QUICK, COLD], ids=["warm", "cold"])
def test_arrays_hold_the_whole_state(training):
    """Loaded into another step, they continue bit for bit."""
    one, other = (AdamStep(copy.deepcopy(started(CONFIG, training).network), training) for _ in range(2))
    first, *rest = list(one.network.batches(TRAIN, 300))
    one(first)
    other.load(one.arrays())
    for targets in rest:
        torch.manual_seed(1)
        expected = one(targets)
        torch.manual_seed(1)
        assert torch.equal(other(targets), expected)
    for name, array in one.arrays().items():
        assert (array == other.arrays()[name]).all(), name


def test_bfloat16_changes_the_loss_a_little():
    network = copy.deepcopy(started().network)
    targets = first_targets(network, 256)
    with torch.no_grad():
        whole, narrow = (float(total_loss(network, targets, None, narrow)) for narrow in (False, True))
    assert whole != narrow
    assert whole == pytest.approx(narrow, rel=1e-2)
