"""saffu train: text to a model folder."""

import argparse
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from saffu.commands.common import (
    Documents,
    Share,
    Verb,
    add_common_options,
    add_settings,
    add_text_options,
    count,
    model_facts,
    print_json,
)
from saffu.config import PRESETS, SaffuConfig
from saffu.errors import SaffuError

HOLD_OUT = 20


def add(verb: Verb) -> None:
    parser = verb(
        "train",
        run,
        "make a model from text by the explicit solution",
        "saffu train books/*.txt.gz --out model --radius 4",
    )
    parser.add_argument("corpus", nargs="*", help="files, folders or globs; none: the English that ships with Python")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--force", action="store_true", help="replace what --out holds")
    parser.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text (default: every 20th document)")
    parser.add_argument(
        "--hold-out", type=int, default=HOLD_OUT, metavar="N", help="hold out every Nth document; 0 none (default: 20)"
    )
    parser.add_argument("--tokens", type=count, metavar="N", help="use the first so many tokens (1e6, 500k, 2M)")
    parser.add_argument("--no-references", action="store_true", help="do not keep n-gram counts with the model")
    parser.add_argument("--preset", choices=PRESETS, default="paper", help="settings to start from (default: paper)")
    add_text_options(parser)
    add_common_options(parser)
    add_settings(parser)


def run(options: argparse.Namespace) -> None:
    chosen = {f.name: getattr(options, f.name) for f in fields(SaffuConfig) if getattr(options, f.name) is not None}
    config = SaffuConfig(**{**PRESETS[options.preset], **chosen})
    if options.hold_out < 0 or options.hold_out == 1:
        raise SaffuError(f"--hold-out is {options.hold_out}; give 2 or more, or 0 to hold nothing out")

    from saffu import store

    store.require_writable(options.out, options.force)
    report = sys.stderr if options.json else sys.stdout
    documents = Documents(options.corpus, options)
    held_out = Share(documents, options.hold_out, held_out=True)
    train: Any = documents if options.dev else Share(documents, options.hold_out, held_out=False)
    dev: Any = Documents(options.dev, options) if options.dev else held_out

    from saffu.corpus import TokenCorpus
    from saffu.model import SaffuLM
    from saffu.tokenizer import Tokenizer

    began = time.perf_counter()
    tokenizer = Tokenizer.train(train, words=config.words, kept_words=config.kept_words, count_by=config.count_by)
    lm = SaffuLM(config, tokenizer=tokenizer, device=options.device)
    with tempfile.TemporaryDirectory(prefix="saffu-") as scratch:
        folders = [Path(scratch) / name for name in ("train", "dev")]
        for folder in folders:
            folder.mkdir()
        corpus = TokenCorpus.build(train, tokenizer, folders[0], options.tokens, "tokenise")
        dev_corpus = TokenCorpus.build(dev, tokenizer, folders[1])
        if not dev_corpus.targets and (options.dev or options.hold_out):
            raise SaffuError(
                "the text of --dev is empty; give files with at least one non-empty line"
                if options.dev
                else f"a corpus of {corpus.documents} documents is too small to hold every {options.hold_out}th out; "
                "give --dev FILE, a smaller --hold-out, or --hold-out 0"
            )
        print(
            f"{corpus.targets:,} tokens in {corpus.documents:,} documents, vocabulary {len(tokenizer):,}, "
            f"tokenised in {time.perf_counter() - began:.1f} s",
            file=report,
        )
        began = time.perf_counter()

        def on_stage(row: dict[str, Any]) -> None:
            row["seconds"] = round(time.perf_counter() - began, 3)
            if len(lm.log_) == 1:
                print(f"{'stage':<8} {'dev perplexity':>14} {'bits/byte':>9} {'seconds':>7}  sample", file=report)
            perplexity, bits = row.get("dev_perplexity", float("nan")), row.get("dev_bits_per_byte", float("nan"))
            sample = row["sample"].replace("\n", "\\n")
            print(f"{row['stage']:<8} {perplexity:>14.2f} {bits:>9.3f} {row['seconds']:>7.1f}  {sample}", file=report)
            lm.trained_on_ |= {"default_corpus": not options.corpus, "hold_out": 0 if options.dev else options.hold_out}
            lm.save(options.out)

        lm.fit(
            corpus, dev_corpus if dev_corpus.targets else None, references=not options.no_references, on_stage=on_stage
        )
    print(f"{lm.parameters_:,} parameters, saved in {options.out}", file=report)
    if options.json:
        print_json(model_facts(lm) | {"out": str(options.out), "log": lm.log_})
