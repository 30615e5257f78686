"""`saffu reproduce`, `saffu compare`, and `saffu download`: what they pass on, and what they print."""

import json
from pathlib import Path

import pytest

from conftest import part, sentences


@pytest.fixture(autouse=True)
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, number in (("train", 50), ("dev", 15)):
        (tmp_path / "babylm" / split).mkdir(parents=True)
        (tmp_path / "babylm" / split / f"childes.{split}").write_text("\n".join(sentences(number, number)) + "\n")
    return tmp_path


def test_reproduce_passes_on_its_options(saffu, monkeypatch, tmp_path):
    from saffu.experiments import reproduce

    asked = []

    def figure(protocol, say):
        asked.append(protocol)
        say("a curve")
        return {"runs": []}

    monkeypatch.setattr(reproduce, "figure", figure)
    line = "reproduce figure --data babylm --out p --learning-rate 0.01 --max-folds 12 --max-tokens 1k"
    shown = saffu(line)
    assert (shown.status, shown.out) == (0, "a curve\n")
    (protocol,) = asked
    assert [path.name for path in [*protocol.train, *protocol.dev]] == ["childes.train", "childes.dev"]
    assert (protocol.learning_rate, protocol.max_folds, protocol.max_tokens) == (0.01, 12, 1000)
    shown = saffu(f"{line} --json")
    assert (json.loads(shown.out), shown.err) == ({"runs": []}, "a curve\n")


@pytest.mark.parametrize("line", ["logs", "logs --data nowhere", "logs --data empty", "fame --data babylm"])
def test_bad_corpora_are_one_clear_line(saffu, tmp_path, line):
    (tmp_path / "empty").mkdir()
    result = saffu(f"reproduce {line}")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)


TINY = (
    "--preset paper --block 4 --radius 2 --block-dimension 16 --radius-dimension 12 --hidden-dimension 16 "
    "--backprop --max-folds 1 --fold-tokens 500"
)


@pytest.fixture
def runs(saffu, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(sentences(1, 80)) + "\n")
    (tmp_path / "dev.txt").write_text("\n".join(sentences(2, 30)) + "\n")
    (tmp_path / "other.txt").write_text("\n".join(sentences(3, 30)) + "\n")
    for name, more in (
        ("explicit", "--dev dev.txt"),
        ("random", "--dev dev.txt --init random"),
        ("bytes", "--dev dev.txt --set bpe_kept_words=1"),
        ("elsewhere", "--dev other.txt"),
    ):
        trained = saffu(f"train train.txt --out {name} {more} {TINY}")
        assert trained.status == 0, trained.err


def test_compare(saffu, runs, tmp_path):
    from matplotlib.figure import Figure

    shown = saffu("compare explicit random --out figure --json")
    assert shown.status == 0, shown.err
    facts = json.loads(shown.out)
    assert [row["run"] for row in facts["runs"]] == ["explicit", "random"]
    assert (tmp_path / "figure.svg").exists() and shown.err == ""

    before = Path("figure.png").read_bytes()
    assert "figure.png exists" in saffu("compare explicit random --out figure").err
    assert saffu("compare explicit random --out figure --force").status == 0
    Path("figure.svg").write_text("a drawing of mine")
    assert "saffu did not write it" in saffu("compare explicit random --out figure --force").err
    assert Path("figure.svg").read_text() == "a drawing of mine" and Path("figure.png").read_bytes() == before
    Figure().savefig("photo.png")
    before = Path("photo.png").read_bytes()
    assert "saffu did not write it" in saffu("compare explicit random --out photo --force").err
    assert Path("photo.png").read_bytes() == before
    mixed = saffu("compare explicit bytes --x-axis tokens --out mixed")
    assert mixed.status == 0 and "different vocabularies" in mixed.out
    assert "bits per byte" in (tmp_path / "mixed.svg").read_text()

    refused = saffu("compare explicit elsewhere --out no")
    assert refused.status == 2 and "different held-out texts" in refused.err and refused.err.count("\n") == 1
    assert not (tmp_path / "no.svg").exists()

    log = part(tmp_path / "random", "log.jsonl")
    log.write_text(log.read_text()[:-20])
    damaged = saffu("compare explicit random")
    assert damaged.status == 2 and damaged.err.count("\n") == 1 and log.name in damaged.err


def test_download_reports_files_and_checksums(saffu, monkeypatch):
    from saffu.experiments import download

    manifest = {
        "files": {"train": {"a.train": {"bytes": 5}, "b.train": {"bytes": 7}}},
        "archives": {"x.zip": {"sha256": "ab"}},
    }
    monkeypatch.setattr(download, "fetch_babylm", lambda *_, **__: manifest)
    assert saffu("download babylm --out d").out.replace("\\", "/") == "d/train  2 files, 12 bytes\nx.zip  sha256 ab\n"
    assert json.loads(saffu("download babylm --out d --json").out)["files"] == manifest["files"]


def test_an_interrupted_download_says_how_to_resume(saffu, monkeypatch):
    from saffu.experiments import download

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(download, "fetch_babylm", interrupted)
    result = saffu("download babylm --out d")
    assert result.status == 130 and "rerun the same command" in result.err
