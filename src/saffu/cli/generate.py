"""saffu generate: sample text that continues a prompt."""

from __future__ import annotations

import argparse
import itertools
import secrets
import sys
from collections.abc import Sequence

from saffu.cli.options import (
    Command,
    Parser,
    add_device,
    add_model,
    add_settings,
    given_settings,
    integer,
    load_model,
    require_utf8,
)
from saffu.cli.output import print_json
from saffu.format import escape_controls

SEEDS = 1 << 32  # from which one is drawn if none is given


def add_options(parser: Parser, _: Sequence[str]) -> None:
    from saffu.tools.generate import Sampling

    add_model(parser)
    parser.add_argument("prompt", nargs="?", default="", metavar="PROMPT", help="text to continue [a new document]")
    add_settings(parser, Sampling)
    parser.add_argument("--lines", type=integer(1), default=1, metavar="N", help="stop after N lines [1]")
    parser.add_argument("--samples", type=integer(1), default=1, metavar="N", help="number of samples [1]")
    add_device(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object with all continuations")


def run(options: argparse.Namespace) -> None:
    from saffu.tools.generate import Sampling

    require_utf8(options.prompt)
    given = {"seed": secrets.randbelow(SEEDS)} | given_settings(options, Sampling)  # reported, to repeat a sample
    sampling = Sampling(**given)  # checked before the model is read
    lm = load_model(options)
    samples = []
    for number in range(options.samples):
        settings = sampling.to_dict() | {"seed": given["seed"] + number}
        pieces = lm.stream(options.prompt, lines=options.lines, **settings)
        if options.json:
            samples.append({"seed": settings["seed"], "text": "".join(pieces)})
            continue
        first = next(pieces, "")  # before anything is printed: a progress bar would overwrite the prompt
        for piece in itertools.chain([options.prompt, first], pieces):
            print(escape_controls(piece) if sys.stdout.isatty() else piece, end="", flush=True)
        print()
    if options.json:
        print_json({"prompt": options.prompt, "lines": options.lines, **sampling.to_dict(), "samples": samples})


COMMAND = Command(
    "generate",
    "generate text from a prompt",
    "MODEL [PROMPT] [options]",
    'saffu generate model "Once upon a time" --seed 1\nsaffu generate model --samples 5 --lines 3',
    add_options,
    run,
)
