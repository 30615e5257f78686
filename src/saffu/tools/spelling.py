"""Which tokens can follow others, so that what they spell together is text."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from saffu.interface import Array, Model
from saffu.text.tokenizer import EOD, Tokenizer, WordTokenizer, is_spaceless
from saffu.tools.words import beginning_with

LINE_START, WORD, OTHER = range(3)  # what a token can follow: nothing, a letter or digit, any other character


def unfinished_character(data: bytes) -> bytes | None:
    """The bytes at the end that begin a character of UTF-8; None if something before them is not UTF-8.

    >>> unfinished_character("né".encode()[:2]), unfinished_character("né".encode()), unfinished_character(b"\\xe9n")
    (b'\\xc3', b'', None)
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(data)
    except UnicodeDecodeError:
        return None
    rest: bytes = decoder.getstate()[0]
    return rest


@lru_cache(maxsize=256)
def misspelled(tokenizer: Tokenizer, begun: bytes) -> Array:
    """The tokens that cannot follow the first bytes of a character, sorted, because no text has them there."""
    pieces = (tokenizer.decode_bytes([token]) for token in range(EOD + 1, len(tokenizer)))
    bad = [token for token, piece in enumerate(pieces, EOD + 1) if unfinished_character(begun + piece) is None]
    return np.array([EOD, *bad] if begun else bad, dtype=np.int64)


@lru_cache(maxsize=256)
def misfits(tokenizer: Tokenizer, end: bytes) -> Array:
    """The tokens that do not begin with some bytes, sorted, but for the one that the tokenizer begins them with."""
    fits = beginning_with(tokenizer, end).copy()
    fits[tokenizer.encode_bytes(end)[0]] = True
    return np.flatnonzero(~fits)


@dataclass(frozen=True, eq=False)
class Joints:
    """Which tokens the text of a model joins, so that others are not glued to each other.

    A token that begins with a letter or digit, not with a space, either continues a word or begins one, mostly at the
    start of a line. It follows the end of a word only if it does so in the text: after any word or, with
    `exactly`, after the same token. After anything else, some such token must precede it in the text, too. And lines
    begin only with the white space that lines of the text begin with.
    """

    ends: Array  # (N,) LINE_START, WORD, or OTHER: what stands before the token after this one
    words: Array  # (N,) bool: whether a token begins with a letter or digit of a script with spaces
    never: Array  # (3, N) bool: whether a token never follows such an end in the text
    begin: Array  # (N + 1,) where the followers of each token begin
    followers: Array

    @staticmethod
    def of(model: Model, tokenizer: Tokenizer) -> Joints | None:
        """None for words as tokens, and for models without counts of tokens."""
        counted = None if isinstance(tokenizer, WordTokenizer) else model.counted_part
        if counted is None:
            return None
        if counted not in _known:
            _known[counted] = Joints.from_followers(tokenizer, *counted.followers())
        return _known[counted]

    @classmethod
    def from_followers(cls, tokenizer: Tokenizer, begin: Array, followers: Array) -> Joints:
        """From the tokens that follow each token, one after the other, and where those of each begin."""
        texts = [tokenizer.decode_bytes([token]).decode("utf-8", "ignore") for token in range(len(tokenizer))]
        ends = np.array([WORD if text[-1:].isalnum() or not text else OTHER for text in texts])
        ends[: EOD + 1] = LINE_START
        spaces = np.array([text[:1].isspace() for text in texts])
        words = np.array([text[:1].isalnum() and not is_spaceless(text[:1]) for text in texts])
        before = np.repeat(ends, np.diff(begin))
        never = np.stack([spaces, words, words])
        for end in (LINE_START, WORD, OTHER):
            never[end, followers[before == end]] = False
        return cls(ends, words, never, begin, followers)

    def allow(self, before: int, token: int, exactly: bool) -> bool:
        """Whether a token may follow another."""
        end = self.ends[before]
        if self.never[end, token]:
            return False
        if not exactly or end != WORD or not self.words[token]:
            return True
        return bool((self.followers[self.begin[before] : self.begin[before + 1]] == token).any())

    def refused(self, before: int, exactly: bool) -> Array:
        """The tokens that may not follow another, sorted."""
        end = self.ends[before]
        refused = self.never[end]
        if exactly and end == WORD:
            refused = self.words.copy()
            refused[self.followers[self.begin[before] : self.begin[before + 1]]] = False
        return np.flatnonzero(refused)


_known: WeakKeyDictionary[Any, Joints] = WeakKeyDictionary()  # by the counted model
