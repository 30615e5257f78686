"""The work behind `saffu score`: records of text to rows of numbers."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from unicodedata import category

from saffu.cli.reading import warn_of_bad_files
from saffu.cli.score import RATIO
from saffu.errors import SaffuError
from saffu.text.documents import bad_sources, read_records
from saffu.text.records import Record, Skipped
from saffu.text.sources import Source, Sources
from saffu.tools.scores import Condition, Histogram, Scorer, batches

COLUMNS = {
    "lines": ["bits", "tokens", "bytes", "bits_per_byte", "perplexity"],
    "words": ["position", "word", "tokens", "bits"],
    "tokens": ["position", "token", "bits"],
}
Row = dict[str, Any]


@dataclass
class Found:
    """What was scored: records, blank ones among them, rows, and those that were kept; what was malformed."""

    number: int = 0
    blank: int = 0
    total: int = 0
    kept: int = 0
    histogram: Histogram = field(default_factory=lambda: Histogram(0.05))
    skipped: dict[str, Skipped] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)  # fields of records with the name of a column


def measured(options: argparse.Namespace) -> str:
    """The number that the histogram shows."""
    return "bits_per_byte" if options.unit == "lines" else "bits"


def write_rows(
    options: argparse.Namespace, sources: Collection[Source], scorer: Scorer, other: Scorer | None, out: IO[str]
) -> Found:
    """Score the records of sources, in order, and write their rows; those of several sources say which."""
    conditions, columns = conditions_of(options), columns_of(options)
    only_text = bool(conditions) and options.unit == "lines" and not options.json
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    found, shown = Found(histogram=Histogram(0.05 if options.unit == "lines" else 0.25)), measured(options)
    several = len(sources) > 1
    records = read_records(sources, skipped=found.skipped, **reading(options))
    for batch in batches(records, lambda record: len(record.text)):
        if not (found.number or options.json or only_text):
            writer.writerow([*(["file"] if several else []), "id", *columns])
        for record, rows in zip(batch, ROWS[options.unit](scorer, other, batch), strict=True):
            found.number += 1
            found.blank += not rows
            for row in rows:
                found.total += 1
                found.histogram.add(row[shown])
                if not all(condition.holds(row) for condition in conditions):
                    continue
                found.kept += 1
                fields = record.fields
                place = {"file": record.source} if several else {}
                place["id"] = fields.get("id", record.number)
                if options.json:
                    found.replaced |= fields.keys() & row.keys()
                    is_whole = options.unit == "lines" and (fields or conditions)
                    held = {options.field or "text": record.text} if is_whole else {}
                    print(json.dumps({**place, **held, **fields, **row}, ensure_ascii=False, default=str), file=out)
                elif only_text:
                    print(record.text, file=out)
                else:
                    writer.writerow([*map(cell, place.values()), *(cell(row[column]) for column in columns)])
        out.flush()
    return found


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """How records are read."""
    return {"field": options.field, "errors": options.encoding_errors, "bad_records": options.bad_records}


def conditions_of(options: argparse.Namespace) -> list[Condition]:
    conditions = [Condition.parse(text) for text in options.keep]
    conditions += [Condition("bits_per_byte", "<", options.below)] if options.below is not None else []
    return conditions + ([Condition("bits_per_byte", ">", options.above)] if options.above is not None else [])


def columns_of(options: argparse.Namespace) -> list[str]:
    return COLUMNS[options.unit] + ([RATIO] if options.against else [])


def require_columns(options: argparse.Namespace) -> None:
    """Fail before any work if rows will not have the requested columns."""
    if options.against and options.unit != "lines":
        raise SaffuError(f"--against compares whole lines; remove --{options.unit}")
    numbers = [column for column in columns_of(options) if column not in ("word", "token")]
    for condition in conditions_of(options):
        if condition.name not in numbers:
            raise SaffuError(f"rows have no number {condition.name!r} to filter by; use {', '.join(numbers)}")


@contextmanager
def chosen_sources(options: argparse.Namespace) -> Iterator[Collection[Source]]:
    """The sources to score. Standard input is read as it comes in, so that results appear before it ends."""
    pipe = standard_input() if options.text in ([], ["-"]) else None
    if pipe:
        yield [Source(pipe, "standard input", spooled=True)]
        return
    with Sources(options.text or ["-"]) as sources:
        if options.skip_bad_files:
            bad = bad_sources(sources, **reading(options))
            sources.leave_out(bad)
            warn_of_bad_files(bad)
        yield list(sources)


def standard_input() -> Path | None:
    """Standard input as a file that can be opened; None where it cannot, and has to be copied first."""
    try:
        path = Path(f"/dev/fd/{sys.stdin.fileno()}")
        return path if path.is_fifo() or path.is_file() else None
    except (AttributeError, OSError, ValueError):
        return None


def line_rows(scorer: Scorer, other: Scorer | None, batch: Sequence[Record]) -> Iterator[list[Row]]:
    """One row for each text; none for a blank one."""
    texts = [record.text for record in batch]
    against = other.lines(texts) if other else None
    for number, score in enumerate(scorer.lines(texts)):
        row = dict(vars(score))
        if against and score.tokens:
            row[RATIO] = (against[number].bits - score.bits) / score.bytes
        yield [row] if score.tokens else []


def word_rows(scorer: Scorer, _: Scorer | None, batch: Sequence[Record]) -> Iterator[list[Row]]:
    """One row for each word of each text."""
    return ([dict(vars(score)) for score in scores] for scores in scorer.words([record.text for record in batch]))


def token_rows(scorer: Scorer, _: Scorer | None, batch: Sequence[Record]) -> Iterator[list[Row]]:
    """One row for each token of each text."""
    return ([dict(vars(score)) for score in scores] for scores in scorer.tokens([record.text for record in batch]))


ROWS: dict[str, Callable[[Scorer, Scorer | None, Sequence[Record]], Iterator[list[Row]]]]
ROWS = {"lines": line_rows, "words": word_rows, "tokens": token_rows}


def cell(value: Any) -> Any:
    r"""A value as one cell of a table: no negative zeros, and no control characters, which could control a terminal.

    >>> cell(1.5), cell(-1e-9), cell("naïve\x1b"), cell(7)
    ('1.5000', '0.0000', 'naïve\\x1b', 7)
    """
    if isinstance(value, float):
        return f"{round(value, 4) + 0.0:.4f}"
    if isinstance(value, str) and not value.isprintable():
        return "".join(repr(c)[1:-1] if category(c) == "Cc" else c for c in value)
    return value
