"""saffu complete: words that an unfinished text may continue with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from saffu.cli.options import Command, Parser, add_device, add_model, integer, load_model, require_utf8
from saffu.cli.output import print_json
from saffu.format import announce_keyboard, table

LEAST = 0.001  # a probability that is worth showing


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = "text whose last word is unfinished; end it with a space to ask for the next word [each line of stdin]"
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=help)
    parser.add_argument("--number", "-n", type=integer(1), default=5, metavar="N", help="number of words [5]")
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Print words and their probabilities, most likely first; with several prompts, rows with their numbers."""
    one = options.prompt is not None
    prompts: Iterable[str] = [options.prompt] if one else (line.removesuffix("\n") for line in sys.stdin)
    if one:
        require_utf8(options.prompt)
    lm = load_model(options)
    if not one:
        announce_keyboard()
    if not one and not options.json:
        print("id\tword\tprobability", flush=True)
    for number, prompt in enumerate(prompts, 1):
        words = lm.complete_word(prompt, options.number)
        if options.json:
            print_json({"prompt": prompt, "words": words})
        elif one:
            likely = {word: share for word, share in words.items() if share >= LEAST} or words
            print(table(["word", "probability"], [[word, f"{share:.3f}"] for word, share in likely.items()]))
        else:
            print("".join(f"{number}\t{word}\t{share:.4f}\n" for word, share in words.items()), end="", flush=True)


COMMAND = Command(
    "complete",
    "complete the last word of a text, or suggest the next one",
    "MODEL [PROMPT] [options]",
    'saffu complete model "the old ki"\nsaffu complete model "the old "\ncat prompts.txt | saffu complete model --json',
    add_options,
    run,
)
