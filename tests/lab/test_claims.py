"""Verdicts on the paper's claims, from cells with made-up perplexities."""

from dataclasses import replace

import pytest

from conftest import each
from grid_data import paper_cells, scored
from lab import claims
from lab.__main__ import main
from lab.claims import FAILS, HOLDS, IN_PART, OPEN, judge
from saffu.experiments import tables
from saffu.experiments.grid import grid
from saffu.experiments.results import Cell, Results


def verdicts(cells: list[Cell], tokens: int = 1_000_000) -> dict[int, claims.Verdict]:
    base = [cell for cell in cells if tables.settings(cell) == tables.base_settings(cells)]
    return {verdict.number: verdict for verdict in judge(cells, base, tokens)}


def test_all_claims_hold_on_the_papers_own_numbers():
    found = verdicts(paper_cells())
    assert list(found) == [1, 2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 17, 18]
    assert {number: verdict.verdict for number, verdict in found.items()} == dict.fromkeys(found, HOLDS) | {18: OPEN}
    assert found[16].evidence == "100 of 168 steps in r and 140 of 168 steps in b decrease it."
    assert found[17].evidence == "44.7 in sum/cat at b = 128 and r = 64, 47.1 in the largest."
    assert "sum/cat 44.7 < cat/cat 44.8 < cat/sum 51.9 < sum/sum 52.1" in found[1].evidence
    assert [found[1].effect, found[1].paper_effect] == pytest.approx([44.7 / 51.9 - 1] * 2)
    assert found[5].effect == pytest.approx(0.0994, abs=0.002)
    assert "in the median of 8 pairs" in found[5].evidence
    assert "0.01 per target" in found[7].evidence
    assert found[8].effect == pytest.approx(44.9 / 43.9 - 1)
    assert (found[12].effect, found[12].paper_effect) == (pytest.approx(0.035), pytest.approx(0.0362, abs=1e-4))
    assert found[2].reading == "printed"


def test_small_texts_are_marked():
    assert verdicts(paper_cells(), tokens=499_999)[1].size == "499,999 tokens counted, toy-sized"
    assert verdicts(paper_cells(), tokens=500_000)[1].size == "500,000 tokens counted"


@each(
    "number, verdict, change",
    [
        (1, IN_PART, lambda c, dev: dev - 3 * (c.block_mode == c.radius_mode == "cat")),
        (1, FAILS, lambda c, dev: dev + 20 * (c.radius_mode == "cat")),
        (2, IN_PART, lambda c, dev: dev + 5 * (c.radius == 128)),
        (2, FAILS, lambda c, dev: dev + 5 * (c.radius == 128) - 5 * (c.radius == 16)),
        (3, IN_PART, lambda c, dev: dev + 9 * (c.block == 32 and c.block_mode == "cat")),
        (3, FAILS, lambda c, dev: dev + 9 * (c.block == 32)),
        (4, IN_PART, lambda c, dev: dev + 5 * bool(c.document_shards)),
        (4, FAILS, lambda c, dev: dev - 5 * bool(c.document_shards)),
        (5, IN_PART, lambda c, dev: dev - 4 * (c.attention == "uniform")),
        (5, FAILS, lambda c, dev: dev - 5 * (c.attention == "uniform")),
        (6, FAILS, lambda c, dev: dev - 2 * (c.attention_priming == "slots")),
        (
            6,
            IN_PART,
            lambda c, dev: dev - 2 * (c.attention_priming == "slots" and c.block_mode == c.radius_mode == "sum"),
        ),
        (8, FAILS, lambda c, dev: dev + 2 * bool(c.tune_folds)),
        (16, IN_PART, lambda c, dev: dev + 3 * (c.block == 16)),
        (16, FAILS, lambda c, dev: 100 - dev),
        (17, FAILS, lambda c, dev: dev - 9 * (c.block == c.radius == 128 and c.block_mode == c.radius_mode == "cat")),
    ],
)
def test_claims_fail_where_they_are_false(number, verdict, change):
    cells = [scored(cell.config, change(cell.config, cell.dev.perplexity)) for cell in paper_cells()]
    assert verdicts(cells)[number].verdict == verdict


def test_generalization_failures_and_parameters():
    far = [scored(cell.config, cell.dev.perplexity, ratio=1.3) for cell in paper_cells()]
    assert verdicts(far)[12].verdict == FAILS
    assert verdicts(far[:80] + paper_cells()[80:])[12].verdict == IN_PART
    failed = Cell(replace(paper_cells()[0].config, smoothing=1.0), 10, failure="V outgrew its bound c")
    assert verdicts([*paper_cells(), failed])[7].verdict == FAILS
    large = [replace(cell, parameters=20_000_000) if cell.config.radius == 128 else cell for cell in paper_cells()]
    assert verdicts(large)[14].verdict == IN_PART
    assert verdicts(large)[14].effect == pytest.approx(1.0)


def test_claims_that_a_grid_cannot_decide_stay_open():
    (cell,) = grid([4], [4], ["sum/sum"], 0, {"smoothing": [0.5]})
    found = verdicts([replace(scored(cell, 50.0), least_attention=None)])
    assert {number for number, verdict in found.items() if verdict.verdict == OPEN} == {
        *range(1, 9),
        *(14, 16, 17, 18),
    }
    assert all(verdict.evidence for verdict in found.values())
    assert found[1].reading == "smoothing 0.5"


def test_the_command_prints_a_verdict_on_each_claim(tmp_path, capsys):
    results = Results(tmp_path)
    results.save_run({"text": "0" * 24, "vocabulary": 100, "tokens": 1_000_000, "documents": 10, "bytes": 5000})
    results.append(paper_cells())
    main(["claims", str(tmp_path)])
    shown = capsys.readouterr().out
    assert shown.startswith("1,000,000 tokens counted; printed\n 1 holds:")
    assert shown.count("holds:") == 12 and "Effect (paper's): -13.9% (-13.9%)" in shown
