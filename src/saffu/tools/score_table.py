"""Rows of scores for records of text: filtered, and written as a table, as JSON Lines, or as the text itself."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import IO, Any, Literal
from unicodedata import category

import numpy as np

from saffu.errors import SaffuError
from saffu.format import to_json
from saffu.text.records import Record, Skipped
from saffu.tools.distribution import Distribution, number_of
from saffu.tools.scores import Condition, Scorer
from saffu.tools.words import END_OF_LINE

COLUMNS = {
    "lines": ["bits", "tokens", "bytes", "bits_per_byte", "perplexity"],
    "words": ["position", "word", "tokens", "bits", "punctuation"],
    "tokens": ["position", "token", "bits"],
}
RATIO = "log_ratio_per_byte"
BEST = "best"
REPETITION, COST = "repetition", "cost"
Row = dict[str, Any]


@dataclass
class Tally:
    """What was scored: records, blank ones among them, lines, words, or tokens, and those kept; what was malformed."""

    records: int = 0
    blank: int = 0
    rows: int = 0  # without those of line ends among words
    kept: int = 0
    values: Distribution = field(default_factory=Distribution)  # of the measure, for all rows
    skipped: dict[str, Skipped] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)  # fields of records with the name of a column

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.records + other.records,
            self.blank + other.blank,
            self.rows + other.rows,
            self.kept + other.kept,
            self.values + other.values,
            self.skipped | other.skipped,
            self.replaced | other.replaced,
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        skipped = {name: [entry.count, entry.first] for name, entry in self.skipped.items()}
        return {**vars(self), "values": self.values.counts, "skipped": skipped, "replaced": sorted(self.replaced)}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Tally:
        values = Distribution({int(place): count for place, count in facts["values"].items()})
        skipped = {name: Skipped(*entry) for name, entry in facts["skipped"].items()}
        return cls(**{**facts, "values": values, "skipped": skipped, "replaced": set(facts["replaced"])})


@dataclass(frozen=True)
class Measures:
    """The numbers of a row, and which rows are kept: those that meet all conditions."""

    unit: Literal["lines", "words", "tokens"] = "lines"
    conditions: Sequence[Condition] = ()
    names: Sequence[str] = ("",)  # of the model and of those that it is compared with
    repetition: bool = False  # whether lines that repeat themselves cost more

    def __post_init__(self) -> None:
        if self.repetition and (self.against or self.unit != "lines"):
            raise SaffuError("`repetition` is for whole lines and one model; remove --against, --words, and --tokens")
        if self.against and self.unit != "lines":
            raise SaffuError(f"`against` compares whole lines; remove --{self.unit}")
        if len(set(self.names)) < len(self.names):
            raise SaffuError(
                f"models to be compared must have different names, not {', '.join(self.names)}; rename one"
            )
        numbers = [column for column in self.columns if column not in ("word", "token")]
        for condition in self.conditions:
            if condition.name not in numbers:
                raise SaffuError(f"unknown column {condition.name!r}; these rows have {', '.join(numbers)}")
            if condition.name == BEST and condition.value not in self.names:
                raise SaffuError(f"no model is named {condition.value!r}; use {' or '.join(self.names)}")

    @property
    def against(self) -> Sequence[str]:
        return self.names[1:]

    @property
    def columns(self) -> list[str]:
        """With several other models, the bits per byte of each, and which of all models is best."""
        ratio = [RATIO] if self.against else [REPETITION, COST] if self.repetition else []
        several = [*(f"bits_per_byte_{name}" for name in self.against), BEST] if len(self.against) > 1 else []
        return COLUMNS[self.unit] + ratio + several

    @property
    def main(self) -> str:
        """The number by which rows are compared and their distribution is shown."""
        if self.unit != "lines":
            return "bits"
        return RATIO if self.against else COST if self.repetition else "bits_per_byte"

    def rows(self, scorer: Scorer, others: Sequence[Scorer], texts: Sequence[str]) -> Iterator[list[Row]]:
        """The rows of each text; none for a blank one."""
        if self.unit == "words":
            return ([dict(vars(score)) for score in scores] for scores in scorer.words(texts))
        if self.unit == "tokens":
            return ([dict(vars(score)) for score in scores] for scores in scorer.tokens(texts))
        return self._line_rows(scorer, others, texts)

    def _line_rows(self, scorer: Scorer, others: Sequence[Scorer], texts: Sequence[str]) -> Iterator[list[Row]]:
        """With `repetition`, the last of the others is the same model with its memory of the line itself."""
        if self.repetition:
            plain = scorer.lines(texts)
            remembering = others[-1].lines(texts)
            for score, easier in zip(plain, remembering, strict=True):
                saved = score.bits_per_byte - easier.bits_per_byte
                row = {**vars(score), REPETITION: saved, COST: score.bits_per_byte + saved}
                yield [row] if score.tokens else []
            return
        scores = scorer.lines(texts)
        against = [other.lines(texts) for other in others]
        for number, score in enumerate(scores):
            row = dict(vars(score))
            if against and score.tokens:
                bits = [score.bits, *(other[number].bits for other in against)]
                row[RATIO] = (min(bits[1:]) - score.bits) / score.bytes
                if len(against) > 1:
                    row |= {f"bits_per_byte_{name}": b / score.bytes for name, b in zip(self.names, bits, strict=True)}
                    row[BEST] = self.names[bits.index(min(bits))]
            yield [row] if score.tokens else []

    def keeps(self, row: Row) -> bool:
        return all(condition.holds(row) for condition in self.conditions)


def scored(
    batches: Iterable[Sequence[Record]], measures: Measures, scorer: Scorer, others: Sequence[Scorer], tally: Tally
) -> Iterator[list[tuple[Record, Row]]]:
    """The rows that are kept, batch by batch, each with its record."""
    for batch in batches:
        kept = []
        texts = [record.text for record in batch]
        for record, rows in zip(batch, measures.rows(scorer, others, texts), strict=True):
            tally.records += 1
            tally.blank += not rows
            for row in rows:
                is_kept = measures.keeps(row)
                kept += [(record, row)] if is_kept else []
                if row.get("word") != END_OF_LINE:  # which has a row, but is not a word
                    tally.rows += 1
                    tally.kept += is_kept
                    tally.values.add(row[measures.main])
        yield kept


def best_rows(
    rows: Iterable[list[tuple[Record, Row]]], measures: Measures, share: float, tally: Tally
) -> Iterator[list[tuple[Record, Row]]]:
    """The best share of all rows: those with the fewest bits per byte, the least cost, or the highest log-ratio.

    Rows are judged when all are known; meanwhile they wait in a temporary file.
    """
    if measures.unit != "lines":
        raise SaffuError(f"`keep_best` keeps whole lines; remove --{measures.unit}")
    sign = -1.0 if measures.against else 1.0
    values = array("d")
    with tempfile.TemporaryFile() as file:
        for record, row in chain.from_iterable(rows):
            values.append(sign * row[measures.main])
            file.write(json.dumps([vars(record), row], default=str).encode() + b"\n")
        order = np.argsort(np.array(values), kind="stable")
        is_kept = np.zeros(len(values), dtype=bool)
        is_kept[order[: number_of(share, len(values))]] = True
        tally.kept = int(is_kept.sum())
        file.seek(0)
        for line, keep in zip(file, is_kept.tolist(), strict=True):
            if keep:
                record, row = json.loads(line)
                yield [(Record(**record), row)]


class TableWriter:
    """Tab-separated rows under a header: the record's place and other fields, then its scores.

    The columns of other fields are those of the first record.
    """

    def __init__(self, columns: Sequence[str], several_files: bool, tally: Tally):
        self.columns = columns
        self.several_files = several_files
        self.tally = tally
        self.fields: list[str] | None = None
        self.line = io.StringIO()  # one for all rows, which saves time
        self.writer = csv.writer(self.line, delimiter="\t", lineterminator="\n")

    def text(self, record: Record, row: Row) -> str:
        self.line.seek(0)
        if self.fields is None:
            others = {name: value for name, value in record.fields.items() if name != "id"}
            columns = {**place(record, self.several_files), **row}
            self.tally.replaced |= others.keys() & columns.keys()
            self.fields = [name for name in others if name not in columns]
            self.writer.writerow([*place(record, self.several_files), *map(cell, self.fields), *self.columns])
        places = place(record, self.several_files).values()
        fields = [record.fields.get(name) for name in self.fields]
        self.writer.writerow(map(cell, [*places, *fields, *(row[column] for column in self.columns)]))
        self.line.truncate()
        return self.line.getvalue()


class JsonWriter:
    """JSON Lines: the record's place, the text of a line, other fields, and scores, which replace fields."""

    def __init__(self, text_field: str, whole: bool, several_files: bool, tally: Tally):
        self.text_field = text_field
        self.whole = whole
        self.several_files = several_files
        self.tally = tally

    def text(self, record: Record, row: Row) -> str:
        where = place(record, self.several_files)
        self.tally.replaced |= record.fields.keys() - {"id"} & {**where, **row}.keys()
        text = {self.text_field: record.text} if self.whole else {}
        return to_json({**where, **text, **record.fields, **where, **row}) + "\n"


class TextWriter:
    """The texts themselves."""

    def text(self, record: Record, row: Row) -> str:
        return record.text + "\n"


Writer = TableWriter | JsonWriter | TextWriter


def place(record: Record, several_files: bool) -> dict[str, Any]:
    """Where a record comes from."""
    id = {"id": record.fields.get("id", record.number)}
    return {"file": record.source} | id if several_files else id


def write_rows(rows: Iterable[list[tuple[Record, Row]]], writer: Writer, out: IO[str]) -> None:
    """Write rows batch by batch."""
    for batch in rows:
        out.write("".join([writer.text(record, row) for record, row in batch]))
        out.flush()


def cell(value: Any) -> Any:
    r"""A value as one cell of a table: no negative zeros, and no control characters, which could control a terminal.

    >>> cell(1.5), cell(-1e-9), cell("naïve\x1b"), cell(7), cell(None), cell([1, "ä"])
    ('1.5000', '0.0000', 'naïve\\x1b', 7, '', '[1, "ä"]')
    """
    if isinstance(value, float):
        text = f"{value:.4f}"
        return "0.0000" if text == "-0.0000" else text
    if isinstance(value, list | dict):
        value = to_json(value)
    if isinstance(value, str) and not value.isprintable():
        return "".join(repr(c)[1:-1] if category(c) == "Cc" else c for c in value)
    return "" if value is None else value
