"""The network, the gate, the optimizer, and the rows they see."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import corpus_of
from saffu.companion.gate import SHUT, Gates, averaged, lean_of, mixed
from saffu.companion.network import NetworkStack, causal_bias
from saffu.companion.optimizer import Muon, Optimizer
from saffu.companion.rows import scoring_rows, training_rows, window_start
from saffu.companion.weights import CERTAINTIES
from saffu.text.tokenizer import EOD

VOCABULARY, CONTEXT = 30, 16


def network(classes: bool = False, seed: int = 0, number: int = 1) -> NetworkStack:
    """Networks with random weights everywhere, so that nothing is hidden by zeros."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    log_prior = np.log(rng.dirichlet(np.ones(VOCABULARY)))
    of_token = np.concatenate([np.zeros(EOD), rng.permutation(np.arange(VOCABULARY - EOD) % 5)])
    made = NetworkStack(log_prior, 2, CONTEXT, 0.0, of_token if classes else None, number)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made.eval()


def distributions(made: NetworkStack, hidden: torch.Tensor) -> torch.Tensor:
    """log p of every token that can be predicted, (K, n, N − EOD), after states (K, n, d)."""
    tokens = torch.arange(EOD, VOCABULARY)
    number, states, _ = hidden.shape
    log_p = made.target_log_probabilities(hidden.repeat_interleave(len(tokens), 1), tokens.repeat(states))
    return log_p.view(number, states, -1)


def some_inputs(rows: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(EOD, VOCABULARY, (rows, CONTEXT)))


@pytest.mark.parametrize("classes", [False, True])
def test_distributions_sum_to_one(classes):
    made, inputs = network(classes, number=2), some_inputs()
    log_p = distributions(made, made.hidden(inputs, torch.zeros_like(inputs)))
    assert log_p.shape == (2, inputs.numel(), VOCABULARY - EOD)
    assert torch.allclose(log_p.exp().sum(2), torch.ones(log_p.shape[:2]), atol=1e-5)


@pytest.mark.parametrize("classes", [False, True])
def test_networks_side_by_side_share_nothing(classes):
    """Each of a stack computes what it computes alone, also if they read different rows."""
    stack, singles = network(classes, number=2), [network(classes) for _ in range(2)]
    for place, single in enumerate(singles):
        for name, weight in single.named_parameters():
            weight.data.copy_(stack.get_parameter(name).data[place : place + 1])
    inputs = torch.stack([some_inputs(seed=1), some_inputs(seed=2)])  # (K, rows, T)
    documents = torch.zeros_like(inputs)
    hidden = stack.hidden(inputs, documents)
    targets = torch.stack([some_inputs(seed=3).flatten(), some_inputs(seed=4).flatten()])
    log_p = stack.target_log_probabilities(hidden, targets)
    gates = Gates(stack.width, 2)
    torch.nn.init.normal_(gates.weight)
    certainty = torch.randn(2, targets.shape[1], CERTAINTIES)
    logits = gates(hidden, certainty)
    for place, single in enumerate(singles):
        alone = single.hidden(inputs[place], documents[place])
        assert torch.allclose(alone[0], hidden[place], atol=1e-5)
        assert torch.allclose(single.target_log_probabilities(alone, targets[place])[0], log_p[place], atol=1e-5)
        of_state = alone[0] @ gates.weight[place, :-CERTAINTIES] + certainty[place] @ gates.weight[place, -CERTAINTIES:]
        assert torch.allclose(of_state + gates.bias[place], logits[place], atol=1e-5)
    assert not torch.allclose(log_p[0], log_p[1], atol=0.1)


def test_calibrated_gates_lean_toward_the_networks_where_a_document_begins():
    torch.manual_seed(0)
    gates, states = Gates(64, 2), torch.randn(2, 400, 64)
    torch.nn.init.normal_(gates.weight, std=0.01)
    youth = (torch.arange(400) % 100 < 50).float()
    seen = torch.cat([torch.randn(400, CERTAINTIES - 1), youth[:, None]], 1)
    trained = torch.tensor([0.9, 0.1]).repeat(2, 200).log()
    counted = torch.where(youth > 0, 0.01, 0.5).log()  # of no use at first
    found = gates.calibrate(gates(states, seen).detach(), trained, counted, youth)
    assert torch.allclose(gates(states, seen), found, atol=1e-4)
    assert found[:, youth > 0].min() > 10 > 2 > found[:, youth == 0].max()


def test_a_lean_does_not_cost_what_was_gained_over_the_counts():
    youth, counted = torch.ones(400), torch.tensor([0.5, 0.48] * 200).log()
    trained = torch.tensor([[0.48, 0.5] * 200]).log()
    gains = [averaged(mixed(torch.full((1, 400), logit), trained, counted)) - counted for logit in (0.0, 16.0)]
    assert 0.001 > gains[0].mean() > 0.0001 > gains[1].mean()
    assert lean_of(torch.zeros(1, 400), trained, counted, youth) == 0
    assert lean_of(torch.zeros(1, 400), trained, counted - 0.01, youth) == 16  # the network is better


def test_gates_that_are_shut_do_not_lean():
    gates, seen = Gates(64), torch.ones(400, CERTAINTIES)
    logit = gates(torch.zeros(1, 400, 64), seen).detach()
    found = gates.calibrate(logit, torch.full((1, 400), 0.1).log(), torch.full((400,), 0.5).log(), seen[:, -1])
    assert (found == SHUT).all()


def test_no_position_sees_its_future():
    made, inputs = network(), some_inputs()
    documents = torch.zeros_like(inputs)
    before = made.hidden(inputs, documents)[0].view(*inputs.shape, -1)
    changed = inputs.clone()
    changed[:, 9] = (changed[:, 9] + 5) % 20 + EOD
    after = made.hidden(changed, documents)[0].view(*inputs.shape, -1)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def test_documents_of_a_row_do_not_see_each_other():
    made, inputs = network(), some_inputs(1)
    documents = torch.tensor([[0] * 6 + [1] * 10])
    together = made.hidden(inputs, documents)[0]
    alone = made.hidden(inputs[:, 6:], documents[:, 6:])[0]
    assert torch.allclose(together[6:], alone, atol=1e-5)


def test_a_new_network_predicts_the_prior():
    log_prior = np.log(np.random.default_rng(0).dirichlet(np.ones(VOCABULARY)))
    made, inputs = NetworkStack(log_prior, 2, CONTEXT), some_inputs()
    log_p = distributions(made, made.hidden(inputs, torch.zeros_like(inputs))[:, 3:4])
    prior = torch.from_numpy(log_prior[EOD:]).float()
    assert torch.allclose(log_p[0, 0], prior.log_softmax(0), atol=1e-5)


def test_biases_depend_on_distance_alone():
    distance = torch.arange(6.0)
    bias = causal_bias(distance)
    for i in range(6):
        for j in range(6):
            assert bias[i, j] == (distance[i - j] if j <= i else -torch.inf)


def test_the_mixture_lies_between_its_sides():
    logit, trained, counted = torch.randn(3, 50)
    trained, counted = -trained.exp(), -counted.exp()
    g = torch.sigmoid(logit)
    expected = (g * trained.exp() + (1 - g) * counted.exp()).log()
    assert torch.allclose(mixed(logit, trained, counted), expected, atol=1e-6)
    assert torch.allclose(mixed(torch.full((50,), -100.0), trained, counted), counted)


def test_predictions_of_networks_are_averaged():
    logit, trained = torch.randn(2, 3, 50)
    trained, counted = -trained.exp(), -torch.randn(50).exp()
    g = torch.sigmoid(logit)
    expected = (g * trained.exp() + (1 - g) * counted.exp()).mean(0).log()
    assert torch.allclose(averaged(mixed(logit, trained, counted)), expected, atol=1e-6)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_is_that_of_torch():
    torch.manual_seed(1)
    stacked = torch.nn.Parameter(torch.randn(3, 8, 4))
    single = [torch.nn.Parameter(matrix.clone()) for matrix in stacked.detach()]
    own = Muon([stacked], torch.tensor(0.01), 0.1, dtype=torch.bfloat16)
    reference = torch.optim.Muon(single, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        gradient = torch.randn(3, 8, 4)
        stacked.grad = gradient
        for matrix, part in zip(single, gradient, strict=True):
            matrix.grad = part.clone()
        own.step()
        reference.step()
    assert torch.allclose(stacked, torch.stack(list(single)), atol=2e-4)


def test_the_state_of_an_optimizer_is_restored():
    def run(steps: int, resume_at: int | None) -> list[torch.Tensor]:
        made, gates = network(number=2).train(), Gates(128, 2)
        optimizer = Optimizer(made, gates, 0.1, 0.3)
        inputs = some_inputs()
        for step in range(steps):
            if step == resume_at:
                stored = {name: value.clone() for name, value in optimizer.arrays().items()}
                optimizer = Optimizer(made, gates, 0.1, 0.3)
                optimizer.load(stored)
            optimizer.set_rate(0.5)
            hidden = made.hidden(inputs, torch.zeros_like(inputs))
            trained = made.target_log_probabilities(hidden, inputs.flatten())
            (gates(hidden, hidden[:, :, :CERTAINTIES]) - trained).mean().backward()
            optimizer.step()
        return [weight.detach() for weight in made.parameters()]

    for one, other in zip(run(4, None), run(4, 2), strict=True):
        assert torch.equal(one, other)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5))
def test_training_rows_hold_every_target(targets, length, seed):
    length = min(length, targets)
    rows = training_rows(targets, length, np.random.default_rng(seed))
    assert set(rows.flatten().tolist()) == set(range(targets))
    assert rows.size < targets + length


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.sampled_from([8, 16]))
def test_every_target_is_scored_once_with_its_window(lengths, context):
    corpus = corpus_of([[7] * length for length in lengths])
    positions, scored = scoring_rows(corpus, context)
    assert sorted(positions[scored].tolist()) == list(range(corpus.targets))
    for row, column in zip(*np.nonzero(scored), strict=True):
        place = positions[row, column]
        document = int(corpus.starts[np.searchsorted(corpus.starts, place, side="right") - 1])
        begin = document + window_start(int(place - document), context)
        assert positions[row, column - (place - begin)] == begin
        assert begin == document or place - begin >= context // 2
