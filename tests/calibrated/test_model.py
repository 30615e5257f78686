from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrated_data import (
    CACHED,
    SMALL,
    VOCABULARY,
    documents_of,
    random_corpus,
    random_encoder,
    random_model,
    reference_of,
    reference_scores,
)
from conftest import corpus_of, each
from saffu.calibrated import kneser_ney, reading
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.ngrams import MAX_VOCABULARY
from saffu.calibrated.views import CalibratedSums
from saffu.errors import SaffuError
from saffu.text.tokenizer import EOD

seeds = st.integers(0, 2**32 - 1)
contexts = st.lists(st.integers(EOD, VOCABULARY - 1), max_size=20)
CONFIGS = {
    "small": SMALL,
    "cache": CACHED,
    "bigrams": CalibratedConfig(order=2, slots=0, word_classes=0, output_classes=3, cache=0),
    "bigrams by class": CalibratedConfig(order=2, slots=1, word_classes=5, output_classes=3, cache=0),
    "far slots": CalibratedConfig(order=3, slots=16, word_classes=0, output_classes=4, cache=0),
    "long": CalibratedConfig(order=9, slots=0, word_classes=6, output_classes=4, cache=30),
    "pruned": CalibratedConfig(order=5, slots=2, word_classes=6, output_classes=4, prune=1, cache=0),
    "one class": CalibratedConfig(order=3, slots=3, word_classes=5, output_classes=1, cache=5),
    "all classes": CalibratedConfig(order=3, slots=3, word_classes=5, output_classes=VOCABULARY - EOD, cache=5),
}
each_config = pytest.mark.parametrize("config", [pytest.param(c, id=name) for name, c in CONFIGS.items()])


@each_config
def test_scores_agree_with_the_reference(config):
    for seed in range(2):
        train, test = random_corpus(seed), random_corpus(seed + 100, documents=3, lines=3)
        model = random_model(config, train, seed)
        expected = reference_scores(reference_of(model, train), test)
        assert model.log_probabilities(test) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["cache", "one class", "long"])
def test_online_scores_agree_with_the_reference(name):
    """In these, the window of the document moves; in the first two, also that of all documents."""
    train, test = random_corpus(0), random_corpus(1, documents=8, lines=2)
    model = random_model(CONFIGS[name], train, 0)
    expected = reference_of(model, train).online(documents_of(test))
    assert model.online().log_probabilities(test) == pytest.approx(np.array(expected), abs=1e-5)
    assert np.abs(model.log_probabilities(test) - expected)[30:].max() > 0.1


@each_config
def test_sums_by_class_change_nothing(config):
    """They are stored for contexts with many followers, such as the start of a line."""
    train, test = (random_corpus(seed, documents, vocabulary=150) for seed, documents in ((3, 200), (4, 5)))
    with_sums, without = (random_model(config, train, 3, vocabulary=150) for _ in range(2))
    assert with_sums.native.arrays["room"].size > 0
    without.native = without.checked
    assert with_sums.log_probabilities(test) == pytest.approx(without.log_probabilities(test), abs=1e-5)


@settings(max_examples=15, deadline=None)
@given(seeds, contexts, st.sampled_from(sorted(CONFIGS)))
def test_distributions_agree_with_the_reference(seed, context, name):
    train = random_corpus(seed, documents=20)
    model = random_model(CONFIGS[name], train, seed)
    expected = reference_of(model, train).log_probabilities(context)
    (found,) = model.next_log_probabilities([model.start(context)])
    assert found.dtype == np.float32
    assert found[:EOD].tolist() == [-np.inf] * EOD
    assert found[EOD:] == pytest.approx(np.array([expected[token] for token in range(EOD, VOCABULARY)]), abs=1e-5)
    assert np.exp(found.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


def same_state(a, b) -> bool:
    """Equal but for rounding in what is remembered of past predictions."""
    rings = [np.frombuffer(state.document[2], dtype=np.float32) for state in (a, b)]
    return a.document[:2] == b.document[:2] and rings[0] == pytest.approx(rings[1], abs=1e-4)


@each_config
def test_walking_and_scoring_are_the_same(config):
    """Scores of a corpus, states that advance token by token, and states made from the whole context."""
    model, test = random_model(config, random_corpus(1), 1), random_corpus(2, documents=3, lines=6)
    scores = model.log_probabilities(test)
    for number in range(test.documents):
        first, last = test.starts[number : number + 2]
        tokens, state = test.ids[first:last].tolist(), model.start()
        for place, token in enumerate(tokens):
            assert same_state(state, model.start(tokens[:place]))
            (log_p,) = model.next_log_probabilities([state])
            assert log_p[token] == pytest.approx(scores[first + place], abs=1e-5)
            state = model.advance(state, token)
    assert hash(state) == hash(copy.copy(state))


def test_memories_follow_long_documents():
    """Long enough for the window to move, and for weights to be rescaled."""
    rng = np.random.default_rng(0)
    tokens = [int(t) for topic in rng.integers(4, 18, size=30) for t in topic + rng.integers(0, 5, size=50)]
    model = random_model(CACHED, random_corpus(2), 2)
    plain, scores = reference_of(model, random_corpus(2)), model.log_probabilities(corpus_of([[4], tokens]))[2:]
    for place in (0, 1, 2, 11, 12, 13, 29, 30, 200, 255, 256, 257, 700, 1072, 1073, 1196, 1197, 1499):
        expected = plain.log_probabilities(tokens[:place])[tokens[place]]
        assert scores[place] == pytest.approx(expected, abs=1e-5), place
        (log_p,) = model.next_log_probabilities([model.start(tokens[:place])])
        assert log_p[tokens[place]] == pytest.approx(expected, abs=1e-5), place


@each_config
def test_explanations_add_up(config):
    train = random_corpus(3)
    model = random_model(config, train, 3)
    for context in ([], [5], [VOCABULARY - 1, 4], train.ids[:9].tolist(), [*range(4, 20), 4, 5, 4]):
        explanation = model.explain(context)
        (expected,) = model.next_log_probabilities([model.start(context)])
        assert explanation.log_probabilities[:EOD].tolist() == [-np.inf] * EOD
        assert explanation.log_probabilities[EOD:] == pytest.approx(expected[EOD:], abs=1e-5)
        total = np.sum([term.values for term in explanation.terms], axis=0)
        assert total[EOD:] == pytest.approx(explanation.log_probabilities[EOD:], abs=1e-9)
        levels = [term.of_class for term in explanation.terms if term.of_class is not None]
        by_class = np.exp(np.sum(levels, axis=0)[model.ranks.tokens[model.ranks.first[:-1]]])  # of each class, once
        assert by_class.sum() == pytest.approx(1, abs=1e-9)
        for shares in explanation.details.values():
            sums = np.sum([term.values for term in shares], axis=0)
            assert sums[EOD:] == pytest.approx(1, abs=1e-9)


@each("temperature", [1.0, 0.4, 2.5])
@each("config", [SMALL, CACHED])
def test_samples_follow_the_distribution(config, temperature):
    """Chi-square of 4,000 draws with 20 degrees of freedom: above 45.3 once in a thousand seeds."""
    model = random_model(config, random_corpus(4), 4)
    context = [4, 5, 6, 4, 5]
    (log_p,) = model.next_log_probabilities([model.start(context)])
    rng, drawn = np.random.default_rng(0), np.zeros(VOCABULARY)
    for _ in range(4000):
        token, state = model.sample(model.start(context), rng, temperature)
        drawn[token] += 1
    assert same_state(state, model.start([*context, token]))
    p = np.exp(log_p[EOD:].astype(np.float64) / temperature)
    expected = 4000 * p / p.sum()
    assert drawn[:EOD].sum() == 0
    assert ((drawn[EOD:] - expected) ** 2 / expected).sum() < 45.3
    shifted = np.roll(expected, 1)
    assert ((drawn[EOD:] - shifted) ** 2 / shifted).sum() > 200  # the test has the power to tell


class Numbers:
    """Stands in for a generator: gives these numbers in turn."""

    def __init__(self, *numbers: float):
        self.numbers = numbers

    def random(self, size: int) -> np.ndarray:
        return np.resize(self.numbers, size)


def test_samples_at_the_ends_of_the_range():
    model = random_model(SMALL, random_corpus(5), 5)
    for numbers in ((0.0, 0.0), (np.nextafter(1, 0), np.nextafter(1, 0)), (0.0, np.nextafter(1, 0))):
        token, _ = model.sample(model.start([4, 5]), Numbers(*numbers))
        assert EOD <= token < VOCABULARY


@each_config
def test_chunks_threads_and_neighbors_do_not_matter(config, monkeypatch):
    model, test = random_model(config, random_corpus(6), 6), random_corpus(7, documents=30, lines=4)
    monkeypatch.setenv("SAFFU_THREADS", "1")
    expected = model.log_probabilities(test)
    for threads, chunk in ((2, 1), (3, 13), (7, 40), (2, test.targets)):
        monkeypatch.setattr(kneser_ney, "cores", lambda threads=threads: threads)
        monkeypatch.setattr(reading, "cores", lambda threads=threads: threads)
        monkeypatch.setattr(kneser_ney, "TARGETS_AT_ONCE", (chunk, chunk))
        monkeypatch.setattr(reading, "CHUNK", chunk)
        assert model.log_probabilities(test).tolist() == expected.tolist()
        if config.cache:
            assert model.online().log_probabilities(test)[-1] != expected[-1]
    alone = [model.log_probabilities(test.select([number])) for number in range(test.documents)]
    assert np.concatenate(alone) == pytest.approx(expected, abs=1e-6)


def test_a_kernel_may_outlive_what_holds_the_model():
    """As when two threads lay out a model at once, and one result is dropped while it is in use."""
    model = random_model(CACHED, random_corpus(8), 8)
    native = model.native
    arrays = [weakref.ref(array) for array in native.arrays.values()]
    del model
    gc.collect()
    assert len(arrays) > 10 and native.value and all(array() is not None for array in arrays)


def test_certainty_describes_the_classes():
    model, test = random_model(SMALL, random_corpus(8), 8), random_corpus(9, documents=2)
    scores, certainty = model.log_probabilities_and_certainty(test)
    assert scores.tolist() == model.log_probabilities(test).tolist()
    plain = reference_of(model, random_corpus(8))
    context = test.ids[:3].tolist()
    of_classes = np.array(
        list(plain.by_class({t: np.exp(x) for t, x in plain.log_probabilities(context).items()}).values())
    )
    expected = [-(of_classes * np.log(of_classes)).sum(), np.log(of_classes.max())]
    assert certainty[3] == pytest.approx(np.array(expected), abs=1e-4)
    _, sure = model.next_log_probabilities_and_certainty([model.start(context)])
    assert sure[0] == pytest.approx(certainty[3], abs=1e-6)


@pytest.mark.parametrize("name", ["small", "bigrams", "far slots"])
def test_documents_that_repeat_score_as_they_do_alone(name):
    """Without memory, equal targets after equal contexts are computed once, whatever lies between them."""
    documents = documents_of(random_corpus(3, documents=6))
    model = random_model(CONFIGS[name], random_corpus(8), 8)
    drawn = np.random.default_rng(4).integers(0, len(documents), size=40).tolist()
    alone = [model.log_probabilities_and_certainty(corpus_of([[ids[:-1]]])) for ids in documents]
    scores, certainty = model.log_probabilities_and_certainty(corpus_of([[documents[n][:-1]] for n in drawn]))
    assert scores.tolist() == np.concatenate([alone[n][0] for n in drawn]).tolist()
    assert certainty.tolist() == np.concatenate([alone[n][1] for n in drawn]).tolist()


def same_arrays(a, b) -> bool:
    assert a.keys() == b.keys()
    return all(a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes() for name in a)


@each_config
def test_adding_and_subtracting_documents_is_exact(config):
    first, second = random_corpus(10), random_corpus(11)
    model = random_model(config, first, 10)
    counted = model.count(first) + model.count(second) - model.count(second)
    assert same_arrays(model.solved(counted).arrays(), model.arrays())
    assert same_arrays(counted.arrays(), model.sums.arrays())
    both = model.solved(model.count(first) + model.count(second))
    assert not same_arrays({"x": both.frequencies}, {"x": model.frequencies})
    assert same_arrays(both.encoder_arrays(), model.encoder_arrays())
    with pytest.raises(SaffuError, match="below zero"):
        model.count(first) - both.sums


@each_config
def test_arrays_round_trip(config):
    model, test = random_model(config, random_corpus(12), 12), random_corpus(13)
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    loaded = CalibratedModel.from_arrays(config, VOCABULARY, arrays, dict(model.sums.arrays()))
    assert same_arrays(loaded.arrays(), model.arrays())
    assert same_arrays(loaded.sums.arrays(), model.sums.arrays())
    assert loaded.log_probabilities(test).tolist() == model.log_probabilities(test).tolist()
    assert loaded.size == model.size
    without = CalibratedModel.from_arrays(config, VOCABULARY, arrays)
    assert without.sums is None
    with pytest.raises(SaffuError, match="vectors are made from counts"):
        without.vectors()


def test_arrays_of_other_settings_are_rejected():
    arrays = random_model(SMALL, random_corpus(14), 14).arrays()
    for changes in ({"order": 3}, {"order": 5}, {"slots": 4}, {"slots": 6}, {"word_classes": 12}):
        with pytest.raises(SaffuError, match=r"damaged|do not fit"):
            CalibratedModel.from_arrays(CalibratedConfig(**{**vars(SMALL), **changes}), VOCABULARY, arrays)


@each("name", ["plain", "memory"])
@each("number", [np.nan, np.inf])
def test_exponents_that_are_not_finite_are_rejected(name, number):
    arrays = random_model(CACHED, random_corpus(14), 14).arrays()
    changed = arrays[f"encoder.{name}"].copy()
    changed.flat[0] = number
    with pytest.raises(SaffuError, match=rf"damaged \({name}"):
        CalibratedModel.from_arrays(CACHED, VOCABULARY, arrays | {f"encoder.{name}": changed})


def test_missing_arrays_are_rejected():
    model = random_model(SMALL, random_corpus(14), 14)
    for name in model.arrays():
        arrays = {key: array for key, array in model.arrays().items() if key != name}
        with pytest.raises(SaffuError, match=r"damaged|do not fit"):
            CalibratedModel.from_arrays(SMALL, VOCABULARY, arrays)


@each("documents", [[[]], [[4]], [[4, 4, 4, 4]], [[], [], []], [[4, 5], [22]]])
def test_tiny_corpora(documents):
    corpus = corpus_of(documents)
    for config in CONFIGS.values():
        model = random_model(config, corpus, 0)
        expected = reference_scores(reference_of(model, corpus), corpus)
        assert model.log_probabilities(corpus) == pytest.approx(expected, abs=1e-5)
        (log_p,) = model.next_log_probabilities([model.start([23, 23])])
        assert np.exp(log_p.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


def test_a_vocabulary_of_all_16_bits():
    corpus = corpus_of([[4, 65535, 65534, 4, 65535], [65535, 5]])
    config = CalibratedConfig(order=3, slots=2, word_classes=3, output_classes=3, cache=5)
    model = random_model(config, corpus, 0, MAX_VOCABULARY)
    (log_p,) = model.next_log_probabilities([model.start([4, 65535])])
    assert np.exp(log_p.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
    scores = model.log_probabilities(corpus)
    assert log_p[65534] == pytest.approx(scores[2], abs=1e-5)
    with pytest.raises(SaffuError, match="cannot be counted"):
        CalibratedSums.count(corpus, config, MAX_VOCABULARY + 1)


def test_ids_of_another_vocabulary_are_rejected():
    model = random_model(SMALL, random_corpus(15), 15)
    for bad in ([VOCABULARY], [4, 0], [-1], [70_000]):
        with pytest.raises(SaffuError, match="ids outside"):
            model.start(bad)
        with pytest.raises(SaffuError, match="ids outside"):
            model.log_probabilities(corpus_of([bad], dtype=np.int64))
        with pytest.raises(SaffuError, match="ids outside"):
            model.count(corpus_of([bad], dtype=np.int64))


def test_size_and_vectors():
    model = random_model(SMALL, random_corpus(16), 16)
    distinct = model.sums.ngrams.distinct + sum(pairs.distinct for pairs in model.sums.pairs.values())
    arrays = random_encoder(SMALL, 16).arrays()
    encoder = sum(array.size for array in arrays.values())
    assert model.size == distinct + encoder + VOCABULARY
    (vectors,) = model.vectors().values()
    assert len(vectors) == VOCABULARY
