"""Tokenize a text for the studies of grids once, and keep it in a file.

A file holds the counted documents, a sample of held-out ones, and the fingerprints of `GridCorpus`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lab.readings import build_corpus
from saffu import files
from saffu.experiments.scoring import EVAL_TOKENS, GridCorpus, fingerprint
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import BYTES, Tokenizer, TokenizerConfig, count_bpe_words, most_frequent, vocabulary


@dataclass(frozen=True)
class Text:
    """A text with its name."""

    name: str
    corpus: GridCorpus

    def part(self, tokens: int) -> GridCorpus:
        """The text with about `tokens` of the counted documents, evenly spread, and samples of a tenth of that."""
        whole = self.corpus
        if tokens >= whole.train.targets:
            return whole
        train = whole.train.sample(tokens)
        samples = {name: sample.sample(tokens // 10) for name, sample in whole.samples.items()}
        counted = fingerprint(whole.counted, train.fingerprint())
        return GridCorpus(train, samples, whole.vocabulary, fingerprint(whole.fingerprint, counted), counted)


def with_final_pieces(corpus: GridCorpus, tokenizer: Tokenizer, words: Iterable[str]) -> GridCorpus:
    """The same text in a smaller vocabulary: tokens that the words do not end up as are cut into the pieces that do.

    Bytes stay, so that nothing is lost.
    """
    merges = [tuple(merge) for merge in json.loads(tokenizer.to_json())["model"]["merges"]]
    parts = {left + right: (left, right) for left, right in merges}
    ids = vocabulary(merges)
    final = {id for word in words for id in tokenizer.encode_bytes(spelled(word))}
    kept = [id for token, id in ids.items() if token not in parts or id in final]  # special tokens and bytes come first
    renumbered = {id: new for new, id in enumerate(kept)}

    def pieces(token: str) -> list[int]:
        if ids[token] in renumbered:
            return [renumbered[ids[token]]]
        left, right = parts[token]
        return pieces(left) + pieces(right)

    table = [pieces(token) for token in ids]
    train = respelled(corpus.train, table)
    samples = {n: respelled(c, table) for n, c in corpus.samples.items()}
    counted = fingerprint(corpus.counted, train.fingerprint())
    return GridCorpus(train, samples, len(kept), fingerprint(corpus.fingerprint, counted), counted)


def spelled(word: str) -> bytes:
    """A counted word, which is written in byte characters, as bytes: "Ġa" → b" a"."""
    return b"".join(BYTES[character] for character in word)


def respelled(corpus: TokenCorpus, table: Sequence[Sequence[int]]) -> TokenCorpus:
    """The corpus with every token replaced by one or more others."""
    lengths = np.array([len(pieces) for pieces in table])
    ends = np.concatenate([[0], lengths[corpus.ids].cumsum()])
    ids = np.concatenate([table[id] for id in corpus.ids.tolist()]).astype(corpus.ids.dtype)
    return TokenCorpus(ids, ends[corpus.starts], corpus.sizes, corpus.first_document)


def save_text(path: Path, corpus: GridCorpus) -> None:
    facts = {"vocabulary": corpus.vocabulary, "fingerprint": corpus.fingerprint, "counted": corpus.counted}
    arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}
    for name, part in {"counted": corpus.train, **corpus.samples}.items():
        arrays |= {f"{name}.ids": part.ids, f"{name}.starts": part.starts, f"{name}.sizes": part.sizes}
    files.write_file(path, arrays)


def load_text(path: Path) -> Text:
    arrays = files.load_arrays(path)
    facts = json.loads(arrays["facts"].tobytes())
    parts = {
        name: TokenCorpus(arrays[f"{name}.ids"], arrays[f"{name}.starts"], arrays[f"{name}.sizes"])
        for name in ("counted", "train", "dev")
    }
    samples = {name: parts[name] for name in ("train", "dev")}
    corpus = GridCorpus(parts["counted"], samples, facts["vocabulary"], facts["fingerprint"], facts["counted"])
    return Text(path.stem, corpus)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="training text")
    parser.add_argument("--dev", nargs="+", default=[], metavar="FILE", help="held-out text (default: other documents)")
    parser.add_argument("--tokens", type=float, default=1e6, help="number of tokens to count (default: 1e6)")
    parser.add_argument("--first", action="store_true", help="count the first tokens, not documents from all over")
    parser.add_argument("--draw", type=int, default=0, help="seed of a random choice of documents (default: evenly)")
    parser.add_argument("--eval-tokens", type=float, default=EVAL_TOKENS, help="targets per sample (default: 100000)")
    parser.add_argument(
        "--final-pieces", action="store_true", help="only tokens that the most frequent words end up as"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write (.safetensors)")


def run_command(options: argparse.Namespace) -> None:
    train, dev = ([path for name in names for path in find_files([name])] for names in (options.train, options.dev))
    corpus = build_corpus(train, dev, int(options.tokens), int(options.eval_tokens), options.first, options.draw)
    if options.final_pieces:
        lines = [text for _, text in read_lines(train, "line")]
        config = TokenizerConfig(bpe_count="types")
        frequent = most_frequent(count_bpe_words(lines), config.bpe_kept_words)
        corpus = with_final_pieces(corpus, Tokenizer.train(lines, config), frequent)
    save_text(options.out, corpus)
    print(f"{corpus.train.targets:,} tokens in {corpus.train.documents:,} documents, vocabulary {corpus.vocabulary:,}")
