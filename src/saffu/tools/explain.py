"""Explanations as plain data: the terms of a prediction for a few candidate tokens, in bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from saffu.errors import SaffuError
from saffu.format import show_token
from saffu.interface import Explanation, Floats, Model, Term
from saffu.text.tokenizer import EOD, SPECIAL_TOKENS, Tokenizer, WordTokenizer
from saffu.tools.decoding import Spelling, is_inside_word, unfinished, word_completions
from saffu.tools.generate import encode_prompt, uncounted

INSIDE = 0.8  # probability of a longer word from which on a prompt is taken to end inside it
SHARE = "share"  # ends the title of details that are fractions rather than log-probabilities


def explanation_facts(explanation: Explanation, tokenizer: Tokenizer, candidates: Sequence[int]) -> dict[str, Any]:
    """An explanation for some candidate tokens, as the data for JSON and tables.

    The values of `terms` add up to `log_probabilities`, both in bits. A detail whose title ends in "share" is given
    in fractions; any other is in bits too. `earlier` lists the places in `context`, from 0, where a candidate occurs.
    """
    tokens = list(candidates)
    log_p = explanation.log_probabilities
    return {
        "context": [tokenizer.token(token) for token in explanation.context],
        "unit": "bits",
        "candidates": [
            {
                "id": token,
                "token": tokenizer.token(token),
                "earlier": [place for place, other in enumerate(explanation.context) if other == token],
            }
            for token in tokens
        ],
        "probabilities": [math.exp(log_p[token]) for token in tokens],
        "log_probabilities": _bits(log_p, tokens),
        "terms": [_term(term, tokenizer, _bits(term.values, tokens)) for term in explanation.terms],
        "details": {
            title: [
                _term(
                    term,
                    tokenizer,
                    term.values[tokens].tolist() if title.endswith(SHARE) else _bits(term.values, tokens),
                )
                for term in terms
            ]
            for title, terms in explanation.details.items()
        },
    }


@dataclass(frozen=True)
class Reason:
    """What speaks for or against a token, in words of the text."""

    text: str
    bits: float  # for it if positive: each makes it twice as likely


def reasons(explanation: Explanation, tokenizer: Tokenizer, token: int) -> list[Reason]:
    """Return what speaks for and against a token, the strongest first; parts that read the same are one reason.

    With the terms that are no reasons, the prior and the normalizer, they add up to its log-probability.
    """
    bits: dict[str, float] = {}
    for term in explanation.terms:
        if term.reason:
            seen = seen_text(tokenizer, explanation.context, term.seen) if "{}" in term.reason else ""
            text = term.reason.replace("{}", seen) if seen or "{}" not in term.reason else "the start of the line"
            bits[text] = bits.get(text, 0.0) + float(term.values[token]) / math.log(2)
    return sorted((Reason(*each) for each in bits.items()), key=lambda reason: -abs(reason.bits))


def seen_text(tokenizer: Tokenizer, context: Sequence[int], tokens: Sequence[int]) -> str:
    """Quote the text of some tokens of a context; empty if they are only markers.

    An ellipsis stands for the beginning of a word, and an arrow for the end of a line.
    """
    place = next((place for place, token in enumerate(tokens) if token > EOD), len(tokens))
    seen = list(tokens[place:])
    lines = [list(line) for is_end, line in groupby(seen, lambda token: token == EOD) if not is_end]
    text = " \u23ce ".join(" ".join(tokenizer.decode(line).split()) for line in lines)
    text += " \u23ce" if seen[-1:] == [EOD] else ""
    places = [place for place in range(len(context)) if list(context[place : place + len(seen)]) == seen]
    is_cut = bool(seen) and bool(places) and all(is_within(tokenizer, context, place) for place in places)
    return f"“{'…' if is_cut else ''}{text}”" if seen else ""


def candidate_text(tokenizer: Tokenizer, context: Sequence[int], token: int) -> str:
    """Quote a token that may follow a context."""
    if token == EOD:
        return "the end of the line"
    text = tokenizer.token(token).strip() or show_token(tokenizer.token(token))
    return f"“{'…' if is_within(tokenizer, [*context, token], len(context)) else ''}{text}”"


def is_within(tokenizer: Tokenizer, context: Sequence[int], place: int) -> bool:
    """Whether a token of a context continues a word."""
    inside = is_inside_word(Spelling.of(tokenizer).continues, context, place)
    return inside and tokenizer.token(context[place - 1])[-1:].isalnum()


def most_likely(model: Model, explanation: Explanation, number: int, among: Sequence[int] | None = None) -> list[int]:
    """The ids of the most likely tokens that were counted, of all or `among` some, in order of probability."""
    log_p = explanation.log_probabilities.copy()
    log_p[uncounted(model)] = -np.inf
    if among is not None:
        log_p[np.setdiff1d(np.arange(len(log_p)), among)] = -np.inf
    order = np.argsort(-log_p, kind="stable")[:number]
    return [int(token) for token in order if np.isfinite(log_p[token])]


@dataclass(frozen=True)
class HalfWord:
    """The end of a prompt that is more likely the beginning of a word than a whole one."""

    before: str  # the prompt without it
    typed: str  # with the space before it, if there is one
    completion: str
    share: float  # how likely that completion is

    @classmethod
    def of(cls, model: Model, tokenizer: Tokenizer, prompt: str) -> HalfWord | None:
        """None if the last word seems to be whole, as words mostly are."""
        before, typed = unfinished(prompt)
        if not typed.strip() or isinstance(tokenizer, WordTokenizer):
            return None
        likely = word_completions(model, tokenizer, model.start(encode_prompt(tokenizer, before)), typed, 1)
        for word, share in likely.items():
            if word != typed.strip() and share > INSIDE:
                return cls(before, typed, word, share)
        return None

    def tokens(self, tokenizer: Tokenizer) -> list[int]:
        """The tokens that it may begin with, or be part of."""
        return list(Spelling.of(tokenizer).spelling(self.typed.encode()))


def candidate(tokenizer: Tokenizer, prompt: str, text: str) -> int:
    """The token that begins `text` after `prompt`. A word that follows a word begins with a space.

    candidate(tokenizer, "Once upon a", "time") → the token " time", or its beginning if it is several tokens
    """
    if text in SPECIAL_TOKENS[EOD:]:
        return SPECIAL_TOKENS.index(text)
    spaced = text[:1].isalnum() and prompt != "" and not prompt[-1].isspace()
    ids = tokenizer.encode(" " + text if spaced else text)
    if not ids:
        raise SaffuError("a candidate is empty; pass a word")
    return ids[0]


def _bits(nats: Floats, tokens: list[int]) -> list[float]:
    return [float(value) / math.log(2) for value in nats[tokens]]


def _term(term: Term, tokenizer: Tokenizer, values: list[float]) -> dict[str, Any]:
    seen = [tokenizer.token(token) for token in term.seen]
    return {"name": term.name, "seen": seen, "slots": term.slots, "weight": term.weight, "values": values}
