"""What the page needs at every keystroke: likely words, and the surprisal of the text so far."""

from __future__ import annotations

import codecs
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from saffu.interface import State
from saffu.model.language_model import SaffuLM
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.decoding import unfinished, word_completions
from saffu.tools.generate import encode_prompt

SUGGESTIONS = 10
FEW = 32  # new tokens up to which following them one by one is cheaper than scoring the text again
KNOWN_STATES = 16


class Typist:
    """Suggests words for one model, and remembers what the next keystroke needs again."""

    def __init__(self, lm: SaffuLM) -> None:
        self.lm = lm
        self._lock = threading.Lock()
        self._states: OrderedDict[tuple[int, ...], State] = OrderedDict()
        self._ids: list[int] = []  # of the text seen last
        self._bits: list[float] = []

    def suggest(
        self, text: str, rest: str = "", ending: str | None = None, outdated: Callable[[], bool] = lambda: False
    ) -> dict[str, Any] | None:
        """The most likely words after a text with their probabilities, and the surprisals of the text and its `rest`.

        `ending` is the unfinished word, where no space shows it. None if the request is `outdated` by the time its turn
        comes.
        """
        tokenizer = self.lm.tokenizer_
        with self._lock:
            if outdated():
                return None
            before, typed = split_at(text, ending)
            ids = encode_prompt(tokenizer, without_open_space(text + rest))
            state = self.state_after(self._prefix(ids, before))
            words = word_completions(self.lm.model_, tokenizer, state, typed, SUGGESTIONS)
            bits = self._surprisals(ids)
        return {
            "typed": typed.strip(),
            "words": listed(words),
            "spans": spans(tokenizer, ids, bits),
            "bits": math.fsum(bits),
        }

    def state_after(self, ids: Sequence[int]) -> State:
        """The state after some tokens, advanced from a known state if possible."""
        model = self.lm.model_
        whole = tuple(ids)
        prefixes = [key for key in self._states if len(whole) - FEW <= len(key) and key == whole[: len(key)]]
        longest = max(prefixes, key=len, default=())
        if longest or len(whole) <= FEW:
            state = self._states[longest] if longest else model.start()
            for token in whole[len(longest) :]:
                state = model.advance(state, token)
        else:
            state = model.start(whole)
        self._states[whole] = state
        self._states.move_to_end(whole)
        while len(self._states) > KNOWN_STATES:
            self._states.popitem(last=False)
        return state

    def _prefix(self, ids: list[int], before: str) -> list[int]:
        """The tokens of the beginning of a text whose tokens are known."""
        size = 0
        length = len(before.encode())
        for place, token in enumerate(ids):
            if size == length:
                return ids[:place]
            size += 1 if token == EOD else len(self.lm.tokenizer_.decode_bytes([token]))
        return ids if size == length else encode_prompt(self.lm.tokenizer_, before)

    def _surprisals(self, ids: list[int]) -> list[float]:
        """−log2 p of each token; only tokens that have changed are scored."""
        same = next((place for place, (a, b) in enumerate(zip(ids, self._ids, strict=False)) if a != b), None)
        kept = min(len(ids), len(self._ids)) if same is None else same
        model = self.lm.model_
        bits = self._bits[:kept]
        if len(ids) - kept <= FEW:
            if kept < len(ids):
                state = self.state_after(ids[:kept])
            for token in ids[kept:]:
                bits.append(-float(model.next_log_probabilities([state])[0, token]) / math.log(2))
                state = model.advance(state, token)
        else:
            starts = np.array([0, len(ids)], dtype=np.int64)
            corpus = TokenCorpus(np.array(ids, dtype=np.int32), starts, np.zeros(1, dtype=np.int64))
            bits = (-model.log_probabilities(corpus) / math.log(2)).tolist()
        self._ids = ids
        self._bits = bits
        return bits


def split_at(text: str, ending: str | None) -> tuple[str, str]:
    """A text without its unfinished word, and that word: its `ending`, or else what follows the last space."""
    return unfinished(text) if not ending else (text[: len(text) - len(ending)], ending)


def completed(lm: SaffuLM, text: str) -> str:
    """A text whose last word is finished: as it is, or as the most likely word that begins with it."""
    before, typed = unfinished(text)
    if not typed.strip():
        return text
    words = word_completions(lm.model_, lm.tokenizer_, lm.model_.start(encode_prompt(lm.tokenizer_, before)), typed, 1)
    space = typed[: len(typed) - len(typed.lstrip())]
    return before + space + next(iter(words), typed.strip())


def without_open_space(text: str) -> str:
    """A text without the space at its end, which belongs to the next word."""
    before, typed = unfinished(text)
    return text if typed.strip() else before


def listed(words: Mapping[str, float]) -> list[dict[str, Any]]:
    """Words with their probabilities; those that hold parts of characters are left out."""
    return [{"word": word, "p": p} for word, p in words.items() if "\ufffd" not in word]


def spans(tokenizer: Tokenizer, ids: Sequence[int], bits: Sequence[float]) -> list[dict[str, Any]]:
    """The text of some tokens and their surprisal; tokens that share a character stand together."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[dict[str, Any]] = []
    waiting: list[float] = []
    for token, surprisal in zip(ids, bits, strict=True):
        text = decoder.decode(b"\n" if token == EOD else tokenizer.decode_bytes([token]))
        waiting.append(surprisal)
        if text:
            pieces.append({"text": text, "bits": round(math.fsum(waiting), 3), "tokens": len(waiting)})
            waiting = []
    return pieces
