"""saffu eval: a model's score on text, beside n-gram references."""

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.commands.common import Documents, Share, Verb, add_common_options, add_text_options, count, print_json
from saffu.errors import SaffuError

if TYPE_CHECKING:
    from saffu.evaluate import Score


def add(verb: Verb) -> None:
    parser = verb(
        "eval", run, "score a model on text, beside n-gram references", "saffu eval model dev/*.txt.gz --json"
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("text", nargs="*", help="text to score; none: what training on the default corpus held out")
    parser.add_argument("--train", nargs="+", metavar="FILE", help="count the references from this text instead")
    parser.add_argument("--tokens", type=count, metavar="N", help="score whole documents until so many tokens")
    add_text_options(parser)
    add_common_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu import evaluate
    from saffu.corpus import TokenCorpus
    from saffu.model import SaffuLM

    lm = SaffuLM.load(options.model, options.device)
    every = lm.trained_on_.get("hold_out", 0) if lm.trained_on_.get("default_corpus") else 0
    if not (options.text or every):
        raise SaffuError("no text to score; name some: saffu eval MODEL TEXT…")
    documents: Any = Documents(options.text, options)
    if not options.text:
        documents = Share(documents, every, held_out=True)
    with tempfile.TemporaryDirectory(prefix="saffu-", ignore_cleanup_errors=True) as scratch:
        folders = [Path(scratch) / name for name in ("text", "train")]
        for folder in folders:
            folder.mkdir()
        corpus = TokenCorpus.build(documents, lm.tokenizer_, folders[0], options.tokens, "tokenise")
        score = lm.score(corpus)
        if options.train:
            training = TokenCorpus.build(Documents(options.train, options), lm.tokenizer_, folders[1], None, "tokenise")
            lm.references_ = evaluate.count_references(training, len(lm.tokenizer_))
        references = lm.reference_scores(corpus) if lm.references_ is not None else {}
    if options.json:
        facts: dict[str, Any] = {"targets": score.targets, "bytes": score.bytes, "nll": score.nll}
        facts |= {"perplexity": score.perplexity, "bits_per_byte": score.bits_per_byte}
        facts |= {
            f"{name}_perplexity": references[name].perplexity if references else None for name in evaluate.REFERENCES
        }
        print_json(facts | {f"{name}_bits_per_byte": s.bits_per_byte for name, s in references.items()})
    else:
        print_scores({"this model": score} | {f"{name} reference": s for name, s in references.items()})
        if not references:
            print("(no n-gram references are kept with this model; --train FILE counts them)")


def print_scores(scores: dict[str, "Score"]) -> None:
    first = next(iter(scores.values()))
    print(f"{first.targets:,} targets, {first.bytes:,} bytes")
    print(f"{'':<20} {'perplexity':>12} {'bits/byte':>10}")
    for name, score in scores.items():
        print(f"{name:<20} {score.perplexity:>12.2f} {score.bits_per_byte:>10.3f}")
