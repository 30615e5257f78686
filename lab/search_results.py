"""Tables of the search over readings, from docs/results/search.jsonl."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

from lab.rows import Row, head
from lab.search import structure_of
from lab.structure import CLEAR, HALVES, Structure, baselines, printed_logs, structure
from saffu.experiments.grid import SIZES, reading_of
from saffu.experiments.tables import Perplexities
from saffu.paper.config import PaperConfig

DEFAULT = "default settings"
TEXTS = ("babylm-small", "spoken")  # that select
SHOWN = 12  # readings in the table, and those that meet the conditions
FEW = 8  # readings in the table of properties


def name_of(row: Row) -> str:
    """The settings that a row's reading changes, in words."""
    return reading_of(PaperConfig(**row["reading"]))


def whole_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows with all sizes."""
    return [row for row in rows if len(row["nats"]) == 4 * len(SIZES) ** 2]


def default_row(rows: Sequence[Row], text: str) -> Row | None:
    """The grid of the default reading on a text."""
    return next((row for row in whole_rows(rows) if row["text"] == text and name_of(row) == DEFAULT), None)


def perplexities(row: Row) -> Perplexities:
    """Dev perplexities, for train and dev: the search scores held-out text alone."""
    return {(modes, False, b, r): (math.exp(nats), math.exp(nats)) for modes, b, r, nats in row["nats"]}


def by_reading(rows: Sequence[Row]) -> dict[str, dict[str, Structure]]:
    """Structures of the readings that were run on both texts with all sizes, by reading and text."""
    found: dict[str, dict[str, Structure]] = {}
    for row in whole_rows(rows):
        if row["text"] in TEXTS:
            found.setdefault(name_of(row), {})[row["text"]] = structure_of(row)
    return {name: texts for name, texts in found.items() if len(texts) == len(TEXTS)}


def has_printed_structure(found: Structure) -> bool:
    """Whether a grid shows what the printed one shows whatever the levels are.

    Cat radii are worse at r = 16 than at r = 8; a cat block is better than a sum block at b = 2, whatever the radius;
    and b and r interact at most twice as much as in print.
    """
    most = 2 * structure(printed_logs()).interaction
    return found.bump_cat > 0 and found.greatest_block_gap < -0.005 and found.interaction <= most


def properties(found: Structure) -> dict[str, tuple[float, bool]]:
    """What the printed tables ask of a grid: each number, and whether it is as it must be."""
    formulas = baselines(list(printed_logs())).values()
    values = {
        f"RMS, {half}": (rms, rms < min(formula[half] for formula in formulas))
        for half, rms in found.rms_by_half.items()
    }
    return values | {
        "cat radii, r = 8 → 16": (found.bump_cat, found.bump_cat >= CLEAR),
        "sum radii, r = 8 → 16": (found.bump_sum, found.bump_sum < CLEAR),
        "cat − sum block at b = 2, greatest": (found.greatest_block_gap, found.greatest_block_gap < -CLEAR / 2),
        "interaction": (found.interaction, found.interaction <= 2 * structure(printed_logs()).interaction),
    }


def properties_table(rows: Sequence[Row]) -> str:
    """The readings that have most of the printed properties, on both texts together, and each number."""
    found = {name: [properties(texts[text]) for text in TEXTS] for name, texts in by_reading(rows).items()}
    met = {name: sum(good for values in texts for _, good in values.values()) for name, texts in found.items()}
    ranked = sorted(found, key=lambda name: -met[name])
    titles = list(found[ranked[0]][0])
    lines = head(["changed settings", "met", *titles])
    for name in [name for number, name in enumerate(ranked) if number < FEW or name == DEFAULT]:
        cells = [
            ", ".join(f"{values[title][0]:.3f}" + " ✓" * values[title][1] for values in found[name]) for title in titles
        ]
        label = "**the default**" if name == DEFAULT else name
        lines.append(f"| {label} | {met[name]} of {len(TEXTS) * len(titles)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def search_table(rows: Sequence[Row]) -> str:
    """The best readings, one line per text, after the printed tables themselves."""
    found = by_reading(rows)
    ranked = sorted(found, key=lambda name: mean(s.rms for s in found[name].values()))
    shown = [name for number, name in enumerate(ranked) if number < SHOWN or name == DEFAULT]
    titles = ["changed settings", "text", "RMS", "sum radii / cat radii", "signs", "r = 8 → 16, cat / sum radii"]
    titles += ["cat − sum block at b = 2", "interaction", "best sum/cat − sum/sum", "rank correlation"]
    lines = head(titles)
    lines.append("| the printed tables | – | " + " | ".join(columns(structure(printed_logs()))) + " |")
    for name in shown:
        label = "**the default**" if name == DEFAULT else name
        if all(map(has_printed_structure, found[name].values())):
            label += " ✓"
        for text, values in found[name].items():
            lines.append(f"| {label} | {text} | " + " | ".join(columns(values)) + " |")
    facts = {row["text"]: row for row in whole_rows(rows)}
    sizes = [f"{text}: {facts[text]['tokens']:,} tokens, {facts[text]['dev_targets']:,} held out" for text in TEXTS]
    total = f"{len(rows):,} grids of {len({name_of(row) for row in rows})} readings in total"
    note = (
        f"{'; '.join(sizes)}; uniform attention. {total}; the best {len(shown)} of {len(found)} that were run on both"
    )
    return "\n".join([*lines, "", f"{note} texts with all sizes.", ""])


def columns(found: Structure) -> list[str]:
    halves = " / ".join(f"{rms:.3f}" for rms in found.rms_by_half.values())
    gap = f"{found.least_block_gap:+.3f} to {found.greatest_block_gap:+.3f}"
    bumps = f"{found.bump_cat:+.3f} / {found.bump_sum:+.3f}"
    numbers = [f"{found.rms:.3f}", halves, f"{found.signs:.2f}", bumps, gap, f"{found.interaction:.3f}"]
    return [*numbers, f"{found.best_gap:+.2f}", f"{found.rank_correlation:.2f}"]


def validation_table(rows: Sequence[Row]) -> str:
    """What each half of the tables selects, and how it does on the other half, next to formulas without a model."""
    found = by_reading(rows)
    lines = head(["selected by", "reading", "RMS there", "validated by", *(f"RMS, {text}" for text in TEXTS)])
    for half, other in ((half, other) for half in HALVES for other in HALVES if half != other):
        for condition, some in conditions(found).items():
            best = min(some, key=lambda name: mean(s.rms_by_half[half] for s in found[name].values()))
            there = mean(s.rms_by_half[half] for s in found[best].values())
            values = [f"{found[best][text].rms_by_half[other]:.3f}" for text in TEXTS]
            label = "**the default**" if best == DEFAULT else best
            lines.append(f"| {half}{condition} | {label} | {there:.3f} | {other} | " + " | ".join(values) + " |")
    for formula, halves in baselines(list(printed_logs())).items():
        for half, other in ((half, other) for half in HALVES for other in HALVES if half != other):
            lines.append(f"| {half} | no model: {formula} | – | {other} |" + f" {halves[other]:.3f} |" * len(TEXTS))
    return "\n".join(lines) + "\n"


def conditions(found: dict[str, dict[str, Structure]]) -> dict[str, list[str]]:
    """All readings, and those with the printed structure (✓) on both texts."""
    marked = [name for name, texts in found.items() if all(map(has_printed_structure, texts.values()))]
    return {"": list(found)} | ({", of those with ✓": marked} if marked else {})


def grid_table(row: Row, text: str) -> str:
    """Our dev perplexities under the default reading, each next to the printed one."""
    ours = perplexities(row)
    printed = printed_logs()
    parts = []
    for modes in dict.fromkeys(key[0] for key in ours):
        lines = [f"Block/radius {modes}: ours on {text}, and what the paper prints, as 2^nats.", ""]
        lines += head(["", *(f"b = {b}" for b in SIZES)])
        for r in SIZES:
            cells = [(2 ** math.log(ours[modes, False, b, r][1]), 2 ** printed[modes, False, b, r]) for b in SIZES]
            lines.append(f"| **r = {r}** | " + " | ".join(f"{own:.1f}, {paper:.1f}" for own, paper in cells) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)
