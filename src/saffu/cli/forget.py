"""saffu forget: a model forgets documents, as if they had never been counted."""

import argparse

from saffu.commands.common import Verb
from saffu.commands.update import add_options, changed_model, report
from saffu.wording import number_of


def add(verb: Verb) -> None:
    parser = verb(
        "forget", run, "take documents that a model has counted out of it again", "saffu forget model withdrawn.txt"
    )
    add_options(parser)
    parser.add_argument(
        "--skip-uncounted", action="store_true", help="pass over documents that were never counted, instead of refusing"
    )


def run(options: argparse.Namespace) -> None:
    with changed_model(options) as (lm, corpus):
        forgotten = lm.forget(corpus, options.skip_uncounted)
        some = f"{forgotten:,} of " if forgotten < corpus.documents else ""
    report(options, lm, f"forgot {some}{number_of(corpus.documents, 'document')}", {"forgotten": forgotten})
