"""saffu export: a model for other tools."""

import argparse
from pathlib import Path

from saffu.commands.common import Verb, model_facts, print_json
from saffu.errors import SaffuError


def add(verb: Verb) -> None:
    parser = verb(
        "export",
        run,
        "write a model as a folder that transformers loads, and saffu too",
        "saffu export model --to hf --out model-hf",
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--to", choices=("hf",), default="hf", help="hf: for transformers and lm_eval (default)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--force", action="store_true", help="replace what --out holds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    if options.out.resolve() == Path.cwd():
        raise SaffuError("--out is the folder you are in, and would be replaced as a whole; name a folder inside it")

    from saffu import store

    store.require_writable(options.out, options.force)

    from saffu.model import SaffuLM

    lm = SaffuLM.load(options.model)
    lm.export_hf(options.out)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    if options.json:
        print_json(model_facts(lm) | {"out": str(options.out), "bytes": size})
        return
    print(f"wrote {options.out} ({size / 1e6:.1f} MB); load it with")
    for loader in ("AutoModelForCausalLM", "AutoTokenizer"):
        print(f'  {loader}.from_pretrained("{options.out.as_posix()}", trust_remote_code=True)')
