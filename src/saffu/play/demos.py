"""Texts to try the page with, which need not be brought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Demo:
    """A text with a document per line."""

    name: str
    read: Callable[[], str]
    prompts: tuple[str, ...] = ()  # beginnings of texts to try [found in the text]


def story() -> str:
    """A short book that was written to try models with."""
    return Path(__file__).with_name("story.txt").read_text("utf-8")


def english_of_python() -> str:
    from saffu.text.default_corpus import default_corpus

    return "\n".join(default_corpus())


STORY_PROMPTS = (
    "A whale ",
    "The lamp was lit at ",
    "I found a piano ",
    "I wrote to the harbor ",
    "The gull Bishop ",
    "Anna says ",
)
DEMOS = {
    "story": Demo("The Keeper’s Log", story, STORY_PROMPTS),
    "python": Demo("the English that ships with Python", english_of_python),
}
