"""saffu embed: the vectors of words, and the tokens nearest to them."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.commands.common import Verb, print_json, visible
from saffu.errors import SaffuError
from saffu.wording import number_of

if TYPE_CHECKING:
    from torch import Tensor


def add(verb: Verb) -> None:
    parser = verb(
        "embed",
        run,
        "show the tokens nearest to words, and write vectors",
        "saffu embed model king queen\n  saffu embed model king --json\n  saffu embed model --out vectors.txt",
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("words", nargs="*", metavar="WORD", help="a word of several tokens is their mean")
    parser.add_argument(
        "--kind", help="which vectors: context of a calibrated model; decoder, block.U, block.E, … else"
    )
    parser.add_argument("--top", type=int, default=8, metavar="N", help="show the N nearest tokens (default: 8)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the words' vectors, or all tokens', in word2vec's text format"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the vectors")


def run(options: argparse.Namespace) -> None:
    from saffu.model import SaffuLM

    if not (options.words or options.out):
        raise SaffuError("no word to look up; name some, or write all vectors with --out FILE")
    if options.top < 1:
        raise SaffuError(f"--top is {options.top}; it must be at least 1")
    if any("\ud800" <= character <= "\udfff" for character in "".join(options.words)):
        raise SaffuError("a word is not UTF-8; give it in that encoding")
    lm = SaffuLM.load(options.model)
    embeddings = lm.embeddings_ if options.kind is None else lm.embeddings_.of(options.kind)
    facts = [
        {
            "word": word,
            "tokens": [lm.tokenizer_.token(token) for token in embeddings.tokens(word)],
            "neighbours": [{"token": t, "cosine": c} for t, c in embeddings.neighbours(word, options.top)],
        }
        for word in options.words
    ]
    for word in options.words:
        if warning := doubt(word, lm.frequencies_[embeddings.tokens(word)]):
            print(f"saffu: {warning}", file=sys.stderr)
    if options.out:
        write(embeddings, options.words, options.out)
    if options.json:
        vectors = [{"vector": [float(value) for value in embeddings[word]]} for word in options.words]
        told = [fact | vector for fact, vector in zip(facts, vectors, strict=True)]
        print_json({"kind": embeddings.kind, "kinds": embeddings.kinds, "words": told})
        return
    for fact in facts:
        note = f"  ({'+'.join(visible(t) for t in fact['tokens'])})" if len(fact["tokens"]) > 1 else ""
        print(visible(fact["word"]) + note)
        for near in fact["neighbours"]:
            print(f"  {near['cosine']:6.3f}  {visible(near['token'])}")
    if options.out:
        number, size = len(options.words) or len(lm.tokenizer_), embeddings.vectors.shape[1]
        print(f"{number_of(number, 'vector')} of {size} numbers in {options.out}")


def doubt(word: str, frequencies: "Tensor") -> str:
    """Why the vector of a word whose tokens have these frequencies may not be the word's; empty if it is."""
    if (frequencies == 0).any():
        return f"{visible(word)!r} does not occur in what the model has counted; its vector tells little"
    if len(frequencies) > 1:
        return f"{visible(word)!r} is no token of this model; its vector is the mean of its {len(frequencies)} pieces"
    return ""


def write(embeddings: Any, words: list[str], out: Path) -> None:
    """All at once: a reader finds the old file or the new one."""
    from saffu.embeddings import to_word2vec

    if out.is_dir():
        raise SaffuError(f"{out} is a folder; name a file")
    named = [(visible(word), embeddings[word]) for word in words]
    if not words:
        named = [(visible(embeddings.tokenizer.token(id)), row) for id, row in enumerate(embeddings.vectors)]
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(to_word2vec(named))
        fresh.replace(out)
    finally:
        fresh.unlink(missing_ok=True)
