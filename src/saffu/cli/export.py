"""saffu export: a model for other tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from saffu.cli.options import Command, Parser, add_model, require_output
from saffu.cli.output import model_facts, print_json


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument(
        "--to", choices=("hf",), default="hf", metavar="hf", help="hf: transformers and lm_eval (default)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--force", action="store_true", help="overwrite --out if it exists")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")


def run(options: argparse.Namespace) -> None:
    from saffu import load

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


COMMAND = Command(
    "export",
    "export a model for transformers and lm_eval",
    "MODEL --out DIR [options]",
    "saffu export model --out model-hf",
    add_options,
    run,
)
