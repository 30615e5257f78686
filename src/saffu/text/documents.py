"""Files to documents: find them, read them as UTF-8, split them; and a corpus that ships with Python."""

import ast
import glob
import gzip
import inspect
import io
import re
import sysconfig
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from saffu.errors import SaffuError

SPLITS = ("line", "paragraph", "file")
ENCODING_ERRORS = ("strict", "replace")
SNIFFED_BYTES = 8192  # a NUL byte among the first this many marks a binary file


def find_files(patterns: Sequence[str | Path]) -> list[Path]:
    """The files that paths, folders (all *.txt and *.txt.gz inside) and globs name, sorted, each once.

    A folder without any may hold one split of a BabyLM corpus instead: *.train, *.dev or *.test.

    find_files(["notes.md", "books", "news/**/*.txt"]) → [Path("books/a.txt"), Path("news/b.txt"), ...]
    """
    try:
        found = [path for pattern in patterns for path in _matches(str(pattern))]
    except OSError as error:
        raise SaffuError(f"cannot look up {error.filename}: {error.strerror}; check the path") from None
    return sorted({path.resolve(): path for path in found}.values())


def _matches(pattern: str) -> list[Path]:
    if not pattern:
        raise SaffuError("a name of a file is empty; check the variable or quotes it came from")
    path = Path(pattern)
    if path.is_dir():
        files = _files_ending(path, "txt", "txt.gz") or _files_of_one_split(path)
        if not files:
            raise SaffuError(f"no .txt or .txt.gz file in the folder {path}; name its files or a glob instead")
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


def _files_ending(folder: Path, *suffixes: str) -> list[Path]:
    return [file for suffix in suffixes for file in folder.rglob(f"*.{suffix}") if file.is_file()]


def _files_of_one_split(folder: Path) -> list[Path]:
    splits = {suffix: files for suffix in ("train", "dev", "test") if (files := _files_ending(folder, suffix))}
    if len(splits) > 1:
        raise SaffuError(f"{folder} holds .{' and .'.join(splits)} files together; name the folder of one of them")
    return [file for files in splits.values() for file in files]


def read_documents(paths: Iterable[str | Path], split: str = "line", errors: str = "strict") -> Iterator[str]:
    r"""The documents of the files, one after another; only the one being read is held in memory.

    A file holding "a\r\n  b\n\nc\n" gives, by split:
    line       "a", "  b", "c"           lines end in \n or \r\n; blank lines are no documents
    paragraph  "a\n  b", "c"             paragraphs end at blank lines
    file       "a\r\n  b\n\nc\n"         a blank file is no document

    Text is UTF-8, decompressed first where the name ends in .gz. What is not UTF-8, or looks binary, is an
    error; with errors="replace" it is read all the same, each undecodable byte as U+FFFD.
    """
    if split not in SPLITS:
        raise SaffuError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
    if errors not in ENCODING_ERRORS:
        raise SaffuError(f"unknown way to treat encoding errors {errors!r}; choose strict or replace")
    for path in map(Path, paths):
        lines = _lines(path, errors)
        if split == "file":
            documents: Iterable[str] = ["".join(lines)]
        elif split == "paragraph":
            documents = _paragraphs(map(_without_newline, lines))
        else:
            documents = map(_without_newline, lines)
        yield from (document for document in documents if not _is_blank(document))


def _lines(path: Path, errors: str) -> Iterator[str]:
    """The lines of a file with their line ends. Only \\n ends a line: U+2028, \\x0b, ... are characters."""
    offset = 0
    try:
        with _open(path) as file:
            head = file.read(SNIFFED_BYTES)
            if b"\0" in head and errors == "strict":
                raise SaffuError(
                    f"{path} looks like a binary file: it has NUL bytes; leave it out or convert it to UTF-8"
                )
            head += file.readline()  # so that the head ends where a line does
            for number, line in enumerate(chain(io.BytesIO(head), file), start=1):
                try:
                    text = line.decode("utf-8", errors)
                except UnicodeDecodeError as error:
                    raise SaffuError(
                        f"{path} is not UTF-8 at line {number}, byte {offset + error.start}; "
                        "convert it, or replace such bytes (--encoding-errors replace, errors='replace')"
                    ) from None
                yield text.removeprefix("\ufeff") if number == 1 else text
                offset += len(line)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SaffuError(f"{path} is damaged or no gzip file ({error}); fetch or compress it again") from None
    except OSError as error:
        raise SaffuError(f"cannot read {path}: {error.strerror or error}; check the path and permissions") from None


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _without_newline(line: str) -> str:
    return line[:-1].removesuffix("\r") if line.endswith("\n") else line


def _is_blank(text: str) -> bool:
    return not text or text.isspace()


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Runs of lines that are not blank, joined by newlines."""
    paragraph: list[str] = []
    for line in chain(lines, [""]):
        if not _is_blank(line):
            paragraph.append(line)
        elif paragraph:
            yield "\n".join(paragraph)
            paragraph = []


def default_corpus() -> Iterator[str]:
    """Paragraphs of English that ship with Python: its language reference and its library's docstrings."""
    seen: set[str] = set()
    for text in chain(_language_reference(), _library_docstrings()):
        for paragraph in _paragraphs(inspect.cleandoc(text).split("\n")):
            joined = " ".join(paragraph.split())
            if joined not in seen and _is_prose(paragraph):
                seen.add(joined)
                yield joined
    if not seen:
        raise SaffuError("this Python ships neither its reference nor its library's source; name a corpus of your own")


def _language_reference() -> Iterable[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions leave it out
        return []
    return topics.values()


NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data"}


def _library_docstrings() -> Iterator[str]:
    """The docstrings of the standard library, read from its source: nothing is imported."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if NOT_LIBRARY.isdisjoint(path.relative_to(library).parts):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the library's own deprecated escapes are not the user's
                    module = ast.parse(path.read_bytes())
            except (OSError, SyntaxError, ValueError):
                continue
            yield from _docstrings(module)


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    yield ast.get_docstring(node) or ""
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(child)


CODE = re.compile(
    r">>>|::=|\s[-+*/]?=\s|==|!=|[-=]>|[-=~^_+*#|.]{4,}"  # examples, grammar, signatures, rules of tables
    r"|^\s*(?:\.\. |:\w|[@#$%|+]|import |from \S+ import)"  # reST, comments, prompts, imports
    r"|^\s*(?:def|class|return|print|raise|if|for|while|with|try)\b.*[):]$|[\[({;]$",  # statements
    re.MULTILINE,
)
WORD = re.compile(r"""(?<!\S)[("'“‘*`]*[A-Za-z][a-z]*[)"'”’*`.,:;?!]*(?!\S)""")
SYMBOL = re.compile(r"""[^\w\s.,;:'"‘’“”()*`-]""")


def _is_prose(paragraph: str) -> bool:
    """Whether it reads as English: four words of letters, few symbols, nothing like code or markup."""
    has_words = len(WORD.findall(paragraph)) >= 4
    has_few_symbols = len(SYMBOL.findall(paragraph)) * 12 < len(paragraph)
    return has_words and has_few_symbols and not CODE.search(paragraph)
