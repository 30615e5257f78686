"""Minimal pairs against sentences scored one by one, and damaged files."""

import gzip
import json

import numpy as np
import pytest

from conftest import each, sentences
from lab import own_pairs as generator
from saffu import SaffuError
from saffu.calibrated.kneser_ney import KneserNey
from saffu.tools.minimal_pairs import (
    OWN_PAIRS,
    Pair,
    PairCorpus,
    PairScore,
    evaluate_pairs,
    find_pairs,
    overall,
    own_pairs,
    read_pairs,
)


def swapped(sentence):
    words = sentence.split()
    return " ".join([words[1], words[0], *words[2:]])


@pytest.fixture(scope="module")
def pairs():
    made = [Pair(sentence, swapped(sentence)) for sentence in sentences(5, 40)]
    return [*made, Pair("the dog", "the dog"), Pair(" saw", " saw", "the old dog", "dog old the")]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@each("score_eos", [False, True])
def test_sums_are_those_of_sentences_scored_alone(lm, pairs, score_eos):
    corpus = PairCorpus(pairs, lm.tokenizer_, score_eos)
    sums = corpus.sums(lm.model_.log_probabilities(corpus.corpus))
    assert sums.shape == (len(pairs), 2)
    tokens = 0
    for number, pair in enumerate(pairs):
        for side, (before, text) in enumerate([(pair.before_good, pair.good), (pair.before_bad, pair.bad)]):
            log_p = lm.model_.log_probabilities(lm.tokenize([before + text]))
            scored = log_p[len(lm.tokenizer_.encode(before)) : None if score_eos else -1]
            tokens += len(scored)
            assert sums[number, side] == pytest.approx(scored.sum(), abs=1e-4)
    assert corpus.scored.sum() == tokens
    assert sums[40, 0] == pytest.approx(sums[40, 1], abs=1e-6)  # the same sentence twice


def test_a_tie_is_half_right():
    score = PairScore.of(np.array([[-1.0, -2.0], [-2.0, -1.0], [-3.0, -3.0], [-3.0, -3.0 - 1e-9], [-1.0, -5.0]]))
    assert (score.pairs, score.right, score.ties) == (5, 2, 2)
    assert score.accuracy == pytest.approx(0.6)
    assert score.tie_rate == pytest.approx(0.4)


def test_layouts(tmp_path):
    blimp = write(tmp_path / "a.jsonl", [{"sentence_good": "a b", "sentence_bad": "b a", "UID": "x"}])
    assert read_pairs(blimp) == [Pair("a b", "b a")]
    ewok = write(tmp_path / "b.jsonl", [{"Context1": "It rains.", "Target1": "I am wet.", "Target2": "I am dry."}])
    assert read_pairs(ewok) == [Pair(" I am wet.", " I am dry.", "It rains.", "It rains.")]
    record = {"prefix_acceptable": "a sock", "prefix_unacceptable": "a car", "property_phrase": "is worn."}
    assert read_pairs(write(tmp_path / "c.jsonl", [record])) == [Pair(" is worn.", " is worn.", "a sock", "a car")]
    packed = tmp_path / "d.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + blimp.read_bytes().replace(b"\n", b"\r\n\r\n")))
    assert read_pairs(packed) == [Pair("a b", "b a")]


@each(
    "line, message",
    [
        ('{"sentence_good": "a"}', "line 2: the field 'sentence_bad' is missing"),
        ('{"sentence_bad": "a"}', "line 2: the field 'sentence_good' is missing"),
        ('{"text": "a"}', "line 2: the field 'sentence_good' is missing"),
        ('{"Context1": "a", "Target1": "b"}', "line 2: the field 'Target2' is missing"),
        ('{"sentence_good": "a", "sentence_bad": 3}', "line 2: the field 'sentence_bad' has no text"),
        ('{"sentence_good": " ", "sentence_bad": "b"}', "line 2: the field 'sentence_good' has no text"),
        ('{"sentence_good": "\\ud800", "sentence_bad": "b"}', "line 2: the field 'sentence_good' has half a surrogate"),
        ('["a", "b"]', "line 2: not a JSON object"),
        ('{"sentence_good": "a", ', "line 2: invalid JSON"),
        ("caf\xe9", "line 2: invalid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    good = '{"sentence_good": "a b", "sentence_bad": "b a"}\n'
    (tmp_path / "odd.jsonl").write_bytes((good + line + "\n").encode("latin-1"))
    with pytest.raises(SaffuError) as error:
        read_pairs(tmp_path / "odd.jsonl")
    assert f"odd.jsonl, {message}" in str(error.value)


def test_accuracy_by_file_and_overall(fitted, tmp_path, pairs):
    lm = fitted("toy")
    (tmp_path / "sets").mkdir()
    records = [{"sentence_good": pair.good, "sentence_bad": pair.bad} for pair in pairs[:41]]
    write(tmp_path / "sets" / "order.jsonl", records[:30])
    write(tmp_path / "sets" / "more.jsonl", records[30:])
    files = find_pairs([tmp_path / "sets"])
    rows = evaluate_pairs(lm.model_, lm.tokenizer_, files, lm.references_)
    facts = overall(rows)
    assert [row["pairs"] for row in rows] == [11, 30]
    assert facts["pairs"] == 41
    assert facts["ties"] >= 1
    assert facts["accuracy"] == pytest.approx((facts["right"] + facts["ties"] / 2) / 41)
    assert facts["mean_accuracy"] == pytest.approx(sum(row["accuracy"] for row in rows) / 2)
    assert facts["tokens"] == sum(row["tokens"] for row in rows)
    corpus = PairCorpus((pair for path in files for pair in read_pairs(path)), lm.tokenizer_)
    trigram = PairScore.of(corpus.sums(KneserNey(lm.references_, 3).log_probabilities(corpus.corpus)))
    assert facts["trigram_accuracy"] == trigram.accuracy > 0.9
    alone = overall(evaluate_pairs(lm.model_, lm.tokenizer_, files))
    assert "trigram_accuracy" not in alone
    assert alone["accuracy"] == facts["accuracy"]


@pytest.mark.parametrize("name", ["empty.jsonl", "folder", "nowhere.jsonl", "broken.jsonl.gz"])
def test_nothing_to_read(tmp_path, name):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(SaffuError, match=name):
        for path in find_pairs([tmp_path / name]):
            read_pairs(path)


def test_our_own_pairs_differ_in_little():
    pairs = own_pairs()
    assert OWN_PAIRS.read_text("utf-8") == generator.lines(), "run `python -m lab own-pairs`"
    assert len(pairs) == 10
    for name, made in pairs.items():
        assert len(set(made)) == 40
        for pair in made:
            good, bad = pair.good.split(), pair.bad.split()
            assert len(good) == len(bad)
            changed = sum(one != other for one, other in zip(good, bad, strict=True))
            assert changed in (1, 2) or sorted("".join(good)) == sorted("".join(bad)), (name, pair)


def test_the_sides_of_a_mixture_are_evaluated_too(fitted):
    """A model whose parts are known: one prefers every good sentence, the other every bad one."""
    lm = fitted("calibrated")

    class Mixed:
        def scores_by_part(self, corpus, progress=None):
            good = np.repeat(np.arange(corpus.documents) % 2 == 0, np.diff(corpus.starts))
            return {"": np.zeros(corpus.targets), "counted": np.where(good, -1.0, -9.0), "network": -1.0 - 8 * good}

    facts = overall(evaluate_pairs(Mixed(), lm.tokenizer_, [], lm.references_))
    assert facts["pairs"] == 400
    assert (facts["accuracy"], facts["tie_rate"]) == (0.5, 1)
    assert (facts["counted_accuracy"], facts["network_accuracy"]) == (1, 0)
    assert facts["beyond_counts_accuracy"] == 0  # what the counts prefer is held against a sentence
    assert 0 < facts["trigram_accuracy"] < 1
