"""Small made-up text: a grammar with a few hundred sentences, so that there is something to learn."""

import itertools
import random

import pytest
import torch

from saffu import SaffuConfig, SaffuLM

torch.set_num_threads(1)  # tiny arrays: a second thread only waits

SMALL = SaffuConfig(block=16, radius=4, block_dimension=16, radius_dimension=12, hidden_dimension=32, fold=2000)


def sentences(seed: int, number: int) -> list[str]:
    """Sentences such as "the small dog saw a house .": word order and agreement repay a longer context."""
    subjects, verbs, things = (
        ["dog", "cat", "girl", "king"],
        ["saw", "found", "liked"],
        ["house", "tree", "ball", "sea"],
    )
    endings = [".", "!", "and went home .", "in the garden ."]
    everything = list(
        itertools.product(["the", "a"], ["small", "old", ""], subjects, verbs, ["the", "a"], things, endings)
    )
    drawn = random.Random(seed).choices(everything, k=number)
    return [" ".join(word for word in words if word) for words in drawn]


@pytest.fixture(scope="session")
def train_text() -> list[str]:
    return sentences(1, 600)


@pytest.fixture(scope="session")
def dev_text() -> list[str]:
    return sentences(2, 100)


@pytest.fixture(scope="session")
def small_lm(train_text: list[str], dev_text: list[str]) -> SaffuLM:
    """A fitted model; tests must not change it."""
    return SaffuLM(SMALL).fit(train_text, dev_text)
