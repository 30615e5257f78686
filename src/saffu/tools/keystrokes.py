"""Typing with suggestions: how often the next word is among them, and how many keystrokes they save.

A person types a text that the model has not seen, letter by letter. Before each letter of a word, the model suggests
three words; if the word is among them, one more keystroke accepts it. White space and punctuation are always typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from saffu.errors import SaffuError
from saffu.format import plural, progress_bar
from saffu.interface import Array, Capabilities, Model, State
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.decoding import word_completions
from saffu.tools.evaluate import unknown_words

SUGGESTIONS = 3
CONTEXT = 256  # tokens of a document that the model sees before a line
WORD = re.compile(r"(\s?[^\w\s]*)(\w+(?:['’-]\w+)*)")  # a word, and what stands before it: a space, punctuation


@dataclass(frozen=True)
class TypingScore:
    """What suggestions are worth to a person who types a text."""

    words: int
    first: int  # words that were the first suggestion before their first letter was typed
    suggested: int  # words that were among the suggestions then
    characters: int
    keystrokes: int  # with suggestions

    @property
    def top_1(self) -> float:
        return self.first / self.words

    @property
    def top_3(self) -> float:
        return self.suggested / self.words

    @property
    def saved(self) -> float:
        """The share of keystrokes that suggestions save."""
        return 1 - self.keystrokes / self.characters


class Unigrams(Capabilities):
    """The most frequent tokens, whatever stands before them: the trivial baseline."""

    def __init__(self, frequencies: Array):
        self.frequencies = frequencies
        p = np.where(np.arange(len(frequencies)) < EOD, 0.0, frequencies + 1e-9)
        with np.errstate(divide="ignore"):
            self.row = np.log(p / p.sum()).astype(np.float32)[None]  # (1, N)

    def start(self, context: Iterable[int] = ()) -> State:
        return State(cast(Model, self), ())

    def advance(self, state: State, token: int) -> State:
        return state

    def next_log_probabilities(self, states: Sequence[State]) -> Array:
        return np.repeat(self.row, len(states), axis=0)


def unigrams(frequencies: Array) -> Model:
    """That baseline, of a model with these frequencies of tokens."""
    return cast(Model, Unigrams(frequencies))


def typing_score(
    model: Model, tokenizer: Tokenizer, corpus: TokenCorpus, words: int, progress: str | None = None
) -> TypingScore:
    """Type lines from all parts of a corpus, at least this many words of them."""
    if unknown := unknown_words(tokenizer, corpus):
        raise SaffuError(
            f"{plural(unknown, 'word')} of the text {'is' if unknown == 1 else 'are'} <unk>, which nobody types; use a "
            "model of pieces of words, trained without `words_as_tokens`"
        )
    typed = first = suggested = characters = keystrokes = 0
    with progress_bar(progress, total=words) as bar:
        for context, line in sampled_lines(corpus, tokenizer):
            if typed >= words:
                break
            characters += len(line) + 1
            keystrokes += len(line) + 1
            for match in WORD.finditer(line):
                shown, saved = type_word(model, tokenizer, context, line, match)
                typed += 1
                first += shown == 0
                suggested += shown is not None
                keystrokes -= saved
                bar.update(1)
    if not typed:
        raise SaffuError("the text has no words to type; pass text with letters")
    return TypingScore(typed, first, suggested, characters, keystrokes)


def type_word(
    model: Model, tokenizer: Tokenizer, context: Sequence[int], line: str, match: re.Match[str]
) -> tuple[int | None, int]:
    """Where a word stands among the suggestions before its first letter, and how many keystrokes it saves."""
    before, (lead, word) = line[: match.start()], match.groups()
    state = model.start([*context, *tokenizer.encode(before)])
    for letters in range(max(1, len(word) - 1)):  # accepting a word instead of typing its last letter saves nothing
        likely = word_completions(model, tokenizer, state, lead + word[:letters], 2 * SUGGESTIONS)
        shown = [name for name in likely if any(map(str.isalnum, name))][:SUGGESTIONS]  # not punctuation
        if lead.strip() + word in shown:
            return None if letters else shown.index(lead.strip() + word), len(word) - letters - 1
    return None, 0


def sampled_lines(corpus: TokenCorpus, tokenizer: Tokenizer) -> Iterator[tuple[list[int], str]]:
    """Lines of a corpus in a random order, the same each time, and the tokens that precede each in its document."""
    ends = corpus.line_starts()
    for number in np.random.default_rng(0).permutation(corpus.lines).tolist():
        lo, hi = int(ends[number]), int(ends[number + 1]) - 1
        begin = int(corpus.starts[np.searchsorted(corpus.starts, lo, side="right") - 1])
        yield corpus.ids[max(begin, lo - CONTEXT) : lo].tolist(), tokenizer.decode(corpus.ids[lo:hi].tolist())
