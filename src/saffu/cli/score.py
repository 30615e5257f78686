"""saffu score: one row per line, word, or token of text, as the text comes in."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from saffu.cli.options import (
    Command,
    Parser,
    add_cluster_option,
    add_device,
    add_model,
    add_record_options,
    device_of,
    finite,
    named_path,
)
from saffu.cli.output import warn
from saffu.errors import SaffuError
from saffu.format import plural

RATIO = "log_ratio_per_byte"


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="files, folders, globs, or - [standard input]; each line on its own"
    )
    help = "print one row per word: surprisal of the word and its ending; <eod> is the end of the line"
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--words", dest="unit", action="store_const", const="words", default="lines", help=help)
    unit.add_argument("--tokens", dest="unit", action="store_const", const="tokens", help="print one row per token")
    help = f"another model: add {RATIO}, the log2 of MODEL's probability over OTHER's"
    parser.add_argument("--against", type=named_path, metavar="OTHER", help=help)
    help = "keep only rows that meet a condition such as 'bits_per_byte<1.9'; may be repeated"
    parser.add_argument("--keep", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--below", type=finite, metavar="X", help="short for --keep 'bits_per_byte<X'")
    parser.add_argument("--above", type=finite, metavar="X", help="short for --keep 'bits_per_byte>X'")
    parser.add_argument("--json", action="store_true", help="print JSON Lines; records keep their other fields")
    parser.add_argument("--quiet", action="store_true", help="print no histogram")
    add_device(parser)
    help = "with --ray, write one file of rows per text file to this folder"
    parser.add_argument("--out", type=named_path, metavar="DIR", help=help)
    group = parser.add_argument_group("reading text")
    add_cluster_option(parser)
    add_record_options(group)


def run(options: argparse.Namespace) -> None:
    """Print rows, or, if lines are filtered, the text of those that are kept."""
    from saffu.cli import scoring

    scoring.require_columns(options)
    if options.ray or options.out:
        from saffu.cli import on_ray

        found = on_ray.score(options)
    else:
        from saffu import load

        device = device_of(options)
        scorer = load(options.model, device).scorer_
        other = load(options.against, device).scorer_ if options.against else None
        with scoring.chosen_sources(options) as sources:
            found = scoring.write_rows(options, sources, scorer, other, sys.stdout)
    if not found.number and options.text not in ([], ["-"]):  # a pipe may well be empty
        raise SaffuError("there is no text to score; pass at least one line that is not blank")
    for source, malformed in found.skipped.items():
        warn(f"{source}: skipped {malformed}")
    if found.replaced:
        names = ", ".join(sorted(found.replaced))
        warn(f"scores replaced fields of the same name: {names}; rename these fields to keep them")
    if found.blank:
        warn(f"skipped {plural(found.blank, 'blank record')}")
    if found.total and sys.stderr.isatty() and not options.quiet:
        of = plural(found.total, options.unit[:-1])
        of = f"{found.kept:,} of {of} kept" if scoring.conditions_of(options) else of
        print(found.histogram.text(f"{scoring.measured(options).replace('_', ' ')}: {of}"), file=sys.stderr)


COMMAND = Command(
    "score",
    "score each line, word, or token of text, streaming",
    "MODEL [TEXT ...] [options]",
    "saffu score model lines.txt > scores.tsv\n"
    "saffu score model stories.txt --words > surprisals.tsv\n"
    "zcat crawl.jsonl.gz | saffu score model --field text --json --keep 'bits_per_byte<1.9' > clean.jsonl\n"
    "saffu score law lines.txt --against news --keep 'log_ratio_per_byte>0' > law.txt\n"
    "saffu score model crawl/*.jsonl.gz --json --out scored --ray    # on a cluster",
    add_options,
    run,
)
