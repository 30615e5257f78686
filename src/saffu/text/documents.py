"""Text to lines: read sources in a stream, split them into documents, hold some out; accept documents from Python."""

from __future__ import annotations

import codecs
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from saffu.errors import SaffuError
from saffu.text.corpus import BEGINS, HELD_OUT, SPLITS, Line, lines_of, split_lines
from saffu.text.records import (
    BadRecords,
    Record,
    Skipped,
    csv_records,
    is_valid,
    json_records,
    parquet_records,
    text_field,
    valid_records,
)
from saffu.text.sources import Source, Spool, clear_errors, format_of, open_source, require_decompressed

ENCODING_ERRORS = ("strict", "replace")
BAD_RECORDS = ("error", "skip")
SNIFFED_BYTES = 8192  # a NUL byte among them means a binary file
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
STRETCH = 100  # lines of running text that are held out together, at most


@dataclass(frozen=True)
class Lines:
    """Lines that can be iterated over many times: each time, `read` is called again."""

    read: Callable[[], Iterator[Line]]

    def __iter__(self) -> Iterator[Line]:
        return self.read()


def read_lines(
    sources: Iterable[Source | str | Path],
    split: str = "file",
    *,
    field: str | None = None,
    errors: str = "strict",
    bad_records: str = "error",
    skipped: dict[str, Skipped] | None = None,
) -> Iterator[Line]:
    r"""Read the lines of sources, one at a time, each with whether it begins a document.

    A file holding "a\nb\n\n\nc\n" has, by split, the documents
    file       "a", "b", "", "", "c"     one running text; blank lines at its ends are dropped
    paragraph  "a", "b" and "c"          documents end at blank lines
    line       "a" and "b" and "c"       every line that is not blank is a document

    Text is UTF-8; errors="replace" reads undecodable bytes as U+FFFD. A record of a .jsonl, .csv, .tsv, or .parquet
    file is split like a file; `field` names its text (default: "text"). With bad_records="skip", malformed records are
    left out and counted in `skipped` under the source's name.
    """
    _require_choice("split", split, SPLITS)
    for _, text in _texts(sources, field, errors, bad_records, skipped, all_fields=False):
        yield from split_lines(text.text.split("\n") if isinstance(text, Record) else text, split)


def read_records(
    sources: Iterable[Source | str | Path],
    split: str = "line",
    *,
    field: str | None = None,
    errors: str = "strict",
    bad_records: str = "error",
    skipped: dict[str, Skipped] | None = None,
) -> Iterator[Record]:
    """Read each record with its other fields; a document of plain text (see `read_lines`) is one without fields."""
    _require_choice("split", split, SPLITS)
    for source, text in _texts(sources, field, errors, bad_records, skipped, all_fields=True):
        if isinstance(text, Record):
            yield text
            continue
        for number, document in _numbered_documents(text, split):
            yield Record(document, number, source.name)


def _numbered_documents(lines: Iterable[str], split: str) -> Iterator[tuple[int, str]]:
    r"""Documents, each with the number of its first line.

    >>> list(_numbered_documents(["\n", "a\n", "b\n", "\n", "c\n"], "paragraph"))
    [(2, 'a\nb'), (5, 'c')]
    """
    if split == "line":  # at once, not when the next one begins
        for number, line in enumerate(lines, 1):
            if not line.isspace():
                yield number, line.removesuffix("\n").removesuffix("\r")
        return
    read = 0

    def counted() -> Iterator[str]:
        nonlocal read
        for line in lines:
            read += 1
            yield line

    document: list[str] = []
    first = 0
    for begins, line in split_lines(counted(), split):
        if begins and document:
            yield first, "\n".join(document)
            document = []
        first = first if document else read
        document.append(line)
    if document:
        yield first, "\n".join(document)


def bad_sources(sources: Iterable[Source], **how: Any) -> dict[str, str]:
    """The sources that cannot be read to their end the way `read_lines` would, and why; all are read to find out."""
    bad = {}
    for source in sources:
        try:
            for _ in read_lines([source], **how):
                pass
        except SaffuError as error:
            bad[source.name] = str(error)
    return bad


def _texts(
    sources: Iterable[Source | str | Path],
    field: str | None,
    errors: str,
    bad_records: str,
    skipped: dict[str, Skipped] | None,
    all_fields: bool,
) -> Iterator[tuple[Source, Record | Iterator[str]]]:
    """The texts of sources: all lines of a source of plain text, or one record after the other."""
    _require_choice("encoding_errors", errors, ENCODING_ERRORS)
    _require_choice("bad_records", bad_records, BAD_RECORDS)
    for source in (s if isinstance(s, Source) else Source(Path(s), str(s)) for s in sources):
        with open_source(source) as file:
            kind, lines = format_of(source, decoded_lines(file, source, errors), field)
            if not kind:
                yield source, lines
                continue
            bad = BadRecords(source.name, bad_records == "skip", {} if skipped is None else skipped)
            if kind == "parquet":
                records = parquet_records(file, source, field, all_fields, errors, bad)
            else:
                records = json_records(lines, field, bad) if kind == "json" else csv_records(lines, kind, field, bad)
            for record in valid_records(records, errors, bad):
                yield source, record


def decoded_lines(file: BinaryIO, source: Source, errors: str) -> Iterator[str]:
    """The lines of a file with their line ends. Only \\n ends a line: U+2028, \\x0b, ... are characters."""
    with clear_errors(source):  # also here: the lines of plain text are read after `_texts` has handed them on
        head = file.read1(SNIFFED_BYTES)  # type: ignore[attr-defined]  # what a pipe holds now
        if head.startswith(UTF_16):
            yield from _utf_16_lines(head, file, source, errors)
            return
        if b"\0" in head and errors == "strict":
            require_decompressed(source, head)
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
                require_decompressed(source, head)
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


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise SaffuError(f"`{name}` must be one of {', '.join(choices)}, got {value!r}")


def hold_out(
    lines: Iterable[Line],
    every: int,
    held_out: bool,
    stretch: int = STRETCH,
    after: tuple[int, int] = (0, 0),
    flags: bytearray | None = None,
) -> Iterator[Line]:
    """Divide text into a part to train on and a part that is held out; yields one of the two.

    Documents are cut into stretches of at most `stretch` lines, and every nth stretch is held out (none if `every` is
    0). Where lines of the other part have been removed, a new document begins. The first stretches are shorter, a
    hundredth of the text so far, so that something is held out of a small text too. If a text is read in parts, `after`
    gives the numbers of lines and stretches before this part. `flags` receives those of every line, of both parts.

    >>> lines = [(number == 0, str(number)) for number in range(6)]
    >>> list(hold_out(lines, every=3, held_out=False))
    [(True, '0'), (False, '1'), (True, '3'), (False, '4')]
    >>> list(hold_out(lines, every=3, held_out=True))
    [(True, '2'), (True, '5')]
    """
    if every < 0 or every == 1:
        raise SaffuError(f"`hold_out` must be at least 2, or 0 to hold out nothing, got {every}")
    before = False
    for number, (begins, text) in stretches(lines, stretch, after):
        is_held_out = every > 0 and number % every == 0
        if flags is not None:
            flags.append(BEGINS * begins | HELD_OUT * is_held_out)
        if is_held_out == held_out:
            yield begins or is_held_out != before, text
        before = is_held_out


def stretches(
    lines: Iterable[Line], stretch: int = STRETCH, after: tuple[int, int] = (0, 0)
) -> Iterator[tuple[int, Line]]:
    """Each line with the number, from 1, of the stretch that `hold_out` sees it in."""
    first, number = after
    left = 0
    for seen, (begins, text) in enumerate(lines, first):
        if begins or left == 0:
            number, left = number + 1, max(1, min(stretch, seen // 100))
        left -= 1
        yield number, (begins, text)


def documents_from(documents: Any, field: str | None = None) -> Lines:
    r"""Accept documents from Python: an iterable of strings, of dicts (whose text is in `field`), or of lines.

    The result can be iterated over many times. Each time the documents are read again, nothing is kept in memory; an
    iterator that ends after one pass is copied to a temporary file.

    >>> list(documents_from(["one line", "two\nlines"]))
    [(True, 'one line'), (True, 'two'), (False, 'lines')]
    """
    if isinstance(documents, Lines):
        return documents
    if isinstance(documents, str | bytes | Path):
        kind = "path" if isinstance(documents, Path) else "string"
        raise SaffuError(f"a single {kind} is not a collection of documents; pass a list of strings, such as [text]")
    if hasattr(documents, "iloc") and hasattr(documents, "columns"):
        raise SaffuError("a DataFrame is not a collection of documents; pass one of its columns, such as frame['text']")
    if isinstance(documents, Mapping) or not hasattr(documents, "__iter__"):
        kind = type(documents).__name__
        raise SaffuError(f"{kind!r} is not a collection of documents; pass an iterable of strings, such as a list")
    if iter(documents) is not documents:
        return Lines(lambda: _checked_lines(documents, field))
    spool = Spool()
    spool.file.writelines((json.dumps(line) + "\n").encode() for line in _checked_lines(documents, field))
    spool.file.flush()

    def read() -> Iterator[Line]:
        with spool.path.open(encoding="utf-8") as file:
            for line in file:
                begins, text = json.loads(line)
                yield begins, text

    return Lines(read)


def _checked_lines(documents: Iterable[Any], field: str | None) -> Iterator[Line]:
    for number, document in enumerate(documents, 1):
        if isinstance(document, tuple) and [type(part) for part in document] == [bool, str]:
            yield document[0], document[1]
            continue
        text = document
        if isinstance(document, Mapping):
            text = document[text_field(field, document.keys(), f"document {number}")]
        if not isinstance(text, str):
            raise SaffuError(f"document {number} is not a string but {type(text).__name__!r}; convert or remove it")
        if not is_valid(text):
            raise SaffuError(f"document {number} is not valid Unicode; decode it with errors='replace'")
        yield from lines_of([text])
