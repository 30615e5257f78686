"""`saffu ablate` and `saffu report`, in an empty folder."""

import json

import pytest

from conftest import each, sentences

SMALL = "--set block_dimension=16 --set radius_dimension=12 --set hidden_dimension=32 --eval-tokens 500"
GRID = "--blocks 2,4 --radii 2"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(sentences(1, 200)) + "\n")
    (tmp_path / "dev.txt").write_text("\n".join(sentences(2, 60)) + "\n")


def test_the_whole_way(saffu, tmp_path):
    first = saffu(f"ablate train.txt --dev dev.txt --out grid {GRID} --document-shards 4 {SMALL}")
    assert first.status == 0, first.err
    assert "10 cells" in first.out and "sum/cat + documents" in first.out and "saffu report grid" in first.out
    sweep = "--modes sum/cat --set attention=explicit,uniform --json"
    second = saffu(f"ablate train.txt --dev dev.txt --out grid {GRID} {SMALL} {sweep}")
    facts = json.loads(second.out)
    assert (second.status, facts["cells"], facts["failures"]) == (0, 4, 0)
    assert facts["best"]["sum/cat"]["dev_perplexity"] > 1

    report = saffu("report grid")
    assert report.status == 0, report.err
    assert "12 cells; wrote grid/report/index.html" in report.out.replace("\\", "/")
    assert (tmp_path / "grid" / "report" / "index.html").exists()
    results = tmp_path / "grid" / "results.jsonl"
    results.write_text(results.read_text() + "{damaged\n")
    report = saffu("report grid --json")
    assert report.status == 0 and "damaged" in report.err
    assert json.loads(report.out)["cells"] == 12


@each(
    "options, message",
    [
        ("--blocks 1,2", "--blocks must be at least 2, got 1"),
        ("--radii 0", "--radii must be at least 2, got 0"),
        ("--radii two", "invalid list 'two'"),
        ("--modes sum/mean", "sum/mean"),
        ("--dev train.txt", "train.txt is both training and held-out text"),
        ("--dev copy.txt", "which is training text"),
        ("--dev copy.txt --max-tokens 500", "which is training text"),
        ("--memory-limit 10M", "memory"),
        ("--memory-limit much", "invalid number 'much'"),
        ("--memory-limit 1e30", "invalid number '1e30'"),
        ("--set attention=none", "attention"),
        ("--set bpe_words=5,6", "pass one value"),
        ("--set colour=5", "--set has no setting 'colour'"),
        ("--set smoothing=", "--set smoothing has no value"),
        ("--hold-out 1", "at least 2"),
        ("--out train.txt", "--out train.txt is a file"),
        ("--device warp", "warp"),
    ],
)
def test_mistakes_get_one_clear_line(saffu, tmp_path, options, message):
    (tmp_path / "copy.txt").write_bytes((tmp_path / "train.txt").read_bytes())
    result = saffu(f"ablate train.txt --out grid {GRID} --document-shards 0 {SMALL} {options}")
    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1 and message in result.err
    assert not (tmp_path / "grid").exists()


def test_an_interrupted_grid_says_how_to_resume(saffu, monkeypatch):
    from saffu.experiments import scoring

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(scoring, "run_grid", interrupted)
    result = saffu(f"ablate train.txt --dev dev.txt --out grid {GRID} {SMALL}")
    assert result.status == 130 and "rerun the same command to resume in grid" in result.err


def test_set_help(saffu):
    shown = saffu("ablate --out grid --set help").out
    assert "hidden_dimension=512" in shown and "bpe_words=" in shown


def test_report_of_nothing(saffu, tmp_path):
    assert saffu("report nowhere").status == 2
    (tmp_path / "empty").mkdir()
    result = saffu("report empty")
    assert result.status == 2 and result.err.count("\n") == 1 and not list((tmp_path / "empty").iterdir())
    (tmp_path / "empty" / "text.json").write_text("{")
    assert saffu("report empty").status == 2
