"""saffu train: text to a model folder, in closed form and, if wanted, by training after it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.options import (
    Command,
    Parser,
    add_cluster_option,
    add_compact_option,
    add_output_options,
    add_set_option,
    add_settings,
    add_text_options,
    count,
    device_of,
    flag,
    given_settings,
    integer,
    named_path,
    own_settings,
    rare_help,
    reading_of,
    require_output,
    selection_of,
)
from saffu.cli.output import Log, model_facts, print_json
from saffu.errors import SaffuError
from saffu.format import warn
from saffu.settings import Settings

if TYPE_CHECKING:
    from saffu.model.language_model import OnRow, SaffuLM
    from saffu.model.recipe import Corpora, Executor, Recipe
    from saffu.text.corpus import TokenCorpus
    from saffu.text.selection import TrainingText
    from saffu.text.tokenizer import TokenizerConfig

BACKPROP = ("backprop", "tensorboard")  # options of presets whose own weights are trained
MAY_CHANGE = ("max_folds", "checkpoint_seconds")  # when a run is resumed
FIXED: dict[str, Any] = dict.fromkeys(("out", "encoder", "tokenizer", "max_tokens", "split", "field", "memory_limit"))
FIXED |= dict.fromkeys(("force", "preset_given", "skip_bad_files"), False)
FIXED |= {"hold_out": 20, "encoding_errors": "strict", "bad_records": "error"}  # options that may not, by default
CURVES = ("train_perplexity", "dev_perplexity", "dev_bits_per_byte", "learning_rate", "tokens_per_second")
DEV_SAMPLE = 100_000  # held-out tokens; of more, only a sample is scored


def add_options(parser: Parser, words: Sequence[str]) -> None:
    """Find the preset first, then add the options that it has."""
    from saffu.model.solutions import offered_presets, solution

    preset = preset_named(parser, words)
    parser.set_defaults(preset_given=any(word.split("=")[0] == "--preset" for word in words))
    help = "files, folders, globs, or - for stdin [the English text that ships with Python]"
    parser.add_argument("text", nargs="*", metavar="TEXT", help=help)
    parser.add_argument("--out", type=named_path, metavar="DIR", help="output folder")
    parser.add_argument("--force", action="store_true", help="overwrite --out if it exists")
    add_compact_option(parser)
    parser.add_argument(
        "--dev", nargs="+", metavar="FILE", help="held-out text [every 20th document, or stretch of a file]"
    )
    help = "counted, or paper, which adds --backprop; each has its own options [counted]"
    choices = offered_presets()
    parser.add_argument("--preset", type=preset_name, choices=choices, default=preset, metavar="NAME", help=help)
    parser.add_argument("--tokenizer", type=named_path, metavar="DIR", help="use the tokenizer of this model")
    help = "use the tokenizer and encoder of this model, so that the two can be merged"
    parser.add_argument("--encoder", type=named_path, metavar="DIR", help=help)
    add_output_options(parser)
    add_cluster_option(parser)
    add_model_options(parser, preset)
    group = add_text_options(parser, solution(preset).split)
    help = "without --dev, hold out every Nth document, or stretch of a file; 0 for none [20]"
    group.add_argument("--hold-out", type=integer(0), default=20, metavar="N", help=help)
    help = "use only the first N tokens, to the end of a line (1e6, 500k, 2M)"
    group.add_argument("--max-tokens", type=count, metavar="N", help=help)


def preset_named(parser: Parser, words: Sequence[str]) -> str:
    from saffu.model.solutions import COUNTED, offered_as, offered_presets

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    first.add_argument("--preset", type=preset_name, choices=offered_presets())
    first.add_argument("--resume", nargs="?")
    try:
        given, _ = first.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        parser.error(str(error))
    if given.resume and not given.preset:
        from saffu.files import read_manifest

        try:
            return offered_as(read_manifest(named_path(given.resume))["preset"])
        except SaffuError:  # which is reported once all options have been read
            return "paper"
    return given.preset or COUNTED


def preset_name(text: str) -> str:
    """A type for options: a preset that can be chosen by name."""
    from saffu.model.solutions import PRESETS, shown_name

    if text in PRESETS and PRESETS[text].made_by:
        raise argparse.ArgumentTypeError(f"{text} models are made by {PRESETS[text].made_by}; remove --preset")
    return shown_name(text)


def add_model_options(parser: Parser, preset: str) -> None:
    from saffu.model.solutions import solution

    own = solution(preset)
    group = parser.add_argument_group(own.training_title)
    add_settings(parser.add_argument_group(f"model (--preset {preset})"), own.config)
    usual: list[Settings] = [own.config(), own.tokenizer]
    add_settings(parser.add_argument_group("tokenizer"), type(own.tokenizer))
    parser.set_defaults(backprop=False, tensorboard=None, memory_limit=None)
    if own.train is not None:
        group.add_argument("--backprop", action="store_true", help="continue with Adam after the closed-form fit")
        group.add_argument("--tensorboard", type=named_path, metavar="DIR", help="also write TensorBoard logs to DIR")
    if own.scales:
        help = "fit within this much memory (500M, 2G), using temporary files next to --out"
        parser.add_argument("--memory-limit", type=count, metavar="SIZE", help=help)
    if own.training is not None:
        add_settings(group, own.training, skip={entry.name for entry in own_settings(own.config)})
        usual.append(own.training())
    group.add_argument("--device", metavar="NAME", help="cpu, cuda, or cuda:N [cpu]")
    group.add_argument("--resume", type=named_path, metavar="DIR", help="resume the interrupted run in DIR")
    add_set_option(parser, usual)
    parser.foreign = foreign_options(preset)


def foreign_options(preset: str) -> dict[str, str]:
    """What to say of options that other presets have, and of settings that are not options."""
    from saffu.model.solutions import offered_presets, solution

    foreign: dict[str, str] = {}
    for name in sorted(offered_presets(), key=lambda name: name == preset):
        other = solution(name)
        kinds = [kind for kind in (other.config, other.training, type(other.tokenizer)) if kind is not None]
        entries = [entry for kind in kinds[:-1] for entry in own_settings(kind)]
        options = [name for entry in entries for name in (entry.metadata["option"], entry.name) if name]
        options += [*BACKPROP] if other.train else []
        options += ["memory_limit"] if other.scales else []
        if name != preset:
            for option in map(flag, options):
                foreign[option] = f"{option} belongs to --preset {name}; add that, or remove {option}"
        for entry in [entry for kind in kinds for entry in own_settings(kind, rare=True)]:
            option = flag(entry.name)
            foreign[option] = f"{option} is not an option of its own; use --set {entry.name}=VALUE"
    return foreign


def run(options: argparse.Namespace) -> None:
    from saffu.model.solutions import solution

    if "help" in options.set:
        print(rare_help(options))
        return
    if options.resume and not options.ray:
        resume(options)
        return
    if options.hold_out == 1:
        raise SaffuError("--hold-out must be 0 (off) or at least 2, got 1")
    if trains(options) and not (options.dev or options.hold_out):
        what = "--backprop" if options.backprop else "training"
        raise SaffuError(f"{what} needs held-out text for early stopping; pass --dev FILE or --hold-out N")
    config, tokenizer, training = settings(options)
    own = solution(config.preset)
    if options.ray and (not own.scales or options.resume):
        raise SaffuError(
            "--ray counts, and neither solves the paper's preset nor trains a network; remove --ray, or count first"
        )
    if own.train is not None and find_spec("torch") is None:  # fail before all text has been read
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    with nullcontext() if options.ray else bounded(options):
        make(options, config, tokenizer, training)


def make(options: argparse.Namespace, config: Settings, tokenizer: TokenizerConfig, training: Settings | None) -> None:
    """Fit a model to the text, save it in --out after every stage, and train it if asked to."""
    from saffu.commit import changing
    from saffu.model.folder import read_tokenizer
    from saffu.model.matching import warn_if_counted
    from saffu.model.recipe import Recipe
    from saffu.model.solutions import solution
    from saffu.text.selection import TrainingText

    require_output(options, options.encoder, options.tokenizer, *options.text, *(options.dev or []))
    with changing(options.out, wait=False):
        encoder = read_encoder(options) if options.encoder else None
        usual = encoder.source_ if encoder else None
        learned = read_tokenizer(options.tokenizer) if options.tokenizer else encoder and encoder.tokenizer_
        recipe = Recipe(
            selection_of(options, reading_of(options, usual, solution(options.preset).split)),
            config,
            learned or tokenizer,
            options.out,
            encoder=encoder,
            training=training,
            device=device_of(options),
            compact=options.compact,
        )
        log = Log(options, recipe.trains, solution(config.preset).always_trains)
        with TrainingText(recipe.selection) as text, executor(options, recipe, text) as place:
            if not recipe.selection.text and not options.quiet:
                warn("no TEXT is given; reading the English text that ships with Python")
            corpora = recipe.tokenize(text, place)
            announce(log, corpora)
            lm = recipe.count(corpora, log.row, place)
            if options.dev:
                warn_if_counted(corpora.dev, lm.ledger_)
            if recipe.trains:
                with training_log(options, log, corpora.dev) as on_row:
                    recipe.train(lm, corpora, on_row)
        if options.compact and recipe.trains:
            lm.save(options.out, compact=True)
        finish(lm, options.out, options, log)


def executor(options: argparse.Namespace, recipe: Recipe, text: TrainingText) -> AbstractContextManager[Executor]:
    """Where the text is tokenized and counted."""
    if options.ray:
        from saffu.cluster.train import on_cluster

        return on_cluster(options.ray, recipe, text, options.memory_limit)
    from saffu.model.recipe import ThisProcess

    return nullcontext(ThisProcess())


def read_encoder(options: argparse.Namespace) -> SaffuLM:
    """The model that --encoder names."""
    from saffu.model.language_model import SaffuLM
    from saffu.model.solutions import shown_name

    encoder = SaffuLM.load(options.encoder, device_of(options))
    if options.preset_given and shown_name(encoder.config.preset) != options.preset:
        raise SaffuError(f"{options.encoder} has the preset {shown_name(encoder.config.preset)}; remove --preset")
    return encoder


def resume(options: argparse.Namespace) -> None:
    """Continue an interrupted run; only its length and the location of its text may change."""
    from saffu.commit import changing
    from saffu.model.language_model import SaffuLM
    from saffu.model.recipe import stored_run, stored_text
    from saffu.model.solutions import solution

    for name, usual in FIXED.items():
        if getattr(options, name) != usual:
            option = flag(name.removesuffix("_given"))
            raise SaffuError(f"--resume continues with the run's own folder, text, and settings; remove {option}")
    own = solution(options.preset)
    changed = given_settings(options, own.training) if own.training else {}
    for name in [*given_settings(options, own.config), *changed]:
        if name not in MAY_CHANGE:
            raise SaffuError(f"`{name}` cannot change when a run is resumed; remove it")
    folder: Path = options.resume
    checkpoint, selection = stored_run(folder, options.text, options.dev or [])
    with changing(folder, wait=False):
        log = Log(options, True, own.trained_as is not None)
        corpus, dev = stored_text(folder, selection)
        progress = checkpoint.progress
        where = f"in fold {progress['fold']} " if "fold" in progress else ""
        log.say(f"resuming {where}after {progress['steps']:,} steps")
        training: Any = None
        if checkpoint.settings is not None and own.training is not None:
            training = own.training.from_dict({**checkpoint.settings, **changed})
        with training_log(options, log, dev) as on_row:
            lm = SaffuLM.resume(folder, corpus, dev, training=training, device=options.device, on_fold=on_row)
        finish(lm, folder, options, log)


def announce(log: Log, corpora: Corpora) -> None:
    """State what will be counted and what is held out."""
    corpus = corpora.train
    dev = corpora.dev
    documents = corpus.totals()["documents"]
    log.say(
        f"training on {corpus.described(documents)}, {corpus.targets:,} tokens, vocabulary {len(corpora.tokenizer):,}; "
        f"tokenized in {corpora.seconds:.1f} s"
    )
    if dev.targets:
        documents = corpus.division.documents(True, dev.documents) if corpus.division else dev.documents
        log.say(f"scored on {dev.described(documents)}, {dev.targets:,} tokens of held-out text")


@contextmanager
def training_log(options: argparse.Namespace, log: Log, dev: TokenCorpus) -> Iterator[OnRow]:
    """The function to call after each fold. An interruption ends with the command that resumes the run."""
    board = None
    if options.tensorboard:
        from saffu.training.run import open_tensorboard

        board = open_tensorboard(options.tensorboard)
    if dev.targets > DEV_SAMPLE:
        log.say(f"during training, a sample of the {dev.targets:,} held-out tokens is scored")

    def on_row(row: dict[str, Any]) -> None:
        log.row(row)
        if board:
            for key in (key for key in CURVES if key in row):
                board.add_scalar(key, row[key], row["tokens"])
            board.flush()

    try:
        yield on_row
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {saved(options.resume or options.out)}") from None
    except SystemExit:  # after SIGTERM
        warn(f"terminated; {saved(options.resume or options.out)}")
        raise
    finally:
        if board:
            board.close()


def saved(folder: Path) -> str:
    """What an interrupted run has saved."""
    from saffu.files import holds, read_manifest
    from saffu.training.checkpoint import FACTS

    if holds(read_manifest(folder), FACTS):
        return f"progress is saved. Resume with: saffu train --resume {folder}"
    return f"training had not begun, but {folder} holds the model before it; train again"


def finish(lm: SaffuLM, folder: Path, options: argparse.Namespace, log: Log) -> None:
    """State the result."""
    trained = [row for row in lm.log_ if "fold" in row]
    best = min(trained, key=lambda row: row["dev_perplexity"], default=None)
    if trained and "outcome" in trained[-1]:
        pass  # which was printed with the last row
    elif best and best.get("best", True):
        log.say(f"best dev perplexity {best['dev_perplexity']:.2f}, after fold {best['fold']}")
    elif best:
        log.say("training did not improve the model; the previous one was kept")
    log.say(f"{lm.parameters_:,} parameters, saved in {folder}")
    if options.json:
        print_json(model_facts(lm) | {"out": folder, "log": lm.log_})


def bounded(options: argparse.Namespace) -> AbstractContextManager[None]:
    """Stay within --memory-limit, if it is given: what does not fit goes to files next to --out."""
    if options.memory_limit is None:
        return nullcontext()
    from saffu.calibrated.storage import memory_limit

    return memory_limit(options.memory_limit, options.out.resolve().parent if options.out else None)


def trains(options: argparse.Namespace) -> bool:
    """Whether counting is followed by training."""
    return bool(options.backprop or getattr(options, "minutes", None) or getattr(options, "epochs", None))


def settings(options: argparse.Namespace) -> tuple[Settings, TokenizerConfig, Settings | None]:
    """Settings of the model, of its tokenizer, and, with --backprop, of the training."""
    from saffu.model.solutions import solution
    from saffu.text.tokenizer import TokenizerConfig

    own = solution(options.preset)
    kind = solution(own.trained_as).config if own.trained_as and trains(options) else own.config
    given = given_settings(options, kind)
    of_tokenizer = given_settings(options, TokenizerConfig)
    of_training = given_settings(options, own.training) if own.training else {}
    if not trains(options):
        require_no_training(options, own.trained_as, [name for name in of_training if name not in given])
    if options.encoder:
        switches = [name for name in ("backprop", "tokenizer") if getattr(options, name)]
        for name in [*switches, *given, *of_tokenizer]:
            raise SaffuError(f"`{name}` cannot be combined with --encoder, which fixes all settings; remove it")
    if options.tokenizer:
        for name in of_tokenizer:
            raise SaffuError(f"`{name}` cannot be combined with --tokenizer, which is learned already; remove it")
    training = own.training(**of_training) if own.training and options.backprop else None
    return kind(**given), replace(own.tokenizer, **of_tokenizer), training


def require_no_training(options: argparse.Namespace, trained_as: str | None, names: Sequence[str]) -> None:
    """Raise SaffuError for options that only training has."""
    switches = "--minutes or --epochs" if trained_as else "--backprop"
    for name in [*names, *(["tensorboard"] if options.tensorboard else [])]:
        if not (trained_as and name in ("minutes", "epochs")):
            raise SaffuError(f"`{name}` requires {switches}; add it, or remove `{name}`")
    if trained_as and options.device not in (None, "cpu"):
        raise SaffuError(f"--device requires {switches}: counting runs on the CPU; remove it")


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
