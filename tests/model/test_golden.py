"""Folders of today's format that were written once: they are read, and say what they said."""

import json

import pytest

from lab.golden_folders import GOLDEN, KINDS, answers
from saffu import SaffuLM


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", [False, True])
def test_a_folder_says_what_it_said(kind, check):
    expected = json.loads((GOLDEN / "answers.json").read_text("utf-8"))[kind]
    found = answers(SaffuLM.load(GOLDEN / kind, check=check))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name
