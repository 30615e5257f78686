"""Sampling: a model continues prompts, one token at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from saffu.errors import SaffuError
from saffu.interface import Array, Model, State
from saffu.settings import Settings, setting
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.words import beginning_with

COLD = 0.05  # a temperature below which models do not sample by themselves
COLDEST = 1e-5  # a temperature below which float32 leaves only the most likely token


@dataclass(frozen=True)
class Sampling(Settings):
    """How the next token is sampled from the model's distribution."""

    max_tokens: int = setting(100, "maximum number of tokens to generate", low=1)
    temperature: float = setting(1.0, "sampling temperature; 0 is greedy decoding")
    top_k: int = setting(0, "sample from the k most likely tokens; 0 for all")
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
    frequencies = model.frequencies
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


def generate_tokens(
    model: Model,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    lines: int = 1,
    tokenizer: Tokenizer | None = None,
    spaced: Sequence[bool] = (),
) -> Iterator[list[int | None]]:
    """Yield the next token of each prompt, step by step; None for those that have reached their last `<eod>`.

    With a `tokenizer`, tokens spell valid UTF-8, and the first one begins with a space where `spaced` says so.
    """
    if not isinstance(lines, int | np.integer) or lines < 1:
        raise SaffuError(f"`lines` is {lines!r}; it must be an integer of at least 1")
    rng = np.random.default_rng(sampling.seed)
    states = {row: model.start(prompt) for row, prompt in enumerate(prompts)}  # of the texts that have not ended
    left = [lines] * len(prompts)
    begun = dict.fromkeys(states, b"")  # the unfinished last character of each text
    uncounted_tokens = uncounted(model)
    for _ in range(sampling.max_tokens):
        if not states:
            return
        tokens: list[int | None] = [None] * len(prompts)
        never: list[tuple[Array, ...]] = [
            (uncounted_tokens, misspelled(tokenizer, begun[row]) if tokenizer else uncounted_tokens) for row in states
        ]
        if tokenizer and any(spaced):
            unspaced = np.flatnonzero(~beginning_with(tokenizer, b" "))
            never = [(*own, unspaced) if spaced[row] else own for row, own in zip(states, never, strict=True)]
            spaced = ()
        for (row, _), (token, state) in zip(states.items(), _step(model, states, sampling, rng, never), strict=True):
            tokens[row] = token
            states[row] = state
            left[row] -= token == EOD
            if tokenizer:
                begun[row] = unfinished_character(begun[row] + tokenizer.decode_bytes([token])) or b""
        yield tokens
        states = {row: state for row, state in states.items() if left[row]}


def _step(
    model: Model,
    states: dict[int, State],
    sampling: Sampling,
    rng: np.random.Generator,
    never: Sequence[tuple[Array, ...]],
) -> list[tuple[int, State]]:
    """The next token of every text, which is none of its sorted tokens `never`, and its state after that token."""
    if sampling.takes_all and model.can_sample:
        samples = [model.sample(state, rng, sampling.temperature) for state in states.values()]
        refused = [any(is_among(token, bad) for bad in own) for (token, _), own in zip(samples, never, strict=True)]
        if not any(refused):  # otherwise they are drawn again, without these
            return samples
    log_probabilities = model.next_log_probabilities(list(states.values())).copy()
    for row, own in zip(log_probabilities, never, strict=True):
        for bad in own:  # the spelling gives way where no counted token goes on
            masked = row.copy()
            masked[bad] = -np.inf
            if np.isfinite(masked).any():
                row[:] = masked
    drawn = draw(log_probabilities, sampling, rng).tolist()
    return [(token, model.advance(state, token)) for token, state in zip(drawn, states.values(), strict=True)]


def is_among(token: int, tokens: Array) -> bool:
    """Whether a token is among some that are sorted.

    >>> is_among(5, np.array([2, 5])), is_among(3, np.array([2, 5])), is_among(9, np.array([2, 5]))
    (True, False, False)
    """
    place = int(tokens.searchsorted(token))
    return place < len(tokens) and int(tokens[place]) == token


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Token ids of a prompt. As in a corpus, `<eod>` stands for a newline, and blank lines between others are empty."""
    if not isinstance(prompt, str):
        raise SaffuError(f"a prompt must be a string, got {type(prompt).__name__!r}; decode or convert it")
    lines = prompt.replace("\r\n", "\n").split("\n")
    lines[1:-1] = ["" if line.isspace() else line for line in lines[1:-1]]
    first, *others = tokenizer.encode_batch(lines)
    return first + [token for line in others for token in (EOD, *line)]


def without_open_space(tokenizer: Tokenizer, prompt: str) -> tuple[list[int], bool]:
    """Token ids of a prompt without the space at its end, which belongs to the next word, and whether it had one."""
    ids = encode_prompt(tokenizer, prompt)
    if not prompt.endswith(" "):
        return ids, False
    closed = encode_prompt(tokenizer, prompt[:-1])
    return closed, closed != ids  # equal if tokens do not depend on spaces


def stream_text(model: Model, tokenizer: Tokenizer, prompt: str, sampling: Sampling, lines: int = 1) -> Iterator[str]:
    """Generate a continuation of the prompt, up to the end of its line, in pieces as they are sampled."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    ended = 0
    ids, spaced = without_open_space(tokenizer, prompt)
    for (token,) in generate_tokens(model, [ids], sampling, lines, tokenizer, [spaced]):
        if token == EOD:
            ended += 1
            yield decoder.decode(b"", final=True) + ("\n" if ended < lines else "")
        elif token is not None:
            text = decoder.decode(tokenizer.decode_bytes([token]))
            yield text.removeprefix(" ") if spaced else text
        spaced = False
    # A character that the last token leaves unfinished is left out.


def complete(
    model: Model, tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling, lines: int = 1
) -> list[str]:
    """Generate a continuation of each prompt, up to the end of its line, as one batch."""
    if isinstance(prompts, str):
        raise SaffuError("`prompts` is one string; pass a list of prompts, such as [prompt]")
    encoded = [without_open_space(tokenizer, prompt) for prompt in prompts]
    spaced = [had_space for _, had_space in encoded]
    steps = list(generate_tokens(model, [ids for ids, _ in encoded], sampling, lines, tokenizer, spaced))
    texts = [_text(tokenizer, [step[row] for step in steps], lines) for row in range(len(prompts))]
    return [text.removeprefix(" ") if had_space else text for text, had_space in zip(texts, spaced, strict=True)]


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


def short_documents(model: Model, tokenizer: Tokenizer, seed: int, documents: int = 4, max_tokens: int = 12) -> str:
    """A few short documents, markers included, in the style of the paper's logs."""
    steps = generate_tokens(model, [[]] * documents, Sampling(max_tokens=max_tokens, seed=seed), 1, tokenizer)
    texts = []
    for tokens in zip(*steps, strict=True):
        text = tokenizer.decode(token for token in tokens if token is not None)
        texts.append(f"<sod>{text}{'<eod>' if EOD in tokens else '…'}")
    return "".join(texts)
