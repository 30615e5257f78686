"""The neural cache: its definition, and models that score with it."""

from dataclasses import replace

import numpy as np
import pytest

from companion_data import CONFIG, counted_model, texts
from conftest import corpus_of
from network_data import CLASS_OF, CONTEXT, random_weights
from reference import companion as reference
from saffu import SaffuError, SaffuLM
from saffu.calibrated.kneser_ney import Ranks
from saffu.companion import neural_cache
from saffu.companion.networks import Networks
from saffu.companion.rows import inputs_of
from saffu.companion.weights import CERTAINTIES, stored


def test_documents_are_scored_as_defined(monkeypatch):
    """By two networks, in documents that are longer and shorter than the cache and than a block."""
    monkeypatch.setattr(neural_cache, "WINDOW", 9)
    monkeypatch.setattr(neural_cache, "BLOCK", 4)
    monkeypatch.setattr(neural_cache, "RATE", 0.1)
    monkeypatch.setattr(neural_cache, "FEW", 2)
    weights = [random_weights(False, seed) for seed in (0, 1)]
    networks = Networks(stored(weights), CONTEXT, Ranks(CLASS_OF.astype(np.uint16)))
    rng = np.random.default_rng(0)
    corpus = corpus_of([rng.integers(4, 8, number).tolist() for number in (30, 2, 17)])
    counted = np.full(corpus.targets, np.log(0.1))
    certainty = np.zeros((corpus.targets, CERTAINTIES), dtype=np.float32)
    plain = networks.score(corpus, counted, certainty)
    cached = networks.score(corpus, counted, certainty, neural_cache=True)
    np.testing.assert_array_equal(plain.trained, cached.trained)
    inputs = inputs_of(corpus)
    for begin, end in zip(corpus.starts[:-1], corpus.starts[1:], strict=True):
        states = np.stack([reference.hidden(own, inputs[begin:end]) for own in weights], axis=1)  # (n, K, d)
        expected = reference.with_neural_cache(plain.mixture[begin:end], states, corpus.ids[begin:end].tolist())
        np.testing.assert_allclose(cached.mixture[begin:end], expected, atol=2e-3)  # states are kept in float16
        assert np.abs(expected - plain.mixture[begin:end]).max() > 0.01 or end - begin < 4


def test_what_a_text_repeats_becomes_cheaper():
    counted = counted_model()
    lm = counted.backprop(texts(1, 600), texts(2, 120))
    repetitive = ["\n".join(texts(2, 4) * 40)]
    without = lm.score(repetitive)
    with_cache = lm.score(repetitive, neural_cache=True)
    assert with_cache.targets == without.targets
    assert with_cache.nll < without.nll
    alone = texts(2, 100)  # lines of their own have next to nothing in the cache
    assert lm.score(alone, neural_cache=True).nll == pytest.approx(lm.score(alone).nll, rel=0.01)


def test_the_cache_stays_if_the_memory_is_left_out():
    lm = counted_model().backprop(texts(1, 300), texts(2, 60))
    repetitive = ["\n".join(texts(2, 4) * 40)]
    plain = replace(lm.scorer_, model=lm.model_.without_memory())
    cached = lm.model_.with_neural_cache().without_memory()
    (bits,) = (score.bits for score in replace(lm.scorer_, model=cached).lines(repetitive))
    assert bits == plain.with_neural_cache().lines(repetitive)[0].bits < plain.lines(repetitive)[0].bits


def test_without_a_network_there_is_no_neural_cache(saffu, tmp_path):
    lm = SaffuLM(CONFIG).fit(texts(1, 50))
    lm.save(tmp_path / "model")
    (tmp_path / "dev.txt").write_text("\n".join(texts(2, 5)))
    refused = saffu(f"eval {tmp_path / 'model'} {tmp_path / 'dev.txt'} --neural-cache")
    assert refused.status == 2 and "--neural-cache needs a network; train one (`saffu train --minutes`)" in refused.err
    with pytest.raises(SaffuError, match="needs a network"):
        lm.score(texts(2, 5), neural_cache=True)
