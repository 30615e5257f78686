"""How well a grid of ours agrees with the one printed in the paper.

Perplexities of another text and another tokenizer differ in size, so orders and spreads are compared, not levels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from saffu.experiments.grid import CellKey, title_of

Perplexities = Mapping[CellKey, tuple[float, float]]
"""Train and dev perplexity by cell."""

Floats = npt.NDArray[np.float64]


@cache
def _printed_file() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("saffu.experiments") / "paper_tables.json").read_text("utf-8"))
    return content


def printed_source() -> str:
    """Where the printed numbers were taken from."""
    return str(_printed_file()["source"])


@cache
def printed_perplexities() -> Perplexities:
    """The paper's five tables: 245 cells.

    >>> printed_perplexities()["sum/cat", False, 128, 8]  # b = 128, r = 8
    (43.4, 44.9)
    """
    content = _printed_file()
    perplexities: dict[CellKey, tuple[float, float]] = {}
    for table in content["tables"]:
        modes = f"{table['block_mode']}/{table['radius_mode']}"
        for radius, row in zip(content["sizes"], table["perplexities"], strict=True):
            for block, (train, dev) in zip(content["sizes"], row, strict=True):
                perplexities[modes, table["document_model"], block, radius] = train, dev
    return perplexities


def average_ranks(values: Iterable[float]) -> Floats:
    """Ranks from 1; equal values share the mean of their ranks.

    >>> average_ranks([10.0, 30.0, 10.0, 20.0])
    array([1.5, 4. , 1.5, 3. ])
    """
    _, inverse, counts = np.unique(list(values), return_inverse=True, return_counts=True)
    ranks: Floats = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks


def pearson(x: Iterable[float], y: Iterable[float]) -> float:
    """Correlation coefficient; NaN if either side is constant."""
    a, b = (np.asarray(list(values), dtype=np.float64) for values in (x, y))
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else float("nan")


def spearman(x: Iterable[float], y: Iterable[float]) -> float:
    """Rank correlation, with average ranks for ties.

    >>> round(spearman([1, 2, 3, 4], [10, 30, 20, 40]), 3)
    0.8
    """
    return pearson(average_ranks(x), average_ranks(y))


@dataclass(frozen=True)
class Agreement:
    """A comparison of our dev perplexities with the printed ones, cell by cell."""

    cells: int
    spearman: float  # rank correlation
    pearson_log: float  # correlation of log-perplexities
    spread_ratio: float  # standard deviation of our log-perplexities over that of the printed ones
    ours_dev_train: float  # median ratio of dev to train perplexity
    printed_dev_train: float


def agreement(ours: Perplexities, keys: Iterable[CellKey] | None = None) -> Agreement | None:
    """Compare with the printed tables over `keys`, or over all cells without a document model.

    Cells that either side lacks are skipped; fewer than three cells in common cannot be compared: None.
    """
    printed = printed_perplexities()
    compared = (key for key in printed if not key[1]) if keys is None else keys
    common = [key for key in compared if key in ours and key in printed]
    if len(common) < 3:
        return None
    a, b = (np.array([side[key] for key in common], dtype=np.float64) for side in (ours, printed))  # (cells, 2)
    spreads = [float(np.log(side[:, 1]).std()) for side in (a, b)]
    return Agreement(
        len(common),
        spearman(a[:, 1], b[:, 1]),
        pearson(np.log(a[:, 1]), np.log(b[:, 1])),
        spreads[0] / spreads[1] if spreads[1] > 0 else float("nan"),
        *(float(np.median(side[:, 1] / side[:, 0])) for side in (a, b)),
    )


def agreement_by_table(ours: Perplexities) -> dict[str, Agreement]:
    """The comparison within each table, by its title ("sum/cat", …, "sum/cat + documents")."""
    tables: dict[str, list[CellKey]] = {}
    for key in printed_perplexities():
        tables.setdefault(title_of(*key[:2]), []).append(key)
    return {title: compared for title, keys in tables.items() if (compared := agreement(ours, keys))}
