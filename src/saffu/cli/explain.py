"""saffu explain: what each part of the context adds to the prediction of the next token."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from saffu.cli.options import Command, Parser, add_model, integer, load_model, require_utf8
from saffu.cli.output import clipped, print_json, warn_of_space
from saffu.errors import SaffuError
from saffu.format import plural, show_token, warn

LABEL, CELL = 40, 8  # characters
BOLD, DIM, RED, GREEN = "1", "2", "31", "32"


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument("prompt", nargs="?", default="", metavar="PROMPT", help="the context [a new document]")
    parser.add_argument("--top", type=integer(0), default=5, metavar="N", help="show the N most likely tokens [5]")
    help = "also show these candidates, before the top N"
    parser.add_argument("--target", nargs="+", default=[], metavar="WORD", help=help)
    help = "show the N largest contributions and the sum of the rest [14]"
    parser.add_argument("--rows", type=integer(1), default=14, metavar="N", help=help)
    parser.add_argument("--json", action="store_true", help="print one JSON object with all parts")


def run(options: argparse.Namespace) -> None:
    from saffu.tools.explain import HalfWord, candidate, explanation_facts, most_likely

    if not (options.top or options.target):
        raise SaffuError("--top must be at least 1 without --target; pass one of them")
    require_utf8(options.prompt, *options.target)
    lm = load_model(options)
    warn_of_space(options.prompt, lm.tokenizer_)
    half = None if options.target else HalfWord.of(lm.model_, lm.tokenizer_, options.prompt)
    if half:
        typed = half.typed.strip()
        warn(
            f"the prompt seems to end inside a word: {typed!r} becomes {half.completion!r} with a probability of "
            f"{half.share:.0%}; showing the tokens that begin or contain {typed!r}"
        )
    explanation = lm.explain(half.before if half else options.prompt)
    among = half.tokens(lm.tokenizer_) if half else None
    named = [candidate(lm.tokenizer_, options.prompt, word) for word in options.target]
    for word, token in zip(options.target, map(lm.tokenizer_.token, named), strict=True):
        if token.strip() != word.strip():
            first = show_token(token)
            warn(f"the target {show_token(word)!r} is more than one token; showing its first token, {first!r}")
    candidates = list(
        dict.fromkeys([*named, *(int(token) for token in most_likely(lm.model_, explanation, options.top, among))])
    )
    facts = explanation_facts(explanation, lm.tokenizer_, candidates)
    if options.json:
        print_json({"prompt": options.prompt, **facts})
        return
    terminal = sys.stdout.isatty()
    color = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if terminal else 80
    print("\n".join(tables(facts, options.rows, max(width, LABEL + CELL), color)))


def tables(facts: Mapping[str, Any], rows: int = 14, width: int = 80, color: bool = False) -> list[str]:
    """The explanation as lines of text: as many candidates side by side as fit, then the next ones below."""
    lines = ["bits that each part adds for (+) or against (−) a next token"]
    fitting = (width - LABEL) // CELL
    for first in range(0, len(facts["candidates"]), fitting):
        shown = slice(first, first + fitting)
        page = Page(color)
        page.head([show_token(candidate["token"]) for candidate in facts["candidates"][shown]])
        page.terms(facts["terms"], shown, rows)
        page.row("= log₂ p", facts["log_probabilities"][shown], BOLD)
        page.row("p", [f"{p:.2%}" if p >= 1e-4 else f"{p:.0e}" for p in facts["probabilities"][shown]], BOLD)
        for title, terms in facts["details"].items():
            page.lines += ["", title]
            page.terms(terms, shown, rows, share=title.endswith("share"))
        lines += ["", *page.lines]
    earlier = occurrences(facts, width) if any(term["name"].startswith("document,") for term in facts["terms"]) else []
    return [*lines, *(["", "earlier in the document", *earlier] if earlier else [])]


def occurrences(facts: Mapping[str, Any], width: int) -> list[str]:
    """How often each candidate occurs in the context, and so in its memory, and its last occurrence."""
    lines = []
    for candidate in facts["candidates"]:
        if places := candidate["earlier"]:
            times = plural(len(places), "time")
            back = plural(len(facts["context"]) - places[-1], "token")
            head = f"{clipped(show_token(candidate['token']), 21):<22}{times}, last {back} back: "
            lines.append(head + ending(facts["context"][: places[-1] + 1], max(20, width - len(head))))
    return lines


class Page:
    """Rows of a label and one cell per candidate."""

    def __init__(self, color: bool):
        self.color = color
        self.lines: list[str] = []

    def paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.color and code else text

    def head(self, candidates: Sequence[str]) -> None:
        cells = [clipped(token, CELL - 1).rjust(CELL) for token in candidates]
        self.lines.append(" " * LABEL + self.paint("".join(cells), BOLD))

    def row(self, label: str, values: Sequence[float | str], code: str = "") -> None:
        cells = []
        for value in values:
            text = value if isinstance(value, str) else signed(value)
            cells.append(self.paint(text.rjust(CELL), code or ("" if isinstance(value, str) else hue(value))))
        self.lines.append(self.paint(clipped(label, LABEL - 1).ljust(LABEL), code) + "".join(cells))

    def terms(self, terms: Sequence[Mapping[str, Any]], shown: slice, rows: int, share: bool = False) -> None:
        """The largest terms in their order, and the sum of all others."""
        strength = [max(abs(value) for value in term["values"][shown]) for term in terms]
        largest = set(sorted(range(len(terms)), key=lambda number: -strength[number])[:rows])
        for number, term in enumerate(terms):
            if number in largest:
                values = term["values"][shown]
                self.row(label(term), [f"{value:.0%}" for value in values] if share else values)
        others = [term["values"][shown] for number, term in enumerate(terms) if number not in largest]
        if others:
            sums = [sum(column) for column in zip(*others, strict=True)]
            self.row(plural(len(others), "other"), [f"{value:.0%}" for value in sums] if share else sums)


def label(term: Mapping[str, Any]) -> str:
    """The name of a term, its weight, and the context it saw."""
    weight = "" if term["weight"] is None else f"{round(term['weight'], 2) + 0.0:.2f}".replace("-", "−")  # not −0.00
    times = f"{term['slots']} × " if term["slots"] > 1 else ""
    seen = times + ending(term["seen"], LABEL - 29 - len(times)) if term["seen"] else ""
    return f"{clipped(term['name'], 21):<21}{weight:>6} {seen}"


def hue(value: float) -> str:
    return DIM if abs(value) < 0.05 else GREEN if value > 0 else RED


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def ending(tokens: Sequence[str], width: int) -> str:
    """The last of some tokens, which are nearest to the prediction."""
    text = "".join(show_token(token) for token in tokens)
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


COMMAND = Command(
    "explain",
    "explain a next-token prediction, part by part",
    "MODEL [PROMPT] [options]",
    'saffu explain model "Once upon a"\n'
    'saffu explain model "Once upon a" --target time day --top 3\n'
    'saffu explain model "Once upon a" --top 20 --json',
    add_options,
    run,
)
