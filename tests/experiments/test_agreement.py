"""Agreement with the printed tables, by hand-made numbers."""

import math

import pytest

from conftest import each
from saffu.experiments.grid import MODES, SIZES, grid, key_of
from saffu.experiments.tables import (
    agreement,
    average_ranks,
    pearson,
    printed_perplexities,
    printed_source,
    spearman,
)


def test_printed_tables_are_complete():
    printed = printed_perplexities()
    assert set(printed) == {key_of(cell) for cell in grid()}
    assert all(train < dev for train, dev in printed.values())
    assert "arXiv:2311.07510" in printed_source()


@each(
    "key, scores",
    [
        (("sum/sum", False, 2, 2), (61.8, 64.0)),
        (("sum/sum", False, 128, 8), (50.2, 52.1)),
        (("cat/sum", False, 32, 8), (50.1, 51.9)),
        (("sum/cat", False, 128, 16), (45.5, 47.2)),
        (("sum/cat", False, 2, 128), (49.5, 51.3)),
        (("cat/cat", False, 32, 64), (43.5, 44.8)),
        (("sum/cat", True, 128, 128), (43.2, 44.7)),
    ],
)
def test_printed_values(key, scores):
    assert printed_perplexities()[key] == scores


def test_best_printed_cell_of_each_table():
    printed = printed_perplexities()
    best = {modes: min(dev for key, (_, dev) in printed.items() if key[:2] == (modes, False)) for modes in MODES}
    assert best == {"sum/sum": 52.1, "cat/sum": 51.9, "sum/cat": 44.7, "cat/cat": 44.8}


def test_ranks_of_ties():
    assert average_ranks([3.0, 1.0, 3.0, 3.0, 0.5]).tolist() == [4.0, 2.0, 4.0, 4.0, 1.0]


def test_correlations():
    assert spearman([1, 2, 3], [1, 8, 27]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))  # d = 0, .5, .5, 0
    assert pearson([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert math.isnan(pearson([1, 1, 1], [1, 2, 3]))


def test_agreement_with_itself_and_with_its_square():
    printed = printed_perplexities()
    same = agreement(printed)
    assert (same.cells, same.spearman, same.spread_ratio) == (196, pytest.approx(1.0), pytest.approx(1.0))
    assert same.ours_dev_train == same.printed_dev_train == pytest.approx(1.036, abs=5e-4)
    squared = {key: (dev**2 / 1.2, dev**2) for key, (_, dev) in printed.items()}
    compared = agreement(squared)
    assert compared.spearman == compared.pearson_log == pytest.approx(1.0)
    assert compared.spread_ratio == pytest.approx(2.0)  # of logarithms
    assert compared.ours_dev_train == pytest.approx(1.2)


def test_agreement_can_be_negative_and_partial():
    printed = printed_perplexities()
    flipped = {key: (1.0, 1000 / dev) for key, (_, dev) in printed.items() if key[0] == "sum/cat"}
    assert agreement(flipped, "sum/cat").spearman == pytest.approx(-1.0)
    assert agreement(flipped, "sum/cat + documents").cells == len(SIZES) ** 2
    assert agreement(flipped, "cat/cat") is None
    assert agreement(flipped).cells == len(SIZES) ** 2
    assert agreement(dict(list(flipped.items())[:2])) is None
