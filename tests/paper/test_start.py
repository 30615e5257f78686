"""Warm and cold starts."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from saffu.errors import SaffuError
from saffu.paper.backprop import Backprop
from saffu.paper.config import TrainingConfig
from saffu.paper.fit import fit
from saffu.paper.start import start
from saffu.tools.evaluate import evaluate
from training_data import CONFIG, DEV, QUICK, TRAIN, VOCABULARY, started

COLD = TrainingConfig(init="random", seed=1)


def test_a_warm_start_is_the_explicit_solution():
    *_, stage = fit(TRAIN, VOCABULARY, CONFIG)
    for name, array in stage.model.arrays().items():
        assert np.array_equal(array, started().arrays()[name]), name


def test_count_share_divides_the_documents_between_counting_and_training():
    training = replace(QUICK, count_share=0.25)
    counted, rest = TRAIN.split(0.25)
    assert (counted.documents, rest.documents) == (62, 188)
    model = started(CONFIG, training)
    assert model.frequencies.sum() == counted.targets
    assert np.array_equal(Backprop(model, TRAIN, DEV, training).corpus.ids, rest.ids)
    with pytest.raises(SaffuError, match="no documents are left for the explicit solution"):
        list(start(TRAIN.slice(0, 2), VOCABULARY, CONFIG, replace(training, count_share=0.1)))
    with pytest.raises(SaffuError, match="no documents are left to train on"):
        Backprop(model, TRAIN.slice(0, 0), DEV, QUICK)


def test_cold_starts_follow_from_the_seed_and_scale_with_fan_in():
    one, other, wide = (started(CONFIG, replace(COLD, **given)) for given in ({}, {"seed": 2}, {"init_scale": 10.0}))
    for name, weight in one.network.named_parameters():
        assert not torch.equal(weight, other.network.get_parameter(name))
        torch.testing.assert_close(10 * weight, wide.network.get_parameter(name))
        assert float(weight.detach().std()) == pytest.approx(1 / math.sqrt(len(weight)), rel=0.5)
    *_, again = start(TRAIN, VOCABULARY, CONFIG, COLD)
    for name, array in again.model.arrays().items():
        assert np.array_equal(array, one.arrays()[name]), name


def test_embeddings_of_cold_starts():
    cipher, drawn = (started(CONFIG, replace(COLD, init_embeddings=kind)).network for kind in ("cipher", "random"))
    for name, unit in started().network.units.items():
        assert torch.equal(cipher.units[name].E, unit.E)
        E = drawn.units[name].E
        assert not torch.allclose(E, unit.E, atol=0.1)
        assert float(E.min()) > 0
        torch.testing.assert_close(E.sum(1), torch.ones(VOCABULARY))


def test_only_explicit_starts_are_counted():
    with pytest.raises(SaffuError, match="`count_share`"):
        TrainingConfig(init="random", count_share=0.5)


def test_warm_is_ahead_of_cold_after_the_same_steps():
    perplexities = {}
    for name, training in {
        "warm": QUICK,
        "cold": replace(QUICK, init="random"),
        "cold, cipher": replace(QUICK, init="random", init_embeddings="cipher"),
    }.items():
        model, rows = started(CONFIG, training), []
        best = Backprop(model, TRAIN, DEV, training).run(on_check=lambda row, _, rows=rows: rows.append(row))
        assert [row["stage"] for row in rows] == [f"{training.init} start", "train 1", "train 2", "train 3"]
        assert rows[-1]["dev_perplexity"] < 0.9 * rows[0]["dev_perplexity"]
        perplexities[name] = evaluate(best, DEV).perplexity
        assert perplexities[name] == min(row["dev_perplexity"] for row in rows)
    assert perplexities["warm"] < 0.9 * perplexities["cold"]
    assert perplexities["warm"] < 0.9 * perplexities["cold, cipher"]
