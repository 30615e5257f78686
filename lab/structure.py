"""Compares the structure of a grid with that of the printed tables: differences, steps, and interactions.

Ranks have next to no power here: −6·[cat radius] − log₂ b − log₂ r, without any model, has a rank correlation of 0.854
with the printed perplexities. So what is compared are logarithms, ours in nats with log₂ of the printed numbers, which
are 2^nats (docs/paper.md), and centered: levels depend on the text, differences between cells much less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from saffu.experiments.grid import MODES, CellKey
from saffu.experiments.tables import Perplexities, printed_perplexities, spearman

Floats = npt.NDArray[np.float64]
HALVES = {"sum radius": MODES[:2], "cat radius": MODES[2:]}
"""Whole tables that select a reading, while the others validate it, and the reverse."""
CLEAR = 0.01  # printed steps smaller than this may be rounding: their signs do not count


@cache
def printed_logs() -> dict[CellKey, float]:
    """log₂ of the printed dev perplexities without a document model: nats, if these are 2^nats."""
    return {key: float(np.log2(dev)) for key, (_, dev) in printed_perplexities().items() if not key[1]}


def logs(ours: Perplexities) -> dict[CellKey, float]:
    """Dev perplexities in nats, of the cells that are printed without a document model."""
    return {key: float(np.log(ours[key][1])) for key in printed_logs() if key in ours}


@dataclass(frozen=True)
class Structure:
    """What a grid has in common with the printed one. Steps and gaps are differences of log-perplexities in nats."""

    cells: int
    rms: float  # of the differences between the two centered grids
    rms_by_half: dict[str, float]  # the same within two tables, centered there
    signs: float  # share of the steps in r and in b that have the printed sign
    bump_cat: float  # mean step from r = 8 to r = 16, cat radii
    bump_sum: float  # and sum radii
    least_block_gap: float  # cat block minus sum block at b = 2, over radii: least
    greatest_block_gap: float  # and greatest
    interaction: float  # share of a table's variance that is not a sum of terms in b and in r, mean of tables
    best_gap: float  # best sum/cat minus best sum/sum
    rank_correlation: float


def structure(values: Mapping[CellKey, float]) -> Structure:
    """Compare log-perplexities with the printed ones, over the cells that both have."""
    printed = printed_logs()
    keys = [key for key in printed if key in values]
    ours = {key: values[key] for key in keys}
    steps = [step for table in MODES for step in steps_of(keys, table)]
    clear = [(a, b) for a, b in steps if abs(printed[b] - printed[a]) >= CLEAR]
    agree = [(ours[b] - ours[a]) * (printed[b] - printed[a]) > 0 for a, b in clear]
    bumps = {mode: [ours[b] - ours[a] for a, b in steps if is_bump(a, b, mode)] for mode in ("cat", "sum")}
    gaps = block_gaps(ours)
    best = {table: min((ours[key] for key in keys if key[0] == table), default=np.nan) for table in MODES}
    return Structure(
        cells=len(keys),
        rms=rms(ours, keys),
        rms_by_half={half: rms(ours, [key for key in keys if key[0] in tables]) for half, tables in HALVES.items()},
        signs=mean(agree),
        bump_cat=mean(bumps["cat"]),
        bump_sum=mean(bumps["sum"]),
        least_block_gap=min(gaps, default=np.nan),
        greatest_block_gap=max(gaps, default=np.nan),
        interaction=mean([interaction(ours, table) for table in MODES]),
        best_gap=best["sum/cat"] - best["sum/sum"],
        rank_correlation=spearman([ours[key] for key in keys], [printed[key] for key in keys]),
    )


def described(found: Structure) -> str:
    """RMS over all cells and in each half, as the studies print it."""
    halves = " / ".join(f"{rms:.3f}" for rms in found.rms_by_half.values())
    return f"RMS {found.rms:.3f} ({halves})"


def rms(values: Mapping[CellKey, float], keys: Sequence[CellKey]) -> float:
    """Root mean square of the differences to the printed logarithms, both centered over `keys`."""
    printed = printed_logs()
    differences = np.array([values[key] - printed[key] for key in keys])
    return float(differences.std()) if len(keys) else float("nan")


def mean(numbers: Iterable[float]) -> float:
    found = list(numbers)
    return float(np.mean(found)) if found else float("nan")


def steps_of(keys: Sequence[CellKey], table: str) -> list[tuple[CellKey, CellKey]]:
    """Neighbors in a table: the same b and the next r, or the same r and the next b."""
    own = {key[2:]: key for key in keys if key[0] == table}
    blocks = sorted({b for b, _ in own})
    radii = sorted({r for _, r in own})
    pairs = [((b, r), (b, s)) for b in blocks for r, s in pairwise(radii)]
    pairs += [((a, r), (b, r)) for r in radii for a, b in pairwise(blocks)]
    return [(own[a], own[b]) for a, b in pairs if a in own and b in own]


def is_bump(a: CellKey, b: CellKey, mode: str) -> bool:
    """Whether this is the step from r = 8 to r = 16 of a cat or a sum radius."""
    return a[0].endswith(mode) and (a[2], a[3], b[3]) == (b[2], 8, 16)


def block_gaps(values: Mapping[CellKey, float]) -> list[float]:
    """Cat block minus sum block at b = 2, for every radius of both modes."""
    found = []
    for (modes, documents, block, radius), value in values.items():
        other = modes.replace("sum/", "cat/", 1), documents, block, radius
        if block == 2 and modes.startswith("sum/") and other in values:
            found.append(values[other] - value)
    return found


def interaction(values: Mapping[CellKey, float], table: str) -> float:
    """The share of a table's variance that no sum of a term in b and a term in r explains.

    >>> round(interaction({("sum/sum", False, b, r): b * r for b in (1, 2) for r in (1, 2)}, "sum/sum"), 3)  # 1 2 2 4
    0.053
    """
    own = {key[2:]: value for key, value in values.items() if key[0] == table}
    blocks = sorted({b for b, _ in own})
    radii = sorted({r for _, r in own})
    if len(own) != len(blocks) * len(radii) or not own:
        return float("nan")
    grid = np.array([[own[b, r] for r in radii] for b in blocks])
    rest = grid - grid.mean(0) - grid.mean(1, keepdims=True) + grid.mean()
    return float((rest**2).mean() / grid.var()) if grid.var() > 0 else float("nan")


Formula = Callable[[CellKey], float]
FORMULAS: dict[str, Formula] = {
    "constant": lambda key: 0.0,
    "−log b − log r": lambda key: -np.log2(key[2]) - np.log2(key[3]),
    "−6·[cat radius] − log b − log r": lambda key: -6.0 * key[0].endswith("cat") - np.log2(key[2]) - np.log2(key[3]),
}
"""Grids without a model, each up to a factor."""
COPY = "the other radius mode's printed table"


def baselines(keys: Sequence[CellKey]) -> dict[str, dict[str, float]]:
    """The RMS of formulas without a model in each half, over some cells.

    The factor of a formula is fitted to the other half, which selects; where that is impossible it is 0. The last one
    copies the printed table of the same block mode from the other half.
    """
    printed = printed_logs()
    found: dict[str, dict[str, float]] = {name: {} for name in [*FORMULAS, COPY]}
    for half, tables in HALVES.items():
        validate = [key for key in keys if key[0] in tables]
        select = [key for key in keys if key[0] not in tables]
        for name, formula in FORMULAS.items():
            x, y = (np.array([f(key) for key in select]) for f in (formula, printed.__getitem__))
            x, y = x - x.mean(), y - y.mean()
            factor = float(x @ y / (x @ x)) if x @ x > 0 else 0.0
            found[name][half] = rms({key: factor * formula(key) for key in validate}, validate)
        copied = {key: printed[other_radius(key)] for key in validate}
        found[COPY][half] = rms(copied, validate)
    return found


def other_radius(key: CellKey) -> CellKey:
    """The cell with the other radius mode.

    >>> other_radius(("sum/cat", False, 2, 4))
    ('sum/sum', False, 2, 4)
    """
    block, radius = key[0].split("/")
    return f"{block}/{'sum' if radius == 'cat' else 'cat'}", *key[1:]
