"""saffu embed: word vectors and nearest neighbors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from saffu.cli.options import Command, Parser, add_model, integer, load_model, named_path, require_utf8
from saffu.cli.output import print_json
from saffu.errors import SaffuError
from saffu.format import plural, show_token, warn

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.tools.word_vectors import WordVectors


def add_options(parser: Parser, _: Sequence[str]) -> None:
    add_model(parser)
    help = "words to look up; a word of several tokens gets the mean of their vectors"
    parser.add_argument("words", nargs="*", metavar="WORD", help=help)
    parser.add_argument("--kind", help="which vectors, if the model has several kinds [the most useful ones]")
    parser.add_argument("--top", type=integer(1), default=8, metavar="N", help="number of neighbors [8]")
    help = "write the vectors of the words, or of all tokens that were counted, in word2vec's text format"
    parser.add_argument("--out", type=named_path, metavar="FILE", help=help)
    parser.add_argument("--force", action="store_true", help="overwrite --out if it holds such vectors")
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the vectors")


def run(options: argparse.Namespace) -> None:
    if not (options.words or options.out):
        raise SaffuError("no word to look up; pass words, or write all vectors with --out FILE")
    require_utf8(*options.words)
    from saffu.writing import is_stream, require_apart, require_new_file

    if options.out:
        require_apart(options.out, options.model)
        require_new_file(options.out, options.force, ours=r"\d+ \d+\n")
    lm = load_model(options)
    vectors = lm.word_vectors_ if options.kind is None else lm.word_vectors_.of(options.kind)
    facts = [
        {
            "word": word,
            "tokens": [lm.tokenizer_.token(token) for token in vectors.tokens(word)],
            "neighbors": [{"token": t, "cosine": float(c)} for t, c in vectors.neighbors(word, options.top)],
        }
        for word in options.words
    ]
    for word in options.words:
        if doubt := why_doubtful(word, [int(lm.frequencies_[token]) for token in vectors.tokens(word)]):
            warn(doubt)
    if options.out:
        write(lm, vectors, options)
    if options.json:
        words = [fact | {"vector": vectors[fact["word"]]} for fact in facts]
        print_json({"kind": vectors.kind, "kinds": vectors.kinds, "words": words})
        return
    for fact in facts:
        pieces = f"  ({'+'.join(show_token(token) for token in fact['tokens'])})" if len(fact["tokens"]) > 1 else ""
        print(show_token(fact["word"]) + pieces)
        for neighbor in fact["neighbors"]:
            print(f"  {neighbor['cosine']:6.3f}  {show_token(neighbor['token'])}")
    if options.out and not is_stream(options.out):  # which may be where this would go
        written = plural(len(options.words) or len(listed(lm)), "vector")
        print(f"wrote {written} of {vectors.vectors.shape[1]} numbers to {options.out}")


def why_doubtful(word: str, frequencies: Sequence[int]) -> str:
    """Why the vector of a word may not be meaningful, from the frequencies of its tokens; empty if it is."""
    if 0 in frequencies:
        return f"{show_token(word)!r} does not occur in the training text; its vector is not meaningful"
    if len(frequencies) > 1:
        return f"{show_token(word)!r} is not a single token; using the mean of its {len(frequencies)} pieces"
    return ""


def listed(lm: SaffuLM) -> list[int]:
    """The tokens that were counted; others may be all that remains of a document that was forgotten."""
    return [token for token, times in enumerate(lm.frequencies_.tolist()) if times]


def write(lm: SaffuLM, vectors: WordVectors, options: argparse.Namespace) -> None:
    from saffu.tools.word_vectors import to_word2vec
    from saffu.writing import replacing

    named = [(show_token(word), vectors[word]) for word in options.words]
    if not options.words:
        named = [(show_token(lm.tokenizer_.token(token)), vectors.vectors[token]) for token in listed(lm)]
    with replacing(options.out, options.force) as file:
        file.write(to_word2vec(named).encode())


COMMAND = Command(
    "embed",
    "show nearest neighbors of words, or export vectors",
    "MODEL [WORD ...] [options]",
    "saffu embed model king queen\nsaffu embed model king --json\nsaffu embed model --out vectors.txt",
    add_options,
    run,
)
