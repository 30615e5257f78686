"""saffu update, forget, and merge: models that change after they were fitted."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.options import (
    Command,
    Parser,
    add_compact_option,
    add_device,
    add_model,
    add_output_options,
    add_text_options,
    count,
    finite,
    load_model,
    named_path,
    reading_of,
    require_output,
    tokenized,
)
from saffu.cli.output import Log, model_facts, print_json, say
from saffu.cli.train import bounded, saved
from saffu.errors import SaffuError
from saffu.format import in_parts, plural, show_token, warn

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.model.living import Removal
    from saffu.text.corpus import TokenCorpus

TOKENS_STAY = (
    "note: the tokenizer and the encoder stay as they were fitted, on text that may have included the removed "
    "documents; to rule that out, train with --tokenizer DIR (of a model of other text), or train again on what is left"
)
ENCODER_STAYS = "note: the encoder stays as it was fitted, on text that may have included the removed documents"


def add_change_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    parser.add_argument("text", nargs="+", metavar="TEXT", help="files, folders, globs, or - for stdin")
    add_compact_option(parser)
    add_device(parser)
    add_output_options(parser)
    add_text_options(parser)


def add_update_options(parser: Parser, words: Sequence[str]) -> None:
    add_change_options(parser, words)
    help = "then train the model's network further on the new documents, for this many minutes in total"
    parser.add_argument("--minutes", type=finite, metavar="X", help=help)
    parser.add_argument("--epochs", type=finite, metavar="X", help="the same, for this many passes over the documents")
    parser.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text for that training")


def add_forget_options(parser: Parser, words: Sequence[str]) -> None:
    add_change_options(parser, words)
    help = "skip documents and parts that do not match what was counted, instead of failing"
    parser.add_argument("--skip-uncounted", action="store_true", help=help)
    help = "remove the network trained next to the counts, because it cannot forget"
    parser.add_argument("--drop-network", action="store_true", help=help)


def add_merge_options(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("models", nargs="+", type=named_path, metavar="MODEL", help="model folders")
    parser.add_argument("--out", type=named_path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--force", action="store_true", help="overwrite --out if it exists")
    add_compact_option(parser)
    help = "merge within this much memory (500M, 2G), using temporary files next to --out"
    parser.add_argument("--memory-limit", type=count, metavar="SIZE", help=help)
    add_output_options(parser)


def update(options: argparse.Namespace) -> None:
    trains = bool(options.minutes or options.epochs)
    if trains and not options.dev:
        option = "--minutes" if options.minutes else "--epochs"
        raise SaffuError(f"{option} needs --dev FILE: held-out text, by which training is judged")
    if options.dev and not trains:
        raise SaffuError("--dev is for training the network further; pass --minutes N too, or remove --dev")
    with changed_model(options) as (lm, corpus):
        if trains:
            dev = held_out_text(options, lm, corpus)
            length = {"minutes": options.minutes or 0.0, "epochs": options.epochs or 0.0}
            lm.config = lm.config.from_dict(lm.config.to_dict() | length)
        lm.update(corpus)
        if trains:
            train_further(options, lm, corpus, dev)
    finish(options, lm, addition(corpus), {"added": corpus.documents})


def addition(corpus: TokenCorpus) -> str:
    return f"added {plural(corpus.documents, 'document')} ({corpus.targets:,} tokens)"


def add_documents(options: argparse.Namespace) -> None:
    """Add the text to the model's counts after it was read online, and say so on standard error."""
    with changed_model(options) as (lm, corpus):
        lm.update(corpus)
    warn(f"{addition(corpus)} to {options.model}")


def held_out_text(options: argparse.Namespace, lm: SaffuLM, corpus: TokenCorpus) -> TokenCorpus:
    """The text of --dev, which training on new documents needs."""
    from saffu.text.selection import same_text

    if lm.model_.without_network() is None:
        raise SaffuError(f"{options.model} has no network to train; make one with saffu train --minutes")
    dev = tokenized(options.dev, options, lm)
    if not dev.targets:
        raise SaffuError("the text of --dev is empty; pass files with at least one non-empty line")
    if same_text(corpus, dev, part=False):
        raise SaffuError("the text of --dev is the training text; pass other text")
    return dev


def train_further(options: argparse.Namespace, lm: SaffuLM, corpus: TokenCorpus, dev: TokenCorpus) -> None:
    """Train the network next to the counts on new documents; keep the result only if it predicts --dev better."""
    from saffu.text.selection import TextSelection

    lm.save(options.model)  # the documents stay counted even if training fails
    log = Log(options, backprop=True, network=True)
    selection = TextSelection.of(options.text, options.dev, 0, None, reading_of(options, lm.source_))
    source = selection.seen_from(options.model).to_dict()
    try:
        lm.backprop(corpus, dev, folder=options.model, source=source, on_fold=log.row)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; the documents are counted; {saved(options.model)}") from None


def forget(options: argparse.Namespace) -> None:
    from saffu.model import living

    with changed_model(options) as (lm, corpus):
        removal = living.forget(lm, corpus, options.skip_uncounted, options.drop_network)
    facts = {"removed": removal.documents, "removed_parts": removal.parts}
    facts |= {"held_out_lines": removal.held_out, "skipped_lines": removal.skipped}
    finish(options, lm, described(removal), facts | {"remaining_tokens": list(removal.tokens)})
    say_what_stays(options, lm, removal.tokens)


def say_what_stays(options: argparse.Namespace, lm: SaffuLM, tokens: Sequence[str]) -> None:
    """What remains of the removed text: tokens that no other document has, and what was fitted to all text."""
    if tokens:
        shown = ", ".join(map(show_token, tokens[:10])) + (", …" if len(tokens) > 10 else "")
        were = "token that was" if len(tokens) == 1 else "tokens that were"
        of = f"{len(tokens):,} {were} counted only in the removed text, which saffu never generates, suggests, or lists"
        say(options, f"note: tokenizer.json, and with it every export, still has {of}: {shown}")
    if lm.tokenizer_settings_:  # of a tokenizer learned from the model's own text
        say(options, TOKENS_STAY)
    elif not lm.log_ or lm.log_[0]["stage"] != "recount":  # with the encoder of another model
        say(options, ENCODER_STAYS)


def described(removal: Removal) -> str:
    """What was removed and what was not."""
    some = f"{removal.documents:,} of " if removal.documents < removal.passed else ""
    done = f"removed {some}{in_parts(removal.passed, removal.parts)}"
    if removal.whole < removal.documents:
        done = f"removed {plural(removal.parts, 'part')} of {some}{plural(removal.passed, 'document')}"
    if removal.held_out:
        done += f"; {plural(removal.held_out, 'line')} had been held out"
    if removal.skipped:
        done += f"; skipped {plural(removal.skipped, 'line')} that {'was' if removal.skipped == 1 else 'were'} not "
        done += "counted like this"
    return done


def merge(options: argparse.Namespace) -> None:
    from saffu.commit import changing
    from saffu.model import living
    from saffu.model.language_model import SaffuLM

    require_different(options)
    if len(options.models) < 2:
        raise SaffuError("there is nothing to merge; list at least two models")
    for folder in options.models:
        require_original(folder, "merge the original model")
    in_memory = options.memory_limit is None
    with changing(options.out, wait=False), bounded(options):
        lm = living.merge(SaffuLM.load(folder, check=in_memory) for folder in options.models)
        lm.save(options.out, compact=options.compact)
    if shared := lm.log_[-1].get("shared", 0):
        are = "document is" if shared == 1 else "documents are"
        warn(f"{shared:,} {are} in more than one of the models; each copy is counted")
    if options.json:
        print_json(model_facts(lm) | {"out": options.out})
        return
    say(options, f"merged {len(options.models)} models: {counted_text(lm)}, saved in {options.out}")


def require_different(options: argparse.Namespace) -> None:
    """Fail if a model is listed twice, so that its documents would count twice, or if --out is an input."""
    if len({folder.resolve() for folder in options.models}) < len(options.models):
        raise SaffuError("the same model is listed twice; list each model once")
    require_output(options, *options.models)


def require_original(model: Path, remedy: str) -> None:
    """Fail if a folder was exported for transformers, which leaves out the counts."""
    if (model / "modeling_saffu.py").exists():
        raise SaffuError(f"{model} is an exported copy; {remedy}")


def require_no_run(options: argparse.Namespace, lm: SaffuLM) -> None:
    """Fail if a change would discard an interrupted training, unless --drop-network asks for it."""
    from saffu.training.checkpoint import is_unfinished

    drop = getattr(options, "drop_network", None)
    if drop or lm.model_.sums is None or not is_unfinished(options.model):
        return
    remedy = f"first continue it with saffu train --resume {options.model}"
    remedy += ", or discard it with --drop-network" if drop is False else ""
    raise SaffuError(f"{options.model} holds an interrupted training, which would be lost; {remedy}")


@contextmanager
def changed_model(options: argparse.Namespace) -> Iterator[tuple[SaffuLM, TokenCorpus]]:
    """The model to change and the documents named; saved at the end. Other writers wait."""
    from saffu.commit import changing

    require_original(options.model, "change the original model and export it again")
    with changing(options.model, wait=True):
        lm = load_model(options, check=True)
        require_no_run(options, lm)
        corpus = tokenized(options.text, options, lm)
        if not corpus.targets:
            raise SaffuError("the text is empty; pass files with at least one non-empty line")
        yield lm, corpus
        lm.save(options.model, compact=getattr(options, "compact", False))  # `score --update` has no such option


def finish(options: argparse.Namespace, lm: SaffuLM, done: str, facts: dict[str, Any]) -> None:
    if options.json:
        print_json(facts | model_facts(lm))
        return
    say(options, f"{done}; {options.model} now holds {counted_text(lm)}")


def counted_text(lm: SaffuLM) -> str:
    """How much a model has counted."""
    documents = in_parts(lm.trained_on_["documents"], lm.trained_on_["parts"])
    return f"{documents} ({lm.trained_on_['tokens']:,} tokens)"


UPDATE = Command(
    "update",
    "add documents to a model",
    "MODEL TEXT [TEXT ...] [options]",
    "saffu update model news/*.txt.gz\nsaffu update model news/ --minutes 2 --dev held-out.txt",
    add_update_options,
    update,
)
FORGET = Command(
    "forget",
    "remove documents from a model",
    "MODEL TEXT [TEXT ...] [options]",
    "saffu forget model withdrawn.txt\nsaffu forget model withdrawn.jsonl --field text --skip-uncounted",
    add_forget_options,
    forget,
)
MERGE = Command(
    "merge",
    "merge models that share a tokenizer and encoder",
    "MODEL MODEL [MODEL ...] --out DIR [options]",
    "saffu train shard1.txt --out one\nsaffu train shard2.txt --encoder one --out two\nsaffu merge one two --out both",
    add_merge_options,
    merge,
)
