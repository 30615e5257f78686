"""Why a word is suggested: the exact contributions of all parts of a model, in bits, and the counts behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from saffu.calibrated.model import CalibratedModel
from saffu.errors import SaffuError
from saffu.interface import Explanation
from saffu.model.language_model import SaffuLM
from saffu.play.evidence import class_members, counts_behind
from saffu.play.typist import listed, split_at, without_open_space
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.decoding import Spelling, word_completions
from saffu.tools.generate import encode_prompt

SPACES = " \t\r\x0b\x0c"
GATE = "gate share"  # the detail of an explanation that splits a prediction into sides
FAVORITES = 5
ENDS, LETTERS, BEGINS, SPELLINGS = "the word ends", "letters typed", "a word begins", "other spellings"


def word_after(lm: SaffuLM, text: str, word: str, ending: str | None = None) -> tuple[list[int], list[int], str]:
    """The tokens before the unfinished word of a text, the tokens of the chosen word, and the letters typed so far."""
    before, typed = split_at(text, ending)
    space = typed[: len(typed) - len(typed.lstrip(SPACES))]
    tokens = lm.tokenizer_.encode(space + word)
    if not tokens or not word.strip() or "\n" in word:
        raise SaffuError("there is no word to explain; choose one of the suggestions")
    return encode_prompt(lm.tokenizer_, before), tokens, typed


def why(lm: SaffuLM, text: str, word: str, ending: str | None = None) -> dict[str, Any]:
    """What each part of the model adds to log2 p of a word after a text; all rows add up to `bits`.

    A word of several tokens is explained token by token: the rows of each are in `parts`, their sums in `rows`. Three
    more rows complete the sum: that the word ends after its last token, what is known from the letters typed (or from
    the space before them), and the other sequences of tokens that spell the same word.
    """
    context, tokens, typed = word_after(lm, text, word, ending)
    parts = [part(lm, [*context, *tokens[:place]], token) for place, token in enumerate(tokens)]
    state = lm.model_.start([*context, *tokens])
    after = np.exp(lm.model_.next_log_probabilities([state])[0].astype(np.float64))
    ended = math.log2(after[EOD:][~Spelling.of(lm.tokenizer_).continues[EOD:]].sum())
    bits = math.fsum([*(each["bits"] for each in parts), ended])
    rows = [*summed(parts), plain_row(ENDS, ended)]
    shares = word_completions(lm.model_, lm.tokenizer_, lm.model_.start(context), typed)
    if word in shares:
        name = LETTERS if typed.strip(SPACES) else BEGINS if typed else SPELLINGS
        rows.append(plain_row(name, math.log2(shares[word]) - bits))
        bits = math.log2(shares[word])
    return {"word": word, "typed": typed.strip(SPACES), "p": 2**bits, "bits": bits, "rows": rows, "parts": parts}


def why_typed(lm: SaffuLM, text: str, rest: str) -> dict[str, Any]:
    """The same for the word that is written around a place, between a text and its `rest`, and its alternatives.

    Its bits are those of its tokens as they are written. `start` and `end` count UTF-16 units, as browsers do.
    """
    tokenizer = lm.tokenizer_
    spelling = Spelling.of(lm.tokenizer_)
    ids = encode_prompt(tokenizer, without_open_space(text + rest))
    pieces = [b"\n" if token == EOD else spelling.pieces[token] for token in ids]
    ends = np.cumsum([len(piece) for piece in pieces])
    if not len(ids) or ends[-1] != len(without_open_space(text + rest).encode()):
        raise SaffuError("there is no word here; click on a word that the model has read")
    place = min(int(np.searchsorted(ends, len(text.encode()), side="right")), len(ids) - 1)
    first, last = place, place + 1
    while first > 0 and ids[first] != EOD and spelling.continues[ids[first]] and ends_in_a_word(pieces[first - 1]):
        first -= 1
    if first > 0 and pieces[first - 1] == b" " and not pieces[first][:1].isspace():
        first -= 1  # a space that is a token of its own belongs to the word after it
    while last < len(ids) and ids[last] != EOD and spelling.continues[ids[last]] and ends_in_a_word(pieces[last - 1]):
        last += 1
    parts = [part(lm, ids[:at], ids[at]) for at in range(first, last)]
    before, word = (b"".join(some).decode("utf-8", "replace") for some in (pieces[:first], pieces[first:last]))
    space = " " if word.startswith(" ") else ""
    shares = word_completions(lm.model_, tokenizer, lm.model_.start(ids[:first]), space) if word.strip() else {}
    bits = math.fsum(each["bits"] for each in parts)
    return {
        "word": word.strip(SPACES),
        "typed": "",
        "p": 2**bits,
        "bits": bits,
        "rows": summed(parts),
        "parts": parts,
        "before": before + space,
        "start": utf16(before + space),
        "end": utf16(before + word),
        "words": listed(shares),
    }


def ends_in_a_word(piece: bytes) -> bool:
    return piece.decode("utf-8", "ignore")[-1:].isalnum() or not piece.isascii()


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def part(lm: SaffuLM, context: Sequence[int], token: int) -> dict[str, Any]:
    """The rows of one token; they add up to its `bits`."""
    explanation = lm.model_.explain(context)
    counted: CalibratedModel | None = lm.model_.counted_part
    tokenizer = lm.tokenizer_
    counts = {} if counted is None else counts_behind(counted, tokenizer, context, token)
    rows = []
    for term in explanation.terms:
        of_class = None if term.of_class is None else float(term.of_class[token]) / math.log(2)
        rows.append(
            {
                "name": term.name,
                "bits": float(term.values[token]) / math.log(2),
                "class_bits": of_class,
                "weight": term.weight,
                "seen": [tokenizer.token(each) for each in term.seen[-8:]],
                "counts": counts.get(term.name),
            }
        )
    members: list[str] = []
    if counted is not None:
        classes = counted.encoder.output_classes
        members = class_members(counted, tokenizer, classes, int(classes[token]))
    bits = float(explanation.log_probabilities[token]) / math.log(2)
    both = sides(explanation, tokenizer, token)
    return {"token": tokenizer.token(token), "bits": bits, "class": members, "rows": rows, "sides": both}


def sides(explanation: Explanation, tokenizer: Tokenizer, token: int) -> list[dict[str, Any]] | None:
    """What each side of a mixture says: its weight, its probability of a token, and its favorites; None if it is none.

    A side has the share s of p = Σ weight · p_side, so p_side = s · p / weight.
    """
    if GATE not in explanation.details:
        return None
    p = np.exp(explanation.log_probabilities)
    entries = []
    for side in explanation.details[GATE]:
        alone = np.asarray(side.values) * p / max(side.weight or 0.0, 1e-300)
        best = np.argsort(-alone, kind="stable")[:FAVORITES].tolist()
        favorites = [{"word": tokenizer.token(each), "p": float(alone[each])} for each in best]
        entries.append({"name": side.name, "weight": side.weight, "p": float(alone[token]), "favorites": favorites})
    return entries


def summed(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of several tokens added up by name; what a part saw is shown for the first token only."""
    rows = []
    for first in parts[0]["rows"]:
        same = [row for each in parts for row in each["rows"] if row["name"] == first["name"]]
        levels = [row["class_bits"] for row in same if row["class_bits"] is not None]
        bits = math.fsum(row["bits"] for row in same)
        rows.append({**first, "bits": bits, "class_bits": math.fsum(levels) if levels else None})
    return rows


def plain_row(name: str, bits: float) -> dict[str, Any]:
    return {"name": name, "bits": bits, "class_bits": None, "weight": None, "seen": [], "counts": None}
