"""Bytes to lines of text, and what their first lines show about them."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from itertools import chain, islice
from typing import BinaryIO

from saffu.errors import SaffuError
from saffu.text.records import parsed_object
from saffu.text.sources import Source, clear_errors

SNIFFED_BYTES = 8192  # a NUL byte among them means a binary file
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
SNIFFED_LINES = 20  # if all of them are JSON objects, a file is not plain text


def table_delimiter(source: Source, lines: Iterator[str], field: str | None) -> tuple[str, Iterator[str]]:
    """What separates the columns of a table, empty if a source is not one; and all of its lines.

    A pipe holds a table if its first line names the field of the text among others.
    """
    delimiters = {"csv": ",", "tsv": "\t"}
    if source.format in delimiters or not source.spooled or source.format or field is None:
        return delimiters.get(source.format, ""), lines
    first = next(lines, "")
    names = first.rstrip("\r\n")
    found = next((d for d in "\t," if d in names and field in next(csv.reader([names], delimiter=d))), "")
    return found, chain([first] if first else [], lines)


def is_json(source: Source, lines: Iterator[str], field: str | None) -> tuple[bool, Iterator[str]]:
    """Whether a source holds JSON Lines, by its name or its first lines; and all of its lines."""
    if source.format in ("jsonl", "ndjson") or (source.spooled and not source.format and field is not None):
        return True, lines
    head = []
    objects = 0
    for line in islice(lines, 50 * SNIFFED_LINES):
        head.append(line)
        if parsed_object(line) is not None:
            objects += 1
        elif not line.isspace():
            objects = 0
            break
        if objects == SNIFFED_LINES:
            break
    if objects and field is None:
        raise SaffuError(
            f"{source.name} holds JSON objects, not plain text; set `field` to the name of their text field"
        )
    if not objects and source.format == "json":
        raise SaffuError(f"{source.name} is not JSON Lines; write one object per line (`jq -c '.[]'`) to a .jsonl file")
    return objects > 0, chain(head, lines)


def decoded_lines(file: BinaryIO, source: Source, errors: str) -> Iterator[str]:
    """The lines of a file with their line ends. Only \\n ends a line: U+2028, \\x0b, ... are characters."""
    with clear_errors(source):  # also here: the lines of plain text are read after `_texts` has handed them on
        head = file.read1(SNIFFED_BYTES)  # type: ignore[attr-defined]  # what a pipe holds now
        if head.startswith(UTF_16):
            yield from _utf_16_lines(head, file, source, errors)
            return
        if b"\0" in head and errors == "strict":
            raise SaffuError(
                f"{source.name} looks like a binary file (it has NUL bytes); remove it, convert it to UTF-8, or set "
                "`skip_bad_files`"
            )
        if not head.endswith(b"\n"):  # so that the head ends where a line does
            head += file.readline()
        offset = 0
        for number, line in enumerate(chain(io.BytesIO(head), file), 1):
            try:
                text = line.decode("utf-8", errors)
            except UnicodeDecodeError as error:
                place = f"line {number}, byte {offset + error.start}"
                raise SaffuError(
                    f"{source.name} is not UTF-8 at {place}; convert it, set `encoding_errors` to replace, or set "
                    "`skip_bad_files`"
                ) from None
            yield text.removeprefix("\ufeff") if number == 1 else text
            offset += len(line)


def _utf_16_lines(head: bytes, file: BinaryIO, source: Source, errors: str) -> Iterator[str]:
    """The lines of a file that begins with the byte order mark of UTF-16."""
    decoder = codecs.getincrementaldecoder("utf-16")(errors)
    rest = ""
    try:
        for piece in chain([head], iter(lambda: file.read(SNIFFED_BYTES), b"")):
            *lines, rest = (rest + decoder.decode(piece)).split("\n")
            yield from (f"{line}\n" for line in lines)
        rest += decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise SaffuError(f"{source.name} is not valid UTF-16, as its first bytes say; convert it to UTF-8") from None
    if rest:
        yield rest
