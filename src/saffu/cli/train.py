"""saffu train: text to a model folder, by the explicit solution and, if asked, by backpropagation after it."""

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from saffu.commands.common import (
    Documents,
    Share,
    Verb,
    add_common_options,
    add_settings,
    add_text_options,
    count,
    given_settings,
    model_facts,
    print_json,
)
from saffu.config import PRESETS, TRAINING_PRESETS, SaffuConfig, TrainingConfig
from saffu.errors import SaffuError
from saffu.wording import number_of

if TYPE_CHECKING:
    from saffu.corpus import TokenCorpus
    from saffu.distributed import Ranks
    from saffu.model import SaffuLM
    from saffu.tokenizer import Tokenizer

HOLD_OUT = 20
PRESET = "calibrated"
MAY_CHANGE = ("max_folds", "save_every")  # when a run is resumed


def add(verb: Verb) -> None:
    parser = verb(
        "train",
        run,
        "make a model from text by the explicit solution, and train it further if asked",
        "saffu train books/*.txt.gz --out model --radius 4\n"
        "  saffu train books/*.txt.gz --out model --backprop --max-folds 10\n"
        "  saffu train --resume model\n"
        "  saffu train more.txt --encoder model --out other",
    )
    parser.add_argument("corpus", nargs="*", help="files, folders or globs; none: the English that ships with Python")
    parser.add_argument("--out", type=Path, help="folder to write the model to")
    parser.add_argument("--force", action="store_true", help="replace what --out holds")
    parser.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text (default: every 20th document)")
    parser.add_argument(
        "--hold-out", type=int, default=HOLD_OUT, metavar="N", help="hold out every Nth document; 0 none (default: 20)"
    )
    parser.add_argument(
        "--tokens", type=count, metavar="N", help="count whole documents until so many tokens (1e6, 500k, 2M)"
    )
    parser.add_argument(
        "--no-references",
        action="store_true",
        help="keep no n-gram counts for eval (a calibrated model has them anyway)",
    )
    parser.add_argument(
        "--encoder",
        type=Path,
        metavar="DIR",
        help="take the tokenizer and encoder of this model, so that both can merge",
    )
    parser.add_argument(
        "--preset", choices=PRESETS, help=f"settings to start from (default: {PRESET}; paper with --backprop)"
    )
    parser.add_argument(
        "--params",
        type=count,
        metavar="N",
        help="choose the shape by itself: the best with at most so many parameters (500k, 5M); calibrated or network",
    )
    add_text_options(parser)
    add_common_options(parser)
    parser.set_defaults(device=None)
    training = parser.add_argument_group("training further")
    training.add_argument("--backprop", action="store_true", help="go on with Adam after the explicit solution")
    training.add_argument("--resume", type=Path, metavar="DIR", help="go on with the interrupted run in this folder")
    training.add_argument("--tensorboard", type=Path, metavar="DIR", help="write what is logged for TensorBoard too")
    add_settings(parser, TrainingConfig, "settings of --backprop")
    add_settings(parser, SaffuConfig, "settings of the model (defaults are the preset's)")


def run(options: argparse.Namespace) -> None:
    if options.resume:
        from saffu import distributed, store

        with ExitStack() as stack:
            ranks = stack.enter_context(distributed.together(options.device or "cpu"))
            if ranks.is_first:
                stack.enter_context(store.changing(options.resume, wait=False))
            resume(options, ranks)
        return
    if options.out is None:
        raise SaffuError("the model needs a place; give one with --out DIR")
    if options.out.resolve() == Path.cwd():
        raise SaffuError("--out is the folder you are in, and would be replaced as a whole; name a folder inside it")
    config, training = settings(options)
    if options.hold_out < 0 or options.hold_out == 1:
        raise SaffuError(f"--hold-out is {options.hold_out}; give 2 or more, or 0 to hold nothing out")
    if training and not (options.dev or options.hold_out):
        raise SaffuError("--backprop needs held-out text to know when to stop; give --dev FILE, or a --hold-out")

    from saffu import distributed, lock, store

    with ExitStack() as stack:
        ranks = stack.enter_context(distributed.together(options.device or "cpu"))
        if ranks.is_first:
            store.require_writable(options.out, options.force)
            stack.enter_context(lock.exclusive(options.out, wait=False))
        make(options, config, training, ranks)


def make(options: argparse.Namespace, config: SaffuConfig, training: TrainingConfig | None, ranks: "Ranks") -> None:
    """From the text to a model in its folder."""
    if options.encoder and ranks.size > 1:
        raise SaffuError("with --encoder, give each process a shard of its own, and merge; leave out torchrun")
    text = {
        "corpus": [str(Path(pattern).absolute()) for pattern in options.corpus],
        "dev": [str(Path(pattern).absolute()) for pattern in options.dev or []],
        "hold_out": 0 if options.dev else options.hold_out,
        "tokens": options.tokens,
        "split": options.split,
        "encoding_errors": options.encoding_errors,
    }
    train, _ = documents(text)

    from saffu import sizes
    from saffu.model import SaffuLM

    began = time.perf_counter()
    device = options.device or "cpu"
    if options.encoder:
        encoder = SaffuLM.load(options.encoder, device)
        tokenizer, lm = encoder.tokenizer_, SaffuLM(encoder=encoder, device=device)
    else:
        if options.params:
            config, tokenizer = sizes.fitting(config, train, options.params)
        else:
            tokenizer = ranks.train_tokenizer(train, config.words, config.kept_words, config.count_by)
        lm = SaffuLM(config, tokenizer=tokenizer, device=device)
    log = Log(options, training is not None, ranks)
    with tempfile.TemporaryDirectory(prefix="saffu-", ignore_cleanup_errors=True) as scratch:
        corpus, dev = tokenised(text, tokenizer, Path(scratch), ranks)
        log.say(
            f"{corpus.targets:,} tokens in {number_of(corpus.documents, 'document')}, vocabulary {len(tokenizer):,}, "
            f"tokenised in {time.perf_counter() - began:.1f} s"
        )

        def on_stage(row: dict[str, Any]) -> None:
            lm.trained_on_ |= {"default_corpus": not options.corpus, "hold_out": text["hold_out"]}
            lm.save(options.out)  # before it is shown: whoever watches may have gone
            log.row(row)

        lm.fit(
            corpus,
            dev if dev.targets else None,
            references=not options.no_references,
            training=training,
            ranks=ranks,
            on_stage=on_stage,
        )
        if training:
            lm.trained_on_ |= {"default_corpus": not options.corpus, "hold_out": text["hold_out"]}
            from saffu.train import Backprop

            train_further(Backprop(lm, corpus, dev, training, text, ranks), options.out, log)
    if ranks.is_first:
        finish(lm, options.out, options, log)


def resume(options: argparse.Namespace, ranks: "Ranks") -> None:
    """Go on with a run; only its length may change, and where its text lies."""
    if options.out or options.force or options.preset or options.encoder:
        raise SaffuError(
            "--resume goes on in its own folder, as it began; leave out --out, --force, --preset, --encoder"
        )
    for name in {**given_settings(options, SaffuConfig), **given_settings(options, TrainingConfig)}:
        if name not in MAY_CHANGE:
            raise SaffuError(f"--{name.replace('_', '-')} cannot change when a run is resumed; leave it out")

    from saffu import checkpoint

    state = checkpoint.read_state(options.resume)
    changed = {**state["settings"].to_dict(), **given_settings(options, TrainingConfig)}
    training, text = TrainingConfig.from_dict(changed), state["text"]
    if text is None:
        raise SaffuError(f"{options.resume} was trained from Python; resume it there, with SaffuLM.resume")
    if options.corpus:
        text["corpus"] = [str(Path(pattern).absolute()) for pattern in options.corpus]
    if options.dev:
        text["dev"] = [str(Path(pattern).absolute()) for pattern in options.dev]

    from saffu.model import SaffuLM
    from saffu.train import Backprop

    lm = SaffuLM.load(options.resume, options.device or state["device"])
    log = Log(options, True, ranks)
    with tempfile.TemporaryDirectory(prefix="saffu-", ignore_cleanup_errors=True) as scratch:
        corpus, dev = tokenised(text, lm.tokenizer_, Path(scratch), ranks)
        further = Backprop(lm, corpus, dev, training, text, ranks)
        checkpoint.restore(further, options.resume, state)
        progress = further.progress
        log.say(
            f"resuming in fold {progress.fold} after {number_of(progress.steps, 'step')}, {progress.tokens:,} tokens"
        )
        train_further(further, options.resume, log)
    if ranks.is_first:
        finish(lm, options.resume, options, log)


def settings(options: argparse.Namespace) -> tuple[SaffuConfig, TrainingConfig | None]:
    """Of the model and, with --backprop, of the training: the preset's, and what the command line names."""
    chosen, of_training = given_settings(options, SaffuConfig), given_settings(options, TrainingConfig)
    if options.params:
        if options.preset == "paper" or (options.backprop and not options.preset):
            raise SaffuError("--params shapes the presets calibrated and network; the paper's shape is the paper's")
        for name in ("memory", "radius", "classes", "radius_dimension", "kept_words"):
            if name in chosen:
                raise SaffuError(f"--params chooses --{name.replace('_', '-')} by itself; leave one of them out")
    if options.encoder and (chosen or options.preset or options.backprop or options.params):
        named = [name for name in ("preset", "backprop", "params") if getattr(options, name)]
        given = [*named, *chosen][0].replace("_", "-")
        raise SaffuError(f"--{given} cannot go with --encoder, whose model has all settings; leave it out")
    if not options.backprop:
        if of_training:
            raise SaffuError(
                f"--{next(iter(of_training)).replace('_', '-')} is a setting of --backprop; add --backprop"
            )
        if options.tensorboard:
            raise SaffuError("--tensorboard shows the course of --backprop; add --backprop")
        return SaffuConfig.preset(options.preset or chosen.get("solution", PRESET), **chosen), None
    training = TrainingConfig(**{**TRAINING_PRESETS.get(options.preset, {}), **of_training})
    if training.start == "uniform":
        if chosen.get("attention") == "explicit":
            raise SaffuError("--start uniform means --attention uniform; leave one of them out")
        chosen["attention"] = "uniform"
    config = SaffuConfig.preset(options.preset or chosen.get("solution", "paper"), **chosen)
    if config.solution == "calibrated":
        raise SaffuError("a calibrated model has counts, no weights to train; use --preset network with --backprop")
    if training.leave_out and not config.hidden_dimension:
        raise SaffuError("--leave-out needs a final decoder; use --fit-share, or a --hidden-dimension above 0")
    return config, training


def documents(text: dict[str, Any]) -> tuple[Any, Any]:
    """The documents to train on and those held out, read anew each time they are asked for."""
    how = argparse.Namespace(**text)
    corpus = Documents(how.corpus, how)
    if how.dev:
        return corpus, Documents(how.dev, how)
    return Share(corpus, how.hold_out, held_out=False), Share(corpus, how.hold_out, held_out=True)


def tokenised(
    text: dict[str, Any], tokenizer: "Tokenizer", scratch: Path, ranks: "Ranks"
) -> tuple["TokenCorpus", "TokenCorpus"]:
    """Both as token ids, which lie in the folder `scratch`."""
    from saffu.corpus import TokenCorpus

    train, dev = documents(text)
    folders = [scratch / name for name in ("train", "dev")]
    for folder in folders:
        folder.mkdir()
    corpus = ranks.build_corpus(train, tokenizer, folders[0], text["tokens"], "tokenise")
    dev_corpus = TokenCorpus.build(dev, tokenizer, folders[1])
    if not dev_corpus.targets and text["dev"]:
        raise SaffuError("the text of --dev is empty; give files with at least one non-empty line")
    if not dev_corpus.targets and text["hold_out"]:
        raise SaffuError(
            f"a corpus of {number_of(corpus.documents, 'document')} is too small to hold every "
            f"{text['hold_out']}th out; give --dev FILE, a smaller --hold-out, or --hold-out 0"
        )
    return corpus, dev_corpus


def train_further(further: Any, folder: Path, log: "Log") -> None:
    try:
        further.run(folder, log.row)
    except KeyboardInterrupt:
        log.interrupted(folder)
    progress = further.progress
    log.say(f"stopped: {progress.ended}; best dev perplexity {progress.best:.2f}, after fold {progress.best_fold}")


def finish(lm: "SaffuLM", folder: Path, options: argparse.Namespace, log: "Log") -> None:
    log.say(f"{lm.parameters_:,} parameters, saved in {folder}")
    if options.json:
        print_json(model_facts(lm) | {"out": str(folder), "log": lm.log_})


class Log:
    """What a person watches: a line for each stage and fold. With --json it goes to standard error.

    Of several processes only the first is watched.
    """

    def __init__(self, options: argparse.Namespace, backprop: bool, ranks: "Ranks"):
        self.silent = not ranks.is_first
        self.stream: TextIO = sys.stderr if options.json else sys.stdout
        self.columns = [("stage", "<12", "stage")]
        if backprop:
            self.columns += [("step", ">7,", "step"), ("train_perplexity", ">9.2f", "train ppl")]
        self.columns += [("dev_perplexity", ">9.2f", "dev ppl"), ("dev_bits_per_byte", ">9.3f", "bits/byte")]
        if backprop:
            self.columns += [("tokens_per_second", ">9,", "tokens/s")]
        self.columns += [("seconds", ">8.1f", "seconds")]
        self.begun = False
        self.board = tensorboard(options.tensorboard) if options.tensorboard and not self.silent else None

    def say(self, line: str) -> None:
        if self.silent:
            return
        try:
            print(line, file=self.stream, flush=True)
        except BrokenPipeError:  # whoever watched has gone; the work goes on
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def row(self, row: dict[str, Any]) -> None:
        if not self.begun:
            self.say("  ".join(f"{title:{form[0]}{width(form)}}" for _, form, title in self.columns) + "  sample")
        self.begun = True
        cells = [f"{row[key]:{form}}" if key in row else " " * width(form) for key, form, _ in self.columns]
        sample = "".join(c if c.isprintable() else repr(c)[1:-1] for c in row["sample"])
        self.say("  ".join(cells) + "  " + sample)
        if self.board and "fold" in row:
            for key in ("train_perplexity", "dev_perplexity", "dev_bits_per_byte", "rate", "tokens_per_second"):
                if key in row:
                    self.board.add_scalar(key, row[key], row["tokens"])
            self.board.add_text("sample", row["sample"], row["tokens"])
            self.board.flush()

    def interrupted(self, folder: Path) -> NoReturn:
        if not self.silent:
            print(f"saffu: interrupted, all is saved; go on with: saffu train --resume {folder}", file=sys.stderr)
        sys.exit(130)


def width(form: str) -> int:
    return int("".join(c for c in form.split(".")[0] if c.isdigit()))


def tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SaffuError("TensorBoard is not installed; pip install 'saffu[tensorboard]'") from None
    return SummaryWriter(folder)
