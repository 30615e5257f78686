"""Records with a text field: JSON Lines, CSV, TSV, and Parquet, read one record at a time."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from saffu.errors import SaffuError
from saffu.format import plural
from saffu.text.sources import Source, import_extra, parsed_object

RawRecord = tuple[int, Any, dict[str, Any]]
"""The number of a record, what its text field holds, and its other fields."""

LONGEST_FIELD = 1 << 26  # characters of a CSV field; an unclosed quote would otherwise swallow the whole file
SHOWN_FIELDS, SHOWN_RECORDS = 12, 3


@dataclass(frozen=True)
class Record:
    """A text, and where it comes from."""

    text: str
    number: int  # of its line or record in the source, from 1; of its first line, if it has several
    source: str
    fields: dict[str, Any] = field(default_factory=dict)  # of a record, the text aside


@dataclass
class Skipped:
    """The malformed records of one source that were skipped.

    >>> str(Skipped(4, [2, 3, 7]))
    '4 malformed records: numbers 2, 3, 7, …'
    """

    count: int = 0
    first: list[int] = field(default_factory=list)  # the numbers of the first ones; lines, in JSON Lines

    def __str__(self) -> str:
        numbers = ", ".join(map(str, self.first)) + (", …" if self.count > len(self.first) else "")
        return f"{plural(self.count, 'malformed record')}: {'number' if self.count == 1 else 'numbers'} {numbers}"


@dataclass
class BadRecords:
    """What happens to malformed records: the first one is an error, or they are skipped and counted by source."""

    source: str
    skip: bool = False
    skipped: dict[str, Skipped] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.skipped.pop(self.source, None)  # of an earlier pass

    def add(self, number: int, problem: str) -> None:
        if not self.skip:
            raise SaffuError(f"{self.source}: record {number} {problem}; fix it, or set `bad_records` to skip")
        skipped = self.skipped.setdefault(self.source, Skipped())
        skipped.count += 1
        if len(skipped.first) < SHOWN_RECORDS:
            skipped.first.append(number)


def text_field(wanted: str | None, names: Collection[str], where: str) -> str:
    """The field that holds the text: the wanted one, or "text"."""
    field_name = "text" if wanted is None else wanted
    if list(names).count(field_name) > 1:
        raise SaffuError(f"{where} has several columns {field_name!r}; rename all but the one to read")
    if field_name in names:
        return field_name
    if len(names) == 1 and ";" in str(*names):
        column = repr(str(*names)[:40])
        raise SaffuError(f"{where} has one column, {column}; separate columns by commas, or by tabs in a .tsv file")
    shown = ", ".join(repr(str(name)[:40]) for name in list(names)[:SHOWN_FIELDS]) or "none"
    more = ", …" if len(names) > SHOWN_FIELDS else ""
    raise SaffuError(f"{where} has no field {field_name!r}; set `field` to one of {shown}{more}")


def valid_records(records: Iterable[RawRecord], errors: str, bad: BadRecords) -> Iterator[Record]:
    """The records that hold text. JSON may hold lone surrogates, which are not valid text."""
    for number, text, others in records:
        if isinstance(text, str) and errors == "replace":
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if isinstance(text, str) and is_valid(text):
            yield Record(text, number, bad.source, others)
        else:
            bad.add(number, "has no valid text")


def is_valid(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_records(lines: Iterable[str], wanted: str | None, bad: BadRecords) -> Iterator[RawRecord]:
    """The records of JSON Lines, one object per line, numbered by line."""
    name = ""
    for number, line in enumerate(lines, 1):
        record = parsed_object(line)
        if record is not None:
            name = name or text_field(wanted, record, bad.source)
            yield number, record.pop(name, None), record
        elif not line.isspace():
            bad.add(number, _problem(line))


def _problem(line: str) -> str:
    """Why a line is not a record."""
    try:
        json.loads(line)
    except (json.JSONDecodeError, RecursionError):
        pass
    except ValueError:  # Python's limit on the digits of an integer
        return "has an integer of too many digits"
    return "is not a JSON object"


def csv_records(lines: Iterable[str], delimiter: str, wanted: str | None, bad: BadRecords) -> Iterator[RawRecord]:
    """The records of CSV or TSV, numbered from 1 after the header."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header: list[str] = []
    name, number = "", 0
    while True:
        try:
            row = next(rows, None)
        except csv.Error as error:
            number += 1
            bad.add(number, f"is malformed ({error})")
            continue
        if row is None:
            return
        if row and not header:
            header = row
            name = text_field(wanted, row, bad.source)
        elif row:
            number += 1
            if len(row) != len(header):
                bad.add(number, f"has {len(row)} fields instead of {len(header)}")
                continue
            record: dict[str, Any] = dict(zip(header, row, strict=True))
            yield number, record.pop(name), record


def parquet_records(
    file: BinaryIO, source: Source, wanted: str | None, all_fields: bool, errors: str, bad: BadRecords
) -> Iterator[RawRecord]:
    """The records of a Parquet file, numbered from 1; only the text is read unless all fields are wanted."""
    parquet, arrow = (import_extra(name, f"reading {source.name}") for name in ("pyarrow.parquet", "pyarrow"))
    with tempfile.TemporaryFile() as whole:
        if source.compression:  # Parquet needs random access
            shutil.copyfileobj(file, whole)
            file = whole
        try:
            table = parquet.ParquetFile(file)
            text_name = text_field(wanted, table.schema_arrow.names, source.name)
            number = 0
            for batch in table.iter_batches(1024, columns=None if all_fields else [text_name]):
                for row in range(batch.num_rows):
                    number += 1
                    record = {}
                    name = ""
                    try:
                        for name, column in zip(batch.schema.names, batch.columns, strict=True):
                            record[name] = _value(column[row], errors)
                    except UnicodeDecodeError:
                        bad.add(number, f"is not UTF-8 in the field {name!r}")
                    except (ValueError, OverflowError) as error:  # a date that Python does not have, for example
                        bad.add(number, f"has a value in the field {name!r} that cannot be read ({error})")
                    else:
                        yield number, record.pop(text_name), record
        except (arrow.ArrowException, UnicodeDecodeError) as error:  # the latter for the name of a column
            reason = str(error).splitlines()[0]
            raise SaffuError(f"{source.name} is corrupt or not a Parquet file ({reason}); write it again") from None


def _value(scalar: Any, errors: str) -> Any:
    """A value of a column; Parquet does not verify that strings are UTF-8."""
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        if errors != "replace" or not hasattr(scalar, "as_buffer"):
            raise
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")
