"""saffu score: one row per line, word, or token of text, as the text comes in."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from saffu.cli.living import add_documents
from saffu.cli.options import (
    Command,
    Parser,
    add_cluster_option,
    add_device,
    add_model,
    add_online_options,
    add_text_options,
    device_of,
    named_path,
    require_online,
)
from saffu.errors import SaffuError
from saffu.format import plural, warn

if TYPE_CHECKING:
    from saffu.tools.score_table import Tally


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="files, folders, globs, or - for stdin [stdin]; each line on its own"
    )
    help = "print one row per word: surprisal of the word and its ending; <eod> is the end of the line"
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--words", dest="unit", action="store_const", const="words", default="lines", help=help)
    unit.add_argument("--tokens", dest="unit", action="store_const", const="tokens", help="print one row per token")
    help = "another model: add log_ratio_per_byte, the log2 of MODEL's probability over OTHER's; may be repeated"
    parser.add_argument("--against", action="append", default=[], type=named_path, metavar="OTHER", help=help)
    help = "keep only rows that meet a condition such as 'bits_per_byte<1.9'; may be repeated"
    parser.add_argument("--keep", action="append", default=[], metavar="CONDITION", help=help)
    help = "keep only the best of all lines: a share such as 50%%, by bits per byte or, with --against, log-ratio"
    parser.add_argument("--keep-best", type=share, metavar="SHARE", help=help)
    help = "whether to predict with memory of what the text itself has said so far [only with --split file]"
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, help=help)
    parser.add_argument("--no-cache", dest="memory", action="store_false", default=None, help=argparse.SUPPRESS)
    help = "add repetition, the bits per byte that memory of the line would save, and cost, bits_per_byte plus that"
    parser.add_argument("--repetition", action="store_true", help=help)
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.add_argument("--quiet", action="store_true", help="print no histogram")
    add_online_options(parser, "remember each text while reading those after it, as in a stream")
    add_device(parser)
    help = "with --ray, write one file of rows per text file to this folder"
    parser.add_argument("--out", type=named_path, metavar="DIR", help=help)
    add_cluster_option(parser)
    add_text_options(parser, "line")


def share(text: str) -> float:
    """A share above 0 and up to 1, also as a percentage.

    >>> share("50%"), share("0.25")
    (0.5, 0.25)
    """
    try:
        value = float(Decimal(text.removesuffix("%")) / (100 if text.endswith("%") else 1))
    except (ArithmeticError, ValueError):
        value = math.nan
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; pass a percentage such as 50%")
    return value


def run(options: argparse.Namespace) -> None:
    """Print rows, or, if lines are filtered, the text of those that are kept."""
    from saffu.cli import scoring

    measures = scoring.measures_of(options)
    require_stream(options)
    if options.keep_best is not None and (options.ray or options.out):
        raise SaffuError("--keep-best prints lines of one run; remove --ray and --out")
    if options.ray or options.out:
        from saffu.cli import on_ray

        tally = on_ray.score(options)
    else:
        from saffu.model.language_model import SaffuLM

        if options.update:  # reads the text like the model's own; what is scored is what is counted
            options.field = options.field or SaffuLM.load(options.model).source_.get("field")
        scorer, *others = scoring.scorers_of(options, lambda path: SaffuLM.load(path, device_of(options)).scorer_)
        with scoring.open_sources(options) as (sources, live):
            tally = scoring.write_scores(options, sources, scorer, others, sys.stdout, live)
        if options.update:
            add_documents(options)
    if not tally.records and options.text not in ([], ["-"]):  # a pipe may well be empty
        raise SaffuError("there is no text to score; pass at least one line that is not blank")
    for source, malformed in tally.skipped.items():
        warn(f"{source}: skipped {malformed}")
    if tally.replaced:
        names = ", ".join(sorted(tally.replaced))
        warn(f"scores replaced fields of the same name: {names}; rename these fields to keep them")
    if tally.blank:
        warn(f"skipped {plural(tally.blank, 'blank record')}")
    if tally.rows and sys.stderr.isatty() and not options.quiet:
        print(histogram(options, measures.main, tally), file=sys.stderr)


def require_stream(options: argparse.Namespace) -> None:
    """Fail if --online or --update cannot be done."""
    require_online(options)
    if options.online and (options.repetition or options.ray or options.out):
        raise SaffuError("--online reads one text after the other, with memory; remove --repetition, --ray, and --out")
    if options.update and options.text in ([], ["-"]):
        raise SaffuError("--update reads the text twice, and standard input can be read once; pass files")


def histogram(options: argparse.Namespace, measure: str, tally: Tally) -> str:
    of = plural(tally.rows, options.unit[:-1])
    of = f"{tally.kept:,} of {of} kept" if tally.kept < tally.rows else of
    return tally.values.histogram(f"{measure.replace('_', ' ')}: {of}")


COMMAND = Command(
    "score",
    "score each line, word, or token of text, streaming",
    "MODEL [TEXT ...] [options]",
    "saffu score model lines.txt > scores.tsv\n"
    "saffu score model stories.txt --words > surprisals.tsv\n"
    "zcat crawl.jsonl.gz | saffu score model --field text --json --keep 'bits_per_byte<1.9' > clean.jsonl\n"
    "saffu score law lines.txt --against news --keep 'log_ratio_per_byte>0' > law.txt\n"
    "saffu score model crawl.txt --keep-best 50% > better-half.txt\n"
    "saffu score model crawl/*.jsonl.gz --json --out scored --ray    # on a cluster",
    add_options,
    run,
)
