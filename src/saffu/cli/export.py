"""saffu export: a model for other tools."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.living import require_original
from saffu.cli.options import (
    Command,
    Parser,
    add_model,
    add_output_options,
    add_text_options,
    flag,
    integer,
    load_model,
    named_path,
    require_output,
    tokenized,
)
from saffu.cli.output import model_facts, print_json
from saffu.errors import SaffuError
from saffu.format import warn

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = (
        "hf: a folder for transformers and lm_eval; arpa: the n-gram counts as a file for KenLM; int8: the same model "
        "with the weights of its network rounded to int8, smaller and faster; web: a page that runs in the browser, "
        "without a server [hf]"
    )
    parser.add_argument("--to", choices=FORMATS, default="hf", metavar="FORMAT", help=help)
    parser.add_argument("--out", type=named_path, required=True, metavar="PATH", help="output folder, or ARPA file")
    parser.add_argument("--force", action="store_true", help="overwrite --out if it exists")
    add_output_options(parser)
    arpa = parser.add_argument_group("ARPA")
    arpa.add_argument("--order", type=integer(2, 6), metavar="N", help="longest n-grams to write [all, up to 6]")
    help = "omit n-grams of three or more tokens that were counted at most N times [0]"
    arpa.add_argument("--prune", type=integer(0, 2**32 - 1), metavar="N", help=help)
    web = parser.add_argument_group("web")
    help = "all text that the model was made from, so that the page can show its documents and forget them"
    web.add_argument("--text", nargs="+", metavar="TEXT", help=help)
    add_text_options(parser)


def run(options: argparse.Namespace) -> None:
    require_original(options.model, "export the original model")
    for format, names in OPTIONS_OF.items():
        if options.to != format and any(getattr(options, name) is not None for name in names):
            need, them = ("needs", "it") if len(names) == 1 else ("need", "them")
            flags = " and ".join(map(flag, names))
            raise SaffuError(f"{flags} {need} --to {format}; pass that, or remove {them}")
    FORMATS[options.to](options)


def report(options: argparse.Namespace, lm: SaffuLM, size: int, sentence: str, **facts: Any) -> None:
    """Print what was written, and its size in bytes."""
    if options.json:
        print_json(model_facts(lm) | {"out": options.out, "bytes": size, **facts})
    else:
        print(sentence)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def export_hf(options: argparse.Namespace) -> None:
    """Write a folder for transformers."""
    require_output(options, options.model, whole=True)
    lm = load_model(options)
    lm.export_hf(options.out)
    size = size_of(options.out)
    load = f'from_pretrained("{options.out.as_posix()}", trust_remote_code=True)'
    lines = [f"wrote {options.out} ({size / 1e6:.1f} MB); load it with"]
    lines += [f"  {loader}.{load}" for loader in ("AutoModelForCausalLM", "AutoTokenizer")]
    report(options, lm, size, "\n".join(lines))


def export_int8(options: argparse.Namespace) -> None:
    """Write the same model with a network of int8 weights."""
    from saffu.files import path_of, read_manifest
    from saffu.model.folder import MODEL

    require_output(options, options.model)
    lm = load_model(options).quantize()
    lm.save(options.out)
    before, after = (
        path_of(folder, MODEL, read_manifest(folder)).stat().st_size for folder in (options.model, options.out)
    )
    megabytes = f"{after / 1e6:.1f} MB instead of {before / 1e6:.1f}"
    report(options, lm, after, f"wrote {options.out}; without its counts, the model takes {megabytes}")


def export_arpa(options: argparse.Namespace) -> None:
    """Write the n-gram counts as an ARPA file."""
    from saffu.tools.arpa import write_arpa
    from saffu.writing import is_stream, require_apart

    require_apart(options.out, options.model)
    lm = load_model(options)
    ngrams = write_arpa(lm.references_, lm.tokenizer_, options.out, options.order, options.prune or 0, options.force)
    if not is_stream(options.out):  # which may be where notes would go
        size = options.out.stat().st_size
        sentence = f"wrote {options.out} ({size / 1e6:.1f} MB): {sum(ngrams):,} n-grams of tokens"
        report(options, lm, size, sentence, ngrams=ngrams)


def export_web(options: argparse.Namespace) -> None:
    """Write a page that shows the counted model."""
    from saffu.model.checking import counted_text
    from saffu.play.web_page import MODEL, export_web

    require_output(options, options.model, *(options.text or ()), whole=True)
    lm = load_model(options)
    counted = None
    if options.text:
        corpus = tokenized(options.text, options, lm)
        try:
            counted = counted_text(lm, corpus)
        except SaffuError:
            differs = f"saffu check {options.model} TEXT shows what differs"
            raise SaffuError(f"`text` must be all text that the model was made from; {differs}") from None
    export_web(lm, options.out, options.model.resolve().name, counted)
    if lm.model_.has_network and not (options.json or options.quiet):
        warn("the page has the counted part of this model, without its network")
    holds = "the counts" if counted is None else "the counts and the text"
    size = size_of(options.out)
    written = f"wrote {options.out} ({size / 1e6:.1f} MB); {MODEL} holds {holds} of the model. Try it with"
    serve = f"  python -m http.server --bind 127.0.0.1 --directory {shlex.quote(str(options.out))}"
    report(options, lm, size, f"{written}\n{serve}")


FORMATS = {"hf": export_hf, "arpa": export_arpa, "int8": export_int8, "web": export_web}
OPTIONS_OF = {"arpa": ("order", "prune"), "web": ("text",)}  # which have some
COMMAND = Command(
    "export",
    "export a model for transformers and lm_eval, for KenLM, with int8 weights, or as a page",
    "MODEL --out PATH [options]",
    "saffu export model --out model-hf\n"
    "saffu export model --to arpa --out model.arpa\n"
    "saffu export model --to int8 --out model-int8\n"
    "saffu export model --to web --text notes.txt --out page",
    add_options,
    run,
)
