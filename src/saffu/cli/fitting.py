"""The work behind `saffu train`: from text to a model folder, or from a checkpoint on."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.options import device_of, flag, given_settings, require_output
from saffu.cli.output import Log, model_facts, print_json, warn
from saffu.cli.reading import Reading, TextChoice, TrainingText, described
from saffu.cli.train import USUAL_SPLIT, config_class, training_settings
from saffu.errors import SaffuError
from saffu.settings import Settings

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.processes import ProcessGroup
    from saffu.text.corpus import TokenCorpus
    from saffu.text.tokenizer import Tokenizer, TokenizerConfig
    from saffu.training.config import TrainingConfig

MAY_CHANGE = ("max_folds", "checkpoint_seconds")  # when a run is resumed
FIXED: dict[str, Any] = dict.fromkeys(("out", "encoder", "tokenizer", "max_tokens", "split", "field", "memory_limit"))
FIXED |= dict.fromkeys(("force", "preset_given", "skip_bad_files"), False)
FIXED |= {"hold_out": 20, "encoding_errors": "strict", "bad_records": "error"}  # options that may not, by default
DEV_SAMPLE = 100_000  # held-out tokens; of more, only a sample is scored
Row = Mapping[str, Any]


def fit(
    options: argparse.Namespace, config: Settings, tokenizer: TokenizerConfig, training: TrainingConfig | None
) -> None:
    """Fit a model to the text, and save it in --out after every stage."""
    with processes(config.preset, options.device or "cpu") as group:
        if group.is_first:
            require_output(options)
        with locked(options.out, group):
            encoder = read_encoder(options, group) if options.encoder else None
            usual = encoder.source_ if encoder else None
            choice = TextChoice.of(options, Reading.of(options, usual, USUAL_SPLIT[options.preset]))
            trains = training is not None or config.preset == "companion"
            log = Log(options, trains, group.is_first, config.preset == "companion")
            with TrainingText(choice) as text:
                began = time.perf_counter()
                if not choice.text and not options.quiet:
                    warn("no TEXT is given; reading the English text that ships with Python")
                text.leave_out_bad_files()
                lm, learned = unfitted(options, config, tokenizer, text, encoder)
                corpus, dev = text.tokenized(learned)
                announce(log, corpus, dev, len(learned), time.perf_counter() - began)

                def on_stage(row: Row) -> None:
                    lm.source_ = choice.summary(dev)
                    if not (encoder or options.tokenizer):
                        lm.tokenizer_settings_ = tokenizer.to_dict()
                    lm.save(options.out)  # before it is shown, because the reader of the log may have exited
                    log.row(row)

                held_out = dev if dev.targets else None
                lm.fit(corpus, held_out, training=training, group=group, on_stage=on_stage)
                if trains:
                    with backprop_log(options, log, dev) as on_fold:
                        where: dict[str, Any] = {"folder": options.out, "source": choice.to_dict()}
                        lm.backprop(corpus, dev, training, on_fold=on_fold, group=group, **where)
            if group.is_first:
                finish(lm, options.out, options, log)


def resume(options: argparse.Namespace) -> None:
    """Continue an interrupted run; only its length and the location of its text may change."""
    from saffu.model.backprop import stored_checkpoint
    from saffu.model.language_model import SaffuLM
    from saffu.processes import together
    from saffu.training.config import TrainingConfig

    for name, usual in FIXED.items():
        if getattr(options, name) != usual:
            option = flag(name.removesuffix("_given"))
            raise SaffuError(f"--resume continues with the run's own folder, text, and settings; remove {option}")
    changed = given_settings(options, TrainingConfig)
    for name in [
        *given_settings(options, config_class("paper") if options.preset == "paper" else training_settings()),
        *changed,
    ]:
        if name not in MAY_CHANGE:
            raise SaffuError(f"`{name}` cannot change when a run is resumed; remove it")
    folder: Path = options.resume
    checkpoint = stored_checkpoint(folder)
    if not checkpoint.source:
        raise SaffuError(f"{folder} was trained from Python; resume it there, with SaffuLM.resume")
    choice = TextChoice.from_dict(checkpoint.source).instead(options.text, options.dev or [])
    with together(options.device or checkpoint.device) as group, locked(folder, group):
        log = Log(options, True, group.is_first, options.preset != "paper")
        tokenizer = stored_tokenizer(folder)
        with TrainingText(choice) as text:
            text.leave_out_bad_files()
            corpus, dev = text.tokenized(tokenizer)
            progress = checkpoint.progress
            where = f"in fold {progress['fold']} " if "fold" in progress else ""
            log.say(f"resuming {where}after {progress['steps']:,} steps")
            with backprop_log(options, log, dev) as on_fold:
                settings = None
                if options.preset == "paper":
                    settings = TrainingConfig(**checkpoint.settings.to_dict() | changed)
                lm = SaffuLM.resume(
                    folder, corpus, dev, training=settings, device=options.device, on_fold=on_fold, group=group
                )
        if group.is_first:
            finish(lm, folder, options, log)


@contextmanager
def processes(preset: str, device: str) -> Iterator[ProcessGroup]:
    """The processes that torchrun started, or this one alone."""
    from saffu.processes import SINGLE, launched, together

    if preset != "calibrated":
        with together(device) as group:
            yield group
    elif launched():
        raise SaffuError("counting runs in one process; start it without torchrun, or add --minutes or --epochs")
    else:
        yield SINGLE


@contextmanager
def locked(folder: Path, group: ProcessGroup) -> Iterator[None]:
    """Keep other saffu processes from writing to a folder."""
    from saffu.files import changing

    if not group.is_first:
        yield
        return
    with changing(folder, wait=False):
        yield


def read_encoder(options: argparse.Namespace, group: ProcessGroup) -> SaffuLM:
    """The model that --encoder names."""
    from saffu import load

    if group.size > 1:
        raise SaffuError("--encoder does not work with torchrun; fit each shard separately and merge the models")
    encoder = load(options.encoder, device_of(options))
    if options.preset_given and encoder.config.preset != options.preset:
        raise SaffuError(f"{options.encoder} has the preset {encoder.config.preset}; remove --preset")
    return encoder


def unfitted(
    options: argparse.Namespace,
    config: Settings,
    tokenizer: TokenizerConfig,
    text: TrainingText,
    encoder: SaffuLM | None,
) -> tuple[SaffuLM, Tokenizer]:
    """A model to be fitted, and its tokenizer: that of --encoder or --tokenizer, or one learned from the text."""
    from saffu.model.language_model import SaffuLM
    from saffu.text.tokenizer import Tokenizer

    device = device_of(options)
    if encoder:
        return SaffuLM(encoder=encoder, device=device), encoder.tokenizer_
    if options.tokenizer:
        learned = stored_tokenizer(options.tokenizer)
    else:
        learned = Tokenizer.train((line for _, line in text.training_lines()), tokenizer, "learn the tokenizer")
    return SaffuLM(config, tokenizer=learned, device=device), learned


def stored_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder."""
    from saffu.files import read_file, read_manifest
    from saffu.text.tokenizer import Tokenizer

    return Tokenizer.from_json(read_file(folder, "tokenizer.json", read_manifest(folder)).decode())


def announce(log: Log, corpus: TokenCorpus, dev: TokenCorpus, vocabulary: int, seconds: float) -> None:
    """State what will be counted and what is held out."""
    log.say(
        f"training on {described(corpus)}, {corpus.targets:,} tokens, vocabulary {vocabulary:,}; "
        f"tokenized in {seconds:.1f} s"
    )
    if dev.targets:
        log.say(f"scored on {described(dev)}, {dev.targets:,} tokens of held-out text")


@contextmanager
def backprop_log(options: argparse.Namespace, log: Log, dev: TokenCorpus) -> Iterator[Callable[[Row], None]]:
    """The function to call after each fold. An interruption ends with the command that resumes the run."""
    board = None
    if options.tensorboard and log.visible:
        from saffu.training.tensorboard import open_tensorboard

        board = open_tensorboard(options.tensorboard)
    if dev.targets > DEV_SAMPLE:
        log.say(f"during training, a sample of the {dev.targets:,} held-out tokens is scored")

    def on_fold(row: Row) -> None:
        log.row(row)
        if board:
            for key in (
                "train_perplexity",
                "dev_perplexity",
                "dev_bits_per_byte",
                "learning_rate",
                "tokens_per_second",
            ):
                if key in row:
                    board.add_scalar(key, row[key], row["tokens"])
            board.flush()

    try:
        yield on_fold
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
    from saffu.training.checkpoint import FACTS

    if (folder / FACTS).is_file():
        return f"progress is saved. Resume with: saffu train --resume {folder}"
    return f"training had not begun, but {folder} holds the model before it; train again"


def finish(lm: SaffuLM, folder: Path, options: argparse.Namespace, log: Log) -> None:
    """State the result."""
    best = min((row for row in lm.log_ if "fold" in row), key=lambda row: row["dev_perplexity"], default=None)
    if best and best.get("best", True):
        log.say(f"best dev perplexity {best['dev_perplexity']:.2f}, after fold {best['fold']}")
    elif best:
        log.say("training did not improve the model; the previous one was kept")
    log.say(f"{lm.parameters_:,} parameters, saved in {folder}")
    if options.json:
        print_json(model_facts(lm) | {"out": folder, "log": lm.log_})
