"""saffu merge: models that share an encoder become one, as if all their documents had been counted together."""

import argparse
import sys
from pathlib import Path

from saffu.commands.common import Verb, model_facts, print_json
from saffu.errors import SaffuError
from saffu.wording import number_of


def add(verb: Verb) -> None:
    parser = verb(
        "merge",
        run,
        "add up models that share tokenizer and encoder",
        "saffu train shard1.txt --out one\n"
        "  saffu train shard2.txt --encoder one --out two\n"
        "  saffu merge one two --out both",
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the merged model to")
    parser.add_argument("--force", action="store_true", help="replace what --out holds")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    if len({folder.resolve() for folder in options.models}) < len(options.models):
        raise SaffuError("a model is named twice, and its documents would count twice; name each once")

    from saffu import living, lock, store
    from saffu.model import SaffuLM

    store.require_writable(options.out, options.force)
    with lock.exclusive(options.out, wait=False):
        lm = living.merge(SaffuLM.load(folder) for folder in options.models)
        lm.save(options.out)
    if shared := lm.log_[-1]["shared"]:
        are = "document is" if shared == 1 else "documents are"
        print(f"saffu: {shared:,} {are} in more than one of the models, counted in each", file=sys.stderr)
    if options.json:
        print_json(model_facts(lm) | {"out": str(options.out)})
        return
    documents, tokens = number_of(lm.trained_on_["documents"], "document"), lm.trained_on_["tokens"]
    print(f"merged {number_of(len(options.models), 'model')}: {documents}, {tokens:,} tokens, saved in {options.out}")
