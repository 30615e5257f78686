"""The numbers of the documentation are those of docs/results."""

import json
import math
from pathlib import Path

import pytest

from saffu.errors import SaffuError
from saffu.experiments import pages
from saffu.experiments.claims import FAILS, HOLDS, IN_PART, OPEN
from saffu.experiments.pages import Results, cells_of, filled, main, training_verdicts, verdicts_of

DOCS = Path(__file__).parents[2] / "docs"


def row(reading="default", level=1.0, **changes):
    """A made-up reading with a few cells."""
    cells = [
        [modes, False, b, r, level * (100 - b), level * (104 - b)]
        for modes in ("sum/cat", "cat/cat")
        for b in (2, 8)
        for r in (2, 8)
    ]
    facts = {"text": "t", "tokens": 10**6, "documents": 9, "vocabulary": 50, "unigram": {"train": 99.0, "dev": 101.0}}
    return {"reading": reading, "changes": changes, **facts, "least_attention": 0.1, "perplexities": cells}


def run(init, radius, best):
    curve = [{"fold": fold, "tokens": fold, "seconds": fold, "dev_perplexity": best * (2 - fold)} for fold in (0, 1)]
    facts = {"init": init, "radius": radius, "learning_rate": 0.01, "tokens": 5, "dev_targets": 3, "vocabulary": 50}
    return {**facts, "best_dev_perplexity": best, "curve": curve}


def written(folder, readings, runs=()):
    folder.mkdir()
    (folder / "readings-spoken.jsonl").write_text("".join(json.dumps(row) + "\n" for row in readings))
    (folder / "warm-starts.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    return Results(folder)


def test_the_pages_are_up_to_date():
    for name, parts in pages.pages(Results(DOCS / "results")).items():
        page = (DOCS / name).read_text("utf-8")
        assert filled(page, parts) == page, "run `python -m saffu.experiments.pages`"


def test_every_figure_of_these_pages_exists():
    for name in ("ablation-heat-maps.svg", "warm-cold.svg"):
        assert (DOCS / "figures" / name).is_file()


def test_cells_are_rebuilt(tmp_path):
    cell = cells_of(row(slot_weight="unit"))[0]
    assert (cell.modes, cell.config.block, cell.config.radius, cell.config.slot_weight) == ("sum/cat", 2, 2, "unit")
    assert cell.perplexities == pytest.approx((98, 102))
    assert cell.parameters > 50 * (128 + 32)


def test_verdicts_come_from_readings_that_differ_in_one_setting():
    rows = [row(), row("uniform-attention", 1.2, attention="uniform"), row("scaled-0.5", slot_weight="0.5 ln K")]
    rows.append(row("tuned-once", 0.9, tune_folds=1, fold_tokens=500))
    verdicts = verdicts_of(rows)
    assert verdicts[5].verdict == HOLDS and verdicts[5].effect == pytest.approx(0.2)
    assert verdicts[6].verdict == OPEN
    assert verdicts[8].verdict == HOLDS and verdicts[8].effect == pytest.approx(1 / 0.9 - 1)
    assert verdicts_of(rows, "unit-weights") == {}


@pytest.mark.parametrize(
    ("scores", "ninth", "tenth"),
    [((20, 30, 60, 60.5), HOLDS, HOLDS), ((20, 70, 60, 90), IN_PART, FAILS), ((40, 30, 20, 20), FAILS, HOLDS)],
)
def test_verdicts_on_training(tmp_path, scores, ninth, tenth):
    starts = [("explicit", 8), ("explicit", 128), ("random", 8), ("random", 128)]
    runs = [run(*start, score) for start, score in zip(starts, scores, strict=True)]
    verdicts = training_verdicts(written(tmp_path / "all", [row()], [*runs, run("explicit", 8, 99)]))
    assert (verdicts[9].verdict, verdicts[10].verdict) == (ninth, tenth)
    assert training_verdicts(written(tmp_path / "some", [row()], runs[:3]))[9].verdict == OPEN


def test_command(tmp_path):
    cells = row()["perplexities"] + [["sum/cat", False, 128, 8, 90.0, math.e**4]]
    written(tmp_path / "results", [row() | {"perplexities": cells}], [run("explicit", 8, 50.0)])
    for name, parts in {
        "ablation.md": ("readings", "readings-published", "grid"),
        "paper.md": ("verdicts", "magnitude"),
        "warm-start.md": ("warm-starts",),
    }.items():
        (tmp_path / name).write_text("\n".join(f"<!-- {part} --> outdated <!-- /{part} -->" for part in parts))
    main([str(tmp_path)])
    assert "| sum/cat, b = 128, r = 8 | 44.9 | 54.6 | 16.0 | 241.9 |" in (tmp_path / "paper.md").read_text()
    assert "| warm, r = 8 | 100.0 | 50.0 | 23.84 |" in (tmp_path / "warm-start.md").read_text()
    assert (tmp_path / "figures" / "warm-cold.svg").is_file()
    assert "outdated" not in (tmp_path / "ablation.md").read_text()


def test_missing_parts_and_results_are_errors(tmp_path):
    with pytest.raises(SaffuError, match="no part <!-- n -->"):
        filled("nothing here", {"n": ""})
    with pytest.raises(SaffuError, match="no results of the default reading"):
        _ = written(tmp_path / "none", []).main
