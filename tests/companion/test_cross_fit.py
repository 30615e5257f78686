"""Cross-fitting: no target is scored by counts that have seen it."""

from dataclasses import replace

import numpy as np
import pytest

from conftest import corpus_of, sentences
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import fit
from saffu.calibrated.views import CalibratedSums
from saffu.companion.cross_fit import FOLDS, cross_fitted, stretches, with_context
from saffu.text.corpus import TokenCorpus

CONFIG = CalibratedConfig(order=4, slots=4, word_classes=20, output_classes=8)


def tokens(number: int) -> list[list[int]]:
    words = sorted({word for text in sentences(1, 400) for word in text.split()})
    return [[4 + words.index(word) for word in text.split()] for text in sentences(3, number)]


@pytest.fixture(scope="module")
def corpus() -> TokenCorpus:
    return corpus_of(tokens(600))


@pytest.fixture(scope="module")
def model(corpus):
    (stage,) = fit(corpus, int(corpus.ids.max()) + 1, CONFIG)
    return stage.model


def test_folds_removed_by_hand_give_the_same_numbers(corpus, model):
    _, log_p, certainty = cross_fitted(model, corpus)
    own = stretches(corpus)[3::FOLDS]
    documents = [n for n in range(corpus.documents) if any(a <= corpus.starts[n] < b for a, b in own)]
    fold = corpus.select(documents)
    others = corpus.select([n for n in range(corpus.documents) if n not in documents])
    expected, sure = model.solved(model.count(others)).log_probabilities_and_certainty(fold)
    where = np.concatenate([np.arange(a, b) for a, b in own])
    np.testing.assert_allclose(log_p[where], expected, rtol=1e-6)
    np.testing.assert_allclose(certainty[where, :2], sure, rtol=1e-5)


def test_folds_scored_at_once_give_the_same_numbers(corpus, model, monkeypatch):
    one_by_one = cross_fitted(model, corpus)
    monkeypatch.setattr("saffu.companion.cross_fit.cores", lambda: 12)
    at_once = cross_fitted(model, corpus)
    assert np.array_equal(at_once.log_p, one_by_one.log_p) and np.array_equal(at_once.certainty, one_by_one.certainty)


def test_what_is_cross_fitted_looks_like_new_text(corpus, model):
    held_out = corpus_of(tokens(700)[600:])
    honest = cross_fitted(model, corpus).log_p.mean()
    assert model.log_probabilities(corpus).mean() > honest
    assert abs(honest - model.log_probabilities(held_out).mean()) < 0.2


def test_a_tenth_of_running_text_is_read_line_by_line():
    running = corpus_of([tokens(900), tokens(300)])
    (stage,) = fit(running, int(running.ids.max()) + 1, replace(CONFIG, cache=300))
    corpus, log_p, seen = cross_fitted(stage.model, running)
    lines = running.line_starts()
    assert np.isin(running.starts, corpus.starts).all() and np.isin(corpus.starts, lines).all()
    alone = np.isin(lines[1:], corpus.starts) & np.isin(lines[:-1], corpus.starts)
    assert 0.08 < (np.diff(lines) * alone).sum() / running.targets < 0.2
    np.testing.assert_allclose(seen[corpus.starts[:-1], 2], 0)
    assert np.isfinite(log_p).all() and seen[:, 2].max() > 3


def test_stretches_of_running_text_are_documents_whose_memory_was_not_counted():
    running = corpus_of([tokens(900), tokens(300)])
    (stage,) = fit(running, int(running.ids.max()) + 1, replace(CONFIG, cache=300))
    ranges = stretches(running)
    assert FOLDS - 2 < len(ranges) <= FOLDS
    assert ranges[0, 0] == 0 and ranges[-1, 1] == running.targets
    assert (ranges[1:, 0] == ranges[:-1, 1]).all()
    assert np.isin(ranges[:, 0], running.line_starts()).all()
    corpus, log_p, _ = cross_fitted(stage.model, running)
    own = ranges[1::FOLDS]
    stretched = replace(corpus, starts=np.union1d(corpus.starts, ranges[:, 0]))
    fold, where = with_context(stretched, own, 0)
    assert fold.starts[0] == 0 and where[0] == own[0, 0]
    counts = CalibratedSums.count(running, stage.model.config, stage.model.vocabulary, own)
    expected = stage.model.solved(stage.model.sums - counts).log_probabilities(fold)
    np.testing.assert_allclose(log_p[where], expected, rtol=1e-6)


def test_a_line_without_end_is_still_divided():
    endless = corpus_of([[[7, 8, 9] * 400]])
    assert len(stretches(endless)) > FOLDS - 2
