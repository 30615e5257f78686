"""The neural cache: its definition, and models that read online with it."""

import numpy as np
import pytest

from companion_data import texts, with_network
from conftest import corpus_of
from network_data import CLASS_OF, CONTEXT, random_weights
from reference import companion as reference
from saffu.calibrated.kneser_ney import Ranks
from saffu.companion import neural_cache
from saffu.companion.networks import Networks
from saffu.companion.neural_cache import NeuralCache
from saffu.companion.rows import inputs_of
from saffu.companion.weights import CERTAINTIES, stored


def test_a_text_is_scored_as_defined_whole_and_in_pieces(monkeypatch):
    """By two networks, in documents that are longer and shorter than the cache and than a block."""
    monkeypatch.setattr(neural_cache, "WINDOW", 9)
    monkeypatch.setattr(neural_cache, "BLOCK", 4)
    monkeypatch.setattr(neural_cache, "RATE", 0.1)
    monkeypatch.setattr(neural_cache, "FEW", 2)
    weights = [random_weights(False, seed) for seed in (0, 1)]
    networks = Networks(stored(weights), CONTEXT, Ranks(CLASS_OF.astype(np.uint16)))
    rng = np.random.default_rng(0)
    documents = [rng.integers(4, 8, number).tolist() for number in (30, 2, 17)]

    def scored(corpus, cache=None):
        certainty = np.zeros((corpus.targets, CERTAINTIES), dtype=np.float32)
        return networks.score(corpus, np.full(corpus.targets, np.log(0.1)), certainty, cache=cache)

    corpus = corpus_of(documents)
    plain = scored(corpus)
    cached = scored(corpus, NeuralCache(2, weights[0].width))
    np.testing.assert_array_equal(plain.trained, cached.trained)
    inputs = inputs_of(corpus)
    bounds = zip(corpus.starts[:-1], corpus.starts[1:], strict=True)
    states = [[reference.hidden(own, inputs[begin:end]) for own in weights] for begin, end in bounds]
    states = np.concatenate([np.stack(own, axis=1) for own in states])  # (targets, K, d)
    expected = reference.with_neural_cache(plain.mixture, states, corpus.ids.tolist())
    np.testing.assert_allclose(cached.mixture, expected, atol=2e-3)  # states are kept in float16
    assert np.abs(expected - plain.mixture).max() > 0.01
    cache = NeuralCache(2, weights[0].width)
    pieces = [scored(corpus_of([document]), cache).mixture for document in documents]
    np.testing.assert_allclose(np.concatenate(pieces), cached.mixture, atol=1e-4)


def test_networks_remember_what_a_text_and_those_before_it_say():
    lm = with_network(texts(1, 600), texts(2, 120))
    repeated = texts(2, 40) * 4
    corpus = lm.tokenize(repeated)
    online = lm.model_.online()
    whole = online.log_probabilities(corpus).sum()
    assert whole == pytest.approx(-lm.score(repeated, online=True).nll)
    assert online.log_probabilities(corpus).sum() > whole + 100  # of which all is known by now
    of_counts = lm.model_.online().with_parts(cache=None).log_probabilities(corpus).sum()
    of_states = lm.model_.with_parts(cache=lm.model_.online().cache).log_probabilities(corpus).sum()
    assert whole != of_counts and of_states > lm.model_.log_probabilities(corpus).sum() + 3
    counts = lm.model_.without_network()
    alone = counts.counted.online().log_probabilities(corpus)
    np.testing.assert_array_equal(counts.online().log_probabilities(corpus), alone)
