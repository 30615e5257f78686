"""The paper's claims that a grid of results can decide, each with a verdict computed from the cells.

Perplexities of other text and another tokenizer differ in size, so verdicts rest on orders, signs, and ratios. Where
the paper prints the numbers, the same function is applied to its tables to get the paper's own effect. Claims that a
grid cannot test are marked as such.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from saffu.experiments.grid import MODES, SIZES, cell_settings, reading_of
from saffu.experiments.report import Report
from saffu.experiments.results import Cell, Results, perplexities_of
from saffu.experiments.tables import Perplexities, printed_perplexities
from saffu.format import plural

HOLDS, IN_PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "not decided by this grid"
TOY_TOKENS = 500_000  # verdicts from fewer counted tokens are marked as toy-sized
PAPER_ORDER = ("sum/cat", "cat/cat", "cat/sum", "sum/sum")
NEAR = 0.02  # relative difference of two perplexities that counts as "near"
GROSS = 0.05  # relative gain that counts as "gross"
SMALL = 0.0025  # relative gain that counts as "at most 0.1" of the printed perplexities
PAPER_RATIO, RATIO_TOLERANCE = 1.035, 0.015
PARAMETER_LIMIT = 10_000_000


@dataclass(frozen=True)
class Verdict:
    """One claim and what the grid shows."""

    number: int  # of the claim, in the order of the paper
    claim: str
    verdict: str
    evidence: str
    effect: float | None = None  # a relative size, defined in the evidence
    paper_effect: float | None = None  # the same computed from the printed tables
    reading: str = ""  # the settings under which it was computed
    tokens: int = 0  # counted

    @property
    def toy(self) -> bool:
        return self.tokens < TOY_TOKENS

    @property
    def size(self) -> str:
        """The size of the text, and a warning if it is small."""
        return f"{self.tokens:,} tokens counted" + (", toy-sized" if self.toy else "")


def judge(cells: Iterable[Cell], base: Iterable[Cell], tokens: int) -> list[Verdict]:
    """All verdicts: from the `base` cells, and from any cells that differ from them in the setting in question."""
    cells = list(cells)
    base = list(base)
    ours = perplexities_of(base)
    printed = printed_perplexities()
    verdicts = []
    for decide in (*TABLES, documents):
        verdict = decide(ours)
        paper = decide(printed)
        verdicts.append(replace(verdict, paper_effect=paper.effect if verdict.verdict != OPEN else None))
    verdicts += [decide(cells, base) for decide in (attention, priming, bound, tuning, measured_norm)]
    verdicts.append(replace(generalization(ours), paper_effect=generalization(printed).effect))
    verdicts.append(parameters(base))
    reading = reading_of(base[0].config) if base else ""
    return [
        replace(verdict, reading=reading, tokens=tokens) for verdict in sorted(verdicts, key=lambda found: found.number)
    ]


def line(
    perplexities: Perplexities, modes: str, *, block: int | None = None, radius: int | None = None
) -> dict[int, float]:
    """Dev perplexities without a document model, along r at one b or along b at one r."""
    found = {}
    for (pair, document, b, r), (_, dev) in sorted(perplexities.items()):
        if pair == modes and not document and block in (None, b) and radius in (None, r):
            found[b if block is None else r] = dev
    return found


def order_of_modes(perplexities: Perplexities) -> Verdict:
    claim = "By best dev perplexity, block/radius modes rank sum/cat < cat/cat < cat/sum < sum/sum."
    best = {
        modes: min((dev for key, (_, dev) in perplexities.items() if key[:2] == (modes, False)), default=None)
        for modes in MODES
    }
    if None in best.values():
        return Verdict(1, claim, OPEN, "Needs all four pairs of modes.")
    found = sorted(best, key=lambda modes: best[modes] or 0.0)
    summed = min(best["sum/sum"], best["cat/sum"])  # type: ignore[type-var]
    joined = min(best["sum/cat"], best["cat/cat"])  # type: ignore[type-var]
    effect = joined / summed - 1  # type: ignore[operator]
    cat_radii_lead = set(found[:2]) == {"sum/cat", "cat/cat"}
    verdict = HOLDS if tuple(found) == PAPER_ORDER else IN_PART if cat_radii_lead else FAILS
    order = " < ".join(f"{modes} {best[modes]:.1f}" for modes in found)
    evidence = f"{order}. The best cat radius is {compared(1 + effect)} the best sum radius."
    return Verdict(1, claim, verdict, evidence, effect)


def short_radius(perplexities: Perplexities) -> Verdict:
    claim = "In sum/cat at b = 128, a radius of 8 is near one of 128, and 16 is worse than 8."
    dev = line(perplexities, "sum/cat", block=128)
    if not {8, 16, 128} <= dev.keys():
        return Verdict(2, claim, OPEN, "Needs sum/cat at b = 128 with r = 8, 16, and 128.")
    near = abs(dev[8] / dev[128] - 1) <= NEAR
    worse = dev[16] > dev[8]
    numbers = ", ".join(f"{dev[r]:.1f} at r = {r}" for r in (8, 16, 128))
    ratios = f"r = 8 is {compared(dev[8] / dev[128])} r = 128, and r = 16 is {compared(dev[16] / dev[8])} r = 8."
    return Verdict(2, claim, both(near, worse), f"{numbers}: {ratios}", dev[8] / dev[128] - 1)


def block_sizes(perplexities: Perplexities) -> Verdict:
    claim = "At r = 8 a sum block improves with b, and a cat block is best at b = 32."
    summed = line(perplexities, "sum/cat", radius=8)
    cat = line(perplexities, "cat/cat", radius=8)
    if len(summed) < 3 or not {16, 32, 64} <= cat.keys():
        return Verdict(3, claim, OPEN, "Needs sum/cat and cat/cat at r = 8 with at least b = 16, 32, and 64.")
    steps = list(summed.values())
    improving = sum(after < before for before, after in pairwise(steps))
    best_sum = min(summed, key=summed.__getitem__)
    best_cat = min(cat, key=cat.__getitem__)
    evidence = (
        f"Sum: {steps[0]:.1f} at b = {min(summed)}, {steps[-1]:.1f} at b = {max(summed)}; {improving} of "
        f"{len(steps) - 1} steps improve, and the best is {summed[best_sum]:.1f} at b = {best_sum}. "
        f"Cat: the best is {cat[best_cat]:.1f} at b = {best_cat}."
    )
    return Verdict(3, claim, both(improving == len(steps) - 1, best_cat == 32), evidence, steps[-1] / steps[0] - 1)


def more_features(perplexities: Perplexities) -> Verdict:
    claim = "Perplexities more or less decrease with larger r and b."
    changes: dict[str, list[float]] = {"r": [], "b": []}
    for modes in MODES:
        for size in SIZES:
            for name, fixed in (("r", {"block": size}), ("b", {"radius": size})):
                along = line(perplexities, modes, **fixed).values()
                changes[name] += [after / before - 1 for before, after in pairwise(along)]
    if not all(changes.values()):
        return Verdict(16, claim, OPEN, "Needs several values of r and b.")
    steps = [*changes["r"], *changes["b"]]
    share = sum(change < 0 for change in steps) / len(steps)
    verdict = HOLDS if share > 2 / 3 else IN_PART if share > 1 / 2 else FAILS
    decreases = {name: sum(change < 0 for change in found) for name, found in changes.items()}
    evidence = " and ".join(f"{decreases[name]} of {len(found)} steps in {name}" for name, found in changes.items())
    return Verdict(16, claim, verdict, f"{evidence} decrease it.", mean(steps))


def not_the_largest(perplexities: Perplexities) -> Verdict:
    claim = "The best model is not the largest one (cat/cat with the largest b and r)."
    cells = {(modes, b, r): dev for (modes, document, b, r), (_, dev) in perplexities.items() if not document}
    largest = cells.get(("cat/cat", max(SIZES), max(SIZES)))
    if largest is None or len(cells) < 2:
        return Verdict(17, claim, OPEN, "Needs cat/cat at b = r = 128, and others.")
    (modes, block, radius), best = min(cells.items(), key=lambda cell: cell[1])
    verdict = HOLDS if best < largest else FAILS
    evidence = f"{best:.1f} in {modes} at b = {block} and r = {radius}, {largest:.1f} in the largest."
    return Verdict(17, claim, verdict, evidence, best / largest - 1)


TABLES = (order_of_modes, short_radius, block_sizes, more_features, not_the_largest)
"""Claims that dev perplexities without a document model decide."""


def documents(perplexities: Perplexities) -> Verdict:
    claim = "The document model gains at most 0.1 of a perplexity between 45 and 63, about 0.2%."
    pairs = [
        (perplexities[modes, False, b, r][1], dev)
        for (modes, document, b, r), (_, dev) in perplexities.items()
        if document and (modes, False, b, r) in perplexities
    ]
    if not pairs:
        return Verdict(4, claim, OPEN, "Needs cells with and without a document model.")
    gains = sorted(1 - with_model / without for without, with_model in pairs)
    small = gains[-1] <= SMALL
    harmless = gains[0] >= -SMALL
    verdict = HOLDS if small and harmless else IN_PART if small else FAILS
    evidence = (
        f"Over {plural(len(gains), 'pair')} the median gain is {100 * median(gains):+.2f}%, ranging from "
        f"{100 * gains[0]:+.2f}% to {100 * gains[-1]:+.2f}%."
    )
    if verdict == IN_PART:
        evidence += " It never gains more, but it costs more in some cells."
    return Verdict(4, claim, verdict, evidence, median(gains))


def pairs_with(cells: Iterable[Cell], base: Iterable[Cell], **changed: Any) -> list[tuple[float, float]]:
    """Dev perplexities of each base cell and of the cell that differs from it in these settings alone."""
    by_settings = {tuple(cell_settings(cell.config).values()): cell for cell in cells if cell.dev}
    found = []
    for cell in base:
        other = by_settings.get(tuple({**cell_settings(cell.config), **changed}.values()))
        if cell.dev and other and other.dev and other is not cell:
            found.append((cell.dev.perplexity, other.dev.perplexity))
    return found


def attention(cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    claim = "Attention solved from V̂ grossly beats uniform attention."
    pairs = pairs_with(cells, base, attention="uniform")
    if not pairs:
        return Verdict(5, claim, OPEN, "Needs cells with `attention` explicit and uniform.")
    loss, evidence = relative(pairs, "Uniform attention")
    verdict = HOLDS if loss >= GROSS else IN_PART if loss >= 0.01 else FAILS
    return Verdict(5, claim, verdict, evidence + (" It wins, but not grossly." if verdict == IN_PART else ""), loss)


def priming(cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    claim = "The attention's priming number K_W = log K beats K_W = K."
    pairs = pairs_with(cells, base, attention_priming="slots")
    return majority(6, claim, pairs, "K_W = K", "`attention_priming` slots")


def measured_norm(cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    claim = "The mean norm of a decoder's inputs is an effective priming number, in place of K log K."
    pairs = pairs_with(cells, base, decoder_priming="measured")
    if not pairs:
        return Verdict(18, claim, OPEN, "Needs cells with `decoder_priming` measured.")
    loss, evidence = relative(pairs, "The mean norm")
    return Verdict(18, claim, HOLDS if loss <= 0.01 else IN_PART if loss <= GROSS else FAILS, evidence, loss)


def tuning(cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    claim = "Tuning, which solves attention from V instead of V̂, improves on initialization (43.33 → 42.44, or 2.1%)."
    tunings = dict.fromkeys((c.config.tune_folds, c.config.fold_tokens) for c in cells if c.config.tune_folds)
    pairs = [
        (tuned, untuned)
        for folds, size in tunings
        for untuned, tuned in pairs_with(
            cells, [c for c in base if not c.config.tune_folds], tune_folds=folds, fold_tokens=size
        )
    ]
    return majority(8, claim, pairs, "Initialization alone", "`tune_folds` above 0")


def majority(number: int, claim: str, pairs: list[tuple[float, float]], other: str, needed: str) -> Verdict:
    """The verdict on "ours beats the other": in all pairs, in most, or not."""
    if not pairs:
        return Verdict(number, claim, OPEN, f"Needs cells with {needed}.")
    loss, evidence = relative(pairs, other)
    better = sum(theirs > own for own, theirs in pairs)
    verdict = HOLDS if better == len(pairs) else IN_PART if 2 * better > len(pairs) else FAILS
    return Verdict(number, claim, verdict, f"{evidence} It is worse in {better} of them.", loss)


def bound(cells: Sequence[Cell], base: Sequence[Cell]) -> Verdict:
    claim = "The bound c keeps F(Q, V) positive for all variants."
    least = [cell.least_attention for cell in cells if cell.least_attention is not None]
    failed = [cell for cell in cells if cell.failure and "bound" in cell.failure]
    if not least and not failed:
        return Verdict(7, claim, OPEN, "Needs cells with explicit attention.")
    evidence = f"The smallest entry in {len(least)} cells is {min(least):.2g} per target." if least else ""
    if failed:
        evidence = f"{evidence} {len(failed)} cells could not be solved: {failed[0].failure}.".strip()
    return Verdict(7, claim, FAILS if failed else HOLDS, evidence)


def generalization(perplexities: Perplexities) -> Verdict:
    claim = "Dev perplexity is about 1.035 times train perplexity."
    ratios = sorted(dev / train for train, dev in perplexities.values())
    if not ratios:
        return Verdict(12, claim, OPEN, "Needs cells that could be fitted.")
    within = sum(abs(ratio - PAPER_RATIO) <= RATIO_TOLERANCE for ratio in ratios)
    share = within / len(ratios)
    verdict = HOLDS if share > 0.9 else IN_PART if share > 0.5 else FAILS
    evidence = (
        f"The median of {len(ratios)} cells is {median(ratios):.3f}, ranging from {ratios[0]:.3f} to {ratios[-1]:.3f}; "
        f"{within} of them are within {RATIO_TOLERANCE} of {PAPER_RATIO}."
    )
    return Verdict(12, claim, verdict, evidence, median(ratios) - 1)


def parameters(base: Sequence[Cell]) -> Verdict:
    claim = "The best models (sum/cat, b = 128, r = 8 and 128) have fewer than 10 million parameters."
    best = {
        cell.config.radius: cell
        for cell in base
        if cell.modes == "sum/cat" and cell.config.block == 128 and cell.config.radius in (8, 128)
    }
    sizes = {radius: cell.parameters for radius, cell in best.items()}
    if len(sizes) < 2:
        return Verdict(14, claim, OPEN, "Needs sum/cat at b = 128 with r = 8 and 128.")
    below = [size < PARAMETER_LIMIT for size in sizes.values()]
    evidence = ", ".join(f"{size:,} at r = {radius}" for radius, size in sorted(sizes.items()))
    evidence += ", document model included." if best[8].config.document_shards else "."
    return Verdict(14, claim, both(*below), evidence, max(sizes.values()) / PARAMETER_LIMIT - 1)


def both(first: bool, second: bool) -> str:
    """The verdict on a claim with two halves."""
    return HOLDS if first and second else IN_PART if first or second else FAILS


def compared(ratio: float) -> str:
    """How one perplexity compares with another.

    >>> compared(1.034), compared(0.9)
    ('3.4% above', '10.0% below')
    """
    return f"{abs(100 * (ratio - 1)):.1f}% {'above' if ratio >= 1 else 'below'}"


def relative(pairs: list[tuple[float, float]], other: str) -> tuple[float, str]:
    """The median relative excess of the other perplexity over ours, and the same in words."""
    ratios = sorted(theirs / own for own, theirs in pairs)

    def words(ratio: float) -> str:
        return f"{abs(100 * (ratio - 1)):.2f}% {'worse' if ratio >= 1 else 'better'}"

    evidence = f"{other} is {words(median(ratios))} in the median of {plural(len(ratios), 'pair')}, "
    return median(ratios) - 1, evidence + f"ranging from {words(ratios[0])} to {words(ratios[-1])}."


def effects(verdict: Verdict) -> str:
    """Our effect, and the paper's."""
    if verdict.effect is None:
        return "–"
    paper = f" ({100 * verdict.paper_effect:+.1f}%)" if verdict.paper_effect is not None else ""
    return f"{100 * verdict.effect:+.1f}%{paper}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder made by saffu ablate")


def run_command(options: argparse.Namespace) -> None:
    report = Report(Results(options.folder))
    verdicts = judge(report.cells, report.base, int(report.run["tokens"]))
    print(f"{verdicts[0].size}; {verdicts[0].reading}")
    for verdict in verdicts:
        print(f"{verdict.number:>2} {verdict.verdict + ':':<17} {verdict.claim}\n{'':<21}{verdict.evidence}")
        if verdict.effect is not None:
            print(f"{'':<21}Effect (paper's): {effects(verdict)}")
