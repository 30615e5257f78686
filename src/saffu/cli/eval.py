"""saffu eval: the score of a model on text, next to n-gram baselines."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.cli.living import add_documents
from saffu.cli.options import (
    Command,
    Parser,
    add_device,
    add_model,
    add_online_options,
    add_output_options,
    add_text_options,
    count,
    integer,
    load_model,
    reading_of,
    require_online,
)
from saffu.cli.output import print_json
from saffu.errors import SaffuError
from saffu.format import progress_bar, table

if TYPE_CHECKING:
    from saffu.interface import Score
    from saffu.model.language_model import SaffuLM
    from saffu.text.corpus import TokenCorpus
    from saffu.tools.keystrokes import TypingScore


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = "files, folders, globs, or - for stdin [the held-out part of the default text]"
    parser.add_argument("text", nargs="*", metavar="TEXT", help=help)
    help = "build the n-gram baselines from this text instead"
    parser.add_argument("--baseline-text", nargs="+", metavar="FILE", help=help)
    help = "use only the first N tokens, to the end of a line (1e6, 500k, 2M)"
    parser.add_argument("--max-tokens", type=count, metavar="N", help=help)
    help = "predict without memory of the document"
    parser.add_argument("--no-memory", "--no-cache", dest="no_memory", action="store_true", help=help)
    add_online_options(parser, "remember each document while reading those after it, as a compressor does")
    help = "also report how many keystrokes three suggestions save while N words of the text are typed [300]"
    parser.add_argument("--typing", nargs="?", type=integer(1), const=300, metavar="N", help=help)
    add_device(parser)
    add_output_options(parser)
    add_text_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu.model.matching import warn_if_counted
    from saffu.text.corpus import TokenCorpus
    from saffu.text.documents import hold_out
    from saffu.text.selection import Text
    from saffu.tools import evaluate
    from saffu.tools.scores import without_memory

    require_online(options)
    if options.update and (not options.text or "-" in options.text or options.max_tokens):
        raise SaffuError("--update counts whole files, which it reads again; pass them, and omit --max-tokens")
    lm = load_model(options)
    every = lm.source_.get("hold_out", 0) if lm.source_.get("default_corpus") else 0
    if not (options.text or every):
        raise SaffuError("no text to evaluate on; pass some: saffu eval MODEL TEXT")
    how = reading_of(options, lm.source_)
    if options.no_memory:
        lm.model_ = without_memory(lm.model_)
    with Text(options.text, how) as text:

        def tokenized(lines: Iterable[Any], max_tokens: int | None = None) -> TokenCorpus:
            return TokenCorpus.build(lines, lm.tokenizer_, Path(tempfile.gettempdir()), max_tokens, "tokenize")

        corpus = tokenized(text if options.text else hold_out(text, every, held_out=True), options.max_tokens)
        text.warn_of_skipped()
        typing = typing_scores(lm, corpus, options.typing) if options.typing else {}
        score = lm.score(corpus, online=options.online)
        warn_if_counted(corpus, lm.ledger_)
        counts = lm.references_
        if options.baseline_text:
            with Text(options.baseline_text, how) as other:
                counts = evaluate.count_references(tokenized(other), len(lm.tokenizer_))
        with progress_bar("score the baselines", unit=None):
            baselines = evaluate.evaluate_references(counts, corpus) if counts is not None else {}
    unknown = evaluate.unknown_words(lm.tokenizer_, corpus)
    if options.json:
        facts: dict[str, Any] = {"documents": corpus.documents, "lines": corpus.lines, "split": how.split}
        facts |= {"targets": score.targets, "bytes": score.bytes, "nll": score.nll}
        facts |= {"perplexity": score.perplexity, "bits_per_byte": score.bits_per_byte, "unknown_words": unknown}
        print_json(facts | baseline_facts(baselines, typing))
    else:
        part = f", the first {score.targets:,} tokens" if options.max_tokens else f", {score.targets:,} tokens"
        print(f"{corpus.described(corpus.documents)}{part}, {score.bytes:,} bytes")
        how_read = ", no memory" if options.no_memory else ", online" if options.online else ""
        print_scores({f"this model{how_read}": score}, baselines)
        if unknown:
            share = f"{unknown / score.targets:.1%} of the tokens are <unk>"
            print(f"({share}, which spell no word: compare these numbers only within this vocabulary)")
        if typing:
            print_typing(typing)
    if options.update:
        add_documents(options)


def baseline_facts(baselines: Mapping[str, Score], typing: Mapping[str, TypingScore]) -> dict[str, Any]:
    """What a model is compared with, and what its suggestions save, as JSON values."""
    facts: dict[str, Any] = {f"{name}_perplexity": score.perplexity for name, score in baselines.items()}
    facts |= {f"{name}_bits_per_byte": score.bits_per_byte for name, score in baselines.items()}
    if typing:
        facts["typing"] = {name: typing_facts(score) | typed(score) for name, score in typing.items()}
    return facts


def print_scores(scores: Mapping[str, Score], baselines: Mapping[str, Score]) -> None:
    named = {f"{name} baseline": baseline for name, baseline in baselines.items()}
    rows = [[name, f"{s.perplexity:.2f}", f"{s.bits_per_byte:.3f}"] for name, s in {**scores, **named}.items()]
    print(table(["", "perplexity", "bits/byte"], rows))
    if not baselines:
        print("(this model stores no n-gram baselines; pass --baseline-text FILE to build them)")


def print_typing(scores: Mapping[str, TypingScore]) -> None:
    typed = next(iter(scores.values()))
    print(f"\ntyping {typed.words:,} words of this text, {typed.characters:,} characters, with three suggestions")
    rows = [[name, *(f"{share:.1%}" for share in typing_facts(score).values())] for name, score in scores.items()]
    print(table(["", "top 1", "top 3", "keystrokes saved"], rows))


def typing_scores(lm: SaffuLM, corpus: TokenCorpus, words: int) -> dict[str, TypingScore]:
    """By the model, and by the frequencies of its words."""
    from saffu.tools.keystrokes import typing_score, unigrams

    models = {"this model": lm.model_, "most frequent words": unigrams(lm.frequencies_)}
    return {name: typing_score(model, lm.tokenizer_, corpus, words, "type") for name, model in models.items()}


def typing_facts(score: TypingScore) -> dict[str, float]:
    return {"top_1": score.top_1, "top_3": score.top_3, "keystrokes_saved": score.saved}


def typed(score: TypingScore) -> dict[str, int]:
    return {"words": score.words, "characters": score.characters, "keystrokes": score.keystrokes}


COMMAND = Command(
    "eval",
    "evaluate a model on text, with n-gram baselines",
    "MODEL [TEXT ...] [options]",
    "saffu eval model dev/*.txt.gz\ncat dev.txt | saffu eval model - --split line --json",
    add_options,
    run,
)
