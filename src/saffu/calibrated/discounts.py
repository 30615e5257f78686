"""The discounts of modified Kneser–Ney (Chen & Goodman 1998), and its unigrams."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saffu.calibrated.kernels import Array
from saffu.text.tokenizer import EOD

FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts give none, as `lmplz --discount_fallback`


def discounts(counts_of_counts: Sequence[int] | Array) -> tuple[float, float, float] | None:
    """The discounts of counts of 1, 2, and 3 or more, from the numbers of n-grams with count 1, 2, 3, and 4 (eq. 26).

    None if they cannot be estimated: too little text, or text whose counts do not fall.

    >>> discounts([100, 40, 20, 12])
    (0.5555555555555556, 1.1666666666666665, 1.6666666666666665)
    >>> discounts([3, 0, 1, 0]) is None
    True
    """
    n1, n2, n3, n4 = (int(n) for n in counts_of_counts[:4])
    if 0 in (n1, n2, n3):
        return None
    y = n1 / (n1 + 2 * n2)
    found = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
    return found if all(0 < d <= k for k, d in enumerate(found, 1)) else None


def unigrams(adjusted: Array, discount: Array) -> Array:
    """The unigram distribution (N,) float32 from adjusted counts by rank; the three markers, ranked last, get none."""
    total, predicted = adjusted.sum(), len(adjusted) - EOD
    taken = discount[np.minimum(adjusted, 3)]
    shares = (adjusted - taken) / total + taken.sum() / total / predicted
    shares[predicted:] = 0
    return np.asarray(shares, dtype=np.float32)
