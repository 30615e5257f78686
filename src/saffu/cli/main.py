"""The command `saffu`: parse, call, print. Verbs are in `saffu.commands`; what is slow to import waits inside them."""

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from saffu import __version__
from saffu.commands import (
    ablate,
    bench,
    compare,
    data,
    embed,
    eval,
    explain,
    export,
    forget,
    generate,
    info,
    merge,
    pairs,
    report,
    reproduce,
    train,
    update,
)
from saffu.errors import SaffuError

MODELS = (data, train, update, forget, merge, eval, pairs, generate, explain, embed, info, export)
EXPERIMENTS = (compare, ablate, report, reproduce, bench)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command. Exit status: 0 done, 2 the user can mend it, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if sys.platform == "win32" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # as everywhere else, also into files and pipes
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that scratch folders are removed on the way out
    try:
        options.run(options)
    except SaffuError as error:
        fail(as_typed(str(error), options))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        fail(f"cannot read or write{where}: {error.strerror or error}; check the place, its permissions and free space")
    except KeyboardInterrupt:
        print("saffu: interrupted; nothing half-written is left behind", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def as_typed(message: str, options: argparse.Namespace) -> str:
    """A message with the settings in its backquotes as options, if the verb has them: `top_k` → --top-k."""
    return re.sub(r"`(\w+)`", lambda name: "--" + name[1].replace("_", "-") if name[1] in options else name[0], message)


def fail(message: str) -> NoReturn:
    print(f"saffu: {message}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message}; see `{self.prog} --help`")


class VerbParser(Parser):
    """Takes options before, between and after what a verb acts on."""

    sorting = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.sorting:  # as the method below calls this one
            return super().parse_known_args(args, namespace)
        self.sorting = True
        try:
            found, left = self.parse_known_intermixed_args(args, namespace)
        finally:
            self.sorting = False
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left


def parser() -> Parser:
    top = Parser(
        prog="saffu",
        description="Language models whose weights are counted, not trained.",
        epilog="saffu VERB --help shows the options of a verb and an example.",
    )
    top.add_argument("--version", action="version", version=f"saffu {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True, parser_class=VerbParser)

    def verb(name: str, run: Callable[[argparse.Namespace], None], purpose: str, example: str) -> Parser:
        added: Parser = verbs.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    for command in (*MODELS, *EXPERIMENTS):  # in the order in which help shows them
        command.add(verb)
    return top
