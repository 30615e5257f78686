"""The HTML page of an ablation: works offline, in light and dark mode, on a phone, and in print; it loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from saffu.experiments.agreement import Agreement, printed_source
from saffu.experiments.results import Cell
from saffu.experiments.tables import Sweep, Table, change, pareto_front
from saffu.format import plural

if TYPE_CHECKING:
    from saffu.experiments.report import Report


def page(report: Report) -> str:
    """The whole page."""
    template = Template((files("saffu.experiments") / "report.html").read_text("utf-8"))
    return template.substitute(
        title=escape(plural(len(report.base), "model") + " compared"),
        reading=escape(report.reading),
        facts=fact_list(report.run, report.base),
        agreement=agreement_table(report.agreement, report.agreement_by_table),
        heat_maps=report.heat_maps,
        pareto=report.pareto,
        front=front_table(report.base),
        source=escape(printed_source()),
        tables="\n".join(
            table_pair(ours, printed, report.agreement_by_table.get(ours.title))
            for ours, printed in zip(report.tables, report.printed_tables, strict=True)
        ),
        sweeps="<h2>Other settings</h2>" + sweep_table(report.sweeps) if report.sweeps else "",
        footer=escape(footer(report.run)),
    )


def fact_list(facts: dict[str, Any], cells: Iterable[Cell]) -> str:
    shown = [("tokens counted", f"{facts['tokens']:,}"), ("vocabulary", f"{facts['vocabulary']:,}")]
    shown += [("held-out targets", f"{facts['dev_targets']:,}")]
    best = min((cell for cell in cells if cell.dev), key=lambda cell: cell.dev.nll, default=None)  # type: ignore[union-attr]
    if best and best.dev:
        shown.append(("best dev perplexity", f"{best.dev.perplexity:.1f}"))
        shown.append(("its bits per byte", f"{best.dev.bits_per_byte:.3f}"))
        shown.append(("its shape", f"{best.modes}, b = {best.config.block}, r = {best.config.radius}"))
    shown += [(f"{name} baseline", f"{value:.1f}") for name, value in facts.get("dev_references", {}).items()]
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    return f'<dl class="facts">{items}</dl>'


def agreement_table(overall: Agreement | None, by_table: dict[str, Agreement]) -> str:
    if overall is None:
        return "<p>Fewer than three cells of this grid are in the paper’s tables.</p>"
    rows = []
    for title, compared in {"all without documents": overall, **by_table}.items():
        values = [
            str(compared.cells),
            f"{compared.spearman:.3f}",
            f"{compared.pearson_log:.3f}",
            f"{compared.spread_ratio:.2f}",
            f"{compared.ours_dev_train:.3f}",
            f"{compared.printed_dev_train:.3f}",
        ]
        rows.append(row(title, values))
    head = ("cells", "rank correlation", "correlation of logs", "ratio of spreads", "dev/train", "paper’s dev/train")
    caption = "Dev perplexities of this grid and of the paper’s tables; spread: standard deviation of log-perplexities."
    return html_table(caption, "table", head, rows)


def table_pair(ours: Table, printed: Table, compared: Agreement | None) -> str:
    """Our table and the paper's, with their rank correlation."""
    agreed = f" Rank correlation with our table: {compared.spearman:.3f}." if compared else ""
    return (
        f"<h3>{escape(ours.title)}</h3>"
        + perplexity_table(ours, f"Ours. {ours.caption}")
        + perplexity_table(printed, f"The paper’s.{agreed}")
    )


def perplexity_table(table: Table, caption: str) -> str:
    rows = [
        f'<tr><th scope="row">r = {radius}</th>{"".join(perplexity_cell(table, b, radius) for b in table.blocks)}</tr>'
        for radius in table.radii
    ]
    return html_table(escape(caption), "", [f"b = {block}" for block in table.blocks], rows)


def perplexity_cell(table: Table, block: int, radius: int) -> str:
    scores = table.cells.get((block, radius))
    if scores is None:
        return "<td>–</td>"
    best = ' class="best"' if table.is_best(block, radius) else ""
    return f'<td{best}><span class="train">{scores[0]:.1f},</span> {scores[1]:.1f}</td>'


def front_table(cells: Iterable[Cell]) -> str:
    rows = []
    for cell in pareto_front(cells):
        assert cell.dev
        title = cell.modes + (" + documents" if cell.config.document_shards else "")
        values = [str(cell.config.block), str(cell.config.radius), f"{cell.parameters:,}", f"{cell.dev.perplexity:.1f}"]
        rows.append(row(title, values))
    return html_table("The Pareto front, smallest first.", "modes", ("b", "r", "parameters", "dev perplexity"), rows)


def sweep_table(sweeps: Sequence[Sweep]) -> str:
    rows = []
    for sweep in sweeps:
        spread = [change(ratio) for ratio in sweep.ratios] if sweep.ratios else ["–"] * 3
        best = sweep.best
        shape = f"{best.modes}, b = {best.config.block}, r = {best.config.radius}" if best else "–"
        perplexity = f"{best.dev.perplexity:.1f}" if best and best.dev else "–"
        rows.append(row(sweep.label, [str(sweep.cells), *spread, perplexity, shape]))
    caption = "Dev perplexity relative to the same cells of the tables above; negative is better."
    return html_table(caption, "changed", ("cells", "least", "median", "greatest", "best dev", "its shape"), rows)


def row(title: str, values: Iterable[str]) -> str:
    cells = "".join(f"<td>{escape(value)}</td>" for value in values)
    return f'<tr><th scope="row">{escape(title)}</th>{cells}</tr>'


def html_table(caption: str, first: str, head: Iterable[str], rows: Sequence[str]) -> str:
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = f'<thead><tr><th class="left">{first}</th>{columns}</tr></thead><tbody>{"".join(rows)}</tbody>'
    return f'<p class="caption">{caption}</p><div class="scroll"><table>{body}</table></div>'


def footer(facts: dict[str, Any]) -> str:
    runs = facts.get("runs", [])
    seconds = sum(run["fit_seconds"] + run["score_seconds"] for run in runs)
    devices = ", ".join(dict.fromkeys(run["device"] for run in runs))
    made = f"Fitted and scored in {seconds:,.0f} seconds on {devices}. " if runs else ""
    return f"{made}Text fingerprint {facts['text']}. Generated by saffu report."
