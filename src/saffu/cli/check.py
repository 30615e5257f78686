"""saffu check: whether a model folder is what it says it is."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from saffu.cli.options import (
    Command,
    Parser,
    add_device,
    add_model,
    add_output_options,
    add_text_options,
    load_model,
    tokenized,
)
from saffu.cli.output import print_json, say
from saffu.errors import SaffuError
from saffu.format import warn


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = "all text that the model was made from, held-out lines included"
    parser.add_argument("text", nargs="*", metavar="TEXT", help=help)
    add_device(parser)
    add_output_options(parser)
    add_text_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu.commit import leftovers
    from saffu.model.checking import check_model

    try:
        lm = load_model(options, check=True)
        findings = check_model(lm, tokenized(options.text, options, lm) if options.text else None)
    except SaffuError as error:
        raise SaffuError(f"{options.model} fails the check: {error}") from None
    for path in leftovers(options.model):
        warn(f"{path} was left by a process that was killed, and may hold counts of forgotten text; delete it")
    if options.json:
        print_json({"sound": True, "verified": findings.verified, "notes": findings.notes})
        return
    say(options, f"{options.model} is sound: " + "; ".join([*findings.verified, *findings.notes]))


COMMAND = Command(
    "check",
    "verify that a model is intact, and that its counts are those of a text",
    "MODEL [TEXT ...] [options]",
    "saffu check model\nsaffu check model books/*.txt",
    add_options,
    run,
)
