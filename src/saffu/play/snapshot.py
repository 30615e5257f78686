"""An explanation as one HTML file that loads nothing: for papers, slides, and mail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

WIDTH = 260  # of the bars, in pixels on each side of zero


def snapshot(name: str, text: str, facts: Mapping[str, Any]) -> str:
    """The whole page."""
    template = Template((files("saffu.play") / "static" / "snapshot.html").read_text("utf-8"))
    rows = [row for row in facts["rows"] if abs(row["bits"]) >= 0.005]
    scale = max([1.0, *(abs(level) for row in rows for level in levels(row))])
    return template.substitute(
        title=escape(f"Why “{facts['word']}”?"),
        text=escape(text[-400:]),
        word=escape(facts["word"]),
        probability=escape(percent(facts["p"])),
        bits=escape(signed(facts["bits"])),
        model=escape(name),
        rows="\n".join(table_row(row, scale) for row in rows),
    )


def table_row(row: Mapping[str, Any], scale: float) -> str:
    return (
        f'<tr><th scope="row">{escape(row["name"])}</th><td class="number">{signed(row["bits"])}</td>'
        f"<td>{bar(levels(row), scale)}</td><td>{escape(counts(row['counts']))}</td></tr>"
    )


def levels(row: Mapping[str, Any]) -> tuple[float, float]:
    """What a row adds to the class and what it adds to the token."""
    of_class = row["class_bits"] or 0.0
    return of_class, row["bits"] - of_class


def bar(parts: Sequence[float], scale: float) -> str:
    """Positive parts to the right of zero, negative ones to the left; the class first, then the token."""
    drawn, ends = [], {True: float(WIDTH), False: float(WIDTH)}
    for kind, value in zip(("class", "token"), parts, strict=True):
        width, positive = abs(value) / scale * WIDTH / 2, value > 0
        left = ends[True] if positive else ends[False] - width
        ends[positive] += width if positive else -width
        sign = "for" if positive else "against"
        drawn.append(f'<rect class="{sign} {kind}" x="{left:.1f}" y="3" width="{width:.1f}" height="12"/>')
    line = f'<line x1="{WIDTH}" x2="{WIDTH}" y1="0" y2="18"/>'
    return f'<svg width="{2 * WIDTH}" height="18" role="presentation">{"".join(drawn)}{line}</svg>'


def counts(found: Mapping[str, Any] | None) -> str:
    """The counts behind a row: "the → dog 14 of 210"."""
    if found is None:
        return ""
    seen = " ".join("·".join(token.strip() or token for token in tokens) for tokens in found["seen"])
    where = " in the text so far" if found["here"] else ""
    return f"{seen + ' → ' if seen else ''}{found['count']:,} of {found['total']:,}{where}"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def percent(p: float) -> str:
    return f"{100 * p:.1f}%" if p >= 0.001 else f"{100 * p:.2g}%"
