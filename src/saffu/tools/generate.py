"""Sampling: a model continues prompts, one token at a time, with tokens that spell text together."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.interface import Array, Model, State
from saffu.settings import Settings, setting
from saffu.text.tokenizer import EOD, SOD, Tokenizer, WordTokenizer, is_spaceless
from saffu.tools.words import beginning_with

COLD = 0.05  # a temperature below which models do not sample by themselves
TRIES = 10  # of sampling what is not refused, before the probabilities of all tokens are computed
LONGEST_SAMPLE = 2000  # characters of a short document: a word may be as long as its line
COLDEST = 1e-5  # a temperature below which float32 leaves only the most likely token
LINE_START, WORD, OTHER = range(3)  # what a token can follow: nothing, a letter or digit, any other character
_joints: WeakKeyDictionary[Any, Joints] = WeakKeyDictionary()  # by the counted model


@dataclass(frozen=True)
class Sampling(Settings):
    """How the next token is sampled from the model's distribution."""

    max_tokens: int = setting(100, "maximum number of tokens to generate", low=1)
    temperature: float = setting(1.0, "sampling temperature; 0 is greedy decoding")
    top_k: int = setting(40, "sample from the k most likely tokens; 0 samples from the whole distribution")
    top_p: float = setting(1.0, "nucleus sampling: smallest set of tokens with this total probability", high=1)
    seed: int | None = setting(None, "random seed; the same seed gives the same text")

    @property
    def takes_all(self) -> bool:
        """Whether any token can be sampled: the tail of the distribution is not cut off."""
        return not self.top_k and self.top_p == 1 and self.temperature >= COLD


def uncounted(model: Model) -> Array:
    """The tokens that a model has no count of. They are never generated, suggested, or listed.

    A tokenizer keeps the tokens of documents that were forgotten; without this, they could be read off the model.
    """
    frequencies = model.counted_frequencies
    if not frequencies[EOD:].any():
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(frequencies == 0)


def draw(log_probabilities: Array, sampling: Sampling, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Sample one token for each row of log-probabilities (n, N). `<pad>` and other markers are never sampled."""
    logits = log_probabilities[:, EOD:].astype(np.float64)
    if sampling.temperature < COLDEST:
        return np.asarray(logits.argmax(1) + EOD)
    logits /= sampling.temperature
    if 0 < sampling.top_k < logits.shape[1]:
        least = np.partition(logits, -sampling.top_k, axis=1)[:, -sampling.top_k, None]
        logits[logits < least] = -np.inf
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    if sampling.top_p < 1:
        order = np.argsort(-p, axis=1, kind="stable")
        ordered = np.take_along_axis(p, order, axis=1)
        beyond = ordered.cumsum(1) - ordered >= sampling.top_p  # the tokens before already hold top_p
        beyond[:, 0] = False
        np.put_along_axis(p, order, np.where(beyond, 0, ordered), axis=1)
    below = p.cumsum(1)
    point = rng.random((len(p), 1)) * below[:, -1:]  # less than the total, because random() < 1
    return np.asarray((below <= point).sum(1) + EOD)  # tokens of probability 0 are never chosen


def generate_tokens(
    model: Model,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    lines: int = 1,
    tokenizer: Tokenizer | None = None,
    open_ends: Sequence[bytes] = (),
) -> Iterator[list[int | None]]:
    """Yield the next token of each prompt, step by step; None for those that have reached their last `<eod>`.

    With a `tokenizer`, tokens spell valid UTF-8, those of each text begin with its open end (see `open_end`), and words
    are not glued to each other (see `Joints`).
    """
    if not isinstance(lines, int | np.integer) or lines < 1:
        raise SaffuError(f"`lines` is {lines!r}; it must be an integer of at least 1")
    rng = np.random.default_rng(sampling.seed)
    rules = _Rules(model, tokenizer, sampling.takes_all)
    ends = open_ends or [b""] * len(prompts)
    texts = {
        row: _Text(model.start(prompt), [SOD, *prompt][-1], lines, sampling.max_tokens, ends[row])
        for row, prompt in enumerate(prompts)
    }
    while texts:
        tokens: list[int | None] = [None] * len(prompts)
        steps = _step(model, list(texts.values()), sampling, rng, rules)
        for (row, text), (token, state) in zip(texts.items(), steps, strict=True):
            if tokenizer and text.open_end and is_among(token, misfits(tokenizer, text.open_end)):
                token = tokenizer.encode_bytes(text.open_end)[0]  # no counted token spells it
                state = model.advance(text.state, token)
            tokens[row] = token
            text.append(token, state, tokenizer.decode_bytes([token]) if tokenizer else b"")
        yield tokens
        texts = {row: text for row, text in texts.items() if text.lines_left and text.tokens_left}


@dataclass
class _Text:
    """A text that is being generated."""

    state: State
    last: int  # token
    lines_left: int
    tokens_left: int
    open_end: bytes  # what is left of it
    begun: bytes = b""  # the unfinished last character

    def append(self, token: int, state: State, piece: bytes) -> None:
        """Tokens within the open end belong to the prompt, so that they are not counted."""
        self.state = state
        self.last = token
        self.lines_left -= token == EOD
        self.tokens_left -= len(piece) > len(self.open_end) or not self.open_end
        self.open_end = self.open_end[len(piece) :]
        self.begun = unfinished_character(self.begun + piece) or b""


class _Rules:
    """Which tokens are never generated: those without counts and, with a tokenizer, those that would not spell text."""

    def __init__(self, model: Model, tokenizer: Tokenizer | None, takes_all: bool):
        self.uncounted = uncounted(model)
        self.tokenizer = tokenizer
        self.joints = Joints.of(model, tokenizer) if tokenizer else None
        self.exactly = not takes_all

    def spelling(self, text: _Text) -> Iterator[Array]:
        """The tokens without counts, those that are not UTF-8 after a text, and those not in its open end; sorted."""
        yield self.uncounted
        if self.tokenizer:
            yield misspelled(self.tokenizer, text.begun)
            if text.open_end:
                yield misfits(self.tokenizer, text.open_end)

    def refuse(self, text: _Text, token: int) -> bool:
        """Whether a token may not follow a text."""
        if any(is_among(token, refused) for refused in self.spelling(text)):
            return True
        return self.joints is not None and not self.joints.allow(text.last, token, self.exactly)

    def mask(self, text: _Text, log_probabilities: Array) -> None:
        """Remove the tokens that may not follow a text; a rule gives way where it would leave none."""
        joints = [] if self.joints is None else [self.joints.refused(text.last, self.exactly)]
        for refused in [*self.spelling(text), *joints]:
            kept = log_probabilities[refused]
            log_probabilities[refused] = -np.inf
            if not np.isfinite(log_probabilities).any():
                log_probabilities[refused] = kept


def _step(
    model: Model, texts: Sequence[_Text], sampling: Sampling, rng: np.random.Generator, rules: _Rules
) -> list[tuple[int, State]]:
    """The next token of every text by the rules, and its state after that token."""
    steps = [_sampled(model, text, sampling, rng, rules) for text in texts]
    if missing := [place for place, step in enumerate(steps) if step is None]:
        log_probabilities = model.next_log_probabilities([texts[place].state for place in missing]).copy()
        for place, row in zip(missing, log_probabilities, strict=True):
            rules.mask(texts[place], row)
        for place, token in zip(missing, draw(log_probabilities, sampling, rng).tolist(), strict=True):
            steps[place] = token, model.advance(texts[place].state, token)
    return [step for step in steps if step is not None]


def _sampled(
    model: Model, text: _Text, sampling: Sampling, rng: np.random.Generator, rules: _Rules
) -> tuple[int, State] | None:
    """The next token of a text and its state after that, without computing all probabilities; None if that fails."""
    if model.can_sample and sampling.top_p == 1 and sampling.temperature >= COLD and not text.open_end:
        for _ in range(TRIES):
            step = model.sample(text.state, rng, sampling.temperature, sampling.top_k)
            if not rules.refuse(text, step[0]):
                return step
    return None


def is_among(token: int, tokens: Array) -> bool:
    """Whether a token is among some that are sorted.

    >>> is_among(5, np.array([2, 5])), is_among(3, np.array([2, 5])), is_among(9, np.array([2, 5]))
    (True, False, False)
    """
    place = int(tokens.searchsorted(token))
    return place < len(tokens) and int(tokens[place]) == token


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
        if counted not in _joints:
            _joints[counted] = Joints.from_followers(tokenizer, *counted.followers())
        return _joints[counted]

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


def require_text(prompt: str) -> str:
    """The same prompt, if it is a string."""
    if not isinstance(prompt, str):
        raise SaffuError(f"a prompt must be a string, got {type(prompt).__name__!r}; decode or convert it")
    return prompt


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Token ids of a prompt. As in a corpus, `<eod>` stands for a newline, and blank lines between others are empty."""
    lines = require_text(prompt).replace("\r\n", "\n").split("\n")
    lines[1:-1] = ["" if line.isspace() else line for line in lines[1:-1]]
    first, *others = tokenizer.encode_batch(lines)
    return first + [token for line in others for token in (EOD, *line)]


def open_end(tokenizer: Tokenizer, prompt: str) -> tuple[list[int], bytes]:
    """Token ids of a prompt without its open end, and the open end, with which the next tokens must begin.

    That is a space, which belongs to the next word, or the last word, which may go on: its tokens as they are would
    say that it ends here, or that it continues with another token.
    """
    ids = encode_prompt(tokenizer, prompt)
    line = ids[len(ids) - ids[::-1].index(EOD) :] if EOD in ids else ids
    text = prompt.rpartition("\n")[2]
    if tokenizer.decode_bytes(line) != text.encode():  # words as tokens
        return ids, b""
    if text.endswith(" "):
        return encode_prompt(tokenizer, prompt[:-1]), b" "
    pieces = [tokenizer.decode_bytes([token]) for token in line]
    number = 0  # of the tokens of the last word
    while number < len(pieces) and pieces[-number - 1].decode("utf-8", "replace").strip().isalnum():
        number += 1
        if pieces[-number][:1].isspace() or is_spaceless(text):
            break
    else:
        number += number > 0 and pieces[-number - 1 :][:1] == [b" "]  # a space of its own, before rare letters
    kept = len(ids) - number
    return ids[:kept], tokenizer.decode_bytes(ids[kept:])


def stream_text(model: Model, tokenizer: Tokenizer, prompt: str, sampling: Sampling, lines: int = 1) -> Iterator[str]:
    """Generate a continuation of the prompt, up to the end of its line, in pieces as they are sampled."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ended = 0
    ids, end = open_end(tokenizer, prompt)
    for (token,) in generate_tokens(model, [ids], sampling, lines, tokenizer, [end]):
        if token == EOD:
            ended += 1
            yield decoder.decode(b"", final=True) + ("\n" if ended < lines else "")
        elif token is not None:
            piece = tokenizer.decode_bytes([token])
            yield decoder.decode(piece[len(end) :])
            end = end[len(piece) :]
    # A character that the last token leaves unfinished is left out.


def complete(
    model: Model, tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling, lines: int = 1
) -> list[str]:
    """Generate a continuation of each prompt, up to the end of its line, as one batch."""
    if isinstance(prompts, str):
        raise SaffuError("`prompts` is one string; pass a list of prompts, such as [prompt]")
    encoded = [open_end(tokenizer, prompt) for prompt in prompts]
    ends = [end for _, end in encoded]
    steps = list(generate_tokens(model, [ids for ids, _ in encoded], sampling, lines, tokenizer, ends))
    texts = [_text(tokenizer, [step[row] for step in steps], lines) for row in range(len(prompts))]
    return [text.removeprefix(end.decode()) for text, end in zip(texts, ends, strict=True)]


def _text(tokenizer: Tokenizer, tokens: Sequence[int | None], lines: int) -> str:
    """Generated tokens as text, without the newline that would follow its last line."""
    written: list[list[int]] = [[]]
    for token in tokens:
        if token == EOD:
            written.append([])
        elif token is not None:
            written[-1].append(token)
    texts = [tokenizer.decode(line) for line in written[:lines]]
    return "\n".join([*texts[:-1], texts[-1].removesuffix("\ufffd")])  # a character cut off by `max_tokens`


def short_documents(model: Model, tokenizer: Tokenizer, seed: int) -> str:
    """Four documents of at most twelve tokens, markers included, in the style of the paper's logs."""
    steps = generate_tokens(model, [[]] * 4, Sampling(max_tokens=12, seed=seed), 1, tokenizer)
    texts = []
    for tokens in zip(*steps, strict=True):
        text = tokenizer.decode(token for token in tokens if token is not None)
        ended = EOD in tokens and len(text) <= LONGEST_SAMPLE
        texts.append(f"<sod>{text[:LONGEST_SAMPLE]}{'<eod>' if ended else '…'}")
    return "".join(texts)
