"""Surprisal of words: against sums over all continuations, and as parts of lines."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saffu.text.tokenizer import EOD
from saffu.tools.words import boundaries, word_ends

TEXT = st.text(st.sampled_from("abc dog.,'é\t  "), max_size=30)


def test_boundaries(fitted):
    tokenizer = fitted("toy").tokenizer_
    ends = boundaries(tokenizer)
    assert ends[EOD] and not ends[:EOD].any()
    assert ends[tokenizer.encode(" dog")[0]] and not ends[tokenizer.encode("dog")[0]]
    assert ends[tokenizer.encode("\t")[0]]


@given(TEXT)
@example("  a  b ")
@example("\ta\tb")
@settings(deadline=None, max_examples=60)
def test_words_are_those_between_white_space(fitted, text):
    lm = fitted("toy")
    rows = lm.surprisals(text)
    if text.strip():
        assert [row.word for row in rows] == [*text.split(), "<eod>"]
        assert sum(row.tokens for row in rows) == len(lm.tokenizer_.encode(text)) + 1
        assert math.fsum(row.bits for row in rows) == pytest.approx(lm.score_lines([text])[0].bits, rel=1e-9)
        assert min(row.bits for row in rows) > -1e-5  # every factor is a conditional probability
    else:
        assert rows == []


def test_every_kind_of_model(lm, dev_text):
    for text in dev_text[:5]:
        rows = lm.surprisals(text)
        assert [row.word for row in rows] == [*text.split(), "<eod>"]
        assert math.fsum(row.bits for row in rows) == pytest.approx(lm.score_lines([text])[0].bits, rel=1e-9)


def test_a_word_is_scored_with_its_ending(fitted):
    """p(dog | the) counts what continues with white space or ends, as a share of what begins a word after "the"."""
    lm = fitted("calibrated")
    model, encode = lm.model_, lm.tokenizer_.encode
    begins = boundaries(lm.tokenizer_)

    def after(text):
        return np.exp(model.next_log_probabilities([model.start(encode(text))])[0].astype(float))

    (dog,) = encode(" dog")
    the, ended = after("the"), after("the dog")[begins].sum()
    row = lm.surprisals("the dog saw")[1]
    assert 2**-row.bits == pytest.approx(the[dog] / the[begins].sum() * ended, rel=1e-4)
    first, *_, end = lm.surprisals("the")
    assert 2**-first.bits == pytest.approx(after("")[encode("the")[0]] * the[begins].sum(), rel=1e-4)
    assert 2**-end.bits == pytest.approx(the[EOD] / the[begins].sum(), rel=1e-4)


def test_words_after_a_word_form_a_distribution(fitted):
    """All one-token words after "the", and the end of the line, share what is not a longer word: less than 1."""
    lm = fitted("calibrated")
    words = [lm.tokenizer_.token(token)[1:] for token in np.flatnonzero(boundaries(lm.tokenizer_)) if token != EOD]
    total = sum(2 ** -lm.surprisals(f"the {word}")[1].bits for word in words if word.isalpha())
    end = 2 ** -lm.surprisals("the")[1].bits
    assert 0.5 < total + end <= 1 + 1e-5


def test_word_ends():
    assert word_ends([]) == [] and word_ends([b" ", b"  "]) == []
    assert word_ends([b" a", b"b", b" ", b" c"]) == [2, 4]
