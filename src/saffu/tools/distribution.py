"""How numbers are distributed: a histogram, in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

WIDTH = 0.001  # of a bin
LARGEST = 10_000.0  # what lies beyond is counted here
STEPS = tuple(step * 10**power for power in range(8) for step in (1, 2, 5))  # in bins, of a bar
BARS = 20


def number_of(share: float, total: int) -> int:
    """The smallest number that is at least this share of a total.

    >>> number_of(0.07, 100), 0.07 * 100
    (7, 7.000000000000001)
    """
    return math.ceil(Fraction(str(share)) * total)


def bin_of(value: float) -> int:
    return round(max(-LARGEST, min(value, LARGEST)) / WIDTH)


class Distribution:
    """Numbers counted in bins of a thousandth.

    >>> values = Distribution()
    >>> for value in (1.1, 1.3, 1.6, 2.2):
    ...     values.add(value)
    >>> values.quantile(0.5)
    1.3
    """

    def __init__(self, counts: Mapping[int, int] | None = None):
        self.counts = Counter(counts or {})

    def add(self, value: float) -> None:
        if not math.isnan(value):
            self.counts[bin_of(value)] += 1

    def __add__(self, other: Distribution) -> Distribution:
        return Distribution(self.counts + other.counts)

    def quantile(self, share: float) -> float:
        """The smallest number that at least this share of all numbers do not exceed, to a thousandth."""
        needed = number_of(share, self.counts.total())
        below = 0
        for place in sorted(self.counts):
            below += self.counts[place]
            if below >= needed:
                break
        return round(place * WIDTH, 3)

    def histogram(self, title: str, width: int = 40) -> str:
        """At most 20 bars of equal width from the 1st to the 99th percentile; the first and the last hold all beyond.

        Each has its lower end, and how many numbers it holds.

        >>> print(Distribution({800: 1, 1000: 100, 1001: 50, 1002: 25, 9000: 1}).histogram("bits", width=4))
        bits
        <1.001 ████ 101
         1.001 ██ 50
        ≥1.002 ██ 26
        """
        low, high = round(self.quantile(0.01) / WIDTH), round(self.quantile(0.99) / WIDTH)
        step = next(step for step in STEPS if high // step - low // step < BARS)
        first, last = low // step, high // step
        bars: Counter[int] = Counter()
        for place, count in self.counts.items():
            bars[max(first, min(place // step, last))] += count
        digits = 0 if step >= 1000 else 1 if step >= 100 else 2 if step >= 10 else 3
        tallest = max(bars.values())
        lines = [title]
        for bar in range(first, last + 1):
            end = f"{bar * step * WIDTH:.{digits}f}"
            if bar == first and min(self.counts) // step < first:
                end = f"<{(bar + 1) * step * WIDTH:.{digits}f}"
            elif bar == last and max(self.counts) // step > last:
                end = f"≥{end}"
            lines.append(f"{end:>6} {'█' * math.ceil(width * bars[bar] / tallest)} {bars[bar]:,}")
        return "\n".join(lines)
