"""Scores, and the n-gram baselines next to them."""

import math

import numpy as np
import pytest

from saffu import SaffuError
from saffu.calibrated.kneser_ney import KneserNey
from saffu.calibrated.ngrams import NgramCounts
from saffu.interface import Score
from saffu.tools.evaluate import evaluate, evaluate_references


def test_a_hopeless_score_is_infinite():
    assert Score(nll=1e6, targets=1, bytes=2).perplexity == math.inf
    assert Score(nll=math.inf, targets=1, bytes=2).perplexity == math.inf
    assert Score(nll=0.0, targets=1, bytes=2).perplexity == 1


def test_references_are_kneser_ney_on_the_same_targets(fitted, dev_text, train_text):
    lm = fitted("toy")
    corpus = lm.tokenize(dev_text)
    counts = NgramCounts.count(lm.tokenize(train_text), 5, len(lm.tokenizer_))
    scores = evaluate_references(counts, corpus)
    assert list(scores) == ["unigram", "bigram", "trigram", "5-gram"]
    assert list(evaluate_references(lm.references_, corpus)) == ["unigram", "bigram", "trigram"]
    for name, order in {"unigram": 1, "bigram": 2, "trigram": 3, "5-gram": 5}.items():
        expected = -KneserNey(counts, order).log_probabilities(corpus).sum()
        assert scores[name].nll == pytest.approx(expected, rel=1e-12)
        assert (scores[name].targets, scores[name].bytes) == (corpus.targets, corpus.bytes)


def test_a_unigram_is_the_relative_frequency(fitted, dev_text):
    lm = fitted("toy")
    corpus = lm.tokenize(dev_text)
    shares = lm.frequencies_ / lm.frequencies_.sum()
    assert (lm.frequencies_[corpus.ids] > 0).all()
    unigram = evaluate_references(lm.references_, corpus)["unigram"]
    assert unigram.nll == pytest.approx(-np.log(shares[corpus.ids]).sum(), rel=1e-2)  # which smooths a little


def test_nothing_to_score_is_an_error(fitted):
    lm = fitted("toy")
    nothing = lm.tokenize([])
    with pytest.raises(SaffuError, match="no text to score"):
        evaluate(lm.model_, nothing)
    with pytest.raises(SaffuError, match="no text to score"):
        evaluate_references(lm.references_, nothing)
