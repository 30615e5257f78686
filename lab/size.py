"""Count the code of this repository: tokens and lines of each room, and commands, options, and classes of the package.

Tokens, unlike lines, do not fall when a docstring is deleted or two lines are joined. Python's are those of `tokenize`
without comments, docstrings, line ends, and indentation; those of other languages are strings, words, and single signs.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

from saffu.errors import SaffuError
from saffu.format import table

ROOT = Path(__file__).parent.parent
LANGUAGES = {".py": "Python", ".cpp": "C++", ".h": "C++", ".js": "page", ".css": "page", ".html": "page"}
ROOMS = ("src/saffu", "tests", "lab", "benchmarks", "reference")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
SILENT |= {tokenize.ENCODING, tokenize.ENDMARKER}
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
SIGN = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`|\w+|[^\w\s]")


def python_tokens(source: str) -> int:
    """Count the tokens of Python code.

    >>> python_tokens('def one() -> int:  # a comment\\n    "Return one."\\n    return 1')
    9
    """
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                docstrings.add((first.lineno, first.col_offset))
    number = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        depth -= name == "FSTRING_END"  # from Python 3.12 on, an f-string is several tokens; here, it is one
        if token.type not in SILENT and not depth and not (token.type == tokenize.STRING and token.start in docstrings):
            number += name != "FSTRING_END"
        depth += name == "FSTRING_START"
    return number


def other_tokens(source: str) -> int:
    """Count the tokens of C++, JavaScript, CSS, or HTML.

    >>> other_tokens('int one() { return 1; }  // a comment')
    9
    """
    return len(SIGN.findall(COMMENT.sub(" ", source)))


def tokens_of(path: Path) -> int:
    """Count the tokens of a file."""
    source = path.read_text("utf-8")
    return python_tokens(source) if path.suffix == ".py" else other_tokens(source)


def files_of(room: str) -> list[Path]:
    """Return the files of code in a folder."""
    return [path for path in sorted((ROOT / room).rglob("*")) if path.suffix in LANGUAGES and path.is_file()]


def command_options() -> dict[str, int]:
    """Count the options of each command, hidden ones included, without --help and positional arguments."""
    from saffu.cli.commands import COMMANDS
    from saffu.cli.options import Parser

    numbers = {}
    for name, command in COMMANDS.items():
        parser = Parser(command)
        command.add_options(parser, [])
        actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
        numbers[name] = len(actions)
    return numbers


def classes() -> int:
    """Count the classes of the package."""
    trees = [ast.parse(path.read_text("utf-8")) for path in files_of("src/saffu") if path.suffix == ".py"]
    return sum(isinstance(node, ast.ClassDef) for tree in trees for node in ast.walk(tree))


def budget() -> int:
    """Return the number of tokens that the package may have, from pyproject.toml."""
    match = re.search(r"^tokens = ([\d_]+)", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert match, "pyproject.toml has no budget of tokens"
    return int(match[1])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the sizes are of the whole repository."""


def run_command(options: argparse.Namespace) -> None:
    """Print the sizes. Raise SaffuError if the package is over its budget."""
    rows = []
    for room in ROOMS:
        tokens: Counter[tuple[str, str]] = Counter()
        lines: Counter[tuple[str, str]] = Counter()
        for path in files_of(room):
            inside = path.relative_to(ROOT / room).parts
            place = f"{room}/{inside[0]}" if room == "src/saffu" and len(inside) > 1 else room
            tokens[place, LANGUAGES[path.suffix]] += tokens_of(path)
            lines[place, LANGUAGES[path.suffix]] += len(path.read_text("utf-8").splitlines())
        for key, number in sorted(tokens.items()):
            rows.append((*key, f"{number:,}", f"{lines[key]:,}"))
        if len(tokens) > 1:
            rows.append((room, "all", f"{tokens.total():,}", f"{lines.total():,}"))
    print(table(("room", "language", "tokens", "lines"), rows))
    numbers = command_options()
    print(f"{len(numbers)} commands, {sum(numbers.values())} options, {classes()} classes")
    size = sum(map(tokens_of, files_of("src/saffu")))
    print(f"src/saffu: {size:,} tokens of code, of a budget of {budget():,}")
    if size > budget():
        raise SaffuError(f"src/saffu is {size - budget():,} tokens over the budget in pyproject.toml")
