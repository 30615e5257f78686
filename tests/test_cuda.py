"""On a GPU, the paper's model is the one of a CPU, and training continues there."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from saffu.paper.backprop import Backprop
from saffu.paper.fit import fit
from saffu.paper.model import PaperModel
from saffu.tools.evaluate import evaluate
from saffu.training import cuda_graph
from training_data import CONFIG, DEV, QUICK, TRAIN, VOCABULARY, started

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

KINDS = {
    "paper": CONFIG,
    "documents": replace(CONFIG, document_shards=3),
    "tuned": replace(CONFIG, tune_folds=2),
}
SMOOTH = replace(QUICK, dropout=0.0, matmul_dtype="float32")


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    """The same fit on both devices."""
    return [list(fit(TRAIN, VOCABULARY, KINDS[request.param], device))[-1].model for device in ("cpu", "cuda")]


def nll(model):
    return evaluate(model, DEV).nll


def test_the_same_model(pair):
    cpu, gpu = pair
    assert gpu.device.type == "cuda"
    assert nll(gpu) == pytest.approx(nll(cpu), rel=1e-5)
    assert gpu.arrays().keys() == cpu.arrays().keys()
    for name, array in cpu.arrays().items():
        np.testing.assert_allclose(gpu.arrays()[name], array, rtol=1e-3, atol=1e-3)
    states = [model.start([5, 6, 7]) for model in pair]
    here, there = (model.next_log_probabilities([state]) for model, state in zip(pair, states, strict=True))
    np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-4)


def test_saved_on_one_device_and_loaded_on_another(pair):
    for model in pair:
        for device in ("cpu", "cuda"):
            loaded = PaperModel.from_arrays(model.config, VOCABULARY, model.arrays(), device)
            assert loaded.device.type == device
            assert nll(loaded) == pytest.approx(nll(model), rel=1e-5)


@pytest.mark.parametrize("training", [SMOOTH, replace(SMOOTH, init="random")], ids=["warm", "cold"])
@pytest.mark.parametrize("kind", ["paper", "documents"])
def test_a_captured_step_is_the_plain_one(monkeypatch, training, kind):
    """And both are those of a CPU, up to rounding."""
    start = started(KINDS[kind], training)
    best = {}
    for name, device, captured in [("cpu", "cpu", False), ("plain", "cuda", False), ("captured", "cuda", True)]:
        monkeypatch.setattr(cuda_graph, "ENABLED", captured)
        model = PaperModel(copy.deepcopy(start.network).to(device), start.frequencies, None)
        run = Backprop(model, TRAIN, DEV, training)
        assert isinstance(run.take_step, cuda_graph.GraphedStep) == captured
        run.run()
        assert run.progress.steps > 3 * cuda_graph.PLAIN_STEPS
        best[name] = run.progress.best
    assert best["captured"] == pytest.approx(best["plain"], rel=1e-3)
    assert best["captured"] == pytest.approx(best["cpu"], rel=1e-2)
    assert best["captured"] < 0.95 * evaluate(start, DEV).perplexity


def test_dropout_of_a_captured_step_differs_from_step_to_step():
    """The generator is seeded before every replay."""
    model = PaperModel(copy.deepcopy(started().network).to("cuda"), started().frequencies, None)
    run = Backprop(model, TRAIN, DEV, replace(QUICK, dropout=0.5, learning_rate=1e-12, max_folds=1))
    take_step, losses = run.take_step, []
    targets = next(model.network.batches(TRAIN, QUICK.batch_size))

    def same_targets(*_):
        losses.append(float(take_step(*targets)))
        return torch.tensor(losses[-1], device="cuda")

    run.take_step = same_targets
    run.run()
    assert len(set(losses)) > 5
    again = Backprop(model, TRAIN, DEV, run.training)
    losses_before, losses = losses, []
    take_step, again.take_step = again.take_step, same_targets
    again.run()
    assert losses == pytest.approx(losses_before, rel=1e-4)


def test_resume_on_another_device_type():
    """The weights move; dropout is drawn by another generator."""
    checkpoints = []
    model = PaperModel(copy.deepcopy(started().network).to("cuda"), started().frequencies, None)
    run = Backprop(model, TRAIN, DEV, replace(QUICK, max_folds=1))
    run.run(lambda _: checkpoints.append(run.checkpoint()))
    resumed = Backprop(started(), TRAIN, DEV, QUICK)
    resumed.restore(checkpoints[-1])
    resumed.run()
    assert resumed.progress.ended == "reached the limit of 3 folds"
    assert math.isfinite(resumed.progress.best)
    assert resumed.progress.best < run.progress.best
