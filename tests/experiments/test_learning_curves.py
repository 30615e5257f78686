"""Learning curves of runs: the table and the plot."""

import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest

from conftest import part
from saffu.errors import SaffuError
from saffu.experiments import learning_curves
from saffu.experiments.learning_curves import Curve, comparison, comparison_table, spread


def write_run(folder, perplexities, seconds, **more):
    """A run with one fold per perplexity, starting with fold 0."""
    folder.mkdir()
    scores = {"dev_perplexity": 1.0, "dev_bits_per_byte": 0.1}
    rows = [{"stage": "init", **scores, "seconds": 0.0}]  # the explicit solution's row is not a fold
    for fold, (perplexity, second) in enumerate(zip(perplexities, seconds, strict=True)):
        row = {"stage": f"train {fold}", "fold": fold, "tokens": fold * 1_000_000, "seconds": second}
        row |= {"dev_perplexity": perplexity, "dev_bits_per_byte": perplexity / 50}
        rows.append(row | ({"train_perplexity": perplexity * 0.9} if fold else {}) | more)
    part(folder, "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "warm", [120.0, 60.0, 50.0, 55.0], [2.0, 4.0, 6.0, 8.0])
    write_run(tmp_path / "cold", [3000.0, 150.0, 90.0, 80.0, 60.0], [0.5, 2.5, 4.5, 6.5, 8.5])
    return tmp_path


def test_comparison(runs):
    warm, cold = comparison([Curve.read(runs / "warm"), Curve.read(part(runs / "cold", "log.jsonl"))])
    assert (warm["run"], cold["run"]) == ("warm", "cold")
    assert (warm["start_dev_perplexity"], warm["best_dev_perplexity"]) == (120, 50)
    assert (warm["tokens"], warm["seconds"], warm["folds"]) == (2_000_000, 6.0, 3)
    assert warm["seconds_to_best_of"] == {"warm": 6.0, "cold": 4.0}
    assert cold["seconds_to_best_of"] == {"warm": None, "cold": 8.5}


def test_table(runs):
    lines = comparison_table(comparison([Curve.read(runs / "warm"), Curve.read(runs / "cold")])).splitlines()
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


def test_plot(runs):
    """The SVG contains its words as text: every run is named next to its curve, with its best perplexity."""
    paths = learning_curves.draw(
        [Curve.read(runs / name) for name in ("warm", "cold")], runs / "plots" / "a.b", title="Starts"
    )
    assert [path.name for path in paths] == ["a.b.png", "a.b.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    svg = paths[1].read_bytes()
    words = " ".join("".join(element.itertext()) for element in ElementTree.fromstring(svg).iter())
    for word in ("warm  50.0", "cold  60.0", "Starts", "million tokens", "seconds of work", "perplexity"):
        assert word in words
    learning_curves.draw([Curve.read(runs / name) for name in ("warm", "cold")], runs / "plots" / "a.b", title="Starts")
    assert paths[1].read_bytes() == svg  # the same runs give the same file


def test_dollar_signs_are_not_formulas(runs):
    curves = [Curve.read(runs / "warm", "$a_1$"), Curve.read(runs / "cold")]
    _, drawn = learning_curves.draw(curves, runs / "plot", title="for $5 and $6")
    assert ">for $5 and $6<" in drawn.read_text() and ">$a_1$  " in drawn.read_text()


def test_invalid_runs(runs):
    (runs / "solved").mkdir()
    part(runs / "solved", "log.jsonl").write_text('{"stage": "init", "seconds": 3.0}\n')
    (runs / "broken").mkdir()
    part(runs / "broken", "log.jsonl").write_text('{"fold": 1, "dev_perplexity": 3.0}\n')
    write_run(runs / "diverged", [3.0, float("inf")], [1.0, 2.0])
    (runs / "empty").mkdir()
    for name, message in [
        ("nowhere", "no run at"),
        ("empty", "no run at"),
        ("solved", "no learning curve"),
        ("broken", "damaged"),
        ("diverged", "not positive and finite"),
    ]:
        with pytest.raises(SaffuError, match=message):
            Curve.read(runs / name)
