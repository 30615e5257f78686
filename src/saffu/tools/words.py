"""Surprisal of words, exact for tokens that carry the white space before a word.

With such tokens, whether a word has ended shows only in the token after it: p(" cat" | the) also covers "cats". So a
word is scored together with its ending, and given that the word before it has ended (Pimentel & Meister 2024, "How to
compute the probability of a word"):

    p(word | before) = p(its tokens | before) · p(B | before, its tokens) / p(B | before)

where B stands for all tokens that begin with white space, and `<eod>`. At the start of a line nothing has to end, so
there p(B | before) is left out. The end of a line is scored as p(<eod> | before) / p(B | before). All factors p(B)
cancel in the product, so the words of a line and its end add up to the line.

In scripts without spaces (see `saffu.tools.segments`), nothing shows that a word has ended, so p(B | before) is left
out; and if a word ends inside a token, p(all tokens that begin as this one does, up to there) takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from saffu.interface import Array, Floats, Model, State
from saffu.text.tokenizer import EOD, Tokenizer, is_spaceless
from saffu.tools.segments import segments

WHITE_SPACE = b" \t\n\r\x0b\x0c"  # what separates words; a non-breaking space does not
_FIRST_BYTES = frozenset(bytes([byte]) for byte in WHITE_SPACE)
SPACES = WHITE_SPACE.decode() + "\u3000"  # around the words of a row
END_OF_LINE = "<eod>"
BATCH = 64  # distributions computed at a time


@dataclass(frozen=True)
class WordScore:
    """A word of a text, or the end of one of its lines, for which `word` is `<eod>`."""

    position: int  # in the text, from 1
    word: str
    tokens: int
    bits: float  # surprisal: −log2 p(word and its ending | all words before it)
    punctuation: float  # how many of these bits are of characters that are not letters or digits


@lru_cache(maxsize=8)
def boundaries(tokenizer: Tokenizer) -> Array:
    """Which tokens end a word that stands before them, (N,) bool: `<eod>`, and what begins with white space."""
    pieces = [tokenizer.decode_bytes([token]) for token in range(len(tokenizer))]
    return np.array([token == EOD or piece[:1] in _FIRST_BYTES for token, piece in enumerate(pieces)])


def punctuation(pieces: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Spans of the tokens that are text without a letter or digit; white space belongs to what follows.

    A character may take several tokens.

    >>> list(punctuation([b" ", b"(", b"no", b"\\xe2\\x80", b"\\x9c", b"."]))
    [(0, 2), (3, 5), (5, 6)]
    """
    begin = 0
    for end in range(1, len(pieces) + 1):
        try:
            text = b"".join(pieces[begin:end]).decode().strip()
        except UnicodeDecodeError:
            continue
        if not text:
            continue
        if text.isprintable() and not any(character.isalnum() for character in text):
            yield begin, end
        begin = end


@dataclass(frozen=True)
class Cut:
    """A place where a word of a line ends."""

    token: int  # before which, or in which
    begun: bytes = b""  # what the word has of that token
    spaced: bool = True  # whether white space or the end of the line must follow

    def moved(self, tokens: int) -> Cut:
        """The same cut, if other tokens precede the line."""
        return replace(self, token=self.token + tokens)


def word_cuts(pieces: Sequence[bytes]) -> list[Cut]:
    """Where each word of a line ends, by the bytes of its tokens. White space belongs to what follows.

    >>> [cut.token for cut in word_cuts([b"the", b" ", b" c", b"at", b" "])]
    [1, 4]
    >>> word_cuts(["東京".encode()])
    [Cut(token=0, begun=b'\\xe6\\x9d\\xb1', spaced=False), Cut(token=1, begun=b'', spaced=True)]
    """
    cuts: list[Cut] = []
    begin = 0
    in_word = False
    for number, piece in enumerate([*pieces, b" "]):
        if in_word and piece[:1] in _FIRST_BYTES:
            cuts += [*_inner_cuts(pieces, begin, number), Cut(number)]
            begin = number
            in_word = False
        in_word = in_word or bool(piece.strip(WHITE_SPACE))
    return cuts


def _inner_cuts(pieces: Sequence[bytes], begin: int, end: int) -> Iterator[Cut]:
    """Where words end between two white spaces, if the script has none."""
    text = b"".join(pieces[begin:end]).decode("utf-8", "replace")
    if not is_spaceless(text):
        return
    token = begin
    place = 0  # in bytes, from where this token begins
    for segment in segments(text)[:-1]:
        place += len(segment.encode())
        while place >= len(pieces[token]):
            place -= len(pieces[token])
            token += 1
        yield Cut(token, pieces[token][:place], False)


@lru_cache(maxsize=4096)
def beginning_with(tokenizer: Tokenizer, begun: bytes) -> Array:
    """Which tokens begin with some bytes, (N,) bool."""
    return np.array([tokenizer.decode_bytes([token]).startswith(begun) for token in range(len(tokenizer))])


def log_boundary(model: Model, tokenizer: Tokenizer, states: Sequence[State]) -> Floats:
    """ln p(B | state), (states,): the probability that a word ends here."""
    return log_shares(model, states, [boundaries(tokenizer)] * len(states))


def log_shares(model: Model, states: Sequence[State], tokens: Sequence[Array]) -> Floats:
    """ln of the probability that one of some tokens, (N,) bool for each state, comes next: (states,)."""
    shares = np.zeros(len(states))
    for lo in range(0, len(states), BATCH):
        rows = model.next_log_probabilities(states[lo : lo + BATCH]).astype(np.float64)
        shares[lo : lo + BATCH] = [np.exp(row[mask]).sum() for row, mask in zip(rows, tokens[lo:], strict=False)]
    return np.asarray(np.log(shares))


def word_scores(
    model: Model, tokenizer: Tokenizer, ids: Sequence[int], log_p: Sequence[float] | Floats, begin: int = 0
) -> list[WordScore]:
    """Score the words of a document given as token ids, `<eod>` after each line, with ln p of each token.

    Words before the token at place `begin`, where a line begins, are context only.
    """
    ends = [begin - 1, *(place for place in range(begin, len(ids)) if ids[place] == EOD)]
    spans: list[tuple[Cut, Cut, str]] = []  # from where to where, and the word
    for before, end in pairwise(ends):
        pieces = [tokenizer.decode_bytes([token]) for token in ids[before + 1 : end]]
        last = start = Cut(0, spaced=False)
        for cut in word_cuts(pieces):
            word = (b"".join(pieces[last.token : cut.token]) + cut.begun)[len(last.begun) :].decode("utf-8", "replace")
            spans.append((last.moved(before + 1), cut.moved(before + 1), word.strip(SPACES)))
            last = cut
        spans.append((last.moved(before + 1), start.moved(end + 1), END_OF_LINE))
    log_ended = _log_ended(model, tokenizer, ids, [cut for _, cut, _ in spans])
    rows = []
    for position, (lo, hi, word) in enumerate(spans, 1):
        nats = -math.fsum(log_p[lo.token : hi.token]) + log_ended.get(lo, 0.0) - log_ended.get(hi, 0.0)
        tokens = hi.token + bool(hi.begun) - lo.token - bool(lo.begun)  # that begin in it
        marks = 0.0
        pieces = [tokenizer.decode_bytes([token]) for token in ids[lo.token : hi.token]]
        for first, end in punctuation(pieces):
            marks -= math.fsum(log_p[lo.token + first : lo.token + end])
            marks += log_ended.get(lo, 0.0) if first == 0 else 0.0  # the first token begins the word,
            marks -= log_ended.get(hi, 0.0) if end == len(pieces) else 0.0  # and the last one ends it
        rows.append(WordScore(position, word, tokens, nats / math.log(2), marks / math.log(2)))
    return rows


def _log_ended(model: Model, tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[Cut]) -> dict[Cut, float]:
    """ln of what stands for the end of each word: p(B), or the probability of what it has of the next token."""
    place = cuts[0].token if cuts else 0
    state = model.start(ids[:place])
    log_ended: dict[Cut, float] = {}
    waiting: list[tuple[Cut, State]] = []

    def settle() -> None:
        tokens = [boundaries(tokenizer) if cut.spaced else beginning_with(tokenizer, cut.begun) for cut, _ in waiting]
        shares = log_shares(model, [state for _, state in waiting], tokens)
        log_ended.update(zip((cut for cut, _ in waiting), shares.tolist(), strict=True))
        waiting.clear()

    for cut in cuts:
        for token in ids[place : cut.token]:
            state = model.advance(state, token)
        place = cut.token
        if cut.spaced or cut.begun:
            waiting.append((cut, state))
        if len(waiting) == BATCH:
            settle()
    settle()
    return log_ended
