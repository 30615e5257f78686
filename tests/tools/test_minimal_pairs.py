"""Minimal pairs against sentences scored one by one, and files with something amiss."""

import gzip
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from conftest import SMALL, sentences
from saffu import SaffuConfig, SaffuLM
from saffu.cli import main
from saffu.ngram import KneserNey, context_windows
from saffu.pairs import Pair, PairCorpus, PairScore, evaluate_pairs, first_of_their_kind, overall, read_pairs

KINDS = [SMALL, replace(SMALL, documents=3), SaffuConfig.preset("calibrated", classes=20)]


def swapped(sentence):
    words = sentence.split()
    return " ".join([words[1], words[0], *words[2:]])


@pytest.fixture(scope="module")
def pairs():
    made = [Pair(sentence, swapped(sentence)) for sentence in sentences(5, 40)]
    return [*made, Pair("the dog", "the dog"), Pair(" saw", " saw", "the old dog", "dog old the")]


@pytest.fixture(scope="module", params=range(len(KINDS)))
def lm(request, train_text):
    return SaffuLM(KINDS[request.param]).fit(train_text)


@pytest.mark.parametrize("end", [False, True])
def test_sums_are_those_of_sentences_scored_alone(lm, pairs, end):
    corpus = PairCorpus(pairs, lm.tokenizer_, end)
    model, trigram = KneserNey(lm.references_), corpus.by_ngrams(KneserNey(lm.references_))
    ours = corpus.by_network(lm.network_)
    assert ours.dtype == np.float64
    tokens = 0
    for number, pair in enumerate(pairs):
        for side, (before, text) in enumerate([(pair.before_good, pair.good), (pair.before_bad, pair.bad)]):
            alone = lm.tokenize([before + text])
            log_p = np.concatenate(
                [
                    lm.network_.log_probabilities(targets).detach().double().numpy()
                    for targets in alone.batches(1000, lm.network_.lookback)
                ]
            )
            counted = slice(len(lm.tokenizer_.encode(before)), None if end else -1)
            tokens += len(log_p[counted])
            assert ours[number, side] == pytest.approx(log_p[counted].sum(), abs=1e-4)
            ids, starts = alone.ids, alone.starts
            by_ngrams = model.log_probabilities(context_windows(ids, starts, 0, len(ids), 2), ids)
            assert trigram[number, side] == pytest.approx(float(by_ngrams[counted].sum()), abs=1e-9)
    assert corpus.tokens == tokens
    assert ours[40, 0] == ours[40, 1]  # the same sentence twice


def test_a_tie_is_half_right():
    score = PairScore.of(np.array([[-1.0, -2.0], [-2.0, -1.0], [-3.0, -3.0], [-3.0, -3.0 - 1e-9], [-1.0, -5.0]]))
    assert (score.pairs, score.right, score.ties) == (5, 2, 2)
    assert score.accuracy == pytest.approx(0.6)
    assert score.tie_rate == pytest.approx(0.4)


def test_each_prediction_is_made_once(small_lm):
    corpus = small_lm.tokenize(["the dog saw", "the dog", "the dog saw", "dog the"])
    documents = [[]]
    for token in corpus.ids.tolist():
        documents[-1].append(token)
        if token == 3:
            documents.append([])
    ways, expected = {}, []
    for document in documents[:-1]:
        for end in range(1, len(document) + 1):
            expected.append(ways.setdefault(tuple(document[:end]), len(expected)))
    assert first_of_their_kind(corpus).tolist() == expected


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


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


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"sentence_good": "a"}', "line 2 has no field 'sentence_bad'"),
        ('{"sentence_bad": "a"}', "line 2 has no field 'sentence_good'"),
        ('{"text": "a"}', "line 2 has no field 'sentence_good'"),
        ('{"Context1": "a", "Target1": "b"}', "line 2 has no field 'Target2'"),
        ('{"sentence_good": "a", "sentence_bad": 3}', "line 2 has no text in the field 'sentence_bad'"),
        ('{"sentence_good": " ", "sentence_bad": "b"}', "line 2 has no text in the field 'sentence_good'"),
        ('{"sentence_good": "\\ud800", "sentence_bad": "b"}', "line 2 has half a character"),
        ('["a", "b"]', "line 2 is no JSON object"),
        ('{"sentence_good": "a", ', "line 2 is no JSON"),
        ("caf\xe9", "line 2 is no JSON"),
    ],
)
def test_a_bad_line_is_named(small_lm, tmp_path, capsys, line, message):
    small_lm.save(tmp_path / "model")
    good = '{"sentence_good": "a b", "sentence_bad": "b a"}\n'
    (tmp_path / "odd.jsonl").write_bytes((good + line + "\n").encode("latin-1"))
    with pytest.raises(SystemExit) as exit:
        main(["pairs", str(tmp_path / "model"), str(tmp_path / "odd.jsonl")])
    captured = capsys.readouterr()
    assert exit.value.code == 2
    assert captured.out == ""
    assert f"odd.jsonl, {message}" in captured.err
    assert len(captured.err.strip().splitlines()) == 1


def test_the_verb(small_lm, tmp_path, capsys, pairs):
    small_lm.save(tmp_path / "model")
    (tmp_path / "sets").mkdir()
    records = [{"sentence_good": pair.good, "sentence_bad": pair.bad} for pair in pairs[:41]]
    write(tmp_path / "sets" / "order.jsonl", records[:30])
    write(tmp_path / "sets" / "more.jsonl", records[30:])
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as exit:
            main(["pairs", str(tmp_path / "model"), str(tmp_path / "sets"), *options])
        assert exit.value.code == 0
        out = capsys.readouterr().out
    facts = json.loads(out)
    assert facts["pairs"] == 41
    assert facts["ties"] >= 1
    assert facts["trigram_accuracy"] > 0.9
    assert facts["accuracy"] == pytest.approx((facts["right"] + facts["ties"] / 2) / 41)
    assert [row["pairs"] for row in facts["files"]] == [11, 30]
    assert facts["mean_accuracy"] == pytest.approx(sum(row["accuracy"] for row in facts["files"]) / 2)
    assert facts["tokens"] == sum(row["tokens"] for row in facts["files"])


def test_without_references(train_text, tmp_path, pairs):
    lm = SaffuLM(SMALL).fit(train_text, references=False)
    path = write(tmp_path / "a.jsonl", [{"sentence_good": pair.good, "sentence_bad": pair.bad} for pair in pairs[:5]])
    rows = evaluate_pairs(lm, [path])
    assert "trigram_accuracy" not in overall(rows)
    assert math.isfinite(rows[0]["accuracy"])


@pytest.mark.parametrize("name", ["empty.jsonl", "folder", "nowhere.jsonl", "broken.jsonl.gz"])
def test_nothing_to_read(small_lm, tmp_path, capsys, name):
    small_lm.save(tmp_path / "model")
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(SystemExit) as exit:
        main(["pairs", str(tmp_path / "model"), str(tmp_path / name)])
    assert exit.value.code == 2
    assert name in capsys.readouterr().err
