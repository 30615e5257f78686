"""saffu completion: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from saffu.cli.options import Command, Parser

BASH = """\
_saffu() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [[ $COMP_CWORD -eq 1 ]]; then words="{commands}"
    elif [[ $current == -* ]]; then
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _saffu saffu
"""
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


def add_options(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="bash, zsh, or fish")


def run(options: argparse.Namespace) -> None:
    commands: Iterable[Command] = options.commands
    flags = {command.name: flags_of(command) for command in commands}
    if options.shell == "fish":
        for command in commands:
            purpose = command.purpose.replace("'", r"\'")
            print(f"complete -c saffu -n __fish_use_subcommand -a {command.name} -d '{purpose}'")
            for flag in flags[command.name]:
                print(f"complete -c saffu -n '__fish_seen_subcommand_from {command.name}' -l {flag.removeprefix('--')}")
        return
    cases = "\n".join(f'            {name}) words="{" ".join(known)}" ;;' for name, known in flags.items())
    print((ZSH if options.shell == "zsh" else "") + BASH.format(commands=" ".join(flags), cases=cases), end="")


def flags_of(command: Command) -> list[str]:
    """The long options of a command."""
    parser = Parser(command)
    command.add_options(parser, [])
    return [flag for flag in parser._option_string_actions if flag.startswith("--")]


COMMAND = Command(
    "completion",
    "print a shell completion script",
    "bash|zsh|fish",
    "saffu completion bash > ~/.local/share/bash-completion/completions/saffu\n"
    "saffu completion zsh > ~/.saffu-completion && echo 'source ~/.saffu-completion' >> ~/.zshrc\n"
    "saffu completion fish > ~/.config/fish/completions/saffu.fish",
    add_options,
    run,
)
