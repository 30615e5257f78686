"""An explanation as a self-contained HTML file, for papers, slides, and mail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

WIDTH = 360  # of the bars, in pixels
SMALL = 0.05  # bits below which parts are summed
SHOWN = {"<eod>": "⏎", "<pad>": "∅"}  # tokens without text


@dataclass(frozen=True)
class Scale:
    """From bits to pixels."""

    low: float
    high: float

    def at(self, bits: float) -> float:
        return WIDTH * (bits - self.low) / (self.high - self.low)


def snapshot(name: str, text: str, facts: Mapping[str, Any]) -> str:
    """The whole page."""
    template = Template((files("saffu.play") / "static" / "snapshot.html").read_text("utf-8"))
    rows = [row for row in facts["rows"] if abs(row["bits"]) >= SMALL]
    small = [row["bits"] for row in facts["rows"] if abs(row["bits"]) < SMALL]
    if small:
        rows.append({"name": f"{len(small)} smaller", "bits": math.fsum(small), "class_bits": None, "counts": None})
    ends = [sum(side) for row in rows for side in sides(row)]
    scale = Scale(min([-1.0, facts["bits"], *ends]), max([1.0, *ends]))
    total = {"name": "log₂ p", "bits": facts["bits"], "class_bits": None, "counts": None}
    return template.substitute(
        title=escape(f"Why “{facts['word']}”?"),
        text=escape(text[-400:]),
        word=escape(facts["word"]),
        probability=escape(percent(facts["p"])),
        bits=escape(signed(facts["bits"])),
        model=escape(name),
        rows="\n".join(table_row(row, scale) for row in rows),
        total=table_row(total, scale),
    )


def table_row(row: Mapping[str, Any], scale: Scale) -> str:
    return (
        f'<tr><th scope="row">{escape(row["name"])}</th><td>{bar(row, scale)}</td>'
        f'<td class="number">{signed(row["bits"])}</td><td>{escape(counts(row["counts"]))}</td></tr>'
    )


def levels(row: Mapping[str, Any]) -> dict[str, float]:
    """What a row adds to the class and what it adds to the token."""
    of_class = row["class_bits"] or 0.0
    return {"class": of_class, "token": row["bits"] - of_class}


def sides(row: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    """What a row adds for a word and against it."""
    values = levels(row).values()
    return [bits for bits in values if bits > 0], [bits for bits in values if bits < 0]


def bar(row: Mapping[str, Any], scale: Scale) -> str:
    """Positive parts to the right of zero, negative ones to the left; the class first, then the token."""
    drawn, up, down = [], 0.0, 0.0
    for kind, bits in levels(row).items():
        begin = up if bits > 0 else down + bits
        up, down = (up + bits, down) if bits > 0 else (up, down + bits)
        sign, left, width = "for" if bits > 0 else "against", scale.at(begin), scale.at(abs(bits)) - scale.at(0)
        drawn.append(f'<rect class="{sign} {kind}" x="{left:.1f}" y="3" width="{width:.1f}" height="12"/>')
    zero = f"{scale.at(0):.1f}"
    line = f'<line x1="{zero}" x2="{zero}" y1="0" y2="18"/>'
    return f'<svg width="{WIDTH}" height="18" role="presentation">{"".join(drawn)}{line}</svg>'


def counts(found: Mapping[str, Any] | None) -> str:
    """The counts behind a row: "the → 14 of 210"; a class is shown by some of its words."""
    if found is None:
        return ""
    seen = " ".join("/".join(SHOWN.get(token, token.strip() or "␣") for token in tokens) for tokens in found["seen"])
    where = " so far" if found["here"] else ""
    return f"{seen + ' → ' if seen else ''}{found['count']:,} of {found['total']:,}{where}"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def percent(p: float) -> str:
    return f"{100 * p:.1f}%" if p >= 0.001 else f"{100 * p:.2g}%"
