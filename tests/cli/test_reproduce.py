"""The paper's experiments, on a corpus of a few sentences: what is run, in what order, and that it goes on."""

import json
from pathlib import Path

import pytest

from conftest import sentences
from saffu.cli import main
from saffu.commands import reproduce


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for split, number in (("train", 50), ("dev", 15)):
        (tmp_path / "babylm" / split).mkdir(parents=True)
        for seed, name in enumerate(["childes", "switchboard"]):
            text = "\n".join(sentences(seed + len(split), number)) + "\n"
            (tmp_path / "babylm" / split / f"{name}.{split}").write_text(text)
    return tmp_path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        main(["reproduce", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return exit.value.code, captured.out, captured.err


def test_logs(corpus, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "TUNED_FOLDS", 2)
    command = ("logs", "--data", "babylm", "--rate", 0.01, "--max-folds")
    status, out, _ = run(capsys, *command, 1)
    assert status == 0
    assert "$ saffu train babylm/train --dev babylm/dev --out paper/warm-8 --force --preset paper --radius 8" in out
    log = [json.loads(line) for line in (corpus / "paper" / "warm-8" / "log.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in log] == ["init", "tune 1", "tune 2", "warm start", "train 1"]
    for row in log:
        assert f"{row['stage']:<14} {row['dev_perplexity']:>9.2f}" in out
    _, again, _ = run(capsys, *command, 1)
    assert "$ saffu" not in again  # done before
    assert again.splitlines() == out[out.index("\nstep") :].splitlines()
    status, told, err = run(capsys, *command, 1, "--json")
    assert (status, err) == (0, "")
    assert json.loads(told) == {"out": str(Path("paper") / "warm-8"), "log": log}
    _, longer, _ = run(capsys, *command, 2)
    assert "$ saffu train --resume paper/warm-8 --max-folds 2" in longer
    assert "train 2" in longer
    status, _, err = run(capsys, "logs", "--data", "babylm", "--rate", 0.1)
    assert status == 2
    assert "choose another --out" in err


def test_figure_and_tables_are_made_of_ordinary_commands(corpus, capsys, monkeypatch):
    commands = []
    monkeypatch.setattr(reproduce, "saffu", lambda _, *words, **__: commands.append([str(word) for word in words]))
    assert run(capsys, "figure", "--data", "babylm", "--out", "p", "--device", "cpu")[0] == 0
    trained, (*_, compared) = commands[:4], commands
    assert [c[c.index("--out") + 1] for c in trained] == ["p/warm-8", "p/cold-8", "p/warm-128", "p/cold-128"]
    assert ["--tune" in command for command in trained] == [True, False, True, False]
    assert not any("--rate" in command for command in trained)  # the preset's
    assert compared[:5] == ["compare", "p/warm-8", "p/cold-8", "p/warm-128", "p/cold-128"]
    commands.clear()
    assert run(capsys, "tables", "--data", "babylm", "--out", "p", "--tokens", "1k")[0] == 0
    ablate, report = commands
    assert ablate[:6] == ["ablate", "babylm/train", "--dev", "babylm/dev", "--out", "p/grid"]
    assert ablate[-2:] == ["--tokens", "1000"]
    assert report == ["report", "p/grid"]


def test_with_json_only_the_result_is_on_standard_output(corpus, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "TUNED_FOLDS", 1)
    monkeypatch.setattr(reproduce, "RADII", (2, 3))
    status, out, err = run(capsys, "figure", "--data", "babylm", "--rate", 0.01, "--max-folds", 1, "--json")
    assert status == 0
    facts = json.loads(out)
    assert [row["run"] for row in facts["runs"]] == ["warm-2", "cold-2", "warm-3", "cold-3"]
    assert err.count("$ saffu train") == 4
    assert "$ saffu compare" in err
    assert all(Path(path).exists() for path in facts["drawn"])


def test_files_among_others_are_named_one_by_one(corpus):
    folder = corpus / "babylm" / "train"
    files = sorted(folder.iterdir())
    assert reproduce.named(files) == [str(folder)]
    (folder / "notes.txt").write_text("not of the corpus\n")
    assert reproduce.named(files) == [str(path) for path in files]


@pytest.mark.parametrize("arguments", ["logs", "logs --data nowhere", "logs --data .", "fame --data babylm"])
def test_bad_input_is_one_clear_line(corpus, capsys, arguments):
    (corpus / "babylm" / "dev" / "childes.dev").unlink()
    (corpus / "babylm" / "dev" / "switchboard.dev").unlink()
    status, out, err = run(capsys, *arguments.split())
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
