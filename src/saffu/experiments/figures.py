"""Drawings of a grid as SVG: heat maps over r and b, and parameters against perplexity.

They are text, so a page can hold them. Colours of lines and letters come from style sheets and follow light and dark.
"""

import math
from collections.abc import Sequence
from html import escape

from saffu.cells import Cell
from saffu.tables import Table

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#56b4e9", "#7f7f7f"]  # told apart by all eyes
STYLE = (
    "svg.saffu{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:12px;--ink:#1c2430;--faint:#687586;"
    "--rule:#d9dee5}@media(prefers-color-scheme:dark){svg.saffu{--ink:#e6e9ee;--faint:#9aa6b5;--rule:#3a4452}}"
)
INK = (
    "svg.saffu text{fill:var(--ink)}svg.saffu .faint{fill:var(--faint)}svg.saffu .rule{stroke:var(--rule);fill:none}"
    "svg.saffu .front{stroke:var(--ink);fill:none;stroke-width:1.5;stroke-dasharray:5 3}"
    "svg.saffu .ring{stroke:var(--ink);fill:none;stroke-width:1.2}"
)


def svg(width: float, height: float, label: str, content: Sequence[str]) -> str:
    return (
        f'<svg class="saffu" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label)}">' + "".join(content) + "</svg>"
    )


def standalone(drawing: str) -> str:
    """A drawing as a file of its own, with its styles and its size."""
    opening, rest = drawing.split(">", 1)
    width, height = opening.split('viewBox="0 0 ')[1].split('"')[0].split()
    return f'{opening} width="{width}" height="{height}"><style>{STYLE}{INK}</style>{rest}\n'


def text(x: float, y: float, content: str, anchor: str = "middle", style: str = "", kind: str = "") -> str:
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' style="{style}"' if style else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{attributes}>{escape(content)}</text>'


class Scale:
    """Colours for perplexities, on a logarithmic scale that all panels share: the lower, the deeper."""

    def __init__(self, tables: Sequence[Table]):
        found = [s[1] for table in tables for b, r in table.cells if (s := table.perplexities(b, r))]
        self.low, self.high = min(found, default=1.0), max(found, default=1.0)

    def place(self, perplexity: float) -> float:
        """0 for the lowest, 1 for the highest."""
        if self.high == self.low:
            return 0.0
        return math.log(perplexity / self.low) / math.log(self.high / self.low)

    def colours(self, perplexity: float) -> tuple[str, str]:
        """Of a cell and of what is written on it."""
        place = self.place(perplexity)
        return colour(place), "#ffffff" if place < 0.365 else "#0d1320"


def colour(place: float) -> str:
    """A ramp of even lightness steps in Oklab, from deep blue (0) through green to pale yellow (1)."""
    lightness, chroma = 0.36 + 0.58 * place, 0.115 - 0.035 * place
    hue = math.radians(275 - 175 * place)
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * min(1.0, max(0.0, gamma(channel)))):02x}" for channel in linear)


def gamma(channel: float) -> float:
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


CELL, LEFT, TOP = 46, 48, 44


def panel(table: Table, scale: Scale) -> tuple[float, float, list[str]]:
    """One mode pair: its size and what it shows."""
    width, height = LEFT + CELL * len(table.blocks) + 4, TOP + 30 * len(table.radii) + 6
    content = [text(LEFT, 14, table.title, "start", "font-weight:600;font-size:13px")]
    content += [text(LEFT + CELL * (i + 0.5), TOP - 7, f"b={b}", kind="faint") for i, b in enumerate(table.blocks)]
    for j, radius in enumerate(table.radii):
        top = TOP + 30 * j
        content.append(text(LEFT - 6, top + 19, f"r={radius}", "end", kind="faint"))
        for i, block in enumerate(table.blocks):
            if scores := table.perplexities(block, radius):
                content.append(heat(table, block, radius, scores, scale, LEFT + CELL * i, top))
    return width, height, content


def heat(table: Table, b: int, r: int, scores: tuple[float, float], scale: Scale, x: float, y: float) -> str:
    fill, ink = scale.colours(scores[1])
    best = table.is_best(b, r)
    outline = ' stroke="#d55e00" stroke-width="2.5"' if best else ""
    weight = ";font-weight:700" if best else ""
    hint = f"{table.title}, b = {b}, r = {r}: train {scores[0]:.2f}, dev {scores[1]:.2f}"
    return (
        f'<g><title>{escape(hint)}</title><rect x="{x + 1:g}" y="{y + 1:g}" width="{CELL - 2}" height="28" rx="3" '
        f'fill="{fill}"{outline}/>' + text(x + CELL / 2, y + 19, short(scores[1]), style=f"fill:{ink}{weight}") + "</g>"
    )


def short(perplexity: float) -> str:
    """At most four characters for what is common: 98.3, 128, 12k."""
    if perplexity < 99.95:
        return f"{perplexity:.1f}"
    return f"{perplexity:.0f}" if perplexity < 9999.5 else f"{perplexity / 1000:.0f}k"


def legend(scale: Scale, width: float = 300) -> tuple[float, float, list[str]]:
    steps = 60
    size = f'y="18" width="{width / steps + 0.5:g}" height="10"'
    content = [f'<rect x="{i * width / steps:g}" {size} fill="{colour(i / (steps - 1))}"/>' for i in range(steps)]
    content += [text(0, 12, "dev perplexity, logarithmic; the deeper the better", "start", kind="faint")]
    for place, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        perplexity = scale.low * (scale.high / scale.low) ** place
        content.append(text(place * width, 42, short(perplexity), anchor, kind="faint"))
    return width, 46, content


def heat_map(table: Table, scale: Scale) -> str:
    width, height, content = panel(table, scale)
    return svg(width, height, f"Dev perplexity of {table.title} over r and b", content)


def heat_maps(tables: Sequence[Table], columns: int = 2) -> str:
    """All panels in one drawing, on one scale."""
    scale = Scale(tables)
    panels = [panel(table, scale) for table in tables] + [legend(scale)]
    width, height = max(wide for wide, _, _ in panels), max(high for _, high, _ in panels)
    content = [
        f'<g transform="translate({8 + n % columns * (width + 24):g} {8 + n // columns * (height + 18):g})">'
        + "".join(drawn)
        + "</g>"
        for n, (_, _, drawn) in enumerate(panels)
    ]
    rows = math.ceil(len(panels) / columns)
    return svg(columns * (width + 24), rows * (height + 18), "Dev perplexity over r and b, by modes", content)


def pareto_front(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that no other cell beats with as few parameters, smallest first."""
    front: list[Cell] = []
    for cell in sorted(cells, key=lambda cell: (cell.parameters, cell.dev.nll if cell.dev else 0.0)):
        if cell.dev and (not front or cell.dev.nll < front[-1].dev.nll):  # type: ignore[union-attr]
            front.append(cell)
    return front


def pareto(tables: Sequence[Table], width: float = 720, height: float = 430) -> str:
    """Parameters against dev perplexity, both logarithmic, with the front."""
    cells = [cell for table in tables for cell in table.cells.values() if cell.dev]
    x = Axis([cell.parameters for cell in cells], 56, width - 20)
    y = Axis([cell.dev.perplexity for cell in cells if cell.dev], height - 46, 46)
    content = []
    for value in y.ticks():
        content.append(f'<path class="rule" d="M56 {y(value):.1f}H{width - 20:g}"/>')
        content.append(text(50, y(value) + 4, f"{value:g}", "end", kind="faint"))
    for value in x.ticks():
        content.append(f'<path class="rule" d="M{x(value):.1f} {height - 46:g}v5"/>')
        content.append(text(x(value), height - 26, f"{value / 1e6:g}M", kind="faint"))
    content.append(text((56 + width - 20) / 2, height - 6, "parameters", kind="faint"))
    content.append(text(56, 36, "dev perplexity", "end" if width < 400 else "start", kind="faint"))
    at = 56.0
    for table, fill in zip(tables, COLOURS * len(tables), strict=False):
        content.append(f'<circle cx="{at + 5:g}" cy="10" r="4.5" fill="{fill}"/>')
        content.append(text(at + 14, 14, table.title, "start"))
        at += 30 + 7.2 * len(table.title)
        for (block, radius), cell in table.cells.items():
            if cell.dev:
                hint = f"{table.title}, b = {block}, r = {radius}: {cell.parameters:,} parameters"
                hint += f", dev {cell.dev.perplexity:.2f}"
                dot = f'<circle cx="{x(cell.parameters):.1f}" cy="{y(cell.dev.perplexity):.1f}" r="3.6"'
                content.append(f'{dot} fill="{fill}" fill-opacity=".75"><title>{escape(hint)}</title></circle>')
    front = [(x(cell.parameters), y(cell.dev.perplexity), cell) for cell in pareto_front(cells) if cell.dev]
    if front:
        content.append(f'<path class="front" d="{steps(front, width - 20)}"/>')
    content += [f'<circle class="ring" cx="{place:.1f}" cy="{level:.1f}" r="5.5"/>' for place, level, _ in front]
    return svg(width, height, "Parameters against dev perplexity, with the Pareto front", content)


def steps(front: list[tuple[float, float, Cell]], right: float) -> str:
    path = f"M{front[0][0]:.1f} {front[0][1]:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y, _ in front[1:])
    return f"{path}H{right:g}"


class Axis:
    """A logarithmic axis from the least to the greatest of some values, with a little room."""

    def __init__(self, values: Sequence[float], begin: float, end: float):
        low, high = (math.log(f(values)) for f in (min, max)) if values else (0.0, 1.0)
        room = 0.04 * (high - low) or 0.1
        self.low, self.high, self.begin, self.end = low - room, high + room, begin, end

    def __call__(self, value: float) -> float:
        return self.begin + (math.log(value) - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round numbers in between, ten at most."""
        for digits in ((1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1,)):
            exponents = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
            found = [d * 10.0**e for e in exponents for d in digits if self.low <= math.log(d * 10.0**e) <= self.high]
            if len(found) <= 10:
                break
        return found
