"""saffu train: text to a model folder, in closed form and, if wanted, by training after it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from saffu.cli.options import (
    Command,
    Parser,
    add_cluster_option,
    add_output_options,
    add_set_option,
    add_settings,
    add_text_options,
    count,
    flag,
    given_settings,
    integer,
    named_path,
    own_settings,
    rare_help,
)
from saffu.errors import SaffuError
from saffu.settings import Settings

if TYPE_CHECKING:
    from saffu.text.tokenizer import TokenizerConfig
    from saffu.training.config import TrainingConfig

PRESETS = ("calibrated", "paper")
USUAL_SPLIT = {"calibrated": "file", "paper": "line"}
BACKPROP = ("backprop", "resume", "tensorboard", "device")  # options of the paper's preset that are not settings


def config_class(preset: str) -> type[Settings]:
    """The settings that a preset has."""
    if preset == "paper":
        from saffu.paper.config import PaperConfig

        return PaperConfig
    from saffu.calibrated.config import CalibratedConfig

    return CalibratedConfig


def training_settings() -> type[Settings]:
    """The settings of a network that is trained next to the counts."""
    from saffu.companion.config import CompanionConfig

    return CompanionConfig


def usual_tokenizer(preset: str) -> TokenizerConfig:
    """The settings of a preset's tokenizer."""
    from saffu.text.tokenizer import TokenizerConfig

    return TokenizerConfig(bpe_count="types" if preset == "paper" else "tokens")


def add_options(parser: Parser, words: Sequence[str]) -> None:
    """Find the preset first, then add the options that it has."""
    preset = chosen_preset(parser, words)
    parser.set_defaults(preset_given=any(word.split("=")[0] == "--preset" for word in words))
    help = "files, folders, globs, or - for stdin [the English text that ships with Python]"
    parser.add_argument("text", nargs="*", metavar="TEXT", help=help)
    parser.add_argument("--out", type=named_path, metavar="DIR", help="output folder")
    parser.add_argument("--force", action="store_true", help="overwrite --out if it exists")
    help = "calibrated, or paper, which adds --backprop; each has its own options [calibrated]"
    parser.add_argument("--preset", choices=PRESETS, default=preset, metavar="NAME", help=help)
    parser.add_argument("--tokenizer", type=named_path, metavar="DIR", help="use the tokenizer of this model")
    help = "use the tokenizer and encoder of this model, so that the two can be merged"
    parser.add_argument("--encoder", type=named_path, metavar="DIR", help=help)
    add_output_options(parser)
    group = add_text_options(parser, USUAL_SPLIT[preset])
    add_cluster_option(parser)
    group.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text")
    help = "without --dev, hold out every Nth document, or stretch of a file; 0 for none [20]"
    group.add_argument("--hold-out", type=integer(0), default=20, metavar="N", help=help)
    help = "use only the first N tokens, to the end of a line (1e6, 500k, 2M)"
    group.add_argument("--max-tokens", type=count, metavar="N", help=help)
    add_model_options(parser, preset)


def chosen_preset(parser: Parser, words: Sequence[str]) -> str:
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--preset", choices=PRESETS)
    first.add_argument("--resume", nargs="?")
    try:
        chosen, _ = first.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        parser.error(str(error))
    if chosen.resume and not chosen.preset:
        from saffu.files import read_manifest

        try:
            found = read_manifest(named_path(chosen.resume)).get("preset")
        except SaffuError:  # which is reported once all options have been read
            found = "paper"
        return "calibrated" if found == "companion" else "paper"
    return chosen.preset or "calibrated"


def add_model_options(parser: Parser, preset: str) -> None:
    from saffu.training.config import TrainingConfig

    config, other = config_class(preset), next(name for name in PRESETS if name != preset)
    add_settings(parser.add_argument_group(f"model (--preset {preset})"), config)
    usual: list[Settings] = [config(), usual_tokenizer(preset)]
    add_settings(parser.add_argument_group("tokenizer"), type(usual[1]))
    counted = {entry.name for entry in own_settings(config)}
    title = "backpropagation" if preset == "paper" else "training a network next to the counts"
    group = parser.add_argument_group(title)
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, or cuda:N [cpu]")
    group.add_argument("--resume", type=named_path, metavar="DIR", help="resume the interrupted run in DIR")
    if preset == "paper":
        group.add_argument("--backprop", action="store_true", help="continue with Adam after the closed-form fit")
        group.add_argument("--tensorboard", type=named_path, metavar="DIR", help="also write TensorBoard logs to DIR")
        add_settings(group, TrainingConfig, skip=counted)
        usual.append(TrainingConfig())
        parser.set_defaults(memory_limit=None)
    else:
        help = "fit within this much memory (500M, 2G), using temporary files next to --out"
        parser.add_argument("--memory-limit", type=count, metavar="SIZE", help=help)
        add_settings(group, training_settings(), skip=counted)
        usual.append(training_settings()())
        parser.set_defaults(backprop=False, tensorboard=None)
    add_set_option(parser, usual)
    foreign = [config_class(other), training_settings() if preset == "paper" else TrainingConfig]
    names = [entry.name for kind in foreign for entry in own_settings(kind)] + [*BACKPROP, "memory_limit"]
    parser.foreign = {
        flag(name): f"{flag(name)} belongs to --preset {other}; add that, or remove {flag(name)}" for name in names
    }
    if preset == "calibrated":
        parser.foreign["--backprop"] = "--backprop trains the network of the paper's preset; add --preset paper"
    for kind in (*map(type, usual), *foreign):
        for entry in own_settings(kind, rare=True):
            parser.foreign[flag(entry.name)] = (
                f"{flag(entry.name)} is not an option of its own; use --set {entry.name}=VALUE"
            )


def run(options: argparse.Namespace) -> None:
    if "help" in options.set:
        print(rare_help(options))
        return
    from saffu.cli import fitting

    if options.resume and not options.ray:
        fitting.resume(options)
        return
    if options.hold_out == 1:
        raise SaffuError("--hold-out must be 0 (off) or at least 2, got 1")
    if trains(options) and not (options.dev or options.hold_out):
        what = "--backprop" if options.backprop else "training"
        raise SaffuError(f"{what} needs held-out text for early stopping; pass --dev FILE or --hold-out N")
    chosen = settings(options)
    if options.ray:
        from saffu.cli import on_ray

        on_ray.fit(options, *chosen)
        return
    if chosen[0].preset != "calibrated" and find_spec("torch") is None:  # fail before all text has been read
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    with bounded(options):
        fitting.fit(options, *chosen)


def bounded(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Stay within --memory-limit, if it is given: what does not fit goes to files next to --out."""
    if options.memory_limit is None:
        return nullcontext()
    from saffu.calibrated.storage import memory_limit

    return memory_limit(options.memory_limit, options.out.resolve().parent if options.out else None)


def trains(options: argparse.Namespace) -> bool:
    """Whether counting is followed by training."""
    return bool(options.backprop or getattr(options, "minutes", None) or getattr(options, "epochs", None))


def settings(options: argparse.Namespace) -> tuple[Settings, TokenizerConfig, TrainingConfig | None]:
    """Settings of the model, of its tokenizer, and, with --backprop, of the training."""
    from saffu.text.tokenizer import TokenizerConfig
    from saffu.training.config import TrainingConfig

    kind = training_settings() if trains(options) and not options.backprop else config_class(options.preset)
    if options.preset == "calibrated" and not trains(options):
        for name in given_settings(options, training_settings()):
            if name not in {"minutes", "epochs", *(entry.name for entry in fields(kind))}:
                raise SaffuError(f"`{name}` requires --minutes or --epochs; add one of them, or remove `{name}`")
        if options.device not in (None, "cpu"):
            raise SaffuError("--device requires --minutes or --epochs: counting runs on the CPU; remove it")
    chosen, of_tokenizer = given_settings(options, kind), given_settings(options, TokenizerConfig)
    of_training = given_settings(options, TrainingConfig)
    if not options.backprop:
        shared = {entry.name for entry in fields(kind)}
        for name in [*of_training, *(["tensorboard"] if options.tensorboard else [])]:
            if name not in shared:
                raise SaffuError(f"`{name}` requires --backprop; add it, or remove `{name}`")
    if options.encoder:
        switches = [name for name in ("backprop", "tokenizer") if getattr(options, name)]
        for name in [*switches, *chosen, *of_tokenizer]:
            raise SaffuError(f"`{name}` cannot be combined with --encoder, which fixes all settings; remove it")
    if options.tokenizer:
        for name in of_tokenizer:
            raise SaffuError(f"`{name}` cannot be combined with --tokenizer, which is learned already; remove it")
    tokenizer = replace(usual_tokenizer(options.preset), **of_tokenizer)
    return kind(**chosen), tokenizer, TrainingConfig(**of_training) if options.backprop else None


COMMAND = Command(
    "train",
    "fit a model to text in closed form, then optionally train it",
    "[TEXT ...] --out DIR [options]",
    "saffu train books/ --out model\n"
    "saffu train books/*.txt.gz --dev held-out.txt --out model --order 4\n"
    "saffu train more.txt --encoder model --out other    # can be merged with model\n"
    "saffu train books/ --minutes 5 --out model           # then train a network next to the counts\n"
    "saffu train books/ --preset paper --backprop --max-folds 10 --out network\n"
    "saffu train --resume network",
    add_options,
    run,
)
