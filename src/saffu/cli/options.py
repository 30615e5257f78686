"""What the verbs share: options, documents from files, printing."""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from saffu.config import PRESETS, SaffuConfig

Parser = argparse.ArgumentParser
Verb = Callable[[str, Callable[[argparse.Namespace], None], str, str], Parser]
"""verb(name, run, purpose, example) adds a verb to the command."""


def count(text: str) -> int:
    """A number of tokens: 1000000, 1e6, 500k or 2M."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    try:
        number = int(float(text[:-1] if scale > 1 else text) * scale)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no such number (1000000, 1e6, 500k, 2M)")
    return number


def add_text_options(verb: Parser) -> None:
    verb.add_argument(
        "--split", choices=("line", "paragraph", "file"), default="line", help="what a document is (default: line)"
    )
    verb.add_argument(
        "--encoding-errors",
        choices=("strict", "replace"),
        default="strict",
        help="what to do with bytes that are not UTF-8",
    )


def add_common_options(verb: Parser) -> None:
    verb.add_argument("--device", default="cpu", help="cpu, cuda, … (default: cpu)")
    verb.add_argument("--json", action="store_true", help="print one JSON object; all else goes to standard error")


def add_settings(verb: Parser, settings: type, title: str) -> None:
    """One option for each field of a dataclass of settings."""
    group = verb.add_argument_group(title)
    kinds = get_type_hints(settings)
    for setting in fields(settings):
        flag, meaning = "--" + setting.name.replace("_", "-"), f"{setting.metadata['meaning']} ({setting.default})"
        if settings is SaffuConfig:
            defaults = {name: preset.get(setting.name, setting.default) for name, preset in PRESETS.items()}
            if len(set(defaults.values())) > 1:
                told = ", ".join(f"{name}: {default}" for name, default in defaults.items())
                meaning = f"{setting.metadata['meaning']} ({told})"
        kind = kinds[setting.name]
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=meaning)
        elif get_origin(kind) is Literal:
            choices = get_args(kind)
            group.add_argument(flag, type=type(choices[0]), choices=choices, default=None, help=meaning)
        else:
            group.add_argument(flag, type=kind, default=None, help=meaning, metavar="X" if kind is float else "N")


def given_settings(options: argparse.Namespace, settings: type) -> dict[str, Any]:
    """The fields of a dataclass of settings that the command line names."""
    values = {setting.name: getattr(options, setting.name) for setting in fields(settings)}
    return {name: value for name, value in values.items() if value is not None}


class Documents:
    """The documents of some files (or the default corpus), read anew each time they are asked for."""

    def __init__(self, patterns: Sequence[str], options: argparse.Namespace):
        from saffu import text

        if patterns:
            files = text.find_files(patterns)
            self.read: Callable[[], Iterator[str]] = lambda: text.read_documents(
                files, options.split, options.encoding_errors
            )
        else:
            shipped = list(text.default_corpus())  # gathered once: that takes longer than reading it
            self.read = lambda: iter(shipped)

    def __iter__(self) -> Iterator[str]:
        return self.read()


class Share:
    """Every so-many-th document (held out), or all the others."""

    def __init__(self, documents: Documents, every: int, held_out: bool):
        self.documents, self.every, self.held_out = documents, every, held_out

    def __iter__(self) -> Iterator[str]:
        for number, document in enumerate(self.documents, 1):
            if (self.every > 0 and number % self.every == 0) == self.held_out:
                yield document


def model_facts(lm: Any) -> dict[str, Any]:
    return {
        "parameters": lm.parameters_,
        "vocabulary": len(lm.tokenizer_),
        "config": lm.config.to_dict(),
        "trained_on": lm.trained_on_,
    }


def print_json(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, ensure_ascii=False))


def visible(token: str) -> str:
    """A token with its spaces seen, and control characters spelled out, so that no text can steer the terminal."""
    return "".join("▁" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in token)
