"""saffu explain: what each part of the context adds to the prediction of the next token."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saffu.commands.common import Verb, print_json, visible
from saffu.errors import SaffuError
from saffu.wording import number_of

LABEL, CELL = 40, 8  # characters
BOLD, DIM, RED, GREEN = "1", "2", "31", "32"


def add(verb: Verb) -> None:
    parser = verb(
        "explain",
        run,
        "show what each part of the context adds to the prediction of the next token",
        'saffu explain model "Once upon a"\n'
        '  saffu explain model "Once upon a" --target time day --top 3\n'
        '  saffu explain model "Once upon a" --top 20 --json',
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("prompt", nargs="?", default="", help="start of the document (default: none)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="show the N likeliest tokens (default: 5)")
    parser.add_argument("--target", nargs="+", default=[], metavar="WORD", help="show these next words too, first")
    parser.add_argument(
        "--rows",
        type=int,
        default=14,
        metavar="N",
        help="show the N parts that tell most, the rest summed (default: 14)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all parts")


def run(options: argparse.Namespace) -> None:
    from saffu.explain import candidate
    from saffu.model import SaffuLM

    for name in ("top", "rows"):
        if getattr(options, name) < (name == "rows" or not options.target):
            raise SaffuError(f"--{name} is {getattr(options, name)}; it must be at least 1")
    if any("\ud800" <= character <= "\udfff" for character in "".join([options.prompt, *options.target])):
        raise SaffuError("the prompt or a target is not UTF-8; give it in that encoding")
    lm = SaffuLM.load(options.model)
    explanation = lm.explain(options.prompt)
    named = [candidate(lm.tokenizer_, options.prompt, word) for word in options.target]
    for word, token in zip(options.target, map(lm.tokenizer_.token, named), strict=True):
        if token.strip() != word.strip():
            note = f"the next token can only be its beginning, {visible(token)!r}, which is shown"
            print(f"saffu: the target {visible(word)!r} is several tokens; {note}", file=sys.stderr)
    chosen = list(dict.fromkeys([*named, *explanation.likeliest(options.top)]))
    facts = explanation.to_dict(lm.tokenizer_, chosen)
    if options.json:
        print_json({"prompt": options.prompt, **facts})
        return
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 80
    print("\n".join(tables(facts, options.rows, max(width, LABEL + CELL), colour)))


def tables(facts: dict[str, Any], rows: int = 14, width: int = 80, colour: bool = False) -> list[str]:
    """The explanation as lines of text: as many candidates side by side as fit, then the next ones below."""
    hidden = facts.get("units")
    parts = "unit" if hidden else "part of the context"
    lines = [f"bits that each {parts} adds for (+) or against (−) a next token"]
    if "memory" in facts:
        own, weight = facts["prior_exponent"], facts["contributions"][0]["weight"]
        lines.append(f"(the prior's {weight:.2f} is its exponent {own:.2f} and the memories', told relative to it)")
    fitting = (width - LABEL) // CELL
    for first in range(0, len(facts["candidates"]), fitting):
        shown = slice(first, first + fitting)
        page = Page(colour)
        log_p, logits = facts["log_probabilities"][shown], facts["logits"][shown]
        page.head([visible(c["token"]) for c in facts["candidates"][shown]])
        page.terms(facts["contributions"], shown, rows)
        page.row("the normaliser, −log₂ Z", [p - x for p, x in zip(log_p, logits, strict=True)], DIM)
        page.row("= log₂ p", log_p, BOLD)
        page.row("p", [f"{p:.2%}" if p >= 1e-4 else f"{p:.0e}" for p in facts["probabilities"][shown]], BOLD)
        if "memory" in facts:
            page.lines += ["", "the memory's probability, by the length of context it was counted after"]
            for level in facts["memory"]:
                label = f"{level['name']:<12}{'' if not level['seen'] else quoted(level['seen'], 26)}"
                page.row(label, [f"{share:.0%}" for share in level["values"][shown]])
        for name, terms in (hidden or {}).items():
            page.lines += ["", f"the {name} unit's own (mean) log₂ p of a candidate's hidden bits, by slot"]
            page.terms(terms, shown, rows)
            page.row("= log₂ p of its bits", sums([term["values"][shown] for term in terms]), BOLD)
        lines += ["", *page.lines]
    return lines


class Page:
    """Rows of a label and one cell for each candidate."""

    def __init__(self, colour: bool):
        self.colour = colour
        self.lines: list[str] = []

    def paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.colour and code else text

    def head(self, candidates: Sequence[str]) -> None:
        cells = [clipped(token, CELL - 1).rjust(CELL) for token in candidates]
        self.lines.append(" " * LABEL + self.paint("".join(cells), BOLD))

    def row(self, label: str, values: Sequence[float | str], code: str = "") -> None:
        cells = []
        for value in values:
            text = value if isinstance(value, str) else signed(value)
            cells.append(self.paint(text.rjust(CELL), code or ("" if isinstance(value, str) else hue(value))))
        self.lines.append(self.paint(clipped(label, LABEL - 1).ljust(LABEL), code) + "".join(cells))

    def terms(self, terms: Sequence[dict[str, Any]], shown: slice, rows: int) -> None:
        """The terms in their order: those that tell most, and the sum of all others."""
        strength = [max(abs(v) for v in term["values"][shown]) for term in terms]
        kept = sorted(range(len(terms)), key=lambda i: -strength[i])[:rows]
        for number, term in enumerate(terms):
            if number in kept:
                weight = "" if term["weight"] is None else f"{term['weight']:.2f}"
                times = f"{term['slots']} × " if term["slots"] > 1 else ""
                seen = times + quoted(term["seen"], LABEL - 29 - len(times)) if term["seen"] else ""
                label, values = f"{clipped(term['name'], 21):<21}{weight:>6} {seen}", term["values"][shown]
                self.row(label, [signed(v) for v in values] if term["name"] == "prior" else values)
        others = [term for number, term in enumerate(terms) if number not in kept]
        if others:
            self.row(number_of(len(others), "other"), sums([term["values"][shown] for term in others]))


def sums(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def hue(value: float) -> str:
    return DIM if abs(value) < 0.05 else GREEN if value > 0 else RED


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def quoted(tokens: Sequence[str], width: int) -> str:
    """The end of some tokens, which is nearest to what is predicted."""
    text = "".join(visible(token) for token in tokens)
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
