"""saffu check: what is verified, and how damage that checksums do not show is named."""

import json
from dataclasses import replace

import numpy as np
import pytest

import saffu as package
from conftest import sentences
from saffu.model.folder import Statistics


@pytest.fixture
def model(saffu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(sentences(1, 300)) + "\n")
    (tmp_path / "b.txt").write_text("a new line .\n")
    assert saffu("train a.txt --split file --word-classes 0 --order 3 --out m").status == 0
    return tmp_path / "m"


def test_a_sound_model(saffu, model):
    said = saffu("check m a.txt")
    assert said.status == 0, said.err
    for part in ("m is sound", "the tables follow from the counts", "exactly those of the text"):
        assert part in said.out
    assert json.loads(saffu("check m --json").out)["sound"] is True


def test_another_text_is_noticed(saffu, model, tmp_path):
    assert saffu("update m b.txt").status == 0
    result = saffu("check m a.txt")
    assert (
        result.status == 2
        and "m fails the check: 1 document or parts that are counted are not in the text" in result.err
    )
    assert saffu("check m a.txt b.txt").status == 0
    (tmp_path / "c.txt").write_text("never seen before .\n")
    (tmp_path / "d.txt").write_text("\n".join([*sentences(1, 299), "edited"]) + "\n")
    (tmp_path / "e.txt").write_text("\n".join(sentences(1, 250)) + "\n")
    for names, message in {
        "a.txt b.txt c.txt": "1 of 3 documents was never counted",
        "c.txt": "this document is not in the model",
        "b.txt d.txt": "document 2 is not the one that was counted",
        "b.txt e.txt": "document 2 is not the one that was counted",
    }.items():
        result = saffu(f"check m {names}")
        assert result.status == 2, names
        assert f"m fails the check: its counts are not those of the text: {message}" in result.err, result.err
        for word in ("skip", "unchanged", "remove"):  # what `forget` would say
            assert word not in result.err


def test_what_was_signed_but_is_wrong(saffu, model):
    lm = package.load("m", check=True)
    lm.trained_on_["parts"] += 1
    lm.save("m")
    assert "its ledger has" in saffu("check m").err
    lm.trained_on_["tokens"] += 1
    lm.save("m")
    assert "tokens, but records" in saffu("check m").err


def test_tables_that_do_not_follow_from_the_counts(saffu, model):
    lm = package.load("m", check=True)
    other = package.load("m", check=True).update(["a new line ."])
    lm.model_._sums = other.model_.sums
    lm.save("m")
    assert "its tables do not follow from its counts" in saffu("check m").err


def test_leftovers_are_named(saffu, model, tmp_path):
    (tmp_path / "m" / ".sums.safetensors.writing-0123456789ab").touch()
    assert "was left by a process that was killed" in saffu("check m").err


def test_sums_of_the_paper_may_be_rounded(saffu, model):
    """In float32, they depend on the portions in which text was added."""
    shape = "--preset paper --block-dimension 12 --radius-dimension 12 --hidden-dimension 12 --block 4 --radius 2"
    assert saffu(f"train a.txt --hold-out 0 --document-shards 0 --quiet --out p {shape}").status == 0
    assert "exactly those of the text" in saffu("check p a.txt").out
    (model.parent / "c.txt").write_text("\n".join(sentences(2, 60)) + "\n")
    assert saffu("update p c.txt").status == 0
    checked = saffu("check p a.txt c.txt")
    assert "the counts are those of the text, except for rounding (360 lines" in checked.out, checked.err


def test_ngrams_of_another_text_are_noticed(saffu, model):
    """Those of the paper's models, by which they are compared with other models, are not part of their sums."""
    shape = "--preset paper --block-dimension 12 --radius-dimension 12 --hidden-dimension 12 --block 4 --radius 2"
    assert saffu(f"train a.txt --split line --hold-out 0 --document-shards 0 --quiet --out p {shape}").status == 0
    lm = package.load("p", check=True)
    own = lm.statistics_
    line = lm.tokenize(sentences(1, 1))
    moved = replace(line, ids=np.concatenate([line.ids[:-1][::-1], line.ids[-1:]]))  # as many of each token
    one, other = (Statistics.of(text, len(lm.tokenizer_), ngrams=True).ngrams for text in (moved, line))
    for ngrams, command, message in (
        (own.ngrams + one, "check p", "its n-gram counts are not of the tokens that it has counted"),
        (own.ngrams + one - other, "check p a.txt", "its counts are not those of the text (ngrams."),
    ):
        lm.statistics_ = replace(own, ngrams=ngrams)
        lm.save("p")
        refused = saffu(command)
        assert refused.status == 2 and message in refused.err
