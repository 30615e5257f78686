"""What the page posts: each answer is a function, named as in the address, of the studio and of a JSON object."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from saffu.errors import SaffuError
from saffu.play import why as explanations
from saffu.play.guard import SHARED
from saffu.play.studio import Studio
from saffu.play.subject import Version
from saffu.play.typist import completed
from saffu.text.records import is_valid

MOST_TYPED = 10_000  # characters of a text that is typed
LINES = 3  # of generated text, if documents have several
MOST_LEARNED = 100_000  # characters of a document that is learned or forgotten
MOST_SHARED = 300_000  # characters of a snapshot

Body = dict[str, Any]


def suggest(studio: Studio, body: Body) -> Any:
    suggestions = studio.suggest(
        model(body),
        typed(body),
        text(body, "page", 64),
        int(number(body, "number", 0, 2**53)),
        rest=text(body, "rest", MOST_TYPED) if "rest" in body else "",
        ending=ending(body),
    )
    return {"outdated": True} if suggestions is None else suggestions


def why(studio: Studio, body: Body) -> Any:
    version = studio.subject(model(body)).version
    word = text(body, "word", 1000)
    return {**explanations.why(version.lm, typed(body), word, ending(body)), "said": _said(version, body, word)}


def read(studio: Studio, body: Body) -> Any:
    version = studio.subject(model(body)).version
    answer = explanations.why_typed(version.lm, typed(body), text(body, "rest", MOST_TYPED))
    word = answer["word"]
    return {**answer, "said": _said(version, {"text": answer["before"]}, word) if word.strip() else None}


def _said(version: Version, body: Body, word: str) -> Any:
    if version.texts is None:
        return None
    context, tokens, _ = explanations.word_after(version.lm, typed(body), word, ending(body))
    return version.texts.said(version.lm.tokenizer_, context, tokens)


def documents(studio: Studio, body: Body) -> Any:
    version = studio.subject(model(body)).version
    if version.texts is None:
        return {"documents": [], "holding": 0}
    context, tokens, _ = explanations.word_after(version.lm, typed(body), text(body, "word", 1000), ending(body))
    return version.texts.speaking_for(version.lm.tokenizer_, context, tokens)


def forget(studio: Studio, body: Body) -> Any:
    place = None if body.get("document") is None else int(number(body, "document", 0, 2**53))
    document = text(body, "text", MOST_LEARNED) if place is None else ""
    drop = body.get("drop_network") is True
    return studio.change(model(body), lambda subject: subject.forget(place, document, drop))


def learn(studio: Studio, body: Body) -> Any:
    document = text(body, "text", MOST_LEARNED)
    return studio.change(model(body), lambda subject: subject.learn(document))


def undo(studio: Studio, body: Body) -> Any:
    studio.subject(model(body)).undo()
    return studio.facts()


def recount(studio: Studio, body: Body) -> Any:
    return studio.change(model(body), lambda subject: subject.recount())


def compare(studio: Studio, body: Body) -> Any:
    studio.compare(model(body))
    return studio.facts()


def train(studio: Studio, body: Body) -> Any:
    studio.train(model(body), number(body, "minutes", 0.05, 60))
    return studio.facts()


def save(studio: Studio, body: Body) -> Any:
    return {"saved": studio.save(model(body), text(body, "name", 64))}


def snapshot(studio: Studio, body: Body) -> Any:
    return {"path": SHARED + studio.share(text(body, "name", 64), text(body, "page", MOST_SHARED))}


def generate(studio: Studio, body: Body) -> Iterator[str]:
    """The pieces of a generated text, as they come."""
    settings: dict[str, Any] = {"temperature": number(body, "temperature", 0, 10)}
    settings["top_p"] = number(body, "top_p", 0, 1)
    settings["max_tokens"] = int(number(body, "max_tokens", 1, 1000))
    settings["seed"] = int(number(body, "seed", 0, 2**32))
    lm = studio.subject(model(body)).version.lm
    lines = LINES if lm.trained_on_["lines"] > lm.trained_on_["documents"] else 1
    prompt = typed(body)
    whole = completed(lm, prompt)
    return chain([whole[len(prompt) :]], lm.stream(whole, lines=lines, **settings))


def text(body: Body, name: str, most: int) -> str:
    """A string in a request."""
    value = body.get(name)
    if not isinstance(value, str):
        raise SaffuError(f"`{name}` must be a string, got {type(value).__name__}")
    if not is_valid(value):
        raise SaffuError(f"`{name}` is not valid Unicode: it has half of a character; remove it")
    if len(value) > most:
        raise SaffuError(f"`{name}` has {len(value):,} characters, but the page accepts at most {most:,}; shorten it")
    return value


def typed(body: Body) -> str:
    return text(body, "text", MOST_TYPED).replace("\r\n", "\n")


def ending(body: Body) -> str | None:
    """The unfinished word at the end of a text, if the page found it in a script without spaces."""
    if body.get("ending") is None:
        return None
    word = text(body, "ending", MOST_TYPED)
    if not typed(body).endswith(word):
        raise SaffuError("`ending` must be the end of `text`")
    return word


def model(body: Body) -> str:
    return text(body, "model", 64)


def number(body: Body, name: str, low: float, high: float) -> float:
    """A number in a request."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SaffuError(f"`{name}` must be a number from {low:g} to {high:g}")
    return value
