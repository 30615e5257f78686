"""Output of the commands: notes, JSON, and the log of a training run."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import combining, east_asian_width

from saffu.format import bars_cleared, escape_controls, show_token, to_json, warn

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.text.tokenizer import Tokenizer

SHORTEST = 12  # columns of a sample that is worth showing


def print_json(facts: Mapping[str, Any]) -> None:
    print(to_json(facts))


def model_facts(lm: SaffuLM) -> dict[str, Any]:
    """The facts about a model that --json always includes."""
    return {
        "preset": lm.config.preset,
        "parameters": lm.parameters_,
        "vocabulary": len(lm.tokenizer_),
        "settings": lm.config.to_dict(),
        "trained_on": lm.trained_on_,
    }


def say(options: argparse.Namespace, text: str) -> None:
    """Print a note: to standard output or, with --json, to standard error; with --quiet, not at all."""
    if not options.quiet:
        print_unless_closed(escape_controls(text), sys.stderr if options.json else sys.stdout)


class Harmless:
    """A terminal that no text can control: what is printed to it has its control characters escaped."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal

    def write(self, text: str) -> int:
        return self._terminal.write(escape_controls(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)


def warn_of_space(prompt: str, tokenizer: Tokenizer) -> None:
    """Tokens carry the space before a word, so a space at the end of a prompt is a token that hardly occurs."""
    if tokenizer.encode(prompt) != tokenizer.encode(prompt.rstrip(" ")):
        warn("the prompt ends with a space, which belongs to the next word; omit it for a better continuation")


def print_unless_closed(text: str, stream: TextIO) -> None:
    """Print to a stream whose reader may have exited, or whose disk may be full; work continues without it."""
    try:
        with bars_cleared():
            print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def columns(text: str) -> int:
    """How many columns a text takes: East Asian characters take two, marks on others none.

    >>> columns("naïve"), columns("東京"), columns("e\u0301")
    (5, 4, 1)
    """
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def clipped(text: str, width: int) -> str:
    """The beginning of a text, at most `width` columns wide.

    >>> clipped("normalizer", 6), clipped("東京都", 5)
    ('norma…', '東京…')
    """
    if columns(text) <= width:
        return text
    while text and columns(text) >= width:
        text = text[:-1]
    return text + "…"


def readable(sample: str) -> str:
    """The first text of a sample of short documents, without markers, on one line.

    >>> readable("<sod>the small dog<eod><sod>a king…")
    'the small dog'
    """
    texts = [show_token(text.removesuffix("<eod>")).replace("▁", " ").strip() for text in sample.split("<sod>")]
    return next(filter(None, texts), "")


def with_sample(row: str, sample: str) -> str:
    """A row of a table, and what fits of a sample on the same line of the terminal; nothing if that is too little."""
    room = shutil.get_terminal_size().columns - 1 - len(row) - 2
    return row if room < SHORTEST else f"{row}  {clipped(sample, room)}"


class Log:
    """The rows of a training run as they come."""

    def __init__(self, options: argparse.Namespace, backprop: bool, network: bool = False):
        """`network`: whether what is trained is a network next to counts."""
        self.options = options
        self.columns = [("stage", "<10" if network else "<14", "stage")]
        if network:
            self.columns += [
                ("counted_bits_per_byte", ">7.3f", "counted"),
                ("network_bits_per_byte", ">7.3f", "network"),
            ]
        elif backprop:
            self.columns += [("train_perplexity", ">9.2f", "train ppl")]
        self.columns += [("dev_perplexity", ">9.2f", "dev ppl"), ("dev_bits_per_byte", ">9.3f", "bits/byte")]
        self.columns += [("seconds", ">8.1f", "seconds")]
        self.begun = False

    def say(self, text: str) -> None:
        say(self.options, text)

    def row(self, row: Mapping[str, Any]) -> None:
        if not self.begun:
            heads = [f"{title:{form[0]}{_width(form)}}" for _, form, title in self.columns]
            self.say(with_sample("  ".join(heads), "sample"))
        self.begun = True
        cells = [f"{row[key]:{form}}" if key in row else " " * _width(form) for key, form, _ in self.columns]
        self.say(with_sample("  ".join(cells), readable(str(row.get("sample", "")))).rstrip())
        for warning in row.get("warnings", ()):
            self.say(f"note: {warning}")
        if "outcome" in row:
            self.say(row["outcome"])


def _width(form: str) -> int:
    """Characters in a cell: ">9.2f" → 9."""
    return int("".join(c for c in form.split(".")[0] if c.isdigit()))
