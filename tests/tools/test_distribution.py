"""Distributions: histograms, and the quantiles that bound them."""

import math
import random

import numpy as np
import pytest

from saffu.tools.distribution import Distribution


def test_quantiles_are_numpys():
    numbers = [random.Random(1).lognormvariate(0.5, 0.4) for _ in range(999)]
    values = Distribution()
    for number in numbers:
        values.add(number)
    for share in (0.01, 0.05, 0.5, 0.95, 0.99):
        assert values.quantile(share) == pytest.approx(np.quantile(numbers, share, method="inverted_cdf"), abs=6e-4)
    parts = [Distribution(), Distribution()]
    for place, number in enumerate(numbers):
        parts[place % 2].add(number)
    assert (parts[0] + parts[1]).counts == values.counts


def test_histograms_have_few_bars_and_ignore_outliers():
    values = Distribution()
    for number in range(1000):
        values.add(1 + number / 1000)
    for odd in (math.inf, 500.0, -3.0, math.nan):
        values.add(odd)
    _, *bars = values.histogram("title").splitlines()
    assert 10 <= len(bars) <= 20
    assert sum(int(bar.split()[-1].replace(",", "")) for bar in bars) == 1003
    assert bars[0].split()[0] == "<1.05" and bars[1].split()[0] == "1.05" and bars[-1].split()[0] == "≥1.95"
