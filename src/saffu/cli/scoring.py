"""What `saffu score` reads, and how it is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from saffu.errors import SaffuError
from saffu.text.documents import bad_sources, read_records
from saffu.text.selection import warn_of_bad_files
from saffu.text.sources import Source, Sources
from saffu.tools.score_table import (
    JsonWriter,
    Measures,
    TableWriter,
    Tally,
    TextWriter,
    Writer,
    best_rows,
    scored,
    write_rows,
)
from saffu.tools.scores import Arrivals, Condition, Scorer, batches


def write_scores(
    options: argparse.Namespace,
    sources: Collection[Source],
    scorer: Scorer,
    others: Sequence[Scorer],
    out: IO[str],
    live: bool = False,
) -> Tally:
    """Score the records of sources, in order, and write their rows; if `live`, as soon as each has been read."""
    measures = measures_of(options)
    tally = Tally()
    records = read_records(sources, skipped=tally.skipped, **reading(options))
    groups = (Arrivals if live else batches)(records, lambda record: len(record.text))
    rows = scored(groups, measures, scorer, others, tally)
    if options.keep_best is not None:
        rows = best_rows(rows, measures, options.keep_best, tally)
    write_rows(rows, writer_of(options, measures, len(sources) > 1, tally), out)
    return tally


def scorers_of(options: argparse.Namespace, load: Callable[[Path], Scorer]) -> list[Scorer]:
    """Those of the model and of the models that it is compared with."""
    scorers = [load(path) for path in (options.model, *options.against)]
    if options.repetition and options.memory is not None:
        raise SaffuError("--repetition compares scores with and without memory; remove --memory and --no-memory")
    if options.online:
        return [scorer.online() for scorer in scorers]
    bare = [replace(scorer, model=scorer.model.without_memory() or scorer.model) for scorer in scorers]
    if options.repetition:
        return [bare[0], scorers[0]]
    memory = options.split == "file" if options.memory is None else options.memory
    return scorers if memory else bare


def measures_of(options: argparse.Namespace) -> Measures:
    """The columns and conditions that the options ask for. Fails before any work if rows will not have them."""
    conditions = [Condition.parse(text) for text in options.keep]
    names = [Path(model).resolve().name for model in (options.model, *options.against)]
    return Measures(options.unit, conditions, names, options.repetition)


def writer_of(options: argparse.Namespace, measures: Measures, several_files: bool, tally: Tally) -> Writer:
    """Rows, or, if lines are filtered, the text of those that are kept."""
    if options.json:
        return JsonWriter(options.field or "text", options.unit == "lines", several_files, tally)
    if (measures.conditions or options.keep_best is not None) and options.unit == "lines":
        return TextWriter()
    return TableWriter(measures.columns, several_files, tally)


def reading(options: argparse.Namespace) -> dict[str, Any]:
    """How records are read."""
    names = {"field": options.field, "errors": options.encoding_errors, "bad_records": options.bad_records}
    return names | {"split": options.split or "line"}


@contextmanager
def open_sources(options: argparse.Namespace) -> Iterator[tuple[Collection[Source], bool]]:
    """The sources to score, and whether they are standard input, which is read as it comes in."""
    pipe = standard_input() if options.text in ([], ["-"]) else None
    if pipe:
        yield [Source(pipe, "standard input", spooled=True)], True
        return
    with Sources(options.text or ["-"]) as sources:
        if options.skip_bad_files:
            bad = bad_sources(sources, **reading(options))
            sources.leave_out(bad)
            warn_of_bad_files(bad)
        yield list(sources), False


def standard_input() -> Path | None:
    """Standard input as a file that can be opened; None where it cannot, and has to be copied first."""
    try:
        path = Path(f"/dev/fd/{sys.stdin.fileno()}")
        return path if path.is_fifo() or path.is_file() else None
    except (AttributeError, OSError, ValueError):
        return None
