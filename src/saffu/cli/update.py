"""saffu update: a model learns more documents."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from saffu.commands.common import Documents, Parser, Verb, add_common_options, add_text_options, model_facts, print_json
from saffu.errors import SaffuError
from saffu.wording import number_of

if TYPE_CHECKING:
    from saffu.corpus import TokenCorpus
    from saffu.model import SaffuLM


def add(verb: Verb) -> None:
    parser = verb("update", run, "count more documents with a model's encoder", "saffu update model news/*.txt.gz")
    add_options(parser)


def run(options: argparse.Namespace) -> None:
    with changed_model(options) as (lm, corpus):
        lm.update(corpus)
        said = f"counted {number_of(corpus.documents, 'document')} more, {corpus.targets:,} tokens"
    report(options, lm, said, {"updated": corpus.documents})


def add_options(parser: Parser) -> None:
    parser.add_argument("model", type=Path)
    parser.add_argument("text", nargs="+", help="files, folders or globs")
    add_text_options(parser)
    add_common_options(parser)


@contextmanager
def changed_model(options: argparse.Namespace) -> Iterator[tuple["SaffuLM", "TokenCorpus"]]:
    """The model to change and the documents named; it is saved when all went well. Other writers wait."""
    from saffu import store
    from saffu.corpus import TokenCorpus
    from saffu.model import SaffuLM

    documents = Documents(options.text, options)
    if (options.model / "modeling_saffu.py").exists():  # which would not be written again
        raise SaffuError(f"{options.model} is an export; change the model it was made of, and export that again")
    with store.changing(options.model, wait=True):
        lm = SaffuLM.load(options.model, options.device)
        # In memory: what is to be forgotten must not lie about on a disk if this process is killed.
        yield lm, TokenCorpus.build(documents, lm.tokenizer_, progress="tokenise")
        lm.save(options.model)


def report(options: argparse.Namespace, lm: "SaffuLM", said: str, facts: dict[str, int]) -> None:
    if options.json:
        print_json(facts | model_facts(lm))
        return
    documents, tokens = number_of(lm.trained_on_["documents"], "document"), lm.trained_on_["tokens"]
    print(f"{said}; {options.model} now counts {documents}, {tokens:,} tokens")
