"""The command `saffu`: parse, call, print. One verb a function; what is slow to import is imported inside."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from saffu import __version__
from saffu.config import PRESETS, SaffuConfig
from saffu.errors import SaffuError

if TYPE_CHECKING:
    from saffu.evaluate import Score

HOLD_OUT = 20


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command. Exit status: 0 done, 2 the user can mend it, 130 interrupted."""
    options = parser().parse_args(arguments)
    try:
        options.run(options)
    except SaffuError as error:
        fail(str(error))
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        fail(f"cannot read or write{where}: {error.strerror or error}; check the place, its permissions and free space")
    except KeyboardInterrupt:
        print("saffu: interrupted; nothing half-written is left behind", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)


def fail(message: str) -> NoReturn:
    print(f"saffu: {message}", file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message}; see `{self.prog} --help`")


def parser() -> Parser:
    top = Parser(
        prog="saffu",
        description="Language models whose weights are counted, not trained.",
        epilog="saffu VERB --help shows the options of a verb and an example.",
    )
    top.add_argument("--version", action="version", version=f"saffu {__version__}")
    verbs = top.add_subparsers(metavar="VERB", required=True)

    def verb(name: str, run: Callable[[argparse.Namespace], None], purpose: str, example: str) -> Parser:
        added: Parser = verbs.add_parser(
            name,
            help=purpose,
            description=purpose[0].upper() + purpose[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=run)
        return added

    train = verb(
        "train",
        run_train,
        "make a model from text by the explicit solution",
        "saffu train books/*.txt.gz --out model --radius 4",
    )
    train.add_argument("corpus", nargs="*", help="files, folders or globs; none: the English that ships with Python")
    train.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    train.add_argument("--force", action="store_true", help="replace what --out holds")
    train.add_argument("--dev", nargs="+", metavar="FILE", help="held-out text (default: every 20th document)")
    train.add_argument(
        "--hold-out", type=int, default=HOLD_OUT, metavar="N", help="hold out every Nth document; 0 none (default: 20)"
    )
    train.add_argument("--tokens", type=count, metavar="N", help="use the first so many tokens (1e6, 500k, 2M)")
    train.add_argument("--no-references", action="store_true", help="do not keep n-gram counts with the model")
    train.add_argument("--preset", choices=PRESETS, default="paper", help="settings to start from (default: paper)")
    add_text_options(train)
    add_common_options(train)
    add_settings(train)

    evaluate = verb(
        "eval", run_eval, "score a model on text, beside n-gram references", "saffu eval model dev/*.txt.gz --json"
    )
    evaluate.add_argument("model", type=Path)
    evaluate.add_argument("text", nargs="*", help="text to score; none: what training on the default corpus held out")
    evaluate.add_argument("--train", nargs="+", metavar="FILE", help="count the references from this text instead")
    evaluate.add_argument("--tokens", type=count, metavar="N", help="score the first so many tokens")
    add_text_options(evaluate)
    add_common_options(evaluate)

    generate = verb(
        "generate",
        run_generate,
        "write on from a prompt",
        'saffu generate model "Once upon a time" --top-p 0.9 --seed 1',
    )
    generate.add_argument("model", type=Path)
    generate.add_argument("prompt", nargs="?", default="", help="start of the document (default: none)")
    generate.add_argument("--max-tokens", type=int, default=100, metavar="N", help="stop after N tokens (default: 100)")
    generate.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0: always the likeliest token")
    generate.add_argument("--top-k", type=int, default=0, metavar="K", help="draw from the K likeliest tokens")
    generate.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest that hold P")
    generate.add_argument("--seed", type=int, default=None, help="the same seed gives the same text")
    generate.add_argument("--count", type=int, default=1, metavar="N", help="write N documents")
    generate.add_argument("--device", default="cpu", help="cpu, cuda, … (default: cpu)")

    info = verb("info", run_info, "tell what a model is", "saffu info model")
    info.add_argument("model", type=Path)
    info.add_argument("--json", action="store_true", help="print one JSON object")
    return top


def count(text: str) -> int:
    """A number of tokens: 1000000, 1e6, 500k or 2M."""
    scale = {"k": 10**3, "m": 10**6, "g": 10**9}.get(text[-1:].lower(), 1)
    try:
        number = int(float(text[:-1] if scale > 1 else text) * scale)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens (1000000, 1e6, 500k, 2M)")
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


def add_settings(verb: Parser) -> None:
    """One option for each field of SaffuConfig."""
    group = verb.add_argument_group("settings (defaults are the preset's)")
    kinds = get_type_hints(SaffuConfig)
    for setting in fields(SaffuConfig):
        flag, meaning = "--" + setting.name.replace("_", "-"), f"{setting.metadata['meaning']} ({setting.default})"
        kind = kinds[setting.name]
        if kind is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=meaning)
        elif get_origin(kind) is Literal:
            choices = get_args(kind)
            group.add_argument(flag, type=type(choices[0]), choices=choices, default=None, help=meaning)
        else:
            group.add_argument(flag, type=kind, default=None, help=meaning, metavar="X" if kind is float else "N")


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
            self.read = text.default_corpus

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


def run_train(options: argparse.Namespace) -> None:
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


def run_eval(options: argparse.Namespace) -> None:
    from saffu import evaluate
    from saffu.corpus import TokenCorpus
    from saffu.model import SaffuLM

    lm = SaffuLM.load(options.model, options.device)
    documents: Any = Documents(options.text, options)
    if not options.text:
        every = lm.trained_on_.get("hold_out", 0)
        if not (lm.trained_on_.get("default_corpus") and every):
            raise SaffuError("no text to score; name some: saffu eval MODEL TEXT…")
        documents = Share(documents, every, held_out=True)
    with tempfile.TemporaryDirectory(prefix="saffu-") as scratch:
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


def run_generate(options: argparse.Namespace) -> None:
    from saffu.model import SaffuLM

    if options.count < 1:
        raise SaffuError(f"--count is {options.count}; it must be at least 1")
    lm = SaffuLM.load(options.model, options.device)
    for number in range(options.count):
        pieces = lm.stream(
            options.prompt,
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=None if options.seed is None else options.seed + number,
        )
        print(options.prompt, end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()


def run_info(options: argparse.Namespace) -> None:
    from saffu.model import SaffuLM

    lm = SaffuLM.load(options.model)
    if options.json:
        print_json(model_facts(lm) | {"log": lm.log_})
        return
    seen = lm.trained_on_
    print(f"parameters   {lm.parameters_:,}")
    for name, weight in lm.network_.state_dict().items():
        print(f"  {name:<18} {' × '.join(str(size) for size in weight.shape)}")
    print(f"vocabulary   {len(lm.tokenizer_):,}")
    print(f"trained on   {seen['tokens']:,} tokens, {seen['documents']:,} documents, {seen['bytes']:,} bytes")
    for row in lm.log_:
        if "dev_perplexity" in row:
            perplexity, bits = row["dev_perplexity"], row["dev_bits_per_byte"]
            print(f"{row['stage']:<12} dev perplexity {perplexity:.2f}, {bits:.3f} bits/byte")
    print("settings     (* not the default)")
    for setting in fields(SaffuConfig):
        value = getattr(lm.config, setting.name)
        print(
            f"{'*' if value != setting.default else ' '} {setting.name:<18} {value!s:<9} {setting.metadata['meaning']}"
        )


def model_facts(lm: Any) -> dict[str, Any]:
    return {
        "parameters": lm.parameters_,
        "vocabulary": len(lm.tokenizer_),
        "config": lm.config.to_dict(),
        "trained_on": lm.trained_on_,
    }


def print_scores(scores: dict[str, "Score"]) -> None:
    first = next(iter(scores.values()))
    print(f"{first.targets:,} targets, {first.bytes:,} bytes")
    print(f"{'':<20} {'perplexity':>12} {'bits/byte':>10}")
    for name, score in scores.items():
        print(f"{name:<20} {score.perplexity:>12.2f} {score.bits_per_byte:>10.3f}")


def print_json(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, ensure_ascii=False))
