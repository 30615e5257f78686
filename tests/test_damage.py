"""Damaged model folders: every row of the table in damage.py ends in one line, and changes nothing more."""

import random
import re
import shutil

import pytest

import saffu as package
from conftest import part, sentences
from damage import GOLDEN, TABLE, apply, sign


@pytest.fixture(scope="module")
def models(fitted, tmp_path_factory):
    """Folders that hold a model of each kind."""
    place = tmp_path_factory.mktemp("models")
    for kind in ("calibrated", "paper"):
        fitted(kind).save(place / kind)
    (place / "calibrated").rename(place / "counted")
    shutil.copytree(GOLDEN, place / "network")
    plain = package.CalibratedConfig(order=3, slots=4, word_classes=0)
    package.SaffuLM(plain).fit(sentences(1, 100)).save(place / "without classes")
    return place


@pytest.mark.parametrize("kind", sorted({row.kind for row in TABLE}))
def test_every_damage_ends_in_one_line(saffu, models, tmp_path, monkeypatch, kind):
    if kind == "paper":  # nothing is allocated for settings that do not fit
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(torch.Tensor, "new_ones", only_on_meta(torch.Tensor.new_ones))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(3, 20)) + "\n")
    wrong = []
    for number, row in enumerate(row for row in TABLE if row.kind == kind):
        place = tmp_path / str(number)
        shutil.copytree(models / kind, place / "model")
        what = apply(row, place / "model", random.Random(number))
        for use in row.uses:
            words = [
                word.format(place / "model", text=text, same=models / kind, out=place / "out") for word in use.split()
            ]
            problem = said_wrongly(saffu, words, row.line)
            if not problem and row.line is not None and (place / "out").exists():
                problem = "something is left behind"
            wrong += [f"{kind}: {what}: {words[0]}: {problem}"] if problem else []
        shutil.rmtree(place)
    assert not wrong, "\n".join(wrong)


def said_wrongly(saffu, words, line):
    """What is wrong with the way a command ends."""
    try:
        result = saffu(words)
    except Exception as error:
        return repr(error)
    if result.status == 0:
        return "is not noticed" if line is not None else ""
    if result.status != 2 or result.err.count("\n") != 1 or not result.err.startswith("saffu: "):
        return f"status {result.status}, {result.err}"
    return "" if line is None or re.search(line, result.err) else result.err


def only_on_meta(method):
    def checked(tensor, *sizes):
        assert tensor.device.type == "meta" or max(sizes) < 1000
        return method(tensor, *sizes)

    return checked


def test_a_model_of_another_vocabulary_than_its_tokenizer(saffu, models, tmp_path):
    text = [*sentences(1, 100), "other words: zebra zebra quagga quagga okapi okapi"] * 2
    package.SaffuLM(package.load(models / "counted").config).fit(text).save(tmp_path / "m")
    shutil.copy(part(models / "counted", "model.safetensors"), part(tmp_path / "m", "model.safetensors"))
    sign(tmp_path / "m")
    for line in ("generate {0} the", "explain {0} the", "complete {0} the", "check {0}"):
        assert not said_wrongly(saffu, line.format(tmp_path / "m").split(), "damaged")


def test_a_file_next_to_a_model_is_checked(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "m", {"notes.json": b"{}"})
    assert saffu(["info", tmp_path / "m", "--check"]).status == 0
    part(tmp_path / "m", "notes.json").write_bytes(b"[]")
    assert saffu(["info", tmp_path / "m"]).status == 0
    assert not said_wrongly(saffu, ["info", tmp_path / "m", "--check"], r"notes-\w+\.json is damaged")


def test_other_parts_of_a_tokenizer_are_not_used(fitted, tmp_path):
    lm = fitted("calibrated")
    lm.save(tmp_path / "m")
    (row,) = (row for row in TABLE if (row.file, row.what) == ("tokenizer.json", "with a normalizer"))
    apply(row, tmp_path / "m", random.Random(0))
    assert package.load(tmp_path / "m").tokenizer_.to_json() == lm.tokenizer_.to_json()
