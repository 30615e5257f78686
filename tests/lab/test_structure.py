"""The comparison of a grid with the printed one by its structure."""

import math

import pytest

from lab.structure import FORMULAS, HALVES, baselines, printed_logs, structure

PRINTED = printed_logs()


def test_the_printed_tables_agree_with_themselves():
    found = structure(PRINTED)
    assert (found.cells, found.rms, found.signs) == (196, 0, 1)
    assert found.rms_by_half == dict.fromkeys(HALVES, 0)
    assert found.bump_cat == pytest.approx(0.051, abs=1e-3)
    assert found.bump_sum == pytest.approx(0, abs=1e-3)
    assert found.least_block_gap == pytest.approx(math.log2(55.7 / 56.5), abs=0.01)
    assert found.greatest_block_gap < 0
    assert found.interaction == pytest.approx(0.0141, abs=1e-4)
    assert found.best_gap == pytest.approx(math.log2(44.7 / 52.1))


def test_levels_do_not_matter_but_slopes_do():
    shifted = structure({key: value + 3 for key, value in PRINTED.items()})
    assert shifted.rms == pytest.approx(0)
    doubled = structure({key: 2 * value for key, value in PRINTED.items()})
    assert doubled.rms == pytest.approx(0.1242, abs=1e-4)  # the standard deviation of the printed logarithms
    assert doubled.signs == 1
    assert doubled.rank_correlation == pytest.approx(1)
    flipped = structure({key: -value for key, value in PRINTED.items()})
    assert flipped.signs == 0
    assert flipped.interaction == pytest.approx(structure(PRINTED).interaction)


def test_parts_of_a_grid_can_be_compared():
    part = {key: value for key, value in PRINTED.items() if key[0] == "sum/cat" and key[2] == 2}
    found = structure(part)
    assert (found.cells, found.rms) == (7, 0)
    assert math.isnan(found.best_gap)
    assert math.isnan(found.least_block_gap)


def test_formulas_without_a_model():
    """Ranks are fooled by a formula; differences much less."""
    formula = FORMULAS["−6·[cat radius] − log b − log r"]
    assert structure({key: formula(key) for key in PRINTED}).rank_correlation > 0.85
    found = baselines(list(PRINTED))
    assert found["constant"] == pytest.approx({"sum radius": 0.0651, "cat radius": 0.1193}, abs=1e-4)
    assert min(one["cat radius"] for one in found.values()) == pytest.approx(0.0738, abs=1e-4)
    assert min(one["sum radius"] for one in found.values()) == pytest.approx(0.0651, abs=1e-4)
