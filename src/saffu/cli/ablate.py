"""saffu ablate: a grid of the paper's models, all scored on the same text."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from saffu.commands.common import Parser, Verb, add_common_options, add_text_options, count, print_json
from saffu.commands.train import HOLD_OUT, documents, tokenised
from saffu.config import SaffuConfig
from saffu.errors import SaffuError
from saffu.grid import DOCUMENTS, MODES, SIZES, SWEPT, grid
from saffu.wording import number_of

if TYPE_CHECKING:
    from saffu.cells import Cell

TOKENIZER = ("words", "kept_words", "count_by")  # settings that shape the text all cells share


def add(verb: Verb) -> None:
    parser = verb(
        "ablate",
        run,
        "fit a grid of the paper's models by the explicit solution and score each on the same text",
        "saffu ablate train/ --dev dev/ --out grid                 # the paper's 245 models\n"
        "  saffu ablate train/ --dev dev/ --out grid --blocks 128 --radii 2,4,8 --modes sum/cat\n"
        "  saffu ablate train/ --dev dev/ --out grid --blocks 128 --radii 8 --attention explicit,uniform\n"
        "  saffu report grid",
    )
    parser.add_argument("corpus", nargs="*", help="files, folders or globs; none: the English that ships with Python")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; what it has is not done again")
    parser.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text (default: every 20th document)")
    parser.add_argument(
        "--hold-out", type=int, default=HOLD_OUT, metavar="N", help="hold out every Nth document (default: 20)"
    )
    parser.add_argument(
        "--tokens",
        type=count,
        default=10**6,
        metavar="N",
        help="fit to about so many tokens, as documents from all over the text (default: 1e6)",
    )
    parser.add_argument(
        "--sample",
        type=count,
        default=10**5,
        metavar="N",
        help="score on about so many targets each of training and held-out text (default: 1e5)",
    )
    parser.add_argument(
        "--memory", type=size, metavar="BYTES", help="not to be exceeded: 500M, 6G (default: 6G; on a GPU, all free)"
    )
    shape = parser.add_argument_group("the grid (the paper's by default)")
    sizes = ",".join(map(str, SIZES))
    shape.add_argument("--blocks", type=values(int), default=SIZES, metavar="N,…", help=f"block sizes b ({sizes})")
    shape.add_argument("--radii", type=values(int), default=SIZES, metavar="N,…", help=f"radii r ({sizes})")
    shape.add_argument("--modes", type=values(str), metavar="BLOCK/RADIUS,…", help=f"mode pairs ({','.join(MODES)})")
    shape.add_argument(
        "--documents",
        type=int,
        nargs="?",
        const=DOCUMENTS,
        metavar="N",
        help=f"add the models with a document model of N shards ({DOCUMENTS}), on sum/cat if that is among --modes, "
        "else on each; 0 for none (default: added, unless --modes is given)",
    )
    add_sweeps(parser)
    add_text_options(parser)
    add_common_options(parser)


def add_sweeps(parser: Parser) -> None:
    """An option for each setting; those of the model take several values, and every combination is fitted."""
    group = parser.add_argument_group("settings: one value, or several with commas for a sweep")
    shared = parser.add_argument_group("settings of the tokenizer, one value each")
    kinds = get_type_hints(SaffuConfig)
    for setting in fields(SaffuConfig):
        flag, kind = "--" + setting.name.replace("_", "-"), kinds[setting.name]
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        kind = type(choices[0]) if choices else kind
        told = ",".join(map(str, choices)) if choices else {int: "N,…", float: "X,…", bool: "yes,no"}[kind]
        meaning = f"{setting.metadata['meaning']} ({setting.default})"
        if setting.name in SWEPT:
            group.add_argument(flag, type=values(kind), metavar=told, help=meaning)
        elif setting.name in TOKENIZER:
            shared.add_argument(flag, type=kind, choices=choices or None, default=setting.default, help=meaning)


def values(kind: type) -> Callable[[str], list[Any]]:
    """A list with commas: "2,4,8"."""

    def parse(text: str) -> list[Any]:
        try:
            found = [truth(word) if kind is bool else kind(word) for word in map(str.strip, text.split(",")) if word]
        except ValueError:
            found = []
        if not found:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of values such as {example(kind)}")
        return list(dict.fromkeys(found))

    return parse


def truth(word: str) -> bool:
    if word not in ("yes", "no"):
        raise ValueError(word)
    return word == "yes"


def example(kind: type) -> str:
    return {int: "2,4,8", float: "0.001,0.01", bool: "yes,no"}.get(kind, "sum/cat,cat/cat")


def size(text: str) -> int:
    """A number of bytes: 500M, 6G, 6e9."""
    try:
        return count(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes (500M, 6G, 6e9)") from None


def run(options: argparse.Namespace) -> None:
    cells = asked_cells(options)
    if options.hold_out < 2 and not options.dev:
        raise SaffuError(f"--hold-out is {options.hold_out}; an ablation needs held-out text: 2 or more, or --dev FILE")
    require_apart(options)
    if options.out.exists() and not options.out.is_dir():
        raise SaffuError(f"{options.out} is a file, and the results are a folder; choose another --out")

    from saffu import ablate
    from saffu.cells import Results, cell_key
    from saffu.devices import usable_device
    from saffu.distributed import ALONE
    from saffu.tokenizer import Tokenizer

    device = usable_device(options.device)
    results = Results(options.out)
    for note in results.notes:
        say(options, f"note: {note}")
    how = {
        "corpus": options.corpus,
        "dev": options.dev or [],
        "hold_out": 0 if options.dev else options.hold_out,
        "tokens": None,
        "split": options.split,
        "encoding_errors": options.encoding_errors,
    }
    train, _ = documents(how)
    tokenizer = Tokenizer.train(train, **{name: getattr(options, name) for name in TOKENIZER})
    memory = options.memory or ablate.usual_memory(device)
    ablate.require_memory(cells, len(tokenizer), memory)
    with tempfile.TemporaryDirectory(prefix="saffu-") as scratch:
        corpus, dev = tokenised(how, tokenizer, Path(scratch), ALONE)
        ablate.require_apart(corpus, dev)  # before a part of it is taken
        if corpus.targets > options.tokens:
            corpus = corpus.divided(options.tokens / corpus.targets)[0]
        text = ablate.Text.of(corpus, dev, tokenizer, options.sample)
        say(
            options,
            f"{corpus.targets:,} tokens in {number_of(corpus.documents, 'document')}, vocabulary {len(tokenizer):,}; "
            f"scored on {text.samples['train'].targets:,} of them and {text.samples['dev'].targets:,} held out",
        )
        try:
            ablation = ablate.Ablation(results, text, device, memory)
            finished = sum(cell_key(cell) in results.cells for cell in cells)
            say(options, number_of(len(cells), "cell") + (f", {finished} of them done before" if finished else ""))
            done = ablation.run(cells)
        except KeyboardInterrupt:
            print(f"saffu: interrupted; the same command goes on where it stopped in {options.out}", file=sys.stderr)
            sys.exit(130)
    tell(options, done, results.run)


def asked_cells(options: argparse.Namespace) -> list[SaffuConfig]:
    shards = options.documents if options.documents is not None else 0 if options.modes else DOCUMENTS
    sweeps = {name: chosen for name in SWEPT if (chosen := getattr(options, name)) is not None}
    if 0 in sweeps.get("hidden_dimension", ()) and options.documents is None:
        shards = 0  # nothing it could speak to
    return grid(options.blocks, options.radii, options.modes or MODES, shards, sweeps)


def require_apart(options: argparse.Namespace) -> None:
    """Held-out text must not be what is counted."""
    if not (options.corpus and options.dev):
        return
    from saffu import text

    counted, held_out = ({f.resolve() for f in text.find_files(names)} for names in (options.corpus, options.dev))
    if both := counted & held_out:
        raise SaffuError(f"{min(both).name} is both training and held-out text; name it in one place only")


def tell(options: argparse.Namespace, done: list["Cell"], facts: dict[str, Any]) -> None:
    """The best cell of each mode pair."""
    best: dict[str, dict[str, Any]] = {}
    for cell in done:
        name = cell.modes + (" + documents" if cell.config.documents else "")
        if cell.train and cell.dev and cell.dev.perplexity < best.get(name, {}).get("dev_perplexity", float("inf")):
            best[name] = {"block": cell.config.block, "radius": cell.config.radius, "parameters": cell.parameters}
            best[name] |= {"train_perplexity": cell.train.perplexity, "dev_perplexity": cell.dev.perplexity}
    failures = [cell.failure for cell in done if cell.failure]
    if options.json:
        told = {"out": str(options.out), "cells": len(done), "failures": len(failures), "best": best}
        print_json(told | {"run": facts})
        return
    print(f"{'best of each':<20} {'b':>4} {'r':>4} {'train ppl':>10} {'dev ppl':>10} {'parameters':>12}")
    for name, row in best.items():
        scores = f"{row['train_perplexity']:>10.2f} {row['dev_perplexity']:>10.2f}"
        print(f"{name:<20} {row['block']:>4} {row['radius']:>4} {scores} {row['parameters']:>12,}")
    for why in dict.fromkeys(failures):
        print(f"{number_of(failures.count(why), 'cell')} could not be fitted: {why}")
    print(f"tables, figures and a page: saffu report {options.out}")


def say(options: argparse.Namespace, line: str) -> None:
    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)
