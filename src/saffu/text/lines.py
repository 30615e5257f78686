"""Bytes to lines of text, and what their first lines show about them."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain, islice
from typing import BinaryIO

from saffu.errors import SaffuError
from saffu.text.records import parsed_object
from saffu.text.sources import Source, clear_errors

SNIFFED_BYTES = 8192  # a NUL byte among them means a binary file
SNIFFED_LINES = 20  # if all of them are JSON objects, a file is not plain text


def is_json(source: Source, lines: Iterator[str], field: str | None) -> tuple[bool, Iterator[str]]:
    """Whether a source holds JSON Lines, by its name or its first lines; and all of its lines."""
    if source.format in ("jsonl", "ndjson") or (source.spooled and not source.format and field is not None):
        return True, lines
    head, objects = [], 0
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
        if b"\0" in head and errors == "strict":
            raise SaffuError(
                f"{source.name} looks like a binary file (it has NUL bytes); remove it or convert it to UTF-8"
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
                    f"{source.name} is not UTF-8 at {place}; convert it, or set `encoding_errors` to replace"
                ) from None
            yield text.removeprefix("\ufeff") if number == 1 else text
            offset += len(line)
