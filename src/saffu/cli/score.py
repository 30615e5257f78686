"""saffu score: one row per line, word, or token of text, as fast as it comes in."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import category

from saffu.cli.options import (
    Command,
    Parser,
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

if TYPE_CHECKING:
    from saffu.text.records import Skipped
    from saffu.tools.scores import Scorer

COLUMNS = {
    "lines": ["bits", "tokens", "bytes", "bits_per_byte", "perplexity"],
    "words": ["position", "word", "tokens", "bits"],
    "tokens": ["position", "token", "bits"],
}
RATIO = "log_ratio_per_byte"
Record = tuple[str, dict[str, Any]]
Row = dict[str, Any]


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="files, folders, globs, or - [standard input]")
    help = "print one row per word: surprisal of the word and its ending; <eod> is the end of the line"
    unit = parser.add_mutually_exclusive_group()
    unit.add_argument("--words", dest="unit", action="store_const", const="words", default="lines", help=help)
    unit.add_argument("--tokens", dest="unit", action="store_const", const="tokens", help="print one row per token")
    help = f"another model: add {RATIO}, the log2 of MODEL's probability over OTHER's"
    parser.add_argument("--against", type=named_path, metavar="OTHER", help=help)
    help = "keep what fulfills a condition, such as 'bits_per_byte<1.9'; repeat it for several"
    parser.add_argument("--keep", action="append", default=[], metavar="CONDITION", help=help)
    parser.add_argument("--below", type=finite, metavar="X", help="short for --keep 'bits_per_byte<X'")
    parser.add_argument("--above", type=finite, metavar="X", help="short for --keep 'bits_per_byte>X'")
    parser.add_argument("--json", action="store_true", help="print JSON Lines; records keep their other fields")
    parser.add_argument("--quiet", action="store_true", help="print no histogram")
    add_device(parser)
    add_record_options(parser.add_argument_group("reading text"))


def run(options: argparse.Namespace) -> None:
    """Print rows, or, if lines are filtered, the text of those that are kept."""
    from saffu import load
    from saffu.tools.scores import Condition, Histogram, batches

    conditions = [Condition.parse(text) for text in options.keep]
    conditions += [Condition("bits_per_byte", "<", options.below)] if options.below is not None else []
    conditions += [Condition("bits_per_byte", ">", options.above)] if options.above is not None else []
    columns = COLUMNS[options.unit] + ([RATIO] if options.against else [])
    require_columns(options, [condition.name for condition in conditions], columns)
    device = device_of(options)
    scorer = load(options.model, device).scorer_
    other = load(options.against, device).scorer_ if options.against else None
    only_text = bool(conditions) and options.unit == "lines" and not options.json
    histogram = Histogram(0.05 if options.unit == "lines" else 0.25)
    measured = "bits_per_byte" if options.unit == "lines" else "bits"
    writer = csv.writer(sys.stdout, delimiter="\t", lineterminator="\n")
    skipped: dict[str, Skipped] = {}
    number = blank = kept = total = 0
    for batch in batches(records(options, skipped), lambda record: len(record[0])):
        if not (number or options.json or only_text):
            writer.writerow(["id", *columns])
        for (text, fields), rows in zip(batch, ROWS[options.unit](scorer, other, batch), strict=True):
            number += 1
            blank += not rows
            for row in rows:
                total += 1
                histogram.add(row[measured])
                if not all(condition.holds(row) for condition in conditions):
                    continue
                kept += 1
                name = fields.get("id", number)
                if options.json:
                    held = {options.field or "text": text} if options.unit == "lines" and (fields or conditions) else {}
                    print(json.dumps({"id": name, **held, **fields, **row}, ensure_ascii=False, default=str))
                elif only_text:
                    print(text)
                else:
                    writer.writerow([cell(name), *(cell(row[column]) for column in columns)])
        sys.stdout.flush()
    if not number and options.text not in ([], ["-"]):  # a pipe may well be empty
        raise SaffuError("there is no text to score; pass at least one line that is not blank")
    for source, malformed in skipped.items():
        warn(f"{source}: skipped {malformed}")
    if blank:
        warn(f"skipped {plural(blank, 'blank record')}")
    if total and sys.stderr.isatty() and not options.quiet:
        of = f"{kept:,} of {plural(total, options.unit[:-1])} kept" if conditions else plural(total, options.unit[:-1])
        print(histogram.text(f"{measured.replace('_', ' ')}: {of}"), file=sys.stderr)


def require_columns(options: argparse.Namespace, wanted: Sequence[str], columns: Sequence[str]) -> None:
    """Fail before any work if rows will not have what is asked of them."""
    if options.against and options.unit != "lines":
        raise SaffuError(f"--against compares whole lines; remove --{options.unit}")
    numbers = [column for column in columns if column not in ("word", "token")]
    for name in wanted:
        if name not in numbers:
            raise SaffuError(f"rows have no number {name!r} to filter by; use {', '.join(numbers)}")


def records(options: argparse.Namespace, skipped: dict[str, Skipped]) -> Iterator[Record]:
    """Texts and their other fields. Standard input is read as it comes, so that results come before it ends."""
    from saffu.text.documents import read_records
    from saffu.text.sources import Source, Sources

    how = {"field": options.field, "errors": options.encoding_errors, "bad_records": options.bad_records}
    pipe = standard_input() if options.text in ([], ["-"]) else None
    if pipe:
        yield from read_records([Source(pipe, "standard input", spooled=True)], skipped=skipped, **how)
        return
    with Sources(options.text or ["-"]) as sources:
        yield from read_records(sources, skipped=skipped, **how)


def standard_input() -> Path | None:
    """Standard input as a file that can be opened; None where it cannot, and has to be copied first."""
    try:
        path = Path(f"/dev/fd/{sys.stdin.fileno()}")
        return path if path.is_fifo() or path.is_file() else None
    except (AttributeError, OSError, ValueError):
        return None


def line_rows(scorer: Scorer, other: Scorer | None, batch: Sequence[Record]) -> Iterator[list[Row]]:
    """One row for each text; none for a blank one."""
    texts = [text for text, _ in batch]
    against = other.lines(texts) if other else None
    for number, score in enumerate(scorer.lines(texts)):
        row = dict(vars(score))
        if against and score.tokens:
            row[RATIO] = (against[number].bits - score.bits) / score.bytes
        yield [row] if score.tokens else []


def word_rows(scorer: Scorer, _: Scorer | None, batch: Sequence[Record]) -> Iterator[list[Row]]:
    """One row for each word of each text."""
    return ([dict(vars(score)) for score in scores] for scores in scorer.words([text for text, _ in batch]))


def token_rows(scorer: Scorer, _: Scorer | None, batch: Sequence[Record]) -> Iterator[list[Row]]:
    """One row for each token of each text."""
    return ([dict(vars(score)) for score in scores] for scores in scorer.tokens([text for text, _ in batch]))


ROWS: dict[str, Callable[[Scorer, Scorer | None, Sequence[Record]], Iterator[list[Row]]]]
ROWS = {"lines": line_rows, "words": word_rows, "tokens": token_rows}


def cell(value: Any) -> Any:
    r"""A value as one cell of a table: no negative zeros, and no control characters, which could steer a terminal.

    >>> cell(1.5), cell(-1e-9), cell("naïve\x1b"), cell(7)
    ('1.5000', '0.0000', 'naïve\\x1b', 7)
    """
    if isinstance(value, float):
        return f"{round(value, 4) + 0.0:.4f}"
    if isinstance(value, str) and not value.isprintable():
        return "".join(repr(c)[1:-1] if category(c) == "Cc" else c for c in value)
    return value


COMMAND = Command(
    "score",
    "score each line, word, or token of text, streaming",
    "MODEL [TEXT ...] [options]",
    "saffu score model lines.txt > scores.tsv\n"
    "saffu score model stories.txt --words > surprisals.tsv\n"
    "zcat crawl.jsonl.gz | saffu score model --field text --json --keep 'bits_per_byte<1.9' > clean.jsonl\n"
    "saffu score law lines.txt --against news --keep 'log_ratio_per_byte>0' > law.txt",
    add_options,
    run,
)
