from __future__ import annotations

import math

import numpy as np
import pytest

from calibrated_data import documents_of, reference_of, reference_scores
from conftest import corpus_of, each, sentences
from saffu.calibrated import fit as fitting
from saffu.calibrated import views
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import Calibration, Moments, fit, held_out_ranges
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.views import NGRAM, CalibratedSums, exponent_slices
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import EOD, Tokenizer, TokenizerConfig

CONFIG = CalibratedConfig(order=4, slots=3, word_classes=8, output_classes=5, cache=20)


def words(text: list[str], known: dict[str, int]) -> TokenCorpus:
    return corpus_of([[known[word] for word in line.split()] for line in text])


@pytest.fixture(scope="module")
def corpora() -> tuple[TokenCorpus, TokenCorpus, int]:
    """Word-level training and dev text, and the size of the vocabulary."""
    train, dev = sentences(1, 600), sentences(2, 60)
    known = {word: n for n, word in enumerate(sorted({w for line in train + dev for w in line.split()}), EOD + 1)}
    return words(train, known), words(dev, known), len(known) + EOD + 1


def fitted(corpus: TokenCorpus, vocabulary: int, config: CalibratedConfig = CONFIG):
    (stage,) = fit(corpus, vocabulary, config)
    return stage


def test_golden_bits_per_byte():
    """To be renewed when the model changes on purpose; it must not move by itself."""
    train, dev = sentences(1, 600), sentences(2, 100)
    tokenizer = Tokenizer.train(train, TokenizerConfig())
    corpora = [TokenCorpus.build(lines_of(text), tokenizer) for text in (train, dev)]
    stage = fitted(corpora[0], len(tokenizer), CalibratedConfig())
    bits = -stage.model.log_probabilities(corpora[1]).sum() / math.log(2) / corpora[1].bytes
    assert stage.name == "counted"
    assert bits == pytest.approx(0.337338, abs=5e-6)


def test_a_fitted_model_agrees_with_the_reference(corpora):
    train, dev, vocabulary = corpora
    model = fitted(train.slice(0, 420), vocabulary).model
    test = dev.slice(0, 6)
    expected = reference_scores(reference_of(model, train.slice(0, 420)), test)
    assert model.log_probabilities(test) == pytest.approx(expected, abs=1e-5)


def test_calibration_helps(corpora):
    """A product with fitted exponents predicts better than its own memory, or than the exponents it started from."""
    train, dev, vocabulary = corpora
    model = fitted(train, vocabulary).model
    alone, start = (np.zeros_like(model.encoder.plain) for _ in range(2))
    for view, where in zip(model.views, exponent_slices(model.views)[1:], strict=True):
        alone[:, where] = view.name == NGRAM
        start[:, where] = 0.7 if view.name == NGRAM else 0.1
    fitted_score = model.log_probabilities(dev).mean()
    model = model.without_memory()
    for exponents in (alone, start):
        model.native.set_exponents(exponents, model.encoder.memory)
        assert fitted_score > model.log_probabilities(dev).mean() + 0.005


def test_held_out_documents():
    corpus = corpus_of([[4] * (n % 3) for n in range(405)])
    ranges = held_out_ranges(corpus)
    assert len(ranges) == 21
    for number, (first, last) in enumerate(ranges):
        assert (first, last) == tuple(corpus.starts[20 * number : 20 * number + 2])


@each("targets", [48, 80, 81, 200, 4000, 50_000])
def test_few_documents_are_calibrated_within(targets):
    corpus = corpus_of([[4] * (targets - 1)])
    ranges = held_out_ranges(corpus)
    lengths = ranges[:, 1] - ranges[:, 0]
    assert (lengths > 0).all()
    assert (ranges >= 0).all()
    assert (ranges <= targets).all()
    assert (ranges[1:, 0] >= ranges[:-1, 1]).all()
    assert 0.02 <= lengths.sum() / targets <= 0.3


def test_one_document_is_calibrated(corpora):
    train, dev, vocabulary = corpora
    one = corpus_of([[line[:-1] for line in documents_of(train)]])
    stage = fitted(one, vocabulary)
    start = {0.0, 0.1, 0.7}
    assert "too little text to measure" not in str(stage.facts)
    assert set(stage.model.encoder.plain.ravel().tolist()) - start
    assert np.isfinite(stage.model.log_probabilities(dev)).all()


def test_held_out_targets_never_see_their_own_counts(corpora, monkeypatch):
    """The model that exponents are fitted with is the model of the other documents."""
    train, _, vocabulary = corpora
    seen = []
    monkeypatch.setattr(fitting, "Calibration", lambda model, corpus, ranges: seen.append((model, ranges)) or Stop())
    fitting.fit_encoder(train, vocabulary, CONFIG)
    ((trial, ranges),) = seen
    rest = train.select([number for number in range(train.documents) if number % fitting.HELD_OUT])
    assert len(ranges) == 30
    expected = CalibratedModel.from_sums(CONFIG, trial.encoder, CalibratedSums.count(rest, CONFIG, vocabulary))
    for name, array in expected.arrays().items():
        assert array.tobytes() == trial.arrays()[name].tobytes(), name


class Stop:
    """Stands in for a calibration: leaves exponents as they are."""

    def solve(self, start, slices, of_memory):
        return start


@pytest.mark.parametrize("of_memory", [False, True])
def test_moments_are_those_of_the_reference(corpora, monkeypatch, of_memory):
    """Log-likelihood of both levels from the scores, gradient and covariance by differences of it."""
    monkeypatch.setattr(views, "RATE", 0.0)
    train, _, vocabulary = corpora
    config = CalibratedConfig(order=3, slots=2, word_classes=0, output_classes=4, cache=20 if of_memory else 0)
    small = corpus_of([[line[:-1] for line in documents_of(train.slice(0, 30))]])
    model = fitted(small, vocabulary, config).model
    calibration = Calibration(model, small, np.array([[0, 25]]))
    start = model.encoder.memory if of_memory else model.encoder.plain
    J = start.shape[1]
    a = np.random.default_rng(0).random((2, J)) * 0.5
    now = calibration.moments(calibration.targets, a, of_memory)

    def likelihood(exponents, level: int) -> Moments:
        return calibration.moments(calibration.targets, exponents, of_memory)[level]

    assert sum(m.log_likelihood for m in now) == pytest.approx(model.log_probabilities(small)[:25].sum(), abs=1e-3)
    for level in (0, 1):
        for j in range(J):
            step = np.zeros((2, J))
            step[level, j] = 0.02
            up, down = likelihood(a + step, level), likelihood(a - step, level)
            slope = (up.log_likelihood - down.log_likelihood) / 0.04
            assert now[level].gradient[j] == pytest.approx(slope, abs=5e-3, rel=1e-3)
            change = (up.gradient - down.gradient) / 0.04
            assert -now[level].covariance[j] == pytest.approx(change, abs=5e-3, rel=1e-2)


def test_threads_do_not_matter(corpora, monkeypatch):
    train, dev, vocabulary = corpora
    scores = []
    for threads in (1, 2, 3):
        monkeypatch.setenv("SAFFU_THREADS", str(threads))
        scores.append(fitted(train, vocabulary).model.log_probabilities(dev))
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)
    assert scores[2] == pytest.approx(scores[0], abs=1e-3)


def test_fits_repeat(corpora):
    """Counts, classes, and tables exactly; exponents up to the rounding of sums in linear algebra."""
    train, _, vocabulary = corpora
    first, second = (fitted(train, vocabulary).model.arrays() for _ in range(2))
    for name, array in first.items():
        if name in ("encoder.plain", "encoder.memory"):
            assert second[name] == pytest.approx(array, abs=1e-3), name
        else:
            assert second[name].tobytes() == array.tobytes(), name


@each(
    "documents",
    [
        [[]],
        [[4]],
        [[4, 5, 6]],
        [[4]] * 5,
        [[]] * 500,
    ],
)
def test_too_little_text_is_reported(documents):
    stage = fitted(corpus_of(documents), 9, CalibratedConfig(order=3, slots=2, word_classes=3, output_classes=2))
    assert any("too little text" in warning for warning in stage.facts["warnings"])
    (log_p,) = stage.model.next_log_probabilities([stage.model.start([8, 8])])
    assert np.exp(log_p.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


def test_nothing_cannot_be_fitted():
    with pytest.raises(SaffuError, match="no text"):
        fitted(corpus_of([]), 9)


def test_facts_name_every_part(corpora):
    train, _, vocabulary = corpora
    stage = fitted(train, vocabulary)
    names = list(stage.facts["exponents"])
    assert names[: len(stage.model.views) + 1] == ["prior", *(view.name for view in stage.model.views)]
    assert all(len(pair) == 2 and min(pair) >= 0 for pair in stage.facts["exponents"].values())


@pytest.mark.parametrize("vocabulary", [260, 30])
def test_more_classes_than_tokens(vocabulary):
    """The default settings on a tiny vocabulary, such as bytes alone."""
    rng = np.random.default_rng(0)
    corpus = corpus_of(rng.integers(4, vocabulary, size=(60, 30)).tolist())
    model = fitted(corpus, vocabulary, CalibratedConfig(order=3, slots=2)).model
    assert np.isfinite(model.log_probabilities(corpus)).all()
    assert all(classes.max() < vocabulary for classes in model.encoder.context_classes.values())
