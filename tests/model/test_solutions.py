"""A solution is one entry in `model/solutions.py`: `conftest.py` adds the toy model's, and every command can use it."""

import pytest

from conftest import each, sentences
from saffu.errors import SaffuError
from saffu.model.solutions import PRESETS, offered_as, offered_presets, preset


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = sentences(1, 250)
    for name, lines in {"train": text[:200], "first": text[:20], "dev": text[200:230], "more": text[230:]}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")


@each(
    "line, expected",
    [
        ("eval model dev.txt", "trigram baseline"),
        ("info model", "toy"),
        ("check model", "the ledger is complete: 200 documents"),
        ("score model dev.txt --words", "garden"),
        ("generate model the --seed 1", "the"),
        ("explain model 'the small'", "“small” right before it"),
        ("embed model dog", "cat"),
        ("pairs model", "%"),
        ("update model more.txt", "added 20 documents"),
        ("forget model first.txt", "removed 20 documents"),
        ("export model --to arpa --out model.arpa", "model.arpa"),
    ],
)
def test_every_command_works_with_a_solution_that_was_added(saffu, texts, line, expected):
    made = saffu("train train.txt --preset toy --split line --hold-out 0 --smoothing 2 --out model --force")
    assert made.status == 0 and made.out.count("\ncounted ") == 1, made
    shown = saffu(line)
    assert shown.status == 0 and expected in shown.out + shown.err, shown


def test_what_an_added_solution_lacks_is_refused_in_one_line(saffu, texts):
    for option in ("--backprop", "--minutes 1", "--memory-limit 1G", "--ray"):
        refused = saffu(f"train train.txt --preset toy --out model {option}")
        assert refused.status == 2 and len(refused.err.splitlines()) == 1, refused
    saffu("train train.txt --preset toy --out model")
    assert "this model predicts from its counts" in saffu("export model --out hf").err
    refused = saffu("train train.txt --smoothing 2 --out model")
    assert refused.status == 2 and "--smoothing belongs to --preset toy" in refused.err


COUNTED = ("calibrated", "companion")


def test_training_makes_presets_that_are_not_offered():
    assert offered_presets() == ["counted", *(name for name in PRESETS if name not in COUNTED)]
    assert [offered_as(name) for name in ("calibrated", "companion", "paper")] == ["counted", "counted", "paper"]
    assert preset("counted", order=3) == preset("calibrated", order=3)  # as folders name it
    with pytest.raises(SaffuError, match="choose one of counted, companion, paper"):
        preset("companions")
