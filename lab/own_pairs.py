"""The minimal pairs that come with saffu: agreement, anaphors, licensing, and islands, in the words of stories.

Each phenomenon has 40 pairs, made from a few sentence patterns. The two sentences of a pair differ in one or two words,
or in the order of their words, and the words that decide between them are usually several words away.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import product
from random import Random

from saffu.files import write_file
from saffu.tools.minimal_pairs import OWN_PAIRS, Pair

NUMBER = 40  # pairs of each phenomenon

NOUNS = [("boy", "boys"), ("girl", "girls"), ("dog", "dogs"), ("king", "kings"), ("bird", "birds"), ("man", "men")]
OTHERS = [("tree", "trees"), ("house", "houses"), ("chair", "chairs"), ("child", "children"), ("horse", "horses")]
STATES = ["very happy", "here today", "in the garden", "too old", "coming home"]
VERBS = [("sees", "see"), ("likes", "like"), ("wants", "want"), ("knows", "know")]
PAST = ["saw", "liked", "found", "helped"]
WOMEN = ["the girl", "the queen", "my mother", "his sister"]
MEN = ["the boy", "the king", "my father", "her brother"]
PARTICIPLES = [("eaten", "ate"), ("seen", "saw"), ("taken", "took"), ("hidden", "hid"), ("broken", "broke")]
THINGS = ["the cake", "the ball", "the book", "the flower"]

Pairs = Iterator[Pair]


def two(good: str, bad: str) -> Pair:
    """Two sentences, each with a capital letter at its beginning."""
    return Pair(good[0].upper() + good[1:], bad[0].upper() + bad[1:])


def agreement_after_a_phrase() -> Pairs:
    """The boy near the trees is here today. / The boy near the trees are here today."""
    for (noun, other), number, where, state in product(product(NOUNS, OTHERS), (0, 1), ("near", "behind"), STATES):
        subject = f"the {noun[number]} {where} the {other[1 - number]}"
        right, wrong = ("is", "are") if number == 0 else ("are", "is")
        yield two(f"{subject} {right} {state}.", f"{subject} {wrong} {state}.")


def agreement_after_a_clause() -> Pairs:
    """The boys who saw the girl like the ball. / The boys who saw the girl likes the ball."""
    for noun, other, number, past, verb, thing in product(NOUNS, NOUNS, (0, 1), PAST, VERBS, THINGS):
        if noun is not other:
            subject = f"the {noun[number]} who {past} the {other[1 - number]}"
            yield two(f"{subject} {verb[number]} {thing}.", f"{subject} {verb[1 - number]} {thing}.")


def determiners() -> Pairs:
    """She liked these old trees. / She liked this old trees."""
    forms = (("this", "these"), ("that", "those"))
    words = ("old", "little", "big")
    for who, past, form, number, word, noun in product(("she", "he", "they"), PAST, forms, (0, 1), words, OTHERS):
        begin = f"{who} {past}"
        rest = f"{word} {noun[number]}."
        yield two(f"{begin} {form[number]} {rest}", f"{begin} {form[1 - number]} {rest}")


def gender_of_anaphors() -> Pairs:
    """The girl in the garden saw herself. / The girl in the garden saw himself."""
    places = ("in the garden", "near the window", "with the dog", "from the village")
    for (who, right, wrong), place, past in product(
        [(who, "herself", "himself") for who in WOMEN] + [(who, "himself", "herself") for who in MEN], places, PAST
    ):
        yield two(f"{who} {place} {past} {right}.", f"{who} {place} {past} {wrong}.")


def number_of_anaphors() -> Pairs:
    """The boys behind the house helped themselves. / The boys behind the house helped himself."""
    for (one, several), other, past, where in product(NOUNS[:1] + NOUNS[3:4] + NOUNS[5:], OTHERS, PAST, ("near", "by")):
        yield two(f"the {several} {where} the {other[0]} {past} themselves.",
                  f"the {several} {where} the {other[0]} {past} himself.")  # fmt: skip
        yield two(f"the {one} {where} the {other[1]} {past} himself.",
                  f"the {one} {where} the {other[1]} {past} themselves.")  # fmt: skip


def licensing_of_ever() -> Pairs:
    """No boy near the house has ever seen the ball. / Some boy near the house has ever seen the ball."""
    for (noun, _), other, (participle, _), thing in product(NOUNS, OTHERS, PARTICIPLES, THINGS):
        rest = f"{noun} near the {other[0]} has ever {participle} {thing}."
        yield two(f"no {rest}", f"some {rest}")


def licensing_of_participles() -> Pairs:
    """The girl has already eaten the cake. / The girl has already ate the cake."""
    for noun, number, word, forms, thing in product(NOUNS, (0, 1), ("already", "never", "often"), PARTICIPLES, THINGS):
        subject = f"the {noun[number]} {('has', 'have')[number]} {word}"
        yield two(f"{subject} {forms[0]} {thing}.", f"{subject} {forms[1]} {thing}.")


def gaps_after_what() -> Pairs:
    """I know what the boy near the tree found. / I know that the boy near the tree found. With "it" the reverse."""
    verbs = ("found", "wanted", "made", "took")
    for who, noun, other, verb in product(("I know", "She knew", "They know", "He told us"), NOUNS, OTHERS, verbs):
        rest = f"the {noun[0]} near the {other[0]} {verb}"
        yield two(f"{who} what {rest}.", f"{who} that {rest}.")
        yield two(f"{who} that {rest} it.", f"{who} what {rest} it.")


def islands_of_coordination() -> Pairs:
    """Who did the boy see the girl with? / Who did the boy see the girl and?"""
    for one, other, verb, asked in product(NOUNS, NOUNS, ("see", "find", "meet", "leave"), ("Who", "What")):
        if one is not other:
            begin = f"{asked} did the {one[0]} {verb} the {other[0]}"
            yield two(f"{begin} with?", f"{begin} and?")


def islands_of_adjuncts() -> Pairs:
    """Who did the boy help after he saw the girl? / Who did the boy help the girl after he saw?"""
    for one, other, verb, when, past in product(
        NOUNS, NOUNS, ("help", "find", "leave"), ("after", "before", "because"), ("saw", "met", "called")
    ):
        if one is not other:
            he = "she" if one[0] == "girl" else "he"
            begin = f"Who did the {one[0]} {verb}"
            clause = f"{when} {he} {past}"
            yield two(f"{begin} {clause} the {other[0]}?", f"{begin} the {other[0]} {clause}?")


PHENOMENA: list[Callable[[], Pairs]] = [
    agreement_after_a_phrase,
    agreement_after_a_clause,
    determiners,
    gender_of_anaphors,
    number_of_anaphors,
    licensing_of_ever,
    licensing_of_participles,
    gaps_after_what,
    islands_of_coordination,
    islands_of_adjuncts,
]


def generate_pairs() -> dict[str, list[Pair]]:
    """The pairs of each phenomenon.

    >>> pair = generate_pairs()["islands of coordination"][0]
    >>> pair.good, pair.bad
    ('Who did the man see the dog with?', 'Who did the man see the dog and?')
    """
    names = [phenomenon.__name__.replace("_", " ") for phenomenon in PHENOMENA]
    return {name: Random(0).sample(list(made()), NUMBER) for name, made in zip(names, PHENOMENA, strict=True)}


def lines() -> str:
    """The pairs as JSON Lines, in the layout of BLiMP."""
    records = (
        {"phenomenon": name, "sentence_good": pair.good, "sentence_bad": pair.bad}
        for name, pairs in generate_pairs().items()
        for pair in pairs
    )
    return "".join(json.dumps(record) + "\n" for record in records)


def add_options(_: argparse.ArgumentParser) -> None:
    pass


def run_command(_: argparse.Namespace) -> None:
    write_file(OWN_PAIRS, lines().encode())
