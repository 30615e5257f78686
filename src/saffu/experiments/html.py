"""One HTML page of an ablation: opens offline, in light and dark, on a phone and on paper; it loads nothing."""

from collections.abc import Sequence
from html import escape
from typing import Any

from saffu import figures
from saffu.tables import Sweep, Table
from saffu.verdicts import FAILS, HOLDS, IN_PART, Verdict, change
from saffu.wording import number_of

STYLE = """
:root{--ground:#fbfaf7;--card:#fff;--ink:#1c2430;--faint:#687586;--rule:#d9dee5;--accent:#0a5c8a;
--good:#14693b;--good-ground:#e2f2e6;--bad:#9a2a1c;--bad-ground:#fae7e3;--part:#7a5200;--part-ground:#faf0d7;
--none:#566172;--none-ground:#ebeef2}
@media(prefers-color-scheme:dark){:root{--ground:#12161c;--card:#1a2029;--ink:#e6e9ee;--faint:#9aa6b5;--rule:#333d4a;
--accent:#7cc4ec;--good:#8fdcaa;--good-ground:#173625;--bad:#f3a99c;--bad-ground:#43211c;--part:#efcf86;
--part-ground:#3d3014;--none:#b3bdca;--none-ground:#29323d}}
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--ground);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:66rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .4rem;letter-spacing:-.01em}
h2{font-size:1.25rem;margin:3rem 0 .6rem;padding-top:.6rem;border-top:1px solid var(--rule)}
p{max-width:46rem;margin:.5rem 0}
.faint{color:var(--faint)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.5rem 0;padding:0}
.facts div{background:var(--card);border:1px solid var(--rule);border-radius:.5rem;padding:.6rem .8rem}
.facts dt{color:var(--faint);font-size:.8rem}
.facts dd{margin:0;font-size:1.15rem;font-weight:600;font-variant-numeric:tabular-nums}
.panels{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1.5rem}
.panels svg,.wide svg{display:block;width:100%;height:auto}
.wide{overflow-x:auto}.wide svg{min-width:36rem}
.legend{max-width:20rem;margin:1rem 0}
.scroll{overflow-x:auto;margin:.5rem 0 1.75rem}
table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;width:100%}
.caption{color:var(--faint);margin-top:1.5rem;font-size:.9rem;max-width:none;break-after:avoid}
.caption b{color:var(--ink)}
th,td{padding:.32rem .55rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
th{font-weight:600;color:var(--faint)}
th[scope=row],.left{text-align:left}
th[scope=row]{position:sticky;left:0;background:var(--ground)}
td .train{color:var(--faint)}
td.best{font-weight:700;color:var(--accent)}
td.best .train{color:inherit}
.claims{list-style:none;padding:0;margin:1rem 0}
.claims li{display:grid;grid-template-columns:2.2rem 8.5rem 1fr;gap:.2rem .8rem;padding:.7rem 0;
border-bottom:1px solid var(--rule)}
.claims .number{color:var(--faint);font-variant-numeric:tabular-nums}
.claims p{margin:0;max-width:none}
.claims .evidence{color:var(--faint);font-size:.92rem}
.badge{display:inline-block;border-radius:1rem;padding:.05rem .7rem;font-size:.82rem;font-weight:600;white-space:nowrap}
.holds{color:var(--good);background:var(--good-ground)}
.fails{color:var(--bad);background:var(--bad-ground)}
.part{color:var(--part);background:var(--part-ground)}
.none{color:var(--none);background:var(--none-ground)}
footer{margin-top:3rem;color:var(--faint);font-size:.85rem}
@media(max-width:40rem){main{padding:1.5rem 1rem 3rem}h1{font-size:1.5rem}
.claims li{grid-template-columns:1.6rem 1fr}.claims li>div:last-child{grid-column:1/-1}}
@media print{:root{--ground:#fff;--card:#fff;--ink:#000;--faint:#444;--rule:#bbb}body{font-size:10pt}
main{max-width:none;padding:0}h2{break-after:avoid;margin-top:1.5rem}.panels{grid-template-columns:1fr 1fr}
.panels svg,.scroll,.wide,.claims li{break-inside:avoid}.scroll{overflow:visible}table{font-size:7.6pt}
th,td{padding:.15rem .25rem}*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
"""
KINDS = {HOLDS: "holds", FAILS: "fails", IN_PART: "part"}


def page(
    facts: dict[str, Any], tables: Sequence[Table], verdicts: Sequence[Verdict], sweeps: Sequence[Sweep], usual: str
) -> str:
    """The whole page; `facts` are those of run.json, `usual` tells the settings of the tables."""
    scale = figures.Scale(tables)
    width, height, drawn = figures.legend(scale)
    sections = [
        f"<h1>{number_of(sum(len(table.cells) for table in tables), 'model')}, one text</h1>",
        f'<p class="faint">An ablation of SAFFU language models by their explicit solution: no weight was trained. '
        f"Every cell is scored on the same targets; lower perplexity is better. {escape(usual)}</p>",
        facts_list(facts, tables),
        "<h2>What the grid says of the paper’s claims</h2>",
        claims(verdicts),
        "<h2>Dev perplexity over radius and block</h2>",
        '<p class="faint">One panel for each mode pair, block/radius, all on one scale; the best is outlined.</p>',
        f'<div class="legend">{figures.svg(width, height, "Scale of the colours", drawn)}</div>',
        '<div class="panels">' + "".join(figures.heat_map(table, scale) for table in tables) + "</div>",
        "<h2>Parameters against perplexity</h2>",
        '<p class="faint">All stored numbers count, embeddings included. Ringed models are on the front: none with '
        "as few parameters is better.</p>",
        f'<div class="wide">{figures.pareto(tables)}</div>',
        front_table(tables),
        "<h2>All perplexities</h2>",
        *(perplexities(table) for table in tables),
    ]
    if sweeps:
        sections += ["<h2>Other settings</h2>", sweep_table(sweeps)]
    sections.append(f"<footer>{escape(footer(facts))}</footer>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>saffu: an ablation</title>'
        f"<style>{STYLE}svg.saffu{{font-size:12px}}{figures.INK}</style></head>\n<body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def facts_list(facts: dict[str, Any], tables: Sequence[Table]) -> str:
    scored = [c for table in tables for c in table.cells.values() if c.dev]
    best = min(scored, key=lambda cell: cell.dev.nll if cell.dev else 0.0, default=None)
    told = [("tokens counted", f"{facts['tokens']:,}"), ("vocabulary", f"{facts['vocabulary']:,}")]
    told += [("held-out targets", f"{facts['dev_targets']:,}")]
    if best and best.dev:
        told.append(("best dev perplexity", f"{best.dev.perplexity:.1f}"))
        told.append(("its bits per byte", f"{best.dev.bits_per_byte:.3f}"))
        told.append(("its shape", f"{best.modes}, b = {best.config.block}, r = {best.config.radius}"))
    references = facts.get("dev_references", {})
    told += [(f"{name} reference", f"{perplexity:.1f}") for name, perplexity in references.items()]
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in told)
        + "</dl>"
    )


def claims(verdicts: Sequence[Verdict]) -> str:
    items = [
        f'<li><span class="number">{v.number}</span><span><span class="badge {KINDS.get(v.verdict, "none")}">'
        f"{escape(v.verdict)}</span></span><div><p>{escape(v.claim)}</p>"
        f'<p class="evidence">{escape(v.evidence)}</p></div></li>'
        for v in verdicts
    ]
    return '<ul class="claims">' + "".join(items) + "</ul>"


def perplexities(table: Table) -> str:
    head = "".join(f'<th scope="col">b = {b}</th>' for b in table.blocks)
    rows = []
    for radius in table.radii:
        cells = "".join(perplexity_cell(table, block, radius) for block in table.blocks)
        rows.append(f'<tr><th scope="row">r = {radius}</th>{cells}</tr>')
    caption = f"<b>{escape(table.title)}.</b> {escape(table.caption)}"
    return html_table(caption, f"<th></th>{head}", rows)


def perplexity_cell(table: Table, block: int, radius: int) -> str:
    scores = table.perplexities(block, radius)
    if scores is None:
        return "<td>–</td>"
    best = ' class="best"' if table.is_best(block, radius) else ""
    return f'<td{best}><span class="train">{scores[0]:.1f},</span> {scores[1]:.1f}</td>'


def front_table(tables: Sequence[Table]) -> str:
    rows = []
    for cell in figures.pareto_front([cell for table in tables for cell in table.cells.values()]):
        assert cell.dev
        told = cell.modes + (" + documents" if cell.config.documents else "")
        cells = [cell.config.block, cell.config.radius, f"{cell.parameters:,}", f"{cell.dev.perplexity:.1f}"]
        rows.append(f'<tr><th scope="row">{told}</th>' + "".join(f"<td>{value}</td>" for value in cells) + "</tr>")
    head = '<th class="left">modes</th>' + "".join(f"<th>{x}</th>" for x in ("b", "r", "parameters", "dev perplexity"))
    return html_table("The front, smallest first.", head, rows)


def sweep_table(sweeps: Sequence[Sweep]) -> str:
    rows = []
    for sweep in sweeps:
        spread = [change(ratio) for ratio in sweep.ratios] if sweep.ratios else ["–"] * 3
        best = sweep.best
        told = f"{best.modes}, b = {best.config.block}, r = {best.config.radius}" if best else "–"
        perplexity = f"{best.dev.perplexity:.1f}" if best and best.dev else "–"
        cells = [str(sweep.cells), *spread, perplexity]
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr><th scope="row">{escape(sweep.label)}</th>{row}<td class="left">{told}</td></tr>')
    head = "".join(f"<th>{name}</th>" for name in ("cells", "least", "median", "greatest", "best dev"))
    caption = "Dev perplexity against the same cells of the tables above; below zero is better."
    return html_table(caption, f'<th class="left">changed</th>{head}<th class="left">of</th>', rows)


def html_table(caption: str, head: str, rows: list[str]) -> str:
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<p class="caption">{caption}</p><div class="scroll"><table>{body}</table></div>'


def footer(facts: dict[str, Any]) -> str:
    runs = facts.get("runs", [])
    seconds = sum(run["fit_seconds"] + run["score_seconds"] for run in runs)
    devices = ", ".join(dict.fromkeys(run["device"] for run in runs))
    made = f"Fitted and scored in {seconds:,.0f} seconds on {devices}. " if runs else ""
    return f"{made}Text {facts['text']}. Made by saffu report."
