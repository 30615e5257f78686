"""What the memory of a document must never do: see the future, depend on where a text was cut, or cost
where it cannot help."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import fit
from saffu.calibrated.model import CalibratedModel
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

VOCABULARY = 40
CONFIG = CalibratedConfig(order=3, slots=2, word_classes=6, output_classes=5, cache=150)


def document(rng: np.random.Generator, lines: int) -> list[int]:
    """Running text on a few topics: every hundred lines talk about their own five words."""
    ids: list[int] = []
    for number in range(lines):
        if number % 100 == 0:
            topic = rng.choice(np.arange(14, VOCABULARY), 5, replace=False)
        words = [int(rng.choice(topic)) if rng.random() < 0.4 else 4 + int(rng.integers(10)) for _ in range(6)]
        ids += [*words, EOD]
    return ids


def corpus(*documents: list[int]) -> TokenCorpus:
    ids = np.array([token for ids in documents for token in ids], dtype=np.uint16)
    starts = np.concatenate([[0], np.cumsum([len(ids) for ids in documents])])
    return TokenCorpus(ids, starts, np.ones(int((ids == EOD).sum()), dtype=np.int64))


@pytest.fixture(scope="module")
def model() -> CalibratedModel:
    rng = np.random.default_rng(0)
    (stage,) = fit(corpus(document(rng, 2500), document(rng, 2500)), VOCABULARY, CONFIG)
    assert isinstance(stage.model, CalibratedModel)
    return stage.model


def test_memory_helps_on_running_text_and_costs_nothing_on_shuffled_lines(model):
    rng = np.random.default_rng(1)
    text = document(rng, 1200)
    lines = np.split(np.array(text), np.flatnonzero(np.array(text) == EOD)[:-1] + 1)
    shuffled = [int(token) for number in rng.permutation(len(lines)) for token in lines[number]]
    plain = model.without_memory()
    gain = np.mean(model.log_probabilities(corpus(text)) - plain.log_probabilities(corpus(text)))
    cost = np.mean(plain.log_probabilities(corpus(shuffled)) - model.log_probabilities(corpus(shuffled)))
    assert gain > 0.1
    assert cost < 0.005


@given(seed=st.integers(0, 2**32), place=st.integers(0, 899), other=st.integers(4, VOCABULARY - 1))
@settings(max_examples=25)
def test_no_score_depends_on_a_later_token(model, seed, place, other):
    text = document(np.random.default_rng(seed), 130)
    changed = [*text[:place], other, *text[place + 1 :]]
    before, after = (model.log_probabilities(corpus(ids)) for ids in (text, changed))
    assert (before[:place] == after[:place]).all()


@given(seed=st.integers(0, 2**32), length=st.integers(0, 700))
@settings(max_examples=20)
def test_distributions_sum_to_one_at_every_point(model, seed, length):
    context = document(np.random.default_rng(seed), 100)[:length]
    (log_p,) = model.next_log_probabilities([model.start(context)])
    assert np.exp(log_p.astype(np.float64)).sum() == pytest.approx(1, abs=1e-5)


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 500))
@settings(max_examples=15)
def test_a_carried_state_continues_as_if_never_interrupted(model, seed, cut):
    text = document(np.random.default_rng(seed), 100)[:560]
    whole, state = model.log_probabilities(corpus(text)), model.start(text[:cut])
    for place in range(cut, min(cut + 60, len(text))):
        assert model.next_log_probabilities([state])[0][text[place]] == pytest.approx(whole[place], abs=1e-5)
        state = model.advance(state, text[place])
    assert hash(state) == hash(model.start(text[: min(cut + 60, len(text))]))


def test_documents_do_not_see_each_other(model):
    rng = np.random.default_rng(2)
    first, second = document(rng, 60), document(rng, 60)
    together = model.log_probabilities(corpus(first, second))
    assert (together[: len(first)] == model.log_probabilities(corpus(first))).all()
    assert together[len(first) :] == pytest.approx(model.log_probabilities(corpus(second)), abs=1e-6)


def test_a_first_line_without_a_past_is_no_worse(model):
    rng = np.random.default_rng(3)
    lines = corpus(*[document(rng, 1) for _ in range(300)])
    cost = np.mean(model.without_memory().log_probabilities(lines) - model.log_probabilities(lines))
    assert cost < 0.03


def test_online_a_document_remembers_those_before_it(model):
    text = document(np.random.default_rng(4), 60)
    alone, online = (m.log_probabilities(corpus(text, text)) for m in (model, model.online()))
    half = len(text)
    assert online[:half].mean() > alone[:half].mean() - 0.01
    assert online[half:].mean() > alone[half:].mean() + 0.02
    assert (model.log_probabilities(corpus(text, text)) == alone).all()


def test_online_reading_continues_from_call_to_call(model):
    rng = np.random.default_rng(5)
    documents = [document(rng, 20) for _ in range(4)]
    whole, stream = model.online().log_probabilities(corpus(*documents)), model.online()
    parts = [stream.log_probabilities(corpus(*some)) for some in (documents[:1], documents[1:3], documents[3:])]
    assert np.concatenate(parts) == pytest.approx(whole, abs=1e-6)


def test_online_there_must_be_a_memory(model):
    with pytest.raises(SaffuError, match="cannot read online"):
        model.without_memory().online()


def test_online_distributions_sum_to_one(model):
    """Nothing gives all of a distribution online: every token that can follow is read instead, each by a new reader."""
    text = document(np.random.default_rng(6), 30)
    for documents in ([text[:1]], [text[:40], text[40:43]], [text[:100], text[100:150]]):
        scores = []
        for token in range(EOD, VOCABULARY):
            *before, last = documents
            scores.append(model.online().log_probabilities(corpus(*before, [*last, token]))[-1])
        assert np.exp(scores).sum() == pytest.approx(1, abs=1e-5)
