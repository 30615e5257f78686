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
    add_text_options,
    device_of,
    finite,
    named_path,
)
from saffu.cli.output import warn
from saffu.errors import SaffuError
from saffu.format import plural


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="files, folders, globs, or - [standard input]; each line on its own"
    )
    help = "print one row per word: surprisal of the word and its ending; <eod> is the end of the line"
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--words", dest="unit", action="store_const", const="words", default="lines", help=help)
    unit.add_argument("--tokens", dest="unit", action="store_const", const="tokens", help="print one row per token")
    help = "another model: add log_ratio_per_byte, the log2 of MODEL's probability over OTHER's"
    parser.add_argument("--against", action="append", default=[], type=named_path, metavar="OTHER", help=help)
    help = "keep only rows that meet a condition such as 'bits_per_byte<1.9'; may be repeated"
    parser.add_argument("--keep", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--below", type=finite, metavar="X", help="short for --keep 'bits_per_byte<X'")
    parser.add_argument("--above", type=finite, metavar="X", help="short for --keep 'bits_per_byte>X'")
    parser.add_argument("--json", action="store_true", help="print JSON Lines")
    parser.add_argument("--quiet", action="store_true", help="print no histogram")
    add_device(parser)
    help = "with --ray, write one file of rows per text file to this folder"
    parser.add_argument("--out", type=named_path, metavar="DIR", help=help)
    add_cluster_option(parser)
    add_text_options(parser, "line")


def run(options: argparse.Namespace) -> None:
    """Print rows, or, if lines are filtered, the text of those that are kept."""
    from saffu.cli import scoring

    measures = scoring.measures_of(options)
    if options.ray or options.out:
        from saffu.cli import on_ray

        tally = on_ray.score(options)
    else:
        from saffu import load

        scorer, *others = (load(path, device_of(options)).scorer_ for path in (options.model, *options.against))
        with scoring.chosen_sources(options) as (sources, live):
            tally = scoring.write_scores(options, sources, scorer, others, sys.stdout, live)
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
        of = plural(tally.rows, options.unit[:-1])
        of = f"{tally.kept:,} of {of} kept" if measures.conditions else of
        print(tally.values.histogram(f"{measures.main.replace('_', ' ')}: {of}"), file=sys.stderr)


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
