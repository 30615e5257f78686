"""saffu ablate: a grid of the paper's models, all scored on the same text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from saffu.cli.options import (
    Command,
    Parser,
    add_output_options,
    add_text_options,
    converted,
    count,
    device_of,
    integer,
    named_path,
    named_setting,
    rare_help,
    reading_of,
    selection_of,
)
from saffu.cli.output import print_json, say
from saffu.errors import SaffuError
from saffu.format import plural, table, warn
from saffu.settings import Settings

if TYPE_CHECKING:
    from saffu.experiments.results import Cell
    from saffu.paper.config import PaperConfig
    from saffu.text.tokenizer import TokenizerConfig


def add_options(parser: Parser, _: Sequence[str]) -> None:
    from saffu.experiments.grid import DOCUMENT_SHARDS, MODES, SIZES, SWEPT
    from saffu.paper.config import PaperConfig
    from saffu.text.tokenizer import TokenizerConfig

    help = "files, folders, globs, or - for stdin [the English text that ships with Python]"
    parser.add_argument("text", nargs="*", metavar="TEXT", help=help)
    help = "results; finished cells are not recomputed"
    parser.add_argument("--out", type=named_path, required=True, metavar="DIR", help=help)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, cuda, or cuda:N [cpu]")
    help = "fit within this much memory (500M, 2G) [6G; on a GPU, 90%% of free memory]"
    parser.add_argument("--memory-limit", type=count, metavar="SIZE", help=help)
    add_output_options(parser)
    group = add_text_options(parser, "line")
    group.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text")
    help = "without --dev, hold out every Nth document [20]"
    group.add_argument("--hold-out", type=integer(2), default=20, metavar="N", help=help)
    group.add_argument("--max-tokens", type=count, default=10**6, metavar="N", help="fit to the first N tokens [1e6]")
    help = "score on about N tokens each of training and held-out text [1e5]"
    group.add_argument("--eval-tokens", type=count, default=10**5, metavar="N", help=help)
    shape = parser.add_argument_group("grid (default: the paper's)")
    sizes = ",".join(map(str, SIZES))
    shape.add_argument("--blocks", type=values(int), default=SIZES, metavar="N,…", help=f"block sizes [{sizes}]")
    shape.add_argument("--radii", type=values(int), default=SIZES, metavar="N,…", help=f"radii [{sizes}]")
    help = f"modes of block and radius [{','.join(MODES)}]"
    shape.add_argument("--modes", type=values(str), metavar="BLOCK/RADIUS,…", help=help)
    help = f"add models with a document model of N shards; 0 for none [{DOCUMENT_SHARDS}; 0 with --modes]"
    shape.add_argument("--document-shards", type=integer(0), metavar="N", help=help)
    help = "other settings; with several values, every combination is fitted; `--set help` lists them"
    shape.add_argument("--set", action="append", default=[], metavar="NAME=VALUE,…", help=help)
    rare: dict[str, Settings] = {entry.name: TokenizerConfig() for entry in fields(TokenizerConfig)}
    parser.set_defaults(rare=rare | dict.fromkeys(SWEPT, PaperConfig()))


def values(kind: type) -> Callable[[str], list[Any]]:
    """A type for options: values with commas, each once."""

    def parse(text: str) -> list[Any]:
        try:
            words = [kind(word) for word in map(str.strip, text.split(",")) if word]
        except ValueError:
            words = []
        if not words:
            example = "2,4,8" if kind is int else "sum/cat,cat/cat"
            raise argparse.ArgumentTypeError(
                f"invalid list {text!r}; expected comma-separated values such as {example}"
            )
        return list(dict.fromkeys(words))

    return parse


def run(options: argparse.Namespace) -> None:
    from saffu.text.tokenizer import TokenizerConfig

    if "help" in options.set:
        print(rare_help(options))
        return
    sweeps = dict(swept(given, options) for given in options.set)
    tokenizer_settings: dict[str, Any] = {"bpe_count": "types"}
    for name in sorted(name for name in sweeps if isinstance(options.rare[name], TokenizerConfig)):
        settings = sweeps.pop(name)
        if len(settings) > 1:
            raise SaffuError(f"--set {name} affects the text that all cells share; pass one value")
        tokenizer_settings[name] = settings[0]
    cells = cells_of(options, sweeps)
    if options.out.exists() and not options.out.is_dir():
        raise SaffuError(f"--out {options.out} is a file; pass a folder")
    run_cells(options, cells, TokenizerConfig(**tokenizer_settings))


def swept(given: str, options: argparse.Namespace) -> tuple[str, list[Any]]:
    """The name and the values of one --set."""
    name, text = named_setting(given, options)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise SaffuError(f"--set {name} has no value; use --set {name}=VALUE or {name}=VALUE,VALUE")
    return name, list(dict.fromkeys(converted(name, word, options) for word in words))


def cells_of(options: argparse.Namespace, sweeps: dict[str, list[Any]]) -> list[PaperConfig]:
    from saffu.experiments.grid import DOCUMENT_SHARDS, MODES, grid

    shards = options.document_shards
    if shards is None:
        shards = 0 if options.modes else DOCUMENT_SHARDS
    return grid(options.blocks, options.radii, options.modes or MODES, shards, sweeps)


def run_cells(options: argparse.Namespace, cells: list[PaperConfig], tokenizer_config: TokenizerConfig) -> None:
    from saffu.experiments import scoring
    from saffu.text.selection import TrainingText

    selection = selection_of(options, reading_of(options, split="line"))
    device = device_of(options)
    memory = options.memory_limit or scoring.usual_memory(device)
    with TrainingText(selection) as text:
        text.leave_out_bad_files()
        tokenizer = text.learned(tokenizer_config)
        scoring.require_memory(cells, len(tokenizer), memory)
        corpus, dev = text.tokenized(tokenizer)
        grid_corpus = scoring.GridCorpus.build(corpus, dev, tokenizer, eval_tokens=options.eval_tokens)
        say(
            options,
            f"{plural(len(cells), 'cell')}, fitted to {corpus.targets:,} tokens in "
            f"{plural(corpus.documents, 'document')}, vocabulary {len(tokenizer):,}",
        )
        try:
            done = scoring.run_grid(options.out, cells, grid_corpus, device=device, memory_limit=memory)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"interrupted; rerun the same command to resume in {options.out}") from None
    finish(options, done)


def finish(options: argparse.Namespace, done: list[Cell]) -> None:
    """Show the best cell of each pair of modes."""
    from saffu.experiments.results import Results
    from saffu.experiments.tables import best_cells

    results = Results(options.out)
    if results.damage:
        warn(results.damage)
    failures = [cell.failure for cell in done if cell.failure]
    names = ("block", "radius", "parameters", "train_perplexity", "dev_perplexity")
    best = {title: {name: cell.facts()[name] for name in names} for title, cell in best_cells(done).items()}
    if options.json:
        facts = {"out": options.out, "cells": len(done), "failures": len(failures), "best": best}
        print_json(facts | {"run": results.run})
        return
    rows = [
        [
            name,
            str(row["block"]),
            str(row["radius"]),
            f"{row['train_perplexity']:.2f}",
            f"{row['dev_perplexity']:.2f}",
            f"{row['parameters']:,}",
        ]
        for name, row in best.items()
    ]
    say(options, table(["best of each", "b", "r", "train ppl", "dev ppl", "parameters"], rows))
    for reason in dict.fromkeys(failures):
        warn(f"{plural(failures.count(reason), 'cell')} could not be fitted: {reason}")
    say(options, f"build tables, figures, and an HTML page with: saffu report {options.out}")


COMMAND = Command(
    "ablate",
    "fit and score a grid of the paper's models",
    "[TEXT ...] --out DIR [options]",
    "saffu ablate train/ --dev dev/ --out grid                 # the paper's 245 models\n"
    "saffu ablate train/ --dev dev/ --out grid --blocks 128 --radii 2,4,8 --modes sum/cat\n"
    "saffu ablate train/ --dev dev/ --out grid --blocks 128 --radii 8 --set attention=explicit,uniform\n"
    "saffu report grid",
    add_options,
    run,
)
