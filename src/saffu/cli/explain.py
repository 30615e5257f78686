"""saffu explain: what each part of the context adds to the prediction of the next token."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from saffu.cli.options import Command, Parser, add_model, integer, load_model, require_utf8
from saffu.cli.output import clipped, print_json, warn_of_space
from saffu.errors import SaffuError
from saffu.format import plural, show_token, warn

if TYPE_CHECKING:
    from saffu.interface import Explanation
    from saffu.text.tokenizer import Tokenizer
    from saffu.tools.explain import Reason

REASONS = 5  # on the first screen, for each candidate
LITTLE = 1.0  # bits below which no reason is worth a sentence
WORDS = 8  # tokens of the prompt in a sentence
LABEL, CELL = 40, 8  # characters
BOLD, DIM, RED, GREEN = "1", "2", "31", "32"


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument("prompt", nargs="?", default="", metavar="PROMPT", help="the context [a new document]")
    help = "explain the N most likely tokens [1; 0 with --target; 5 with --all and --json]"
    parser.add_argument("--top", type=integer(0), metavar="N", help=help)
    help = "explain these candidates, before the top N"
    parser.add_argument("--target", nargs="+", default=[], metavar="WORD", help=help)
    help = "show the N strongest reasons, or parts of the sum [5; all with --all]"
    parser.add_argument("--rows", type=integer(1), metavar="N", help=help)
    parser.add_argument("--all", action="store_true", help="show the whole sum: every part of the model, in bits")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all parts")


def run(options: argparse.Namespace) -> None:
    from saffu.tools.explain import HalfWord, candidate, explanation_facts, most_likely

    whole = options.all or options.json
    top = options.top if options.top is not None else 5 if whole else int(not options.target)
    if not (top or options.target):
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
    likely = most_likely(lm.model_, explanation, top, among) or most_likely(lm.model_, explanation, top)
    candidates = list(dict.fromkeys([*named, *likely]))
    if options.json:
        print_json({"prompt": options.prompt, **explanation_facts(explanation, lm.tokenizer_, candidates)})
        return
    terminal = sys.stdout.isatty()
    color = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if terminal else 80
    if options.all:
        facts = explanation_facts(explanation, lm.tokenizer_, candidates)
        lines = tables(facts, options.rows, max(width, LABEL + CELL), color)
    else:
        lines = summaries(lm.tokenizer_, explanation, candidates, options.rows or REASONS, width, color)
    print("\n".join(lines))


def summaries(
    tokenizer: Tokenizer, explanation: Explanation, candidates: Sequence[int], rows: int, width: int, color: bool
) -> list[str]:
    """For each candidate, a sentence and its strongest reasons."""
    from saffu.tools.explain import reasons

    lines = []
    for token in candidates:
        found = reasons(explanation, tokenizer, token)
        lines += [*textwrap.wrap(sentence(tokenizer, explanation, token, found), width - 1), ""]
        page = Page(color)
        lines += [f"  {page.paint(signed(each.bits).rjust(6), hue(each.bits))}  {each.text}" for each in found[:rows]]
        lines += [""]
    return [*lines, "In bits: each + doubles the probability, each − halves it. The whole sum: --all"]


def sentence(tokenizer: Tokenizer, explanation: Explanation, token: int, found: Sequence[Reason]) -> str:
    """How likely a candidate is, and the strongest reason for it, if there is one worth a sentence."""
    from saffu.tools.explain import candidate_text, seen_text

    context = explanation.context
    after = seen_text(tokenizer, context, context[-WORDS:])
    where = f"After {after}" if after else "Where a line begins"
    likely = as_percent(math.exp(explanation.log_probabilities[token]))
    begin = f"{where}, {candidate_text(tokenizer, context, token)} is {likely} likely"
    strongest = max(found, key=lambda reason: reason.bits, default=None)
    if strongest is None or strongest.bits < LITTLE:
        return f"{begin}; nothing before it makes it much likelier."
    others = sum(reason.bits for reason in found if reason.bits > 0) - strongest.bits
    return f"{begin}, {'mostly' if strongest.bits > others else 'above all'} because of {strongest.text}."


def as_percent(p: float) -> str:
    return f"{p:.2%}" if p >= 1e-4 else f"{p:.0e}"


def tables(facts: Mapping[str, Any], rows: int | None = None, width: int = 80, color: bool = False) -> list[str]:
    """The explanation as lines of text: as many candidates side by side as fit, then the next ones below."""
    lines = ["bits that each part adds for (+) or against (−) a next token"]
    fitting = (width - LABEL) // CELL
    for first in range(0, len(facts["candidates"]), fitting):
        shown = slice(first, first + fitting)
        page = Page(color)
        page.head([show_token(candidate["token"]) for candidate in facts["candidates"][shown]])
        page.terms(facts["terms"], shown, rows)
        page.row("= log₂ p", facts["log_probabilities"][shown], BOLD)
        page.row("p", list(map(as_percent, facts["probabilities"][shown])), BOLD)
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

    def terms(self, terms: Sequence[Mapping[str, Any]], shown: slice, rows: int | None, share: bool = False) -> None:
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
    "explain why a token is predicted",
    "MODEL [PROMPT] [options]",
    'saffu explain model "Once upon a"\n'
    'saffu explain model "Once upon a" --target time day\n'
    'saffu explain model "Once upon a" --all\n'
    'saffu explain model "Once upon a" --top 20 --json',
    add_options,
    run,
)
