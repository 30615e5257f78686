"""Learning curves of runs: the table, the drawing and the command."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from saffu import curves
from saffu.cli import main
from saffu.curves import Curve, comparison, spread, table


def write_run(folder, perplexities, seconds, **more):
    """A run of one fold a perplexity, the start first."""
    folder.mkdir()
    rows = [{"stage": "init", "dev_perplexity": 1.0, "seconds": 0.0}]  # the explicit solution's row is no fold
    for fold, (perplexity, second) in enumerate(zip(perplexities, seconds, strict=True)):
        row = {"stage": f"train {fold}", "fold": fold, "tokens": fold * 1_000_000, "seconds": second}
        row |= {"dev_perplexity": perplexity, "dev_bits_per_byte": perplexity / 50}
        rows.append(row | ({"train_perplexity": perplexity * 0.9} if fold else {}) | more)
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "warm", [120.0, 60.0, 50.0, 55.0], [2.0, 4.0, 6.0, 8.0])
    write_run(tmp_path / "cold", [3000.0, 150.0, 90.0, 80.0, 60.0], [0.5, 2.5, 4.5, 6.5, 8.5])
    return tmp_path


def test_comparison(runs):
    warm, cold = comparison([Curve.read(runs / "warm"), Curve.read(runs / "cold" / "log.jsonl")])
    assert (warm["run"], cold["run"]) == ("warm", "cold")
    assert (warm["start_dev_perplexity"], warm["best_dev_perplexity"]) == (120, 50)
    assert (warm["tokens"], warm["seconds"], warm["folds"]) == (2_000_000, 6.0, 3)
    assert warm["seconds_to_best_of"] == {"warm": 6.0, "cold": 4.0}
    assert cold["seconds_to_best_of"] == {"warm": None, "cold": 8.5}


def test_table(runs):
    lines = table(comparison([Curve.read(runs / "warm"), Curve.read(runs / "cold")])).splitlines()
    assert lines[1].split() == ["warm", "120.00", "50.00", "1.000", "2,000,000", "6.0"]
    assert lines[6].split() == ["warm", "6.0", "4.0"]
    assert lines[7].split() == ["cold", "–", "8.5"]
    assert len(lines[6]) == len(lines[7]) == len(lines[5])


def test_spread():
    assert spread([], 1.0) == []
    assert spread([0.0, 5.0], 1.0) == [0.0, 5.0]
    assert spread([0.0, 0.1, 5.0], 1.0) == pytest.approx([-0.45, 0.55, 5.0])
    assert spread([1.0, 1.0, 1.0, 1.0], 0.5) == pytest.approx([0.25, 0.75, 1.25, 1.75])
    places = spread([0.0, 0.2, 0.9, 1.0, 1.1, 4.0], 0.5)
    assert all(after - before >= 0.5 - 1e-9 for before, after in pairwise(places))


def test_drawing(runs):
    """The SVG holds its words as text: every run is named beside its curve, with its best perplexity."""
    paths = curves.draw([Curve.read(runs / name) for name in ("warm", "cold")], runs / "plots" / "a.b", title="Starts")
    assert [path.name for path in paths] == ["a.b.png", "a.b.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    svg = paths[1].read_bytes()
    words = " ".join("".join(element.itertext()) for element in ElementTree.fromstring(svg).iter())
    for word in ("warm  50.0", "cold  60.0", "Starts", "million tokens", "seconds of work", "perplexity"):
        assert word in words
    curves.draw([Curve.read(runs / name) for name in ("warm", "cold")], runs / "plots" / "a.b", title="Starts")
    assert paths[1].read_bytes() == svg  # the same runs, the same drawing


@pytest.fixture
def command(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs)

    def run(*arguments):
        with pytest.raises(SystemExit) as exit:
            main(["compare", *arguments])
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run


def test_command(command, runs):
    status, out, _ = command("warm", "cold", "--title", "t")
    assert status == 0
    assert "curves.png and curves.svg" in out
    assert (runs / "curves.png").exists()
    status, out, _ = command("warm", "cold", "--names", "A", "B", "--out", "x", "--over", "tokens", "--json")
    facts = json.loads(out)
    assert [run["run"] for run in facts["runs"]] == ["A", "B"]
    assert facts["runs"][1]["seconds_to_best_of"] == {"A": None, "B": 8.5}
    assert facts["drawn"] == ["x.png", "x.svg"]
    assert "seconds of work" not in (runs / "x.svg").read_text()


def test_runs_of_one_name_are_told_apart(command, runs):
    (runs / "other").mkdir()
    write_run(runs / "other" / "warm", [10.0, 9.0], [1.0, 2.0])
    _, out, _ = command("warm", "other/warm", "--json")
    assert [run["run"] for run in json.loads(out)["runs"]] == ["warm", "other/warm"]


def test_bad_runs_are_one_clear_line(command, runs):
    (runs / "solved").mkdir()
    (runs / "solved" / "log.jsonl").write_text('{"stage": "init", "dev_perplexity": 3.0}\n')
    (runs / "broken").mkdir()
    (runs / "broken" / "log.jsonl").write_text('{"fold": 1, "dev_perplexity": 3.0}\n')
    (runs / "empty").mkdir()
    for arguments, message in [
        (["nowhere"], "no run at nowhere"),
        (["empty"], "no run at empty"),
        (["solved"], "no curve"),
        (["broken"], "damaged"),
        (["warm", "cold", "--names", "A"], "1 name for 2 runs"),
        ([], "RUN"),
    ]:
        status, out, err = command(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert message in err
    assert not (runs / "curves.png").exists()
