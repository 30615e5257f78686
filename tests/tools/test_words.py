"""Surprisal of words: against sums over all continuations, and as parts of lines."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saffu import CalibratedConfig, SaffuLM
from saffu.text.tokenizer import EOD, TokenizerConfig
from saffu.tools.segments import segments
from saffu.tools.words import Cut, boundaries, word_cuts

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


def test_punctuation_is_known_apart(fitted):
    lm = fitted("calibrated")
    plain, dotted, alone, end = lm.surprisals("the dog, .")
    assert plain.punctuation == 0 and end.punctuation == 0
    assert str(plain.punctuation) == "0.0", "not −0.0"
    assert alone.punctuation == pytest.approx(alone.bits)
    (tokens,) = replace(lm.scorer_, model=lm.model_.without_memory()).tokens(["the dog, ."])
    bits = dict(zip(["the", "dog", ",", ".", "<eod>"], (row.bits for row in tokens), strict=True))
    assert bits[","] < dotted.punctuation < dotted.bits, "the comma ends the word"
    for row in lm.surprisals('the dog , the " house . cat.', memory=True):
        assert -1e-9 <= row.punctuation <= row.bits + 1e-9, row


def test_punctuation_that_no_token_has_is_known_by_its_bytes(fitted):
    lm = fitted("calibrated")
    assert len(lm.tokenizer_.encode("„")) > 1
    text = "the „dog“ –"
    pieces = [lm.tokenizer_.decode_bytes([token]) for token in lm.tokenizer_.encode(text)]
    (tokens,) = replace(lm.scorer_, model=lm.model_.without_memory()).tokens([text])
    letters = [row.bits for row, piece in zip(tokens, pieces, strict=False) if piece in b"dog"]
    plain, quoted, dash, _ = lm.surprisals(text)
    assert plain.punctuation == 0 and dash.punctuation == pytest.approx(dash.bits)
    assert letters and quoted.punctuation == pytest.approx(quoted.bits - sum(letters))


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
    row = lm.surprisals("the dog saw", memory=True)[1]
    assert 2**-row.bits == pytest.approx(the[dog] / the[begins].sum() * ended, rel=1e-4)
    first, *_, end = lm.surprisals("the", memory=True)
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
    assert word_cuts([]) == [] and word_cuts([b" ", b"  "]) == []
    assert word_cuts([b" a", b"b", b" ", b" c"]) == [Cut(2), Cut(4)]


@pytest.fixture
def characters(monkeypatch):
    """As if ICU were not installed."""
    monkeypatch.setattr("saffu.tools.segments._icu", lambda: None)


def japanese():
    """A model whose tokens are frequent words, and single characters."""
    nouns, verbs = ["東京", "天気", "猫", "水曜日"], ["が好きです。", "を見ました。", "は良い。"]
    lines = [f"今日は{a}と{b}{verb}" for a in nouns for b in nouns for verb in verbs] * 4
    config = CalibratedConfig(order=4, slots=4, word_classes=20, output_classes=8)
    return SaffuLM(config, tokenizer=TokenizerConfig(bpe_kept_words=5)).fit(lines + [*nouns, "今日は"] * 30)


def test_words_of_a_script_without_spaces(characters):
    """Characters are words, also inside a token; rows add up to the line, and each is the ratio of two prefixes."""
    lm = japanese()
    text = "今日は天気と　東京が好きです。"
    rows = lm.surprisals(text)
    assert [row.word for row in rows] == [*"今日は天気と東京が好きです。", "<eod>"]
    assert math.fsum(row.bits for row in rows) == pytest.approx(lm.score_lines([text])[0].bits, rel=1e-9)
    assert sum(row.tokens for row in rows) == lm.score_lines([text])[0].tokens
    assert min(row.bits for row in rows) > -1e-6 and max(row.tokens for row in rows) < len("　東".encode()) + 1
    model = lm.model_.without_memory()
    p = np.exp(model.next_log_probabilities([model.start([])])[0].astype(float))
    begins = [lm.tokenizer_.decode_bytes([token]).startswith("今".encode()) for token in range(len(lm.tokenizer_))]
    assert 2 ** -rows[0].bits == pytest.approx(p[begins].sum(), rel=1e-5)


def test_completion_in_a_script_without_spaces(characters):
    lm = japanese()
    assert next(iter(lm.complete_word("今日は天"))).startswith("天気")
    assert next(iter(lm.complete_word("今日は水"))).startswith("水曜日")
    assert next(iter(lm.complete_word("　天"))).startswith("天気"), "without the wide space"
    assert next(iter(lm.complete_word("今日は天気と猫が"))) == "が好きです"  # several tokens, each of which is certain


def test_dictionary_words(monkeypatch):
    """ICU counts in UTF-16 and yields places; white space joins what follows."""

    class Breaks(list):
        def setText(self, text):
            self[:] = [2, 3, 4, 6]

    names = {"createWordInstance": staticmethod(lambda locale: Breaks())}
    icu = SimpleNamespace(BreakIterator=type("", (), names), Locale=SimpleNamespace(getRoot=lambda: None))
    monkeypatch.setattr("saffu.tools.segments._icu", lambda: icu)
    assert segments("今日　猫𠮷") == ["今日", "　猫", "𠮷"]


def test_words_of_icu():
    pytest.importorskip("icu", reason="pip install pyicu")
    assert segments("今日は天気が良い") == ["今日", "は", "天気", "が", "良い"]
    assert segments("สวัสดีชาวโลก") == ["สวัสดี", "ชาว", "โลก"]
