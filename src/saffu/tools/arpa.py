"""N-gram models in the ARPA format, which KenLM and most speech and handwriting recognizers read.

The file holds the interpolated Kneser–Ney model of a model's n-gram counts, at the level of tokens. A line of text is a
sentence: `<eod>` is written as `<s>` before a line and as `</s>` after it, so n-grams across lines are left out. Tokens
are written in the characters of tokenizer.json ("Ġ" is the space), without white space. If tokens are words, the file
is an ordinary word-level model, with a probability for `<unk>`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from saffu.errors import SaffuError
from saffu.format import progress_bar
from saffu.interface import Array
from saffu.text.tokenizer import EOD, UNKNOWN, Tokenizer, WordTokenizer
from saffu.writing import replacing, require_new_file

if TYPE_CHECKING:  # compiled kernels are loaded only where n-grams are used
    from saffu.calibrated.kneser_ney import Table
    from saffu.calibrated.ngrams import NgramCounts

HIGHEST_ORDER = 6  # KenLM reads no more unless it is compiled to
CHUNK = 1 << 15  # n-grams written at a time
NEVER = -99.0  # log10 of the probability of what is never predicted


def write_arpa(
    counts: NgramCounts | None,
    tokenizer: Tokenizer,
    path: Path,
    order: int | None = None,
    prune: int = 0,
    force: bool = False,
) -> list[int]:
    """Write an ARPA file, atomically and without holding it in memory; return the number of n-grams of each order.

    `order` is at most 6 (default: that of the counts). N-grams of three or more tokens that were counted at most
    `prune` times are left out. An ARPA file that exists is replaced only with `force`, and no other file is.
    """
    from saffu.calibrated.kneser_ney import Table, ranks_in_order

    require_new_file(path, force, ours=r"\s*\\data\\")
    if counts is None:
        raise SaffuError("this model stores no n-gram counts (exports have none); use the one that `saffu train` saved")
    order = min(counts.order, HIGHEST_ORDER) if order is None else order
    if not 2 <= order <= min(counts.order, HIGHEST_ORDER):
        most = min(counts.order, HIGHEST_ORDER)
        raise SaffuError(f"`order` must be from 2 to {most}, the longest n-grams there are, got {order}")
    table = Table.solve(counts.lower_order(order), range(1, order), ranks_in_order(counts.vocabulary), prune)
    with replacing(path, force) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        sizes = Arpa(table, token_names(tokenizer)).write(text)
        text.flush()
        text.detach()
    return sizes


def token_names(tokenizer: Tokenizer) -> list[str]:
    """Every token as ARPA files name it. A token that spells "<s>", "</s>", or "<unk>" begins with "‹" instead."""
    reserved = {"<s>", "</s>", UNKNOWN} - ({UNKNOWN} if isinstance(tokenizer, WordTokenizer) else set())
    names = [tokenizer.name(token) for token in range(len(tokenizer))]
    return [name.replace("<", "‹") if name in reserved else name for name in names]


class Arpa:
    """A solved table, written n-gram by n-gram. Contexts are arrays of tokens, (n, length), the nearest first."""

    def __init__(self, table: Table, names: Sequence[str]):
        self.table = table
        self.order = len(table.levels) + 1
        self.before = [*names[:EOD], "<s>", *names[EOD + 1 :]]
        self.after = [*names[:EOD], "</s>", *names[EOD + 1 :]]
        self.parents = [np.arange(len(names))]  # by level: the context without its oldest token
        self.across = [np.zeros(len(names), dtype=bool)]  # whether it reaches across the start of a line
        holds_start = np.arange(len(names)) == EOD
        for above, level in zip(table.levels, table.levels[1:], strict=False):
            parents = np.repeat(np.arange(len(above["backoff"])), np.diff(above["child"]))
            self.parents.append(parents)
            self.across.append(holds_start[parents])
            holds_start = holds_start[parents] | (level["token"] == EOD)

    def write(self, file: TextIO) -> list[int]:
        """Write header, n-grams, and end."""
        extra = self.missing_contexts()
        predicted = len(self.before) - EOD
        sizes = [predicted + 1 + (UNKNOWN not in self.after)]
        for level, across, added in zip(self.table.levels, self.across, extra[1:], strict=True):
            sizes.append(int(np.diff(level["begin"])[~across].sum()) + len(added))
        file.write("\\data\\\n" + "".join(f"ngram {n}={size}\n" for n, size in enumerate(sizes, 1)))
        with progress_bar("write n-grams", total=sum(sizes), unit=" n-grams") as bar:
            file.write("\n\\1-grams:\n")
            file.writelines(self.unigrams())
            bar.update(sizes[0])
            for n in range(2, self.order + 1):
                file.write(f"\n\\{n}-grams:\n")
                for contexts, followers in self.ngrams(n, extra[n - 1]):
                    file.writelines(self.lines(contexts, followers))
                    bar.update(len(followers))
        file.write("\n\\end\\\n")
        return sizes

    def unigrams(self) -> Iterator[str]:
        if UNKNOWN not in self.after:  # every word can be spelled with tokens
            yield f"{NEVER}\t{UNKNOWN}\n"
        tokens = np.arange(EOD, len(self.before))
        log_p = np.log10(self.probabilities(tokens[:, None][:, :0], tokens))
        backoff = self.log_backoff(tokens[:, None])
        yield f"{NEVER}\t<s>\t{backoff[0]:.7f}\n{log_p[0]:.7f}\t</s>\n"
        for token, p, weight in zip(tokens[1:].tolist(), log_p[1:], backoff[1:], strict=True):
            yield f"{p:.7f}\t{self.after[token]}\t{weight:.7f}\n"

    def ngrams(self, n: int, extra: Array) -> Iterator[tuple[Array, Array]]:
        """All n-grams of n tokens: contexts (…, n − 1) and followers, in chunks."""
        level = self.table.levels[n - 2]
        across = self.across[n - 2]
        for lo in range(0, len(level["follow"]), CHUNK):
            places = np.arange(lo, min(lo + CHUNK, len(level["follow"])))
            owners = np.searchsorted(level["begin"], places, side="right") - 1
            within = ~across[owners]
            ranks = level["follow"][places[within]].astype(np.int64)
            yield self.tokens_of(n - 1, owners[within]), (ranks + EOD) % len(self.before)
        for lo in range(0, len(extra), CHUNK):
            yield extra[lo : lo + CHUNK, 1:], extra[lo : lo + CHUNK, 0]

    def tokens_of(self, length: int, places: Array) -> Array:
        """The tokens of contexts, given by their places in their level."""
        columns = []
        for level in range(length, 1, -1):
            columns.append(self.table.levels[level - 1]["token"][places])
            places = self.parents[level - 1][places]
        return np.stack([places, *columns[::-1]], axis=1).astype(np.int64)

    def lines(self, contexts: Array, followers: Array) -> Iterator[str]:
        log_p = np.log10(self.probabilities(contexts, followers))
        oldest_first = contexts[:, ::-1].tolist()
        names = self.before
        ngrams = (
            " ".join([*(names[token] for token in row), self.after[follower]])
            for row, follower in zip(oldest_first, followers.tolist(), strict=True)
        )
        if contexts.shape[1] + 1 == self.order:
            return (f"{p:.7f}\t{ngram}\n" for p, ngram in zip(log_p.tolist(), ngrams, strict=True))
        backoff = self.log_backoff(np.concatenate([followers[:, None], contexts], axis=1))
        backoff[followers == EOD] = 0  # nothing follows the end of a line
        rows = zip(log_p.tolist(), ngrams, backoff.tolist(), strict=True)
        return (f"{p:.7f}\t{ngram}\t{weight:.7f}\n" for p, ngram, weight in rows)

    def probabilities(self, contexts: Array, followers: Array) -> Array:
        """p(follower | context), (n,): mass + backoff · p(follower | shorter context), from the shortest on."""
        ranks = (followers - EOD) % len(self.before)
        p = self.table.unigram[ranks].astype(np.float64)
        for level, places, exists in self.walk(contexts):
            at = bisect(level["follow"], level["begin"][places], level["begin"][places + 1], ranks)
            mass = np.where(at >= 0, level["mass"][at], 0.0) if len(level["mass"]) else 0.0
            p = np.where(exists, mass + level["backoff"][places] * p, p)
        return np.asarray(p)

    def log_backoff(self, contexts: Array) -> Array:
        """log10 of the weight that a context leaves to shorter ones, (n,); 0 if it was never seen."""
        for level, places, exists in self.walk(contexts):
            weights = np.where(exists, level["backoff"][places], 1.0)
        return np.log10(weights) + 0.0

    def walk(self, contexts: Array) -> Iterator[tuple[dict[str, Array], Array, Array]]:
        """Level by level, where contexts are found, and whether they are."""
        places = np.zeros(len(contexts), dtype=np.int64)
        exists = np.ones(len(contexts), dtype=bool)
        for number, tokens in enumerate(contexts.T):
            level = self.table.levels[number]
            if number == 0:
                places = tokens.astype(np.int64)
            else:
                child = self.table.levels[number - 1]["child"]
                children = bisect(level["token"], child[places], child[places + 1], tokens)
                exists = exists & (children >= 0)
                places = np.where(exists, children, 0)
            yield level, places, exists

    def missing_contexts(self) -> list[Array]:
        """By order, the n-grams (…, n), the nearest first, that are contexts but were pruned: each needs a line."""
        extra: list[Array] = [np.zeros((0, n + 1), dtype=np.int64) for n in range(self.order)]
        for n in range(self.order - 1, 1, -1):
            level = self.table.levels[n - 1]
            across = self.across[n - 1]
            used = np.flatnonzero((np.diff(level["begin"]) > 0) & ~across)
            needed = np.unique(np.concatenate([self.tokens_of(n, used), extra[n][:, 1:]]), axis=0)
            extra[n - 1] = needed[~self.is_listed(needed)] if len(needed) else needed
        return extra

    def is_listed(self, ngrams: Array) -> Array:
        """Whether the last token of each n-gram was counted after the others, (n,)."""
        *_, (level, places, known) = self.walk(ngrams[:, 1:])
        ranks = (ngrams[:, 0] - EOD) % len(self.before)
        return known & (bisect(level["follow"], level["begin"][places], level["begin"][places + 1], ranks) >= 0)


def bisect(values: Array, low: Array, high: Array, wanted: Array) -> Array:
    """Where each wanted value stands among the sorted values from low to high − 1, or −1.

    >>> bisect(np.array([1, 4, 2, 7]), np.array([0, 2]), np.array([2, 4]), np.array([4, 3]))
    array([ 1, -1])
    """
    low, high = low.astype(np.int64), high.astype(np.int64)
    end = high.copy()
    while (active := low < high).any():
        middle = (low + high) // 2
        smaller = active & (values[np.minimum(middle, len(values) - 1)] < wanted)
        low, high = np.where(smaller, middle + 1, low), np.where(active & ~smaller, middle, high)
    is_known = low < end
    is_known[is_known] = values[low[is_known]] == wanted[is_known]
    return np.where(is_known, low, -1)
