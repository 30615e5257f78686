"""The calibrated product against plain loops, and the calibration's mathematics."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import saffu
from conftest import sentences
from saffu import SaffuConfig, SaffuError, SaffuLM, Tokenizer
from saffu.calibrate import Moments, calibrated_exponents, moments, newton_step
from saffu.ngram import KneserNey, NgramCounts
from saffu.product import Product, fit_product
from saffu.tokenizer import EOD, PAD, SOD
from saffu.views import ViewCounts, token_classes, token_vectors, views_of

CONFIG = SaffuConfig.preset("calibrated", radius=6, memory=4, classes=20, kept_words=0)


@pytest.fixture(scope="module")
def lm(train_text, dev_text):
    return SaffuLM(CONFIG).fit(train_text, dev_text)


def test_views():
    names = [view.name for view in views_of(SaffuConfig.preset("calibrated", radius=2, memory=4, classes=20))]
    assert names == ["slot 1", "slot 2", "memory", "memory of 20 classes", "memory of 6 classes", "memory of 2 classes"]
    assert [view.name for view in views_of(SaffuConfig.preset("calibrated", radius=2, memory=0))] == [
        "slot 1",
        "slot 2",
    ]
    assert [view.name for view in views_of(SaffuConfig.preset("calibrated", radius=0, memory=3, classes=0))] == [
        "memory"
    ]


def test_beats_the_references(lm, dev_text):
    score, references = lm.score(dev_text), lm.reference_scores(dev_text)
    assert score.perplexity < references["trigram"].perplexity


def test_product_of_views_by_plain_loops(lm, dev_text):
    """Each view counted on its own from the documents, each distribution computed alone, multiplied in float64."""
    product, tokenizer = lm.network_, lm.tokenizer_
    train = [[SOD, *tokenizer.encode(text), EOD] for text in sentences(1, 600)]
    document = [SOD, *tokenizer.encode(dev_text[0]), EOD]
    logits = {}
    for part in product.parts:
        width = max(part.view.distances)
        known = part.classes if part.classes is not None else torch.arange(len(tokenizer))

        def seen(tokens, at, view=part.view, width=width, known=known):
            padded = [PAD] * width + tokens
            return [int(known[padded[width + at - distance]]) for distance in view.distances]

        rows = [(seen(tokens, at), tokens[at]) for tokens in train for at in range(1, len(tokens))]
        contexts = torch.tensor([context for context, _ in rows])
        targets = torch.tensor([target for _, target in rows])
        counts = NgramCounts._from_rows([*contexts.T, targets], torch.ones_like(targets), len(tokenizer))
        nearest_last = torch.tensor([seen(document, at)[::-1] for at in range(1, len(document))])
        logits[part.view.name] = np.log(KneserNey(counts).distribution(nearest_last).clamp(min=1e-30).numpy())
    prior = product.prior.double().numpy()
    total = float(product.exponents[0]) * prior
    for exponent, view in zip(product.exponents[1:].tolist(), views_of(CONFIG), strict=True):
        total = total + exponent * (logits[view.name] - (prior if view.is_slot else 0))
    total = total[:, EOD:]
    expected = total - np.log(np.exp(total).sum(1, keepdims=True))
    (targets,) = lm.tokenize([dev_text[0]]).batches(1000, product.lookback)
    assert np.allclose(torch.log_softmax(product(targets)[:, EOD:], 1).numpy(), expected, atol=2e-4)
    nll = -sum(expected[row, token - EOD] for row, token in enumerate(document[1:]))
    assert lm.score([dev_text[0]]).nll == pytest.approx(nll, rel=1e-4)


def test_markers_are_impossible_and_rows_sum_to_one(lm, dev_text):
    for targets in lm.tokenize(dev_text).batches(64, lm.network_.lookback):
        p = torch.softmax(lm.network_(targets), 1)
        assert (p[:, :EOD] == 0).all()
        assert torch.allclose(p.sum(1), torch.ones(len(p)))


def test_counts_of_shards_add_and_subtract(lm, train_text):
    corpus, N = lm.tokenize(train_text), len(lm.tokenizer_)
    whole = ViewCounts.count(corpus, CONFIG, N)
    one, other = (ViewCounts.count(part, CONFIG, N) for part in (corpus.part(0, 250), corpus.part(250, 600)))
    for name, counts in whole.stored.items():
        assert np.array_equal((one + other).stored[name].keys, counts.keys)
        assert np.array_equal((one + other).stored[name].counts, counts.counts)
        assert np.array_equal((whole - other).stored[name].keys, one.stored[name].keys)
        assert np.array_equal((whole - other).stored[name].counts, one.stored[name].counts)


def test_slots_inside_the_memory_follow_from_it(lm, train_text):
    corpus, N = lm.tokenize(train_text), len(lm.tokenizer_)
    counts = ViewCounts.count(corpus, CONFIG, N)
    assert set(counts.stored) == {"memory", "slot 4", "slot 5", "slot 6"}
    for view in views_of(CONFIG)[:3]:
        direct = NgramCounts.count(corpus.ids, corpus.starts, 2, N, view.distances)
        assert np.array_equal(counts.of(view).keys, direct.keys)
        assert np.array_equal(counts.of(view).counts, direct.counts)


def test_classes_gather_words_of_one_kind():
    text = sentences(1, 600)
    tokenizer = Tokenizer.train(text, kept_words=0, count_by="tokens")
    lm = SaffuLM(CONFIG, tokenizer=tokenizer).fit(text)
    vectors = token_vectors(lm.network_.counts.stored["memory"])
    assert torch.equal(vectors, token_vectors(lm.network_.counts.stored["memory"]))  # the same each time
    classes = token_classes(vectors, lm.frequencies_, 8)
    assert classes[: EOD + 1].tolist() == [0, 1, 2, 3]
    assert len(set(classes.tolist())) <= 8 + 4
    word = {w: classes[tokenizer.encode(f" {w}")[-1]] for w in ("dog", "cat", "girl", "king", "saw", "found", "liked")}
    assert word["saw"] == word["found"] == word["liked"]
    assert word["dog"] == word["cat"] == word["girl"] == word["king"] != word["saw"]


def test_save_load(lm, dev_text, tmp_path):
    lm.save(tmp_path / "a")
    loaded = saffu.load(tmp_path / "a")
    assert isinstance(loaded.network_, Product)
    assert loaded.score(dev_text) == lm.score(dev_text)
    assert loaded.generate("the", seed=1) == lm.generate("the", seed=1)
    loaded.save(tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def random_problem(seed, parts=4, tokens=9, targets=60):
    """Features of which some speak of the target and some do not."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(tokens, (targets,), generator=generator)
    features = torch.randn(targets, parts, tokens, generator=generator)
    features[:, :2].scatter_add_(2, ids[:, None, None].expand(-1, 2, 1), torch.rand(targets, 2, 1, generator=generator))
    return features, ids


def log_likelihood(features, ids, exponents):
    logits = torch.einsum("j,mjn->mn", exponents, features.double())
    return torch.log_softmax(logits, 1).gather(1, ids[:, None]).sum()


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_moments_are_gradient_and_hessian(seed):
    features, ids = random_problem(seed)
    a = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    value = log_likelihood(features, ids, a)
    (gradient,) = torch.autograd.grad(value, a)
    hessian = torch.autograd.functional.hessian(lambda x: log_likelihood(features, ids, x), a.detach())
    found = moments([(features[:20], ids[:20]), (features[20:], ids[20:])], a.detach())
    assert float(found.log_likelihood) == pytest.approx(value.item(), rel=1e-5)
    assert torch.allclose(found.gradient, gradient, atol=1e-3)
    assert torch.allclose(found.covariance, -hessian, rtol=1e-3, atol=1e-3)
    assert found.targets == 60


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_calibration_does_not_depend_on_its_start(seed):
    features, ids = random_problem(seed)
    starts = [torch.zeros(4), torch.ones(4), torch.tensor([0.0, 3.0, 0.1, 1.0])]
    solutions = [calibrated_exponents(lambda: [(features, ids)], start, tolerance=1e-9) for start in starts]
    for solution in solutions:
        assert torch.allclose(solution, solutions[0], atol=2e-3)
        assert (solution >= 0).all()
    best = log_likelihood(features, ids, solutions[0].double())
    for part in range(4):  # no small step to either side is better
        for step in (-0.02, 0.02):
            moved = solutions[0].double()
            moved[part] = max(0.0, float(moved[part]) + step)
            assert log_likelihood(features, ids, moved) <= best + 1e-4


def test_calibration_needs_targets():
    with pytest.raises(SaffuError, match="held-out"):
        calibrated_exponents(list, torch.ones(2))


def test_calibrated_likelihood_is_not_below_the_memory_alone(train_text):
    """On the very targets it was calibrated on, the product cannot lose against one of its parts."""
    tokenizer = Tokenizer.train(train_text, kept_words=0)
    corpus = SaffuLM(CONFIG, tokenizer=tokenizer).fit(train_text).tokenize(train_text)
    product = fit_product(CONFIG, corpus, len(tokenizer))
    held_out = corpus.every(20)
    counts = product.counts - ViewCounts.count(held_out, CONFIG, len(tokenizer))
    trial = Product(CONFIG, counts, product.classes, product.prior, product.exponents)
    alone = torch.tensor([1.0 if name == "memory" else 0.0 for name in product.names])
    batches = list(trial.calibration(held_out)())
    assert moments(batches, product.exponents).log_likelihood > moments(batches, alone).log_likelihood


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (["a a a a a a a"] * 50, {}),  # one word repeated
        (["ab"], {}),  # one document: nothing can be held out
        (["x", "y"] * 40, {}),  # every slot beyond the first is always <pad>
        (["a b c d e f"] * 30, {"memory": 0}),
        (["a b c d e f"] * 30, {"memory": 2, "classes": 0}),
        (["a b c d e f"] * 30, {"radius": 0}),
        (["a b c d e f"] * 30, {"classes": 3000}),
    ],
    ids=["one word", "one document", "short documents", "slots only", "bigrams", "memory only", "many classes"],
)
def test_degenerate_data_gives_finite_models(text, change):
    config = SaffuConfig.preset("calibrated", **{"classes": 10, "radius": 4, **change})
    lm = SaffuLM(config, tokenizer=Tokenizer.from_merges([])).fit(text)
    assert torch.isfinite(lm.network_.exponents).all()
    assert math.isfinite(lm.perplexity([*text[:3], "zebra"]))
    assert lm.perplexity(text) < 30
    lm.generate(seed=1)


def test_wrong_settings():
    with pytest.raises(SaffuError, match="something to see"):
        SaffuConfig.preset("calibrated", radius=0, memory=0)
    with pytest.raises(SaffuError, match="preset paper"):
        SaffuConfig.preset("calibrated", block=16)
    with pytest.raises(SaffuError, match="preset calibrated"):
        SaffuConfig(memory=3)


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_a_newton_step_is_the_best_within_bounds(seed, parts):
    """Karush, Kuhn and Tucker: nothing below zero; flat where above it; and where at zero, nothing asks to rise."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(parts, parts, dtype=torch.float64, generator=generator)
    gradient = 3 * torch.randn(parts, dtype=torch.float64, generator=generator)
    now = Moments(torch.zeros(()), gradient, root @ root.T + torch.eye(parts), 1)
    a = torch.rand(parts, dtype=torch.float64, generator=generator).sub(0.3).clamp(min=0)
    step = newton_step(a, now)
    left, above = now.gradient - now.covariance @ step, a + step > 1e-12
    assert (a + step >= 0).all()
    assert torch.allclose(left[above], torch.zeros_like(left[above]), atol=1e-3)
    assert (left[~above] < 1e-3).all()
