import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from conftest import each
from reference import paper as reference
from saffu.errors import SaffuError
from saffu.paper import SAFFU, ExplicitClassifier, solve_head

pytest.importorskip("sklearn", reason="pip install scikit-learn")
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.naive_bayes import MultinomialNB
from sklearn.utils.estimator_checks import check_estimator


@each("settings", [{}, {"scale": "fitted"}, {"priming": 2.0}])
def test_it_is_an_estimator(settings):
    checks = check_estimator(ExplicitClassifier(**settings), on_skip=None)
    assert sum(check["status"] == "passed" for check in checks) > 40


def rows(count: int = 60, features: int = 7, classes: int = 3, seed: int = 0):
    """Counts (features that are integers) that depend on their class."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    y[:classes] = range(classes)
    X = rng.poisson(0.2 + 2 * rng.random((classes, features))[y]).astype(float)
    return X, y


@each("priming", [None, 0.5, 1.0, 3.0])
def test_weights_are_equation_3_of_the_reference(priming):
    X, y = rows()
    layer = ExplicitClassifier(priming=priming, smoothing=0.1).fit(X / 4, y)
    counts = reference.count(X / 4, np.eye(3)[y])
    measured = counts.norm / counts.targets
    assert layer.priming_ == pytest.approx(priming or measured, rel=1e-12)
    np.testing.assert_allclose(layer.weights_, reference.solution(counts.F + 0.1, priming or measured), rtol=1e-6)
    scores = X / 4 @ layer.weights_
    np.testing.assert_allclose(
        layer.predict_log_proba(X / 4), [np.log(reference.softmax(row)) for row in scores], atol=1e-9
    )


@each("words", [1, 2, 5])
def test_it_is_multinomial_naive_bayes_for_one_hot_features(words):
    """K features that are one-hot vectors, added: each row has K words."""
    rng = np.random.default_rng(words)
    y = rng.integers(3, size=400)
    X = np.array([rng.multinomial(words, row) for row in rng.dirichlet(np.full(4, 9), size=3)[y]])
    bayes = MultinomialNB(alpha=0).fit(X, y)
    layer = ExplicitClassifier(smoothing=0).fit(X, y)
    assert layer.priming_ == words
    np.testing.assert_allclose(layer.predict_log_proba(X), bayes.predict_log_proba(X), atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 59), st.sampled_from([np.asarray, csr_array, csr_matrix]))
def test_counts_add_and_subtract(seed, cut, kind):
    X, y = rows(seed=seed)
    whole = ExplicitClassifier().fit(X, y)
    parts = (
        ExplicitClassifier().partial_fit(kind(X[:cut]), y[:cut], classes=range(3)).partial_fit(kind(X[cut:]), y[cut:])
    )
    np.testing.assert_array_equal(parts.co_occurrence_, whole.co_occurrence_)
    np.testing.assert_array_equal(parts.weights_, whole.weights_)
    first = ExplicitClassifier().partial_fit(X[:cut], y[:cut], classes=range(3))
    parts.partial_forget(kind(X[cut:]), y[cut:])
    np.testing.assert_array_equal(parts.co_occurrence_, first.co_occurrence_)
    np.testing.assert_array_equal(parts.class_count_, first.class_count_)
    np.testing.assert_array_equal(parts.weights_, first.weights_)


def test_fractions_subtract_to_rounding():
    X, y = rows()
    X = X / 7 + 0.1
    layer = ExplicitClassifier().fit(X, y)
    for row in range(59, 9, -1):
        layer.partial_forget(X[row : row + 1], y[row : row + 1])
    expected = ExplicitClassifier().partial_fit(X[:10], y[:10], classes=range(3))
    np.testing.assert_allclose(layer.weights_, expected.weights_, rtol=1e-9)


@each("change", ["class", "features", "twice", "all"])
def test_only_what_was_counted_is_subtracted_and_not_everything(change):
    X, y = rows()
    layer = ExplicitClassifier().fit(X, y)
    before = layer.weights_
    wrong = {"class": (X, np.roll(y, 1)), "features": (2 * X, y), "twice": (X[[0] * 30], y[[0] * 30]), "all": (X, y)}
    with pytest.raises(SaffuError):
        layer.partial_forget(*wrong[change])
    np.testing.assert_array_equal(layer.weights_, before)


@each("kind", [csr_array, csr_matrix])
@each("scale", [1.0, "fitted", 0.5])
def test_sparse_is_dense(kind, scale):
    X, y = rows()
    dense = ExplicitClassifier(scale=scale).fit(X, y)
    sparse = ExplicitClassifier(scale=scale).fit(kind(X), y)
    np.testing.assert_allclose(sparse.predict_proba(kind(X)), dense.predict_proba(X), rtol=1e-12)


def test_a_fitted_scale_is_the_best_of_many():
    """On the last fifth, with the layer of the rest; a scale of one gives the same classes."""
    X, y = rows(count=500)
    held = np.arange(500) % 5 == 4
    fitted = ExplicitClassifier(scale="fitted").fit(X, y)
    rest = ExplicitClassifier().fit(X[~held], y[~held])

    def loss(scale: float) -> float:
        rest.scale_ = scale
        return -rest.predict_log_proba(X[held])[np.arange(100), y[held]].mean()

    assert loss(fitted.scale_) <= min(loss(fitted.scale_ * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))
    assert fitted.scale_ != 1
    printed = ExplicitClassifier().fit(X, y)
    np.testing.assert_array_equal(fitted.weights_, printed.weights_)
    np.testing.assert_array_equal(fitted.predict(X), printed.predict(X))


def test_a_zero_count_is_an_error_that_names_the_remedy():
    X, y = rows()
    X[y == 1, 2] = 0
    layer = clone(ExplicitClassifier(smoothing=0))
    with pytest.raises(SaffuError, match="`smoothing`"):
        layer.fit(X, y)
    assert not hasattr(layer, "classes_")
    assert np.isfinite(layer.set_params(smoothing=1e-3).fit(X, y).weights_).all()


def test_a_scale_is_a_number_or_fitted():
    X, y = rows()
    with pytest.raises(SaffuError):
        ExplicitClassifier(scale="large").fit(X, y)
    with pytest.raises(SaffuError):
        ExplicitClassifier(scale="fitted").fit(X[:4], y[:4])
    with pytest.raises(SaffuError):
        solve_head(nn.Linear(7, 3), torch.tensor(X), torch.tensor(y), scale="large")


@pytest.mark.parametrize("classes", [None, [0, 1]])
def test_the_first_call_needs_all_classes(classes):
    X, y = rows()
    with pytest.raises(SaffuError, match="`classes`"):
        ExplicitClassifier().partial_fit(X, y, classes)


@each("scale", [1.0, "fitted", 0.7])
@each("size", [1, 7, 60])
def test_a_solved_head_is_the_classifier(scale, size):
    X, y = rows()
    features = torch.tensor(X, dtype=torch.float32)
    labels = torch.tensor(y)
    head = nn.Linear(7, 3)
    batches = zip(features.split(size), labels.split(size), strict=True)
    assert solve_head(head, batches, scale=scale, smoothing=0.2) is head
    layer = ExplicitClassifier(scale=scale, smoothing=0.2).fit(X, y)
    np.testing.assert_allclose(
        torch.log_softmax(head(features), 1).detach(), layer.predict_log_proba(X), rtol=1e-4, atol=1e-5
    )
    assert head.weight.requires_grad and head.bias.abs().max() == 0


def test_targets_of_a_head_may_be_distributions():
    X, y = rows()
    features = torch.tensor(X)
    one_hot = solve_head(nn.Linear(7, 3, bias=False), features, torch.eye(3)[y], scale="fitted")
    ids = solve_head(nn.Linear(7, 3, bias=False), features, torch.tensor(y), scale="fitted")
    torch.testing.assert_close(one_hot.weight, ids.weight)
    soft = torch.rand(60, 3, generator=torch.Generator().manual_seed(0)).double()
    soft /= soft.sum(1, keepdim=True)
    counts = reference.count(X, soft.numpy())
    solved = solve_head(nn.Linear(7, 3), features, soft, priming=2)
    np.testing.assert_allclose(solved.weight.detach().numpy().T, reference.solution(counts.F + 0.05, 2), rtol=1e-5)


@each(
    "features, targets",
    [
        (torch.tensor([[-1.0, 2.0]]), torch.tensor([0])),
        (torch.tensor([[torch.nan, 2.0]]), torch.tensor([0])),
        (torch.tensor([[torch.inf, 2.0]]), torch.tensor([0])),
        (torch.zeros(3, 2), torch.tensor([0, 1, 1])),
        (torch.ones(1, 3), torch.tensor([0])),
        (torch.ones(2, 2), torch.tensor([0])),
        (torch.ones(2, 2), None),
        (torch.ones(2, 2), torch.tensor([0, 2])),
        (torch.ones(2, 2), torch.tensor([-1, 1])),
        (torch.ones(2, 2), torch.ones(2, 3)),
        (torch.ones(2, 2), torch.ones(2)),
    ],
)
def test_a_head_is_not_solved_from_other_features(features, targets):
    head = nn.Linear(2, 2)
    before = head.weight.clone()
    with pytest.raises(SaffuError):
        solve_head(head, features, targets)
    assert torch.equal(head.weight, before)


def sequences(count: int = 40, slots: int = 3, dimension: int = 4, seed: int = 0):
    """Vectors of eight kinds, and targets that depend on the last one and on the one that is most like it."""
    rng = np.random.default_rng(seed)
    E = rng.dirichlet(np.full(dimension, 0.3), size=8) * 0.96 + 0.01
    ids = rng.integers(8, size=(count, slots))
    likest = (E[ids[:, :-1]] @ E[ids[:, -1]][:, :, None]).squeeze(2).argmax(1)
    return E, ids, (ids[:, -1] + ids[np.arange(count), likest]) % 3


def unit_of(E, mode, seed=0):
    """The same unit, with random weights, as a module and as in the reference."""
    unit = SAFFU(3, 4, 3, mode).double()
    with torch.no_grad():
        for weights in (unit.W, unit.U):
            weights.copy_(torch.randn(weights.shape, generator=torch.Generator().manual_seed(seed)))
    expected = reference.Unit(E, unit.W.detach().numpy(), unit.U.detach().numpy(), mode)
    expected.slot_weight = "natural"  # attention as printed
    return unit, expected


@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_a_unit_is_equation_1_of_the_reference(mode):
    E, ids, _ = sequences()
    unit, expected = unit_of(E, mode)
    outputs = [reference.unit_output(expected, reference.Example(0, list(row), row[-1])) for row in ids]
    X = torch.tensor(E[ids])
    np.testing.assert_allclose(torch.softmax(unit(X), 1).detach(), outputs, rtol=1e-9)
    np.testing.assert_allclose(unit(torch.log(X) + 5).detach(), unit(X).detach(), rtol=1e-9)  # coerced


@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_rounds_are_equations_5_and_6_of_the_reference(mode):
    """The first six: two for V with the printed c, two for V with the least shift, and two for −V with c."""
    E, ids, y = sequences(count=400)
    unit, _ = unit_of(E, mode)
    examples = [reference.Example(target, list(row), row[-1]) for row, target in zip(ids, y, strict=True)]
    Y = np.eye(3)
    found = list(unit.rounds(torch.tensor(E[ids]), torch.tensor(Y[y]), 1, 0.05))
    c = 2 * (1 + 1 / 3) * np.log(3)
    for start, sign, least in ((0, 1, False), (2, 1, True), (4, -1, False)):
        W = np.ones((3, 3))
        for step in (start, start + 1):
            before = reference.Unit(E, W, np.zeros((4 if mode == "sum" else 12, 3)), mode)
            counts = reference.count([reference.hidden_state(before, e) for e in examples], Y[y])
            before.U = reference.solution(counts.F + 0.05, counts.norm / counts.targets)
            np.testing.assert_allclose(found[step][0], W, rtol=1e-5)
            np.testing.assert_allclose(found[step][1], before.U, rtol=1e-4, atol=1e-5)
            V = [reference.variation(before, e, Y[e.target], c, sign) for e in examples]
            F = reference.count([reference.quadratic_features(before, e) for e in examples], V).F
            W = reference.solution(reference.smallest_shift(F) if least else F, np.log(3))


@pytest.mark.parametrize("scale", [1.0, "fitted"])
def test_a_unit_keeps_the_attention_that_predicts_best(scale):
    E, ids, y = sequences(count=2000)
    X = torch.tensor(E[ids])
    targets = torch.tensor(y)
    unit = SAFFU(3, 4, 3)
    losses = [unit.solve(X, targets, rounds=rounds, scale=scale) for rounds in (0, 1, 10)]
    assert losses[0] > losses[1] >= losses[2]
    held = torch.arange(2000) % 5 == 4
    scores = unit(X[held].float()).detach()
    assert float(nn.functional.cross_entropy(scores, targets[held])) == pytest.approx(losses[2], abs=0.02)
    H = unit.hidden(X, (X @ X[:, -1, :, None]).squeeze(2), unit.W.double())
    expected = ExplicitClassifier().fit(H.detach().numpy(), y)
    ratio = unit.U.detach().numpy() / expected.weights_
    np.testing.assert_allclose(ratio, ratio[0, 0], rtol=1e-4)
    assert (ratio[0, 0] == pytest.approx(1, rel=1e-4)) == (scale == 1.0)


def test_a_solved_unit_is_trained_like_any_module():
    E, ids, y = sequences(count=200)
    X = torch.tensor(E[ids], dtype=torch.float32)
    targets = torch.tensor(y)
    unit = SAFFU(3, 4, 3, "cat")
    unit.solve(X, targets)
    optimizer = torch.optim.Adam(unit.parameters(), lr=0.01)
    before = {name: value.detach().clone() for name, value in unit.named_parameters()}
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(unit(X), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(not torch.equal(before[name], value) for name, value in unit.named_parameters())


@pytest.mark.parametrize("shape", [{"slots": 1}, {"mode": "mean"}])
def test_a_unit_needs_two_slots_and_a_mode(shape):
    with pytest.raises(SaffuError):
        SAFFU(**{"slots": 2, "dimension": 3, "outputs": 4} | shape)


MISSING = """
import sys
from pathlib import Path
sys.modules[{missing!r}] = None  # import fails
import saffu.paper
from saffu.errors import SaffuError, install_command
from saffu.paper.config import PaperConfig
try:
    saffu.paper.ExplicitClassifier()
except SaffuError as error:
    print(install_command("paper") in str(error))
"""


@pytest.mark.parametrize("missing", ["torch", "sklearn"])
def test_a_missing_package_is_an_error_with_the_remedy(missing):
    done = subprocess.run([sys.executable, "-c", MISSING.format(missing=missing)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_the_examples_of_the_page_run():
    page = (Path(__file__).parents[2] / "docs" / "explicit-layers.md").read_text("utf-8")
    names = {}
    torch.manual_seed(0)
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert names["layer"].score(names["X_test"], names["y_test"]) == pytest.approx(0.88, abs=0.005)
    assert names["layer"].priming_ == pytest.approx(19.5, abs=0.05)
    assert names["layer"].scale_ == pytest.approx(1.56, abs=0.005)
    logits = names["head"](names["body"](torch.tensor(names["X_test"], dtype=torch.float32)))
    assert (logits.argmax(1).numpy() == names["y_test"]).mean() > 0.85
