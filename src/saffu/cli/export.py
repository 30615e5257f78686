"""saffu export: a model for other tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saffu.cli.options import Command, Parser, add_model, add_text_options, require_output
from saffu.cli.output import model_facts, print_json
from saffu.cli.reading import Reading, Text
from saffu.errors import SaffuError

if TYPE_CHECKING:
    from saffu import SaffuLM


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument(
        "--to", choices=("hf",), default="hf", metavar="hf", help="hf: transformers and lm_eval (default)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--force", action="store_true", help="overwrite --out if it exists")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    help = "instead of MODEL, export models fitted to the first words of its training text, to DIR/chck_1M, …"
    parser.add_argument("--checkpoints", nargs="+", metavar="TEXT", help=help)
    help = "checkpoints, in millions of words [1,2,…,10,20,…,100]"
    parser.add_argument("--sizes", type=sizes, metavar="N,N,…", help=help)
    add_text_options(parser)


def sizes(text: str) -> list[int]:
    """Numbers separated by commas.

    >>> sizes("1,2,10")
    [1, 2, 10]
    """
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() and int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"invalid sizes {text[:40]!r}; expected, e.g., 1,2,10")
    return [int(number) for number in numbers]


def run(options: argparse.Namespace) -> None:
    from saffu import load

    if options.checkpoints:
        export_checkpoints(load(options.model), options)
        return
    if options.sizes:
        raise SaffuError("--sizes needs the training text; pass --checkpoints TEXT")
    require_output(options)
    lm = load(options.model)
    lm.export_hf(options.out)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    if options.json:
        print_json(model_facts(lm) | {"out": options.out, "bytes": size})
        return
    print(f"wrote {options.out} ({size / 1e6:.1f} MB); load it with")
    for loader in ("AutoModelForCausalLM", "AutoTokenizer"):
        print(f'  {loader}.from_pretrained("{options.out.as_posix()}", trust_remote_code=True)')


def export_checkpoints(lm: SaffuLM, options: argparse.Namespace) -> None:
    """Export models with the settings and the tokenizer of `lm`."""
    from saffu.model import export

    with Text(options.checkpoints, Reading.of(options, lm.source_)) as text:
        chosen = options.sizes or export.CHECKPOINTS
        written = export.export_checkpoints(lm.config, text, chosen, options.out, lm.tokenizer_, options.force)
        text.warn_of_skipped()
    if options.json:
        print_json({"checkpoints": written})
        return
    for folder in written:
        print(f"wrote {folder}")


COMMAND = Command(
    "export",
    "export a model for transformers and lm_eval",
    "MODEL --out DIR [options]",
    "saffu export model --out model-hf\nsaffu export model --checkpoints text/*.txt --sizes 1,2,5,10 --out checkpoints",
    add_options,
    run,
)
