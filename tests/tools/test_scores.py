"""Scores by line, word, and token from Python; conditions and histograms."""

import copy
import itertools
import math
import pickle
import threading
from dataclasses import replace

import pytest

from conftest import CONFIGS, each, sentences
from saffu import CalibratedConfig, SaffuError, SaffuLM
from saffu.calibrated import kernels
from saffu.tools.scores import BATCH_CHARACTERS, FIRST_BATCH, LARGEST_BATCH, Arrivals, Condition, batches
from toy_model import ToyConfig


def test_lines_are_scored_as_documents(lm, dev_text):
    rows = lm.score_lines(dev_text, memory=True)
    assert len(rows) == len(dev_text) > FIRST_BATCH
    for row, text in zip(rows[::25], dev_text[::25], strict=True):
        score = lm.score([text])
        assert row.bits == pytest.approx(score.nll / math.log(2), rel=1e-6)
        assert (row.tokens, row.bytes) == (score.targets, score.bytes)
        assert row.perplexity == pytest.approx(score.perplexity) == pytest.approx(2 ** (row.bits / row.tokens))
    whole = lm.score(dev_text)
    assert math.fsum(row.bits for row in rows) * math.log(2) == pytest.approx(whole.nll, rel=1e-9)


def test_a_text_of_several_lines_is_one_row(fitted, dev_text):
    lm, text = fitted("calibrated"), "\n".join(dev_text[:3])
    (row,) = lm.score_lines([text], memory=True)
    assert row.bits == pytest.approx(lm.score([text]).nll / math.log(2), rel=1e-12)
    assert row.bytes == len(text) + 1
    words = lm.surprisals(text, memory=True)
    assert [word.word for word in words].count("<eod>") == 3
    assert math.fsum(word.bits for word in words) == pytest.approx(row.bits, rel=1e-9)


def test_texts_that_come_one_by_one_share_what_is_made_for_them(train_text, dev_text, monkeypatch):
    lm = SaffuLM(CONFIGS["calibrated"]()).fit(train_text)
    laid_out = []
    made = kernels.Model
    monkeypatch.setattr(kernels, "Model", lambda arrays: laid_out.append(0) or made(arrays))
    copied = []
    monkeypatch.setattr("saffu.calibrated.model.replace", lambda *a, **k: copied.append(0) or replace(*a, **k))
    one_by_one = [lm.score_lines([text])[0] for text in dev_text]
    assert one_by_one == lm.score_lines(dev_text)
    assert [lm.surprisals(text) for text in dev_text[:9]] == lm.surprisals_batch(dev_text[:9])
    assert len(laid_out) == len(copied) == 1


def test_scores_without_memory_follow_every_change(train_text, dev_text, tmp_path):
    def bits(model):
        return [row.bits for row in model.score_lines(dev_text)]

    def as_saved(model):
        model.save(tmp_path / "model")
        return SaffuLM.load(tmp_path / "model")

    lm = SaffuLM(CONFIGS["calibrated"]()).fit(train_text)
    before = bits(lm)
    other = copy.copy(lm)
    other.update(sentences(3, 200))
    assert bits(other) == bits(as_saved(other)) != before
    assert bits(lm) == bits(pickle.loads(pickle.dumps(lm))) == before
    other.forget(sentences(3, 200))
    assert bits(other) == before
    other.set_params(config=CalibratedConfig(order=2, slots=0, word_classes=0)).fit(train_text)
    assert bits(other) == bits(as_saved(other)) != before


def test_blank_texts_keep_their_place(fitted, dev_text):
    first, blank, last = fitted("toy").score_lines([dev_text[0], " \n", dev_text[1]])
    assert (str(blank.bits), blank.tokens, blank.bytes) == ("0.0", 0, 0) and math.isnan(blank.bits_per_byte)
    assert (first.bytes, last.bytes) == (len(dev_text[0]) + 1, len(dev_text[1]) + 1)
    assert fitted("toy").surprisals("") == [] and fitted("toy").score_lines([]) == []


def test_texts_are_strings(fitted):
    with pytest.raises(SaffuError, match=r"such as \[text\]"):
        fitted("toy").score_lines("a text")
    with pytest.raises(SaffuError):
        fitted("toy").surprisals_batch("a text")
    with pytest.raises(SaffuError, match="text 2 is not a string"):
        fitted("toy").score_lines(["a", None])


def test_rows_go_into_pandas(fitted, dev_text):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(fitted("toy").score_lines(dev_text))
    assert list(frame) == ["bits", "tokens", "bytes", "bits_per_byte", "perplexity"] and len(frame) == len(dev_text)
    words = pandas.DataFrame(fitted("toy").surprisals(dev_text[0]))
    assert words.bits.sum() == pytest.approx(frame.bits[0])


def test_lines_of_running_text_follow_a_blank_line():
    lm = SaffuLM(ToyConfig()).fit(["\n".join(sentences(1, 600))])
    (row,) = lm.score_lines(["a dog ."])
    words, tokens = lm.surprisals("a dog ."), lm.scorer_.tokens(["a dog ."])[0]
    after = lm.score([(True, ""), (False, "a dog .")]).nll - lm.score([(True, "")]).nll
    assert row.bits == pytest.approx(after / math.log(2)) and row.bytes == 8
    assert math.fsum(word.bits for word in words) == pytest.approx(row.bits)
    assert math.fsum(token.bits for token in tokens) == pytest.approx(row.bits)
    assert [token.token for token in tokens] == ["a", " dog", " .", "<eod>"] and tokens[0].position == 1


def test_batches_grow_and_are_bounded():
    taken = itertools.count()
    grouped = batches((next(taken) for _ in itertools.count()), lambda _: 1)
    assert [len(next(grouped)) for _ in range(3)] == [FIRST_BATCH, 2 * FIRST_BATCH, 4 * FIRST_BATCH]
    assert next(taken) == 7 * FIRST_BATCH  # nothing is read ahead
    assert max(len(next(grouped)) for _ in range(8)) == LARGEST_BATCH
    assert [len(batch) for batch in batches(range(3), lambda _: BATCH_CHARACTERS)] == [1, 1, 1]


@each(
    "text, holds",
    [("bits<2", True), ("bits <= 1.5", True), ("bits>1.5", False), ("bits==1.5", True), ("bits!=1.5", False)],
)
def test_conditions(text, holds):
    assert Condition.parse(text).holds({"bits": 1.5}) is holds


def test_items_do_not_wait_for_later_ones():
    """The first item is handed on while the second has not come yet; what comes meanwhile is one group."""
    gates = [threading.Event(), threading.Event()]

    def items():
        yield "first"
        gates[0].wait()
        yield from ["second", "third"]
        gates[1].set()
        raise SaffuError("ends badly")

    groups = iter(Arrivals(items(), len))
    assert next(groups) == ["first"]
    gates[0].set()
    gates[1].wait()
    assert next(groups) == ["second", "third"]
    with pytest.raises(SaffuError, match="ends badly"):
        next(groups)


def test_arrivals_are_bounded():
    read = []
    groups = iter(Arrivals((read.append(number) or number for number in range(4 * LARGEST_BATCH)), lambda _: 1))
    found = [next(groups)]
    assert len(read) <= 3 * LARGEST_BATCH
    found += groups
    assert [number for group in found for number in group] == read
    assert max(map(len, found)) <= LARGEST_BATCH
    assert [len(group) for group in Arrivals(range(3), lambda _: BATCH_CHARACTERS)] == [1, 1, 1]
