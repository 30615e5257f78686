"""saffu generate: a model writes on from a prompt."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from saffu.commands.common import Verb
from saffu.errors import SaffuError


def add(verb: Verb) -> None:
    parser = verb(
        "generate",
        run,
        "write on from a prompt",
        'saffu generate model "Once upon a time" --top-p 0.9 --seed 1',
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("prompt", nargs="?", default="", help="start of the document (default: none)")
    parser.add_argument("--max-tokens", type=int, default=100, metavar="N", help="stop after N tokens (default: 100)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0: always the likeliest token")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest tokens")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest that hold P")
    parser.add_argument("--seed", type=int, default=None, help="the same seed gives the same text")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="write N documents")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, … (default: cpu)")


def run(options: argparse.Namespace) -> None:
    from saffu.generate import Sampling
    from saffu.model import SaffuLM

    if options.count < 1:
        raise SaffuError(f"--count is {options.count}; it must be at least 1")
    if any("\ud800" <= character <= "\udfff" for character in options.prompt):
        raise SaffuError("the prompt is not UTF-8; give it in that encoding")
    chosen = {setting.name: getattr(options, setting.name) for setting in fields(Sampling)}
    Sampling(**chosen)  # what is wrong with it is said before the model is read
    lm = SaffuLM.load(options.model, options.device)
    for number in range(options.count):
        seed = None if options.seed is None else options.seed + number
        pieces = lm.stream(options.prompt, **chosen | {"seed": seed})
        print(options.prompt, end="", flush=True)
        for piece in pieces:
            print(harmless(piece) if sys.stdout.isatty() else piece, end="", flush=True)
        print()


def harmless(text: str) -> str:
    """Control characters spelled out, so that no text can steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)
