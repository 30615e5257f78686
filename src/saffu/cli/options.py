"""Options made from settings classes, the options that commands share, and a parser with one-line errors."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from saffu.errors import SaffuError
from saffu.settings import Settings

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.text.corpus import TokenCorpus
    from saffu.text.selection import Reading, TextSelection

LARGEST = 2**63 - 1
SPLITS = ("file", "paragraph", "line")


@dataclass(frozen=True)
class Command:
    """A subcommand of `saffu`."""

    name: str
    purpose: str
    usage: str
    examples: str
    add_options: Callable[[Parser, Sequence[str]], None]  # receives the arguments after the command
    run: Callable[[argparse.Namespace], None]


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Columns that leave room for one-line help texts."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(shutil.get_terminal_size().columns, 120) - 2)


class Parser(argparse.ArgumentParser):
    """Takes options before, between, and after the other arguments, never abbreviated; errors are SaffuErrors."""

    def __init__(self, command: Command) -> None:
        super().__init__(
            prog=f"saffu {command.name}",
            usage=f"saffu {command.name} {command.usage}",
            description=command.purpose[0].upper() + command.purpose[1:] + ".\nDefaults are in brackets.",
            epilog="examples:\n" + "\n".join(f"  {line}" for line in command.examples.splitlines()),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
        )
        self.set_defaults(command=command)
        self.foreign: dict[str, str] = {}  # options of another preset, and what to do about them

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        options, unknown = self.parse_known_intermixed_args(list(words))
        if unknown:
            self.error(self._advice([word.split("=")[0] for word in unknown]))
        if "quiet" in options:
            from saffu.format import hide_progress

            hide_progress(options.quiet)
        return options

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        raise SaffuError(message if ";" in message else f"{message}; see `{self.prog} --help`")

    def _advice(self, unknown: Sequence[str]) -> str:
        flags = [word for word in unknown if word.startswith("-")]
        for flag in flags:
            if flag in self.foreign:
                return self.foreign[flag]
        if not flags:
            return f"unexpected argument {unknown[0]!r}"
        longer = [name for name in self._option_string_actions if name.startswith(flags[0])]  # --temp: --temperature
        names = [name.removeprefix("--") for name in self._option_string_actions]
        near = longer or [f"--{name}" for name in get_close_matches(flags[0].removeprefix("--"), names, 1)]
        return f"unknown option {flags[0]}" + (f"; did you mean {near[0]}?" if near else "")


def flag(name: str) -> str:
    """The option of a setting: "learning_rate" → "--learning-rate"."""
    return "--" + name.replace("_", "-")


def count(text: str) -> int:
    """A number that may be large.

    >>> count("1000"), count("1e6"), count("500k"), count("2M")
    (1000, 1000000, 500000, 2000000)
    """
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    try:
        number = Decimal(text[:-1] if scale > 1 else text) * scale
    except ArithmeticError:
        number = Decimal(0)
    if not (number.is_finite() and 1 <= number <= LARGEST and number % 1 == 0):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}; expected, e.g., 1000000, 1e6, 500k, or 2M")
    return int(number)


def finite(text: str) -> float:
    """A type for options: a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a number, got {text[:40]!r}")
    return value


def named(text: str) -> str:
    """A type for options: a name that is not empty, as an unset variable would leave it."""
    if not text:
        raise argparse.ArgumentTypeError("empty name; check for an unset variable or stray quotes")
    return text


def named_path(text: str) -> Path:
    """A type for options: a path. An empty one would be the current folder."""
    path = Path(named(text))
    try:
        path.resolve()
    except FileNotFoundError:
        raise argparse.ArgumentTypeError("the current folder was deleted; change to another one") from None
    except (RuntimeError, OSError):  # before and since Python 3.13
        raise argparse.ArgumentTypeError(f"{text} is a link that leads to itself; remove it") from None
    return path


def integer(low: int, high: int = LARGEST) -> Callable[[str], int]:
    """A type for options: an integer from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got {text[:40]!r}") from None
        if not low <= number <= high:
            limits = f"of at least {low}" if number < low else f"of at most {high}"
            raise argparse.ArgumentTypeError(f"must be an integer {limits}, got {text[:40]}")
        return number

    return parse


def own_settings(settings: type[Settings], rare: bool = False) -> list[Field[Any]]:
    """The fields that are options of their own or, if `rare`, those behind --set."""
    return [e for e in fields(settings) if bool(e.metadata["rare"]) == rare and not e.metadata["derived"]]


def add_settings(parser: argparse._ActionsContainer, settings: type[Settings], skip: Container[str] = ()) -> None:
    """Add an option for each setting that is not rare. Options that are not given are None."""
    kinds = get_type_hints(settings)
    for entry in own_settings(settings):
        if entry.name in skip:
            continue
        kind = plain_kind(kinds[entry.name])
        meaning = f"{entry.metadata['meaning']} [{shown(entry.default)}]"
        meaning = meaning.replace("%", "%%")
        if kind is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag(entry.name), action=action, default=None, help=meaning)
        elif get_origin(kind) is Literal:
            choices = get_args(kind)
            names = "|".join(map(str, choices))
            parser.add_argument(flag(entry.name), type=type(choices[0]), choices=choices, metavar=names, help=meaning)
        else:
            metavar = {int: "N", float: "X"}.get(kind, "TEXT")
            parse = {int: integer(-LARGEST), float: finite}.get(kind, kind)  # closer limits are the settings' own
            if option := entry.metadata["option"]:
                parser.add_argument(flag(option), dest=entry.name, type=parse, metavar=metavar, help=meaning)
                meaning = argparse.SUPPRESS
            parser.add_argument(flag(entry.name), type=parse, metavar=metavar, help=meaning)


def plain_kind(kind: Any) -> Any:
    """The type of a setting that may be None: `int | None` → int."""
    others = [choice for choice in get_args(kind) if choice is not type(None)]
    return others[0] if type(None) in get_args(kind) else kind


def given_settings(options: argparse.Namespace, settings: type[Settings]) -> dict[str, Any]:
    """The settings of a class that the command line sets, by option or by --set."""
    values = {entry.name: getattr(options, entry.name, None) for entry in own_settings(settings)}
    given = {name: value for name, value in values.items() if value is not None}
    rare = {entry.name for entry in own_settings(settings, rare=True)}
    return given | {name: value for name, value in rare_values(options).items() if name in rare}


def add_set_option(parser: Parser, usual: Sequence[Settings]) -> None:
    """Add --set for the rare settings of some classes, passed as instances with the default values."""
    help = "rarely needed settings; `--set help` lists them"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=help)
    rare = {entry.name: settings for settings in usual for entry in own_settings(type(settings), rare=True)}
    parser.set_defaults(rare=rare)


def rare_values(options: argparse.Namespace) -> dict[str, Any]:
    """The values of all --set options, by name."""
    values: dict[str, Any] = {}
    for given in getattr(options, "set", []):
        name = given.partition("=")[0].strip().replace("-", "_")
        if name in options and name not in ("set", "rare", "command"):
            raise SaffuError(f"--set {given} is an option of its own; use {flag(name)} {given.partition('=')[2]}")
        name, text = named_setting(given, options)
        values[name] = converted(name, text, options)
    return values


def named_setting(given: str, options: argparse.Namespace) -> tuple[str, str]:
    """The name and the value, as it was typed, of one --set."""
    name, _, text = given.partition("=")
    name = name.strip().replace("-", "_")
    if name not in options.rare:
        near = get_close_matches(name, options.rare, 1)
        raise SaffuError(
            f"--set has no setting {name!r}; " + (f"did you mean {near[0]}?" if near else "see --set help")
        )
    if not text.strip():
        raise SaffuError(f"--set {name} has no value; use --set {name}=VALUE")
    return name, text.strip()


def converted(name: str, text: str, options: argparse.Namespace) -> Any:
    """Convert an argument of the command line to the value of a rare setting."""
    kind = plain_kind(get_type_hints(type(options.rare[name]))[name])
    if get_origin(kind) is Literal:
        kind = type(get_args(kind)[0])
    try:
        if kind is bool:
            return {"yes": True, "true": True, "no": False, "false": False}[text.lower()]
        return integer(-LARGEST)(text) if kind is int else kind(text)
    except (KeyError, ValueError, argparse.ArgumentTypeError):
        wanted = {bool: "yes or no", int: "an integer", float: "a number"}.get(kind, "a string")
        raise SaffuError(f"--set {name} must be {wanted}, got {text!r}") from None


def rare_help(options: argparse.Namespace) -> str:
    """What `--set help` prints."""
    lines = ["settings for --set NAME=VALUE:"]
    for name, settings in sorted(options.rare.items()):
        meaning = next(entry.metadata["meaning"] for entry in fields(settings) if entry.name == name)
        kind = get_type_hints(type(settings))[name]
        choices = f" [{', '.join(map(str, get_args(kind)))}]" if get_origin(kind) is Literal else ""
        lines.append(f"  {name}={shown(getattr(settings, name))}\n      {meaning}{choices}")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """A default value as it would be typed."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_text_options(parser: Parser, split: str | None = None) -> argparse._ArgumentGroup:
    """Add the options for reading text; `split` None means as the model's own text was read. Returns the group."""
    group = parser.add_argument_group("reading text")
    help = f"what a document is: file, paragraph, or line [{split or 'as in training'}]"
    group.add_argument("--split", choices=SPLITS, metavar="UNIT", help=help)
    add_record_options(group)
    return group


def add_record_options(group: argparse._ActionsContainer) -> None:
    help = "field of JSON or table records that holds the text [text]"
    group.add_argument("--field", metavar="NAME", help=help)
    choices = ("strict", "replace")
    help = "invalid UTF-8: strict (stop) or replace [strict]"
    group.add_argument("--encoding-errors", choices=choices, default="strict", metavar="HOW", help=help)
    choices = ("error", "skip")
    help = "malformed records: error (stop) or skip [error]"
    group.add_argument("--bad-records", choices=choices, default="error", metavar="HOW", help=help)
    help = "skip files that are corrupt or not UTF-8, and list them"
    group.add_argument("--skip-bad-files", action="store_true", help=help)


def reading_of(options: argparse.Namespace, usual: Mapping[str, Any] | None = None, split: str = "file") -> Reading:
    """How to read text: by the options or, where they leave it open, the `usual` way, that of a model's own text."""
    from saffu.text.selection import Reading

    usual = usual or {}
    return Reading(
        split=options.split or usual.get("split") or split,
        field=options.field or usual.get("field"),
        encoding_errors=options.encoding_errors,
        bad_records=options.bad_records,
        skip_bad_files=options.skip_bad_files,
    )


def selection_of(options: argparse.Namespace, reading: Reading) -> TextSelection:
    """The training text and the held-out text that the options name."""
    from saffu.text.selection import TextSelection

    return TextSelection.of(options.text, options.dev or (), options.hold_out, options.max_tokens, reading)


def add_cluster_option(parser: Parser) -> None:
    """Add the option for a Ray cluster."""
    help = "run on the Ray cluster at ADDRESS [one started on this machine]"
    parser.add_argument("--ray", nargs="?", type=named, const="local", metavar="ADDRESS", help=help)


def add_model(parser: Parser) -> None:
    parser.add_argument("model", type=named_path, metavar="MODEL", help="model folder")


def add_device(parser: Parser) -> None:
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, or cuda:N; for models with a network [cpu]")


def device_of(options: argparse.Namespace) -> str:
    """The device that --device names, after a check that it can be used."""
    device = getattr(options, "device", None)
    if device in (None, "cpu"):
        return "cpu"
    from saffu.paper.devices import usable_device

    return str(usable_device(device))


def load_model(options: argparse.Namespace, check: bool = False) -> SaffuLM:
    """The model that the options name; see `SaffuLM.load`."""
    from saffu.model.language_model import SaffuLM

    return SaffuLM.load(options.model, device_of(options), check)


def tokenized(names: Sequence[str], options: argparse.Namespace, lm: SaffuLM) -> TokenCorpus:
    """Text as token ids of a model, read like its own text. In memory: of text to be forgotten, nothing is written."""
    from saffu.text.corpus import TokenCorpus
    from saffu.text.selection import Text

    with Text(names, reading_of(options, lm.source_)) as text:
        corpus = TokenCorpus.build(text, lm.tokenizer_, progress="tokenize")
        text.warn_of_skipped()
    return corpus


def add_online_options(parser: Parser, help: str) -> None:
    parser.add_argument("--online", action="store_true", help=f"{help}; the folder does not change")
    help = "with --online: afterward, add the text to the counts of the folder, as saffu update does"
    parser.add_argument("--update", action="store_true", help=help)


def require_online(options: argparse.Namespace) -> None:
    """Fail if the options of online reading do not fit together."""
    if options.update and not options.online:
        raise SaffuError("--update adds text after it was read online; pass --online too, or use saffu update")
    if options.online and (getattr(options, "no_memory", False) or getattr(options, "memory", None) is False):
        raise SaffuError("--online needs the memory that --no-memory leaves out; omit one of them")


def add_output_options(parser: Parser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print only results, without progress and notes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def require_utf8(*texts: str) -> None:
    """Raise SaffuError if an argument was not UTF-8: it then contains surrogates."""
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise SaffuError("an argument is not UTF-8; pass it in that encoding")


def add_compact_option(parser: argparse.ArgumentParser) -> None:
    """Add --compact."""
    help = "leave out the tables, most of a counted model's size; they are solved again whenever it is loaded"
    parser.add_argument("--compact", action="store_true", help=help)


def require_output(options: argparse.Namespace, *inputs: Path | str | None, whole: bool = False) -> None:
    """Fail before the work if --out cannot be written, or is one of the inputs. An export is replaced as a `whole`."""
    from saffu.commit import require_exportable, require_writable
    from saffu.writing import require_apart

    if options.out is None:
        raise SaffuError("missing output folder; pass --out DIR")
    (require_exportable if whole else require_writable)(options.out, options.force)
    require_apart(options.out, *(Path(name) for name in inputs if name))
