"""The subcommands, in the order in which help lists them, and the choice of one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches

from saffu import __version__
from saffu.cli import (
    ablate,
    check,
    compare,
    complete,
    completion,
    download,
    embed,
    eval,
    explain,
    export,
    generate,
    info,
    living,
    pairs,
    play,
    report,
    reproduce,
    score,
    train,
)
from saffu.cli.options import Parser
from saffu.errors import SaffuError

MODELS = (
    train.COMMAND, living.UPDATE, living.FORGET, living.MERGE, living.MIX, info.COMMAND, check.COMMAND,
    export.COMMAND,
)  # fmt: skip
USES = (
    eval.COMMAND, score.COMMAND, generate.COMMAND, complete.COMMAND, explain.COMMAND, embed.COMMAND, pairs.COMMAND,
    play.COMMAND,
)  # fmt: skip
EXPERIMENTS = (download.COMMAND, reproduce.COMMAND, ablate.COMMAND, report.COMMAND, compare.COMMAND)
GROUPS = {"make and change models": MODELS, "use models": USES, "experiments": EXPERIMENTS}
GROUPS["the shell"] = (completion.COMMAND,)
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}


def parse(words: Sequence[str]) -> argparse.Namespace | None:
    """Parse a command line, including its command; return None after printing help or the version."""
    if not words:
        raise SaffuError("missing command; run `saffu --help` for a list")
    name, *rest = words
    if name in ("-h", "--help", "help"):
        print(top_help())
        return None
    if name in ("-V", "--version"):
        print(f"saffu {__version__}")
        return None
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, 1)
        raise SaffuError(f"unknown command {name!r}; " + (f"did you mean {near[0]}?" if near else "see `saffu --help`"))
    parser = Parser(COMMANDS[name])
    parser.set_defaults(commands=COMMANDS.values())
    COMMANDS[name].add_options(parser, rest)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help(), end="")
        return None
    return parser.parse(rest)


def top_help() -> str:
    """What `saffu --help` prints."""
    lines = [
        "usage: saffu COMMAND [options]",
        "",
        "Small language models of your own text: counted first and, if you like, then trained.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {command.name:<11} {command.purpose}" for command in commands)]
    return "\n".join(
        [*lines, "", "Run `saffu COMMAND --help` for options and examples; `saffu --version` for the version."]
    )
