"""The paper's claims about its ablation, each judged by the cells of a grid. What a grid cannot tell is said so.

Absolute perplexities are not compared, since other text and other tokens give others; orders, signs and ratios are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from saffu.cells import Cell
from saffu.grid import MODES, cell_settings
from saffu.wording import number_of

HOLDS, IN_PART, FAILS, UNTOLD = "holds", "holds in part", "does not hold", "not in this grid"
PAPER_BEST = {"sum/cat": 44.7, "cat/cat": 44.8, "cat/sum": 51.9, "sum/sum": 52.1}  # its order
NEAR = 0.02  # relative difference of two perplexities that are called near
GROSSLY = 0.05  # relative gain that would be called gross
PAPER_RATIO, RATIO_TOLERANCE = 1.035, 0.015


@dataclass(frozen=True)
class Verdict:
    """One claim, and what the grid says."""

    number: int  # of the claim, in the order of the paper
    claim: str
    verdict: str
    evidence: str


class Grid:
    """Cells to be asked for."""

    def __init__(self, cells: Iterable[Cell], base: Iterable[Cell]):
        """All cells of a folder, and those of the settings that are judged."""
        self.cells = {tuple(cell_settings(cell.config).values()): cell for cell in cells if cell.dev and cell.train}
        self.base = [cell for cell in base if cell.dev and cell.train]
        self.failed = [cell for cell in cells if cell.failure]
        self._by_shape = {
            (c.modes, c.config.block, c.config.radius): dev(c) for c in self.base if not c.config.documents
        }

    def dev(self, modes: str, block: int, radius: int) -> float | None:
        return self._by_shape.get((modes, block, radius))

    def line(self, modes: str, *, block: int | None = None, radius: int | None = None) -> dict[int, float]:
        """Dev perplexities along r at one b, or along b at one r."""
        found = {}
        for (pair, b, r), perplexity in sorted(self._by_shape.items()):
            if pair == modes and block in (None, b) and radius in (None, r):
                found[b if block is None else r] = perplexity
        return found

    def pairs(self, **changed: Any) -> list[tuple[float, float]]:
        """Dev perplexities of each base cell and of the one that differs from it by these settings alone."""
        found = []
        for cell in self.base:
            other = self.cells.get(tuple({**cell_settings(cell.config), **changed}.values()))
            if other and other is not cell:
                found.append((dev(cell), dev(other)))
        return found


def dev(cell: Cell) -> float:
    assert cell.dev
    return cell.dev.perplexity


def verdicts(grid: Grid) -> list[Verdict]:
    """Claims 1 to 7 and 12, as far as an ablation can tell."""
    judges = (order_of_modes, short_radius, block_sizes, documents, attention, priming, bound, generalisation)
    return [judge(grid) for judge in judges]


def order_of_modes(grid: Grid) -> Verdict:
    claim = "By best dev perplexity, block/radius modes rank sum/cat < cat/cat < cat/sum < sum/sum."
    best = {
        modes: min((dev(c) for c in grid.base if c.modes == modes and not c.config.documents), default=None)
        for modes in MODES
    }
    if None in best.values():
        return Verdict(1, claim, UNTOLD, "It takes all four mode pairs.")
    found = sorted(best, key=lambda modes: best[modes] or 0)
    told = " < ".join(f"{modes} {best[modes]:.1f}" for modes in found)
    cat_radius_wins = {"sum/cat", "cat/cat"} == set(found[:2])
    verdict = HOLDS if found == list(PAPER_BEST) else IN_PART if cat_radius_wins else FAILS
    why = (
        ""
        if verdict != IN_PART
        else " A concatenated radius beats a summed one, as in the paper; the rest is otherwise."
    )
    paper = " < ".join(f"{modes} {value}" for modes, value in PAPER_BEST.items())
    return Verdict(1, claim, verdict, f"{told} (paper: {paper}).{why}")


def short_radius(grid: Grid) -> Verdict:
    claim = "In sum/cat at b = 128, a radius of 8 is near one of 128, and 16 is worse than 8."
    line = grid.line("sum/cat", block=128)
    if not {8, 16, 128} <= line.keys():
        return Verdict(2, claim, UNTOLD, "It takes sum/cat at b = 128 with r = 8, 16 and 128.")
    near, worse = abs(line[8] / line[128] - 1) <= NEAR, line[16] > line[8]
    told = ", ".join(f"{line[r]:.1f} at r = {r}" for r in (8, 16, 128))
    ratios = f"r = 8 is {percent(line[8] / line[128])} r = 128, and r = 16 is {percent(line[16] / line[8])} r = 8"
    return Verdict(2, claim, of(near, worse), f"{told}: {ratios} (paper: 44.9, 47.2, 44.7).")


def block_sizes(grid: Grid) -> Verdict:
    claim = "At r = 8 a summed block improves with b, and a concatenated one is best at b = 32."
    summed, cat = grid.line("sum/cat", radius=8), grid.line("cat/cat", radius=8)
    if len(summed) < 3 or not {16, 32, 64} <= cat.keys():
        return Verdict(3, claim, UNTOLD, "It takes sum/cat and cat/cat at r = 8 with b = 16, 32 and 64 at least.")
    steps = list(summed.values())
    improving = sum(b < a for a, b in pairwise(steps))
    best_sum, best_cat = min(summed, key=summed.__getitem__), min(cat, key=cat.__getitem__)
    told = f"Summed: {steps[0]:.1f} at b = {min(summed)}, {steps[-1]:.1f} at b = {max(summed)}; {improving} of "
    told += f"{len(steps) - 1} steps improve, and the best is {summed[best_sum]:.1f} at b = {best_sum}. Concatenated: "
    told += f"best {cat[best_cat]:.1f} at b = {best_cat} (paper: 52.4 → 44.9; b = 32)."
    return Verdict(3, claim, of(improving == len(steps) - 1, best_cat == 32), told)


def documents(grid: Grid) -> Verdict:
    claim = "The document model gains at most 0.1 of some 45 to 63, that is 0.2 %."
    pairs = [(alone, beside) for beside, alone in grid.pairs(documents=0)]
    if not pairs:
        return Verdict(4, claim, UNTOLD, "It takes cells with and without a document model.")
    gains, shares = sorted(a - b for a, b in pairs), sorted(1 - b / a for a, b in pairs)
    told = (
        f"Over {number_of(len(gains), 'pair')} it gains {100 * median(shares):+.2f} % in the middle, from "
        f"{100 * shares[0]:+.2f} % to {100 * shares[-1]:+.2f} % ({gains[0]:+.1f} to {gains[-1]:+.1f} of perplexity)."
    )
    small, harmless = shares[-1] <= 0.0025, shares[0] >= -0.0025
    verdict = HOLDS if small and harmless else IN_PART if small else FAILS
    return Verdict(4, claim, verdict, told + (" It never gains more, but it costs." if verdict == IN_PART else ""))


def attention(grid: Grid) -> Verdict:
    claim = "Attention solved from V̂ grossly beats uniform attention."
    pairs = grid.pairs(attention="uniform")
    if not pairs:
        return Verdict(5, claim, UNTOLD, "It takes --attention explicit,uniform.")
    gain, told = ratios(pairs, "uniform attention")
    verdict = HOLDS if gain >= GROSSLY else IN_PART if gain >= 0.01 else FAILS
    return Verdict(5, claim, verdict, told + (" It beats it, but not grossly." if verdict == IN_PART else ""))


def priming(grid: Grid) -> Verdict:
    claim = "The attention's priming number K_W = log K beats K_W = K."
    pairs = grid.pairs(attention_priming="slots")
    if not pairs:
        return Verdict(6, claim, UNTOLD, "It takes --attention-priming paper,slots.")
    _, told = ratios(pairs, "K_W = K")
    better = sum(other > own for own, other in pairs) / len(pairs)
    verdict = HOLDS if better == 1 else IN_PART if better > 0.5 else FAILS
    return Verdict(6, claim, verdict, f"{told} log K is better in {100 * better:.0f} % of the pairs.")


def bound(grid: Grid) -> Verdict:
    claim = "The bound c keeps F(Q, V) positive for all variants."
    least = [cell.least_attention for cell in grid.cells.values() if cell.least_attention is not None]
    failed = [cell for cell in grid.failed if "V outgrew" in (cell.failure or "")]
    if not least and not failed:
        return Verdict(7, claim, UNTOLD, "It takes cells with explicit attention.")
    told = f"The smallest entry in {len(least)} cells is {min(least):.2g} per target." if least else ""
    if failed:
        return Verdict(7, claim, FAILS, f"{told} {len(failed)} cells could not be solved: {failed[0].failure}.")
    return Verdict(7, claim, HOLDS, told)


def generalisation(grid: Grid) -> Verdict:
    claim = "Dev perplexity is about 1.035 times train perplexity."
    found = sorted(cell.dev.perplexity / cell.train.perplexity for cell in grid.base if cell.dev and cell.train)
    if not found:
        return Verdict(12, claim, UNTOLD, "It takes cells that could be fitted.")
    told = f"{median(found):.3f} in the middle of {len(found)} cells, from {found[0]:.3f} to {found[-1]:.3f}."
    within = sum(abs(ratio - PAPER_RATIO) <= RATIO_TOLERANCE for ratio in found)
    verdict = HOLDS if within > 0.9 * len(found) else IN_PART if within > 0.5 * len(found) else FAILS
    return Verdict(12, claim, verdict, f"{told} {within} of them are within {RATIO_TOLERANCE} of 1.035.")


def of(first: bool, second: bool) -> str:
    """The verdict on a claim in two parts."""
    return HOLDS if first and second else IN_PART if first or second else FAILS


def percent(ratio: float) -> str:
    """How one perplexity compares with another.

    >>> percent(1.034), percent(0.9)
    ('3.4 % above', '10.0 % below')
    """
    return f"{abs(100 * (ratio - 1)):.1f} % {'above' if ratio >= 1 else 'below'}"


def ratios(pairs: list[tuple[float, float]], what: str) -> tuple[float, str]:
    """By what share the other perplexity lies above ours in the middle, and that in words."""
    found = sorted(other / own for own, other in pairs)
    told = f"{what} is {percent_fine(median(found))} in the middle of {number_of(len(found), 'pair')}"
    told = f"{told[0].upper()}{told[1:]}, from {percent_fine(found[0])} to {percent_fine(found[-1])}."
    return median(found) - 1, told


def change(ratio: float) -> str:
    """A ratio as a change, or as a factor where it is beyond all percentages.

    >>> change(1.0123), change(0.5), change(25.0)
    ('+1.23 %', '-50.00 %', '× 25')
    """
    return f"{100 * (ratio - 1):+.2f} %" if ratio < 10 else f"× {ratio:.3g}"


def percent_fine(ratio: float) -> str:
    return f"{abs(100 * (ratio - 1)):.2f} % {'worse' if ratio >= 1 else 'better'}"
