"""A corpus of English that ships with Python: its language reference and the docstrings of its library."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from saffu.errors import SaffuError

NOT_LIBRARY = {"test", "tests", "idlelib", "lib2to3", "pydoc_data", "ensurepip", "turtledemo", "distutils"}


def default_corpus() -> Iterator[str]:
    """Yield paragraphs of English, each as one line, each once.

    The text depends on the version of Python: numbers measured on it compare only within one version. Modules that not
    every installation has, and private ones, are skipped, so that installations of one version differ little.
    """
    seen: set[str] = set()
    for text in chain(_language_reference(), _library_docstrings()):
        for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
            joined = " ".join(paragraph.split())
            if joined not in seen and _is_prose(paragraph):
                seen.add(joined)
                yield joined
    if not seen:
        raise SaffuError("this Python comes without its reference and its library's source; pass your own text")


def _language_reference() -> Iterable[str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions do without it
        return []
    return [text for _, text in sorted(topics.items())]


def _library_docstrings() -> Iterator[str]:
    """The docstrings of the standard library's public modules, read from their source: nothing is imported."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in sorted(sys.stdlib_module_names - NOT_LIBRARY):
        for path in [library / f"{module}.py", *sorted((library / module).rglob("*.py"))]:
            parts = path.relative_to(library).with_suffix("").parts
            is_private = any(part.startswith("_") and not part.startswith("__") for part in parts)
            if NOT_LIBRARY.isdisjoint(parts) and not is_private:
                yield from _docstrings(path)


def _docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a module, its classes, and its functions; none if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated escapes in the library are not the user's concern
            nodes: list[ast.AST] = [ast.parse(path.read_bytes())]
    except (OSError, SyntaxError, ValueError):
        return
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
            nodes += reversed(node.body)


CODE = re.compile(
    r">>>|::=|\s[-+*/]?=\s|==|!=|[-=]>|[-=~^_+*#|.]{4,}"  # examples, grammar, signatures, rules of tables
    r"|^\s*(?:\.\. |:\w|[@#$%|+]|import |from \S+ import)"  # reST, comments, prompts, imports
    r"|^\s*(?:def|class|return|print|raise|if|for|while|with|try)\b.*[):]$|[\[({;]$",  # statements
    re.MULTILINE,
)
WORD = re.compile(r"""(?<!\S)[("'“‘*`]*[A-Za-z][a-z]*[)"'”’*`.,:;?!]*(?!\S)""")
SYMBOL = re.compile(r"""[^\w\s.,;:'"‘’“”()*`-]""")


def _is_prose(paragraph: str) -> bool:
    """Whether it reads as English: four words of letters, few symbols, nothing like code or markup.

    >>> _is_prose("Return the number of items."), _is_prose(">>> return the number of items")
    (True, False)
    """
    has_words = len(WORD.findall(paragraph)) >= 4
    has_few_symbols = len(SYMBOL.findall(paragraph)) * 12 < len(paragraph)
    return has_words and has_few_symbols and not CODE.search(paragraph)
