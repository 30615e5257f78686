"""saffu export --to arpa."""

import json

import pytest

from conftest import each


@pytest.fixture(autouse=True)
def model(fitted, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fitted("calibrated").save(tmp_path / "model")


def test_arpa_files(saffu, tmp_path):
    shown = saffu("export model --to arpa --out model.arpa")
    assert shown.status == 0 and shown.out.startswith("wrote model.arpa") and "n-grams" in shown.out
    head = (tmp_path / "model.arpa").read_text("utf-8").splitlines()[:5]
    assert head[0] == "\\data\\" and head[4].startswith("ngram 4=")
    facts = json.loads(saffu("export model --to arpa --out model.arpa --order 3 --force --json").out)
    assert len(facts["ngrams"]) == 3 and facts["bytes"] == (tmp_path / "model.arpa").stat().st_size


@each(
    "line, message",
    [
        ("export model --to arpa --out model", "is also an input"),
        ("export model --to arpa --out here", "replace it with --force"),
        ("export model --to arpa --out x --order 5", "--order must be from 2 to 4"),
        ("export model --to arpa --out x --order 7", "at most 6"),
        ("export model --out x --order 3", "need --to arpa"),
        ("export model --to srilm --out x", "invalid choice"),
    ],
)
def test_misuse(saffu, tmp_path, line, message):
    (tmp_path / "here").write_text("")
    result = saffu(line)
    assert result.status == 2 and message in result.err and result.err.count("\n") == 1
    assert not (tmp_path / "x").exists()
