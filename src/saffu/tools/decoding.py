"""Completion of unfinished words, whatever tokens they are spelled with."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush, nlargest
from itertools import count
from unicodedata import category

import numpy as np

from saffu.errors import SaffuError
from saffu.interface import Array, Model, State
from saffu.text.tokenizer import EOD, Tokenizer, WordTokenizer, is_spaceless
from saffu.tools.generate import Joints, encode_prompt, require_text, uncounted
from saffu.tools.segments import segments
from saffu.tools.words import WHITE_SPACE

LEAST_SHARE = 1e-4  # of all completions: less likely beginnings of words are not followed further
MOST_STEPS, MOST_TOKENS = 500, 200  # distributions computed for one completion, and tokens followed from each
_UNFINISHED = re.compile(r"[ \t\r\x0b\x0c]?[^ \t\n\r\x0b\x0c]*\Z")  # what follows the last word, its space included


@dataclass(frozen=True, eq=False)
class Spelling:
    """The bytes of all tokens, to look up tokens by them."""

    pieces: list[bytes]  # by token
    ordered: list[tuple[bytes, int]]  # tokens that stand for bytes, sorted by them
    by_piece: dict[bytes, int]
    continues: Array  # (N,) bool: whether a token continues a word that stands before it
    spaceless: Array  # (N,) bool: whether it begins with a letter of a script without spaces
    tails: dict[bytes, list[int]]  # by their underscores: tokens that end a word after them, such as `__(`

    @staticmethod
    @lru_cache(maxsize=8)
    def of(tokenizer: Tokenizer) -> Spelling:
        pieces = [tokenizer.decode_bytes([token]) for token in range(len(tokenizer))]
        ordered = sorted((piece, token) for token, piece in enumerate(pieces) if piece)
        continues = np.array([continues_word(piece) for piece in pieces])
        spaceless = np.array([is_spaceless(piece.decode("utf-8", "ignore")[:1]) for piece in pieces])
        tails: defaultdict[bytes, list[int]] = defaultdict(list)
        for token in np.flatnonzero(~continues).tolist():
            if pieces[token].startswith(b"_"):
                tails[pieces[token][: len(pieces[token]) - len(pieces[token].lstrip(b"_"))]].append(token)
        return Spelling(pieces, ordered, dict(ordered), continues, spaceless, dict(tails))

    def after(self, spelled: bytes, p: Array) -> Array:
        """Which tokens continue a word, (N,) bool, given their probabilities.

        In scripts without spaces, a word continues where one token is likelier than all others together.
        """
        certain = p[self.spaceless].max(initial=0.0) > 0.5 and is_spaceless(spelled.decode("utf-8", "ignore")[-1:])
        return self.continues | self.spaceless if certain else self.continues

    def spelling(self, rest: bytes) -> Iterator[int]:
        """The tokens that begin with `rest`, and those that `rest` begins with."""
        place = bisect_left(self.ordered, (rest, 0))
        while place < len(self.ordered) and self.ordered[place][0].startswith(rest):
            yield self.ordered[place][1]
            place += 1
        for length in range(1, len(rest)):
            if rest[:length] in self.by_piece:
                yield self.by_piece[rest[:length]]


def continues_word(piece: bytes) -> bool:
    """Whether a token continues a word: with a letter, a digit, or a mark, after an apostrophe or hyphen at most.

    Underscores do, too. In scripts without spaces, no token does without further evidence (`Spelling.after`).

    >>> continues_word(b"me"), continues_word(b"'t"), continues_word(b" me"), continues_word(b".")
    (True, True, False, False)
    >>> continues_word(b"__"), continues_word(b"__(")
    (True, False)
    >>> continues_word("天気".encode())
    False
    """
    text = piece.decode("utf-8", "ignore")
    if len(text) > 1 and text[0] in "'’-":
        text = text[1:]
    if not text:
        return bool(piece)  # part of a character continues it
    text = text.lstrip("_")
    if not text:
        return True
    kind = category(text[0])[0]
    return kind == "M" or (kind in "LN" and not is_spaceless(text[0]))


def is_inside_word(continues: Array, context: Sequence[int], place: int) -> bool:
    """Whether a token of a context continues the word before it."""
    return place > 0 and context[place - 1] != EOD and bool(continues[context[place]])


def complete_word(model: Model, tokenizer: Tokenizer, prompt: str, number: int = 10) -> dict[str, float]:
    """The most likely words that the last, unfinished word of a prompt may become, and their probabilities.

    Every sequence of tokens counts whose bytes begin with the unfinished word, so the result does not depend on how
    that would be tokenized. A word ends before white space, the end of the line, or punctuation, except for `_` and
    for an apostrophe or hyphen within a word. A continuation that is less likely here than in the training text as a
    whole is noise, and counts as the end of the word. The search is limited (LEAST_SHARE, MOST_STEPS, MOST_TOKENS) and
    ends once no other word can be among the `number` most likely; what was not followed is missing from the sum of the
    probabilities.
    """
    if not isinstance(number, int | np.integer) or number < 1:
        raise SaffuError(f"`number` is {number!r}; it must be an integer of at least 1")
    before, typed = unfinished(require_text(prompt))
    return word_completions(model, tokenizer, model.start(encode_prompt(tokenizer, before)), typed, number)


def unfinished(prompt: str) -> tuple[str, str]:
    """A prompt without its last, unfinished word, and that word with the space before it.

    >>> unfinished("the old ki"), unfinished("the old "), unfinished("th")
    (('the old', ' ki'), ('the old', ' '), ('', 'th'))
    >>> unfinished("今日は天")  # in a script without spaces, the last segment
    ('今日は', '天')
    >>> unfinished("はい。\\u3000天")  # the wide space is a token of its own
    ('はい。\\u3000', '天')
    """
    typed = _UNFINISHED.findall(prompt)[0].rpartition("\u3000")[2]
    if is_spaceless(typed):
        last = segments(typed)[-1]
        typed = last if last.strip()[:1].isalnum() else ""
    return prompt[: len(prompt) - len(typed)], typed


def word_completions(
    model: Model, tokenizer: Tokenizer, state: State, typed: str, number: int = 10
) -> dict[str, float]:
    """`complete_word` where a document already stands in a state, before what was typed of a word."""
    if isinstance(tokenizer, WordTokenizer):  # whose tokens have a space in front of them even at the start of a line
        typed = f" {typed.lstrip()}"
    words = _completions(model, Spelling.of(tokenizer), Joints.of(model, tokenizer), state, typed.encode(), number)
    best = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:number]
    return {word.decode("utf-8", "replace"): share for word, share in best}


def _completions(
    model: Model, spelling: Spelling, joints: Joints | None, start: State, prefix: bytes, number: int
) -> dict[bytes, float]:
    """Best-first search over sequences of tokens; the share of each finished word among all that spell the prefix."""
    shares: defaultdict[bytes, float] = defaultdict(float)
    order = count()
    covered = 0.0  # the probability of all sequences that spell the prefix
    least = 0.0  # the probability of the last word among the best
    unseen = uncounted(model)
    never = [token for token in unseen.tolist() if len(spelling.pieces[token]) > 1]  # bytes spell what was typed
    usual = model.counted_frequencies / max(1, model.counted_frequencies.sum())
    paths: list[tuple[float, int, State, int | None, bytes]] = [(0.0, next(order), start, None, b"")]
    for _ in range(MOST_STEPS):
        if not paths or math.exp(-paths[0][0]) < max(LEAST_SHARE * covered, least):
            break
        cost, _, state, last, spelled = heappop(paths)
        if last is not None:
            state = model.advance(state, last)
        p = np.exp(model.next_log_probabilities([state])[0].astype(np.float64) - cost)
        p[never] = 0.0
        rest = prefix[len(spelled) :]
        if rest or not spelled:
            tokens = np.array(list(spelling.spelling(rest)), dtype=np.int64)
            whole = np.array([len(spelling.pieces[token]) >= len(rest) for token in tokens], dtype=bool)
            covered += float(p[tokens[whole]].sum()) if len(tokens) else 0.0
        else:
            word = spelled.strip(WHITE_SPACE)
            likely = p / math.exp(-cost)
            usable = likely >= usual  # what is rarer here than anywhere is noise
            usable[unseen] = False
            if joints and last is not None:
                usable[joints.refused(last, exactly=False)] = False
            continues = spelling.after(spelled, likely) & usable
            if word:
                shares[word] += float(p[EOD:][~continues[EOD:]].sum())
                for underscores, ending in spelling.tails.items():
                    share = float(p[ending][usable[ending]].sum())
                    shares[word] -= share
                    shares[word + underscores] += share
                least = nlargest(number, shares.values())[-1] if len(shares) >= number else 0.0
            tokens = np.flatnonzero(continues)
        tokens = tokens[p[tokens] > max(LEAST_SHARE * covered / 10, least)]
        for token in tokens[np.argsort(-p[tokens], kind="stable")[:MOST_TOKENS]].tolist():
            heappush(paths, (-math.log(p[token]), next(order), state, token, spelled + spelling.pieces[token]))
    return {word: share / covered for word, share in shares.items()}
