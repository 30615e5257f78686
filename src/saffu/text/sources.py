"""Where text comes from: files, folders, globs, standard input, and pipes, compressed or not; and its format.

Whether a source without a telling name holds plain text, a table, or JSON is decided by its first lines.
"""

from __future__ import annotations

import bz2
import csv
import glob
import gzip
import importlib
import io
import json
import lzma
import os
import shutil
import stat
import sys
import tempfile
import weakref
import zlib
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, BinaryIO

from saffu.errors import SaffuError, install_command
from saffu.format import announce_keyboard
from saffu.writing import facts_of_model

ENDINGS = ("txt", "md", "jsonl", "ndjson", "csv", "tsv", "parquet")
COMPRESSED = ("gz", "zst", "bz2", "xz")
COMPRESSORS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz"}  # by first bytes
SUFFIXES = tuple(f".{ending}{compressed}" for ending in ENDINGS for compressed in ("", *(f".{c}" for c in COMPRESSED)))
STANDARD_INPUT = "-"
SNIFFED_LINES = 20  # if all of them are JSON objects, a source is not plain text
DESCRIPTORS = Path("/proc/self/fd")  # where Linux lets a process open its own files again


@dataclass(frozen=True)
class Source:
    """Something to read text from. Its name decides its format and is shown in messages."""

    path: Path
    name: str
    spooled: bool = False  # copied from a pipe

    @property
    def compression(self) -> str:
        """gz, zst, bz2, xz, or empty."""
        ending = Path(self.name).suffix.lower().removeprefix(".")
        return ending if ending in COMPRESSED else ""

    @property
    def format(self) -> str:
        """The ending of its name, without that of a compression: txt, jsonl, …, or empty."""
        name = Path(self.name)
        return (name.with_suffix("") if self.compression else name).suffix.lower().removeprefix(".")


class Spool:
    """A temporary file, read by its path as often as needed; gone when it is closed or no longer referred to.

    On Linux it has no name in any folder, so that nothing of it is left even if the process is killed.
    """

    def __init__(self) -> None:
        resources = ExitStack()
        if DESCRIPTORS.is_dir():
            self.file: IO[bytes] = resources.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self.path = DESCRIPTORS / str(self.file.fileno())
        else:
            self.path = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="saffu-"))) / "text"
            self.file = resources.enter_context(self.path.open("w+b"))
        self.close = weakref.finalize(self, resources.close)


class Sources:
    """Sources to be read as often as needed. Pipes, which can be read only once, are copied to temporary files.

    The name "-" is standard input; `<(command)` and named pipes are read too. Use it in a `with` statement, or call
    `close`, to remove the copies as soon as they are no longer needed.
    """

    def __init__(self, patterns: Sequence[str | Path]):
        self._spools: list[Spool] = []
        self._sources: list[Source] = []
        try:
            if any(str(pattern) == STANDARD_INPUT for pattern in patterns):
                if sys.stdin is None:
                    raise SaffuError("standard input is closed; name a file instead of -")
                announce_keyboard()
                self._sources.append(self._spooled(sys.stdin.buffer, "standard input"))
            for path in find_files([pattern for pattern in patterns if str(pattern) != STANDARD_INPUT]):
                self._sources.append(self._source(path))
        except BaseException:
            self.close()
            raise

    def _source(self, path: Path) -> Source:
        try:
            mode = path.stat().st_mode
            if stat.S_ISREG(mode):
                return Source(path, str(path))
            if stat.S_ISFIFO(mode):
                with path.open("rb") as pipe:
                    return self._spooled(pipe, str(path))
        except OSError as error:
            raise _unreadable(str(path), error) from None
        raise SaffuError(f"{path} is neither a file nor a pipe; name a file, or - for standard input")

    def _spooled(self, pipe: BinaryIO, name: str) -> Source:
        spool = Spool()
        self._spools.append(spool)
        shutil.copyfileobj(pipe, spool.file)
        spool.file.flush()
        return Source(spool.path, name, spooled=True)

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def leave_out(self, names: Container[str]) -> None:
        """Forget the sources with these names."""
        self._sources = [source for source in self._sources if source.name not in names]

    def close(self) -> None:
        for spool in self._spools:
            spool.close()

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_files(patterns: Sequence[str | Path]) -> list[Path]:
    """Find the files that paths, folders (every file of a known format), and globs name: sorted, each once.

    A folder without any, or with .md files alone, may hold one part of a BabyLM corpus instead: *.train, *.dev, or
    *.test. Hidden files in a folder are not read, nor those of models, such as their logs.

    find_files(["notes.md", "books", "news/**/*.txt"]) → [Path("books/a.txt"), Path("news/b.txt"), ...]
    """
    try:
        paths = [path for pattern in patterns for path in _matches(str(pattern))]
    except OSError as error:
        raise SaffuError(f"cannot look up {error.filename}: {error.strerror}; check the path") from None
    return sorted({path.resolve(): path for path in paths}.values(), key=_absolute)


def _absolute(path: Path) -> Path:
    """A path by which files have the same order in whatever folder a run is resumed."""
    return Path(os.path.normpath(path.absolute()))


def other_files(patterns: Sequence[str | Path]) -> list[Path]:
    """The files of folders among the patterns that `find_files` does not read, because their format is unknown."""
    folders = [Path(pattern) for pattern in patterns if str(pattern) and Path(pattern).is_dir()]
    read = {file.resolve() for file in find_files(folders)}
    return sorted({file for folder in folders for file in _files_in(folder) if file.resolve() not in read})


def _matches(pattern: str) -> list[Path]:
    if not pattern:
        raise SaffuError("empty file name; check for an unset variable or stray quotes")
    path = Path(pattern)
    if path.is_dir():
        files = [file for file in _files_in(path) if file.name.lower().endswith(SUFFIXES)]
        if all(file.suffix.lower() == ".md" for file in files):  # which may describe a corpus
            files = _files_of_one_part(path) or files
        if not files:
            endings = ", ".join(f".{ending}" for ending in ENDINGS)
            raise SaffuError(f"no text in the folder {path} (files ending in {endings}); name its files or a glob")
    elif path.exists():
        files = [path]
    elif glob.has_magic(pattern):
        matches = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        files = [match for match in matches if match.is_file()]
        if not files:
            raise SaffuError(f"no file matches {pattern}; check the pattern and the folder it starts from")
    else:
        raise SaffuError(f"no such file or folder: {path}; check the path")
    return files


def _files_in(folder: Path) -> Iterator[Path]:
    """Its files at any depth, but none that is hidden or in a hidden folder, or that belongs to a model."""
    files = (file for file in folder.rglob("*") if file.is_file())
    visible = [file for file in files if not any(part.startswith(".") for part in file.relative_to(folder).parts)]
    models = {parent for parent in {file.parent for file in visible} if facts_of_model(parent)}
    return (file for file in visible if file.parent not in models)


def _files_of_one_part(folder: Path) -> list[Path]:
    endings = (".train", ".dev", ".test")
    files = [file for file in _files_in(folder) if file.suffix in endings]
    present = [ending for ending in endings if any(file.suffix == ending for file in files)]
    if len(present) > 1:
        raise SaffuError(f"{folder} holds {' and '.join(present)} files; name the folder of one of them")
    return files


def format_of(source: Source, lines: Iterator[str], field: str | None) -> tuple[str, Iterator[str]]:
    """What a source holds, and all of its lines: "parquet", "json" lines, the delimiter of a table, or "" for text."""
    if source.format == "parquet":
        return source.format, lines
    delimiter, lines = table_delimiter(source, lines, field)
    if delimiter:
        return delimiter, lines
    holds_json, lines = is_json(source, lines, field)
    return "json" if holds_json else "", lines


def table_delimiter(source: Source, lines: Iterator[str], field: str | None) -> tuple[str, Iterator[str]]:
    """What separates the columns of a table, empty if a source is not one; and all of its lines.

    A pipe holds a table if its first line names the field of the text among others.
    """
    delimiters = {"csv": ",", "tsv": "\t"}
    if source.format in delimiters or not source.spooled or source.format or field is None:
        return delimiters.get(source.format, ""), lines
    first = next(lines, "")
    names = first.rstrip("\r\n")
    delimiter = next((d for d in "\t," if d in names and field in next(csv.reader([names], delimiter=d))), "")
    return delimiter, chain([first] if first else [], lines)


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


def parsed_object(line: str) -> dict[str, Any] | None:
    """The JSON object that a line holds, or None."""
    try:
        value = json.loads(line) if line.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@contextmanager
def open_source(source: Source) -> Iterator[BinaryIO]:
    """Open a source for reading, decompressed."""
    with clear_errors(source), _open(source) as file:
        yield file


@contextmanager
def clear_errors(source: Source) -> Iterator[None]:
    """Report any failure to read a source as one clear line."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise _unreadable(source.name, error) from None
        what = f"corrupt or not a .{source.compression} file" if source.compression else "corrupt"
        remedy = "download or compress it again" if source.compression else "download it again"
        reason = " ".join(str(error).split())
        raise SaffuError(f"{source.name} is {what} ({reason}); {remedy}") from None


def _open(source: Source) -> BinaryIO:
    openers: dict[str, Any] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open, "zst": _open_zstd}
    file: BinaryIO = openers[source.compression](source.path) if source.compression else source.path.open("rb")
    return file


def require_decompressed(source: Source, head: bytes) -> None:
    """Of a source that is not text: say so if it is compressed, but not named like that, as standard input never is."""
    program = next((program for first, program in COMPRESSORS.items() if head.startswith(first)), None)
    if program:
        raise SaffuError(f"{source.name} is compressed; decompress it first, with `{program} -dc`")


def _unreadable(name: str, error: OSError) -> SaffuError:
    return SaffuError(f"cannot read {name}: {error.strerror or error}; check the path and permissions")


def import_extra(module: str, needed_for: str) -> Any:
    """Import a package that is not always installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.split(".")[0]
        raise SaffuError(f"{needed_for} needs {package}; install it with `{install_command('formats')}`") from None


def _open_zstd(path: Path) -> io.BufferedReader:
    zstandard = import_extra("zstandard", f"reading {path.name}")
    return io.BufferedReader(_ZstdFile(path.open("rb"), zstandard))


ZSTD_BYTES = 1 << 10  # decompressed at a time: at most 32 MB come out of them, 128 KB of every 4 bytes


class _ZstdFile(io.RawIOBase):
    """A .zst file, decompressed; unlike zstandard's own reader it notices that a file ends too early."""

    def __init__(self, file: BinaryIO, zstandard: Any):
        self._file = file
        self._zstandard = zstandard
        self._pieces = self._decompressed()
        self._rest = b""

    def _decompressed(self) -> Iterator[bytes]:
        frame, data = None, b""
        while data := data or self._file.read(ZSTD_BYTES):
            frame = frame or self._zstandard.ZstdDecompressor().decompressobj()
            try:
                yield frame.decompress(data)
            except self._zstandard.ZstdError as error:
                raise EOFError(str(error)) from None
            frame, data = (None, frame.unused_data) if frame.eof else (frame, b"")
        if frame:
            raise EOFError("it ends too early")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._rest = piece
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
