import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import each
from reference import paper as reference
from reference.paper import Example
from saffu.errors import SaffuError
from saffu.paper import equations, sums
from saffu.paper.equations import InitialVariation, InnerProducts
from saffu.paper.sums import Counts, SumsByTarget


def positive(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.01


@each("priming", [math.log(2), 1.0, 2.0, 3.0, 8 * math.log(8)])
def test_solution_is_equation_3(priming):
    F = positive(5, 4)
    expected = reference.solution(F.numpy(), priming)
    np.testing.assert_allclose(equations.explicit_solution(F, priming), expected, rtol=1e-12)


@pytest.mark.parametrize(("entry", "shown"), [(0.0, "0"), (-2.5, "-2.5"), (math.nan, "nan")])
def test_no_solution_without_positive_counts(entry, shown):
    F = positive(3, 3)
    F[1, 2] = entry
    with pytest.raises(SaffuError, match=rf"the smallest is {shown}\); raise `smoothing`"):
        equations.explicit_solution(F, 2)


def test_co_occurrence_is_equation_2():
    H, Z = positive(7, 3), positive(7, 4, seed=1)
    np.testing.assert_allclose(equations.co_occurrence(H, Z), reference.count(H.numpy(), Z.numpy()).F, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_by_target_are_equation_2_for_one_hot_targets(dtype, monkeypatch):
    monkeypatch.setattr(sums, "FLOAT32_TARGETS", 4)  # some sums have moved to float64, the last have not
    H, ids = positive(7, 3), torch.tensor([0, 4, 2, 2, 4, 4, 2])
    expected = reference.count(np.eye(5)[ids], H.numpy()).F
    total = SumsByTarget(5, 3, H.to(dtype))
    for rows in (slice(0, 3), slice(3, 6), slice(6, 7)):
        total.add(H[rows, :1].to(dtype), ids[rows])
        total.add(H[rows, 1:].to(dtype), ids[rows], first=1)
    np.testing.assert_allclose(total.total, expected, rtol=1e-12 if dtype == torch.float64 else 1e-6)
    assert total.total.dtype == torch.float64


def test_counts_add():
    one, two = Counts(positive(2, 3), 3.0, 2), Counts(positive(2, 3, seed=1), 5.0, 8)
    both = one + two
    assert torch.equal(both.F, one.F + two.F)
    assert both.mean_norm == pytest.approx(0.8)


def test_priming_numbers_and_bound():
    assert equations.decoder_priming_number(128) == pytest.approx(128 * math.log(128))
    assert equations.attention_priming_number(2) == pytest.approx(math.log(2))
    assert equations.attention_priming_number(8) == pytest.approx(math.log(8))
    assert equations.variation_bound(4, 100) == pytest.approx(2.5 * math.log(100))


def test_two_slots_flip_the_sign_of_the_translation():
    # K_W = log 2 < 1, so (K−1)/K is negative and the column's weight is added.
    F = torch.ones(2, 2, dtype=torch.float64)
    W = equations.explicit_solution(F, equations.attention_priming_number(2))
    assert W.unique().item() == pytest.approx((1 - math.log(2)) / math.log(2) * math.log(2))
    assert W.min() > 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=9))
def test_attention_weights_are_minus_log_of_a_distribution(scores):
    A = equations.attention_weights(torch.tensor([scores], dtype=torch.float64))
    assert (A >= 0).all()
    assert torch.exp(-A).sum().item() == pytest.approx(1, rel=1e-12)
    np.testing.assert_allclose(A[0], -np.log(reference.softmax(scores)), rtol=1e-9, atol=1e-12)


def test_distribution_drops_tiny_values_in_float32_alone():
    logits = torch.tensor([[0.0, 1.0, -66.0, -80.0]])
    exact = reference.softmax([0.0, 1.0, -66.0, -80.0])
    p = equations.distribution(logits)[0]
    np.testing.assert_allclose(p[:3], exact[:3], rtol=1e-5)
    assert p[3] == 0
    np.testing.assert_allclose(equations.distribution(logits.double())[0], exact, rtol=1e-12)


@pytest.mark.parametrize("table", [0, 1 << 25])
def test_look_ups(table, monkeypatch):
    monkeypatch.setattr(equations, "TABLE", table)
    E = positive(6, 3)
    E /= E.sum(1, keepdim=True)
    i, j = torch.tensor([[0], [5]]), torch.tensor([[1, 2, 0], [5, 5, 3]])
    found = InnerProducts(E, 2 * E)(i, j)
    expected = [[sum(E[a, d] * 2 * E[b, d] for d in range(3)) for b in row] for a, row in zip((0, 5), j, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)

    frequencies = torch.tensor([0, 3, 1, 0, 5, 2])
    variation = InitialVariation(E, frequencies, 3.0)(torch.tensor([4, 1]), j)
    examples = [Example(4, j[0].tolist(), 0), Example(1, j[1].tolist(), 0)]
    expected = [reference.initial_variation(E.numpy(), frequencies.tolist(), example, c=3.0) for example in examples]
    np.testing.assert_allclose(variation, expected, rtol=1e-9)


SLOTS, WORDS, CLASSES = 3, 3, 4


def naive_bayes_data() -> tuple[np.ndarray, np.ndarray]:
    """Contexts of K words and their classes, such that every class has seen every word in every slot."""
    rng = np.random.default_rng(0)
    contexts, classes = rng.integers(WORDS, size=(200, SLOTS)), rng.integers(CLASSES, size=200)
    assert len({(k, x, y) for row, y in zip(contexts, classes, strict=True) for k, x in enumerate(row)}) == 36
    return contexts, classes


def one_hots(contexts: np.ndarray, mode: str) -> torch.Tensor:
    hot = torch.from_numpy(np.eye(WORDS)[contexts])  # (m, K, words)
    return hot.sum(1) if mode == "sum" else hot.flatten(1)


@each("mode", ["sum", "cat"])
@each("power", [1.0, math.log(SLOTS)])
def test_solution_for_one_hot_features_is_naive_bayes(mode, power):
    """p(y) Π_k p(x_k | y)^a for features of weight a: exact at a = 1, and a = log K is what uniform attention gives."""
    contexts, classes = naive_bayes_data()
    H = power * one_hots(contexts, mode)
    F = equations.co_occurrence(H, torch.from_numpy(np.eye(CLASSES)[classes]))
    predicted = torch.softmax(H @ equations.explicit_solution(F, SLOTS * power), dim=1)
    for context, row in zip(contexts, predicted, strict=True):
        joint = []
        for y in range(CLASSES):
            rows = contexts[classes == y]
            likelihood = len(rows) / len(contexts)
            for k, x in enumerate(context):
                seen = rows if mode == "sum" else rows[:, k]
                likelihood *= (np.sum(seen == x) / seen.size) ** power
            joint.append(likelihood)
        np.testing.assert_allclose(row, np.array(joint) / sum(joint), rtol=1e-9)
