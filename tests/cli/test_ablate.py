"""`saffu ablate` and `saffu report` as a person meets them, in an empty folder."""

import json

import pytest

from conftest import sentences
from saffu.cli import main

SMALL = ["--block-dimension", "16", "--radius-dimension", "12", "--hidden-dimension", "32", "--sample", "500"]
GRID = ["--blocks", "2,4", "--radii", "2", "--documents", "4"]


@pytest.fixture
def saffu(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(sentences(1, 200)) + "\n")
    (tmp_path / "dev.txt").write_text("\n".join(sentences(2, 60)) + "\n")

    def run(*arguments):
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run


def test_the_whole_way(saffu, tmp_path):
    status, out, _ = saffu("ablate", "train.txt", "--dev", "dev.txt", "--out", "grid", *GRID, *SMALL)
    assert status == 0
    assert "10 cells" in out and "sum/cat + documents" in out and "saffu report grid" in out
    more = ["--modes", "sum/cat", "--documents", "0", "--attention", "explicit,uniform", "--json"]
    status, out, err = saffu("ablate", "train.txt", "--dev", "dev.txt", "--out", "grid", *GRID[:4], *SMALL, *more)
    facts = json.loads(out)
    assert (status, facts["cells"], facts["run"]["runs"][1]["cells"]) == (0, 4, 2)
    assert "4 cells, 2 of them done before" in err
    assert facts["best"]["sum/cat"]["dev_perplexity"] > 1

    status, out, err = saffu("report", "grid")
    assert status == 0
    assert "12 cells; the page is grid/report/index.html" in out.replace("\\", "/")
    assert (tmp_path / "grid" / "report" / "tables.md").read_text().count("| **r = 2** |") == 5
    cells = tmp_path / "grid" / "cells.jsonl"
    cells.write_text(cells.read_text() + "{damaged\n")
    status, out, err = saffu("report", "grid", "--json")
    assert status == 0 and "damaged at line 13" in err
    assert len(json.loads(out)["verdicts"]) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--blocks", "1,2"], "1 is among --blocks"),
        (["--radii", "0"], "0 is among --radii"),
        (["--radii", "two"], "'two' is no list of values such as 2,4,8"),
        (["--modes", "sum/mean"], "unknown modes 'sum/mean'; they are block/radius: sum/sum"),
        (["--dev", "train.txt"], "train.txt is both training and held-out text"),
        (["--dev", "copy.txt"], "the held-out text is the training text"),
        (["--dev", "copy.txt", "--tokens", "500"], "the held-out text is the training text"),
        (["--memory", "10M"], "the grid needs about"),
        (["--memory", "much"], "'much' is no number of bytes"),
        (["--attention", "none"], "--attention is 'none'"),
        (["--accumulate", "maybe"], "'maybe' is no list of values such as yes,no"),
        (["--hold-out", "1"], "needs held-out text"),
        (["--out", "train.txt"], "train.txt is a file"),
    ],
    ids=str,
)
def test_mistakes_get_one_clear_line(saffu, tmp_path, arguments, message):
    (tmp_path / "copy.txt").write_bytes((tmp_path / "train.txt").read_bytes())
    status, out, err = saffu("ablate", "train.txt", "--out", "grid", *GRID, *SMALL, *arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1 and message in err
    assert not (tmp_path / "grid").exists()


def test_report_of_nothing(saffu, tmp_path):
    assert saffu("report", "nowhere")[0] == 2
    (tmp_path / "empty").mkdir()
    status, _, err = saffu("report", "empty")
    assert status == 2 and "holds no cells" in err and not list((tmp_path / "empty").iterdir())
    (tmp_path / "empty" / "run.json").write_text("{")
    status, _, err = saffu("report", "empty")
    assert status == 2 and "run.json is damaged" in err
