"""A model is asked what it can do, not what it is."""

import numpy as np
import pytest

from conftest import corpus_of
from saffu.tools.minimal_pairs import evaluate_pairs
from saffu.tools.scores import without_memory


def test_what_a_small_model_cannot_do_has_a_default(fitted):
    model = fitted("toy").model_
    assert not (model.can_sample or model.has_network or model.hidden_size)
    assert model.counted_part is None and model.ngrams is None and model.without_network() is None
    with pytest.raises(ValueError, match="no memory of a document"):
        without_memory(model)
    corpus = corpus_of([[5, 6, 7]])
    assert list(model.scores_by_part(corpus)) == [""]
    np.testing.assert_array_equal(model.scores_by_part(corpus)[""], model.log_probabilities(corpus))
    assert evaluate_pairs(model, fitted("toy").tokenizer_, [])[0]["pairs"] > 0


def test_a_counted_model_describes_contexts_by_its_classes(fitted):
    model = fitted("calibrated").model_
    states = [model.start(context) for context in ([], [5], [5, 6])]
    assert model.hidden(states).shape == (3, model.hidden_size)
    assert model.counted_part is model and model.can_sample
    assert model.hidden(states).min() == 0 and model.hidden(states).max() > 0.1
