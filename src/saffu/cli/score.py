"""saffu score: one row per line of text, as fast as it comes in."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.options import Command, Parser, add_device, add_model, add_record_options, device_of, finite
from saffu.cli.output import warn
from saffu.format import plural

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.tools.evaluate import Score

BATCH = 256  # lines scored at a time
COLUMNS = ("id", "tokens", "bytes", "bits", "bits_per_byte", "perplexity")
Record = tuple[str, dict[str, Any]]


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="files, folders, globs, or - [standard input]")
    parser.add_argument("--below", type=finite, metavar="X", help="print only the text with fewer than X bits per byte")
    parser.add_argument("--above", type=finite, metavar="X", help="print only the text with more than X bits per byte")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line of text")
    add_device(parser)
    add_record_options(parser.add_argument_group("reading text"))


def run(options: argparse.Namespace) -> None:
    from saffu import load

    lm = load(options.model, device_of(options))
    skipped: dict[str, int] = {}
    filtering = options.below is not None or options.above is not None
    low = -math.inf if options.above is None else options.above
    high = math.inf if options.below is None else options.below
    if not (options.json or filtering):
        print("\t".join(COLUMNS))
    for row, text in scored(lm, records(options, skipped)):
        if not low < row["bits_per_byte"] < high:
            continue
        if options.json:
            print(json.dumps(row | {"text": text} if filtering else row, ensure_ascii=False))
        elif filtering:
            print(text)
        else:
            print("\t".join(cell(row[name]) for name in COLUMNS))
    for name, number in skipped.items():
        if number:
            warn(f"skipped {plural(number, 'malformed record')} of {name}")


def records(options: argparse.Namespace, skipped: dict[str, int]) -> Iterator[Record]:
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


def scored(lm: SaffuLM, records: Iterable[Record]) -> Iterator[tuple[dict[str, Any], str]]:
    """A row of numbers for each record, in order, and its text.

    A line of plain text is scored on its own. If lines of the training text mostly followed other lines, it is scored
    as one that follows a blank line, because the start of a document is a context that such a model hardly knows.
    """
    from saffu.text.corpus import TokenCorpus, lines_of
    from saffu.tools.evaluate import line_scores

    follows = lm.trained_on_["lines"] > 2 * lm.trained_on_["documents"]
    source, number = iter(records), 0
    while batch := list(islice(source, BATCH)):
        documents = []
        for text, fields in batch:
            lines = list(lines_of([text]))
            alone = follows and not fields and len(lines) == 1
            documents.append([(True, ""), (False, text)] if alone else lines)
        corpus = TokenCorpus.build((line for lines in documents for line in lines), lm.tokenizer_)
        scores = iter(line_scores(lm.model_, corpus)) if corpus.targets else iter([])
        for (text, fields), lines in zip(batch, documents, strict=True):
            number += 1
            own = list(islice(scores, len(lines)))
            if own:
                yield row_of(fields.get("id", number), own[1:] if lines[0] == (True, "") else own), text
        sys.stdout.flush()


def row_of(id: Any, scores: Sequence[Score]) -> dict[str, Any]:
    """The numbers of one record: the sums over its lines."""
    nll, targets = math.fsum(score.nll for score in scores), sum(score.targets for score in scores)
    score = replace(scores[0], nll=nll, targets=targets, bytes=sum(score.bytes for score in scores))
    numbers = {"tokens": score.targets, "bytes": score.bytes, "bits": score.nll / math.log(2)}
    return {"id": id, **numbers, "bits_per_byte": score.bits_per_byte, "perplexity": score.perplexity}


def cell(value: Any) -> str:
    """A value as one cell of a table.

    >>> cell(1.5), cell("a\\tb"), cell(7)
    ('1.5000', 'a b', '7')
    """
    return f"{value:.4f}" if isinstance(value, float) else " ".join(str(value).split())


COMMAND = Command(
    "score",
    "score each line of text, streaming",
    "MODEL [TEXT ...] [options]",
    "saffu score model lines.txt > scores.tsv\n"
    "zcat crawl.jsonl.gz | saffu score model --field text --json > scores.jsonl\n"
    "saffu score model crawl.txt --below 2.5 > clean.txt",
    add_options,
    run,
)
