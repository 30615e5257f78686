"""saffu check: what is verified, and how damage that checksums do not show is named."""

import json

import pytest

import saffu as package
from conftest import sentences


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


def test_models_of_the_paper_have_no_counts_to_check(saffu, model):
    shape = "--preset paper --block-dimension 12 --radius-dimension 12 --hidden-dimension 12 --block 4 --radius 2"
    assert saffu(f"train a.txt --hold-out 0 --quiet --out p {shape}").status == 0
    assert "it has no counts" in saffu("check p").out
    assert saffu("check p a.txt").status == 2
