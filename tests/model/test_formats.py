"""Folders of today's format are read as they were written; those of other formats are refused."""

import json

import pytest

from lab.golden_folders import GOLDEN, KINDS, answers
from saffu import SaffuError, SaffuLM, files


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", [False, True])
def test_folders_say_what_they_said(kind, check):
    expected = json.loads((GOLDEN / "answers.json").read_text("utf-8"))[kind]
    found = answers(SaffuLM.load(GOLDEN / kind, check=check))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name


def test_there_is_a_folder_of_each_preset():
    presets = {json.loads(path.read_text("utf-8"))["preset"] for path in GOLDEN.glob("*/config.json")}
    assert presets == {"calibrated", "companion", "paper"}


@pytest.mark.parametrize(("version", "remedy"), [(-1, "train again"), (1, "upgrade saffu")])
def test_a_folder_of_another_format_is_refused(saffu, fitted, tmp_path, monkeypatch, version, remedy):
    with monkeypatch.context() as patch:
        patch.setattr(files, "FORMAT", files.FORMAT + version)
        fitted("toy").save(tmp_path / "model")
    with pytest.raises(SaffuError, match=remedy):
        SaffuLM.load(tmp_path / "model")
    refused = saffu(f"info {tmp_path / 'model'}")
    assert refused.status == 2 and refused.err.count("\n") == 1
