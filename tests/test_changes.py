"""Everything that changes a model, in any order, against counting all its documents again.

A stateful machine uses nothing but the public API: fit, update, forget, merge, save, load, pickle, and `source_`.
After every step, a model of the same documents, counted at once with the same basis, must be equal bit for bit; a step
that is refused, and every use of a model, must have changed nothing. `make test` runs a fixed number of examples,
`make torture` others for as long as one likes (`tests/torture/changes.py`).
"""

from __future__ import annotations

import copy
import functools
import pickle
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import saffu
from conftest import sentences
from saffu import CalibratedConfig, SaffuError, SaffuLM

CONFIG = CalibratedConfig(order=3, slots=3, word_classes=6, output_classes=4)
DEV = sentences(8, 20)
POOL = [
    "the dog saw a tree .",
    "the small dog saw a house .\nthe girl liked it and went home .",
    "a king found the sea !",
    "the dog saw a tree .\n\nthe cat slept .",  # begins like the first; a blank line in it
    "  indented, twice  twice ",
    "zyx quaffed wvut . zyx quaffed wvut .",  # words that the basis has not seen
    "naïve café 日本語 \u2028 separator",
    ".",
    "the dog saw a tree",
    "the the the the the the the the the the the the the the the the the the",
]
documents = st.lists(st.sampled_from(POOL), min_size=1, max_size=4)


@functools.cache
def basis() -> SaffuLM:
    """Return the model whose basis all models of the machine share."""
    return SaffuLM(CONFIG).fit(sentences(5, 120))


def counted_again(texts: Counter[str]) -> SaffuLM:
    """Count all documents at once with the same basis."""
    return SaffuLM(encoder=basis()).fit(list(texts.elements()))


def learned(lm: SaffuLM) -> dict[str, Any]:
    """Return all that follows from the documents, as values that can be compared."""
    arrays = {f"model {name}": array for name, array in lm.model_.arrays().items()}
    arrays |= {f"sums {name}": array for name, array in lm.model_.sums.arrays().items()}
    facts: dict[str, Any] = {name: (str(array.dtype), array.shape, array.tobytes()) for name, array in arrays.items()}
    facts |= {name: lm.trained_on_[name] for name in ("documents", "lines", "tokens", "bytes")}
    return facts | {"frequencies": lm.frequencies_.tolist(), "known": lm.ledger_.documents}


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of each file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Changes(RuleBasedStateMachine):
    """A model, the documents that it should hold, and whatever may be done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="saffu-changes-"))
        self.number = 0

    def teardown(self) -> None:
        shutil.rmtree(self.place)

    @initialize(texts=documents, with_dev=st.booleans())
    def fit(self, texts: list[str], with_dev: bool) -> None:
        self.lm = SaffuLM(encoder=basis()).fit(texts, DEV if with_dev else None)
        self.texts = Counter(texts)

    @rule(texts=documents)
    def update(self, texts: list[str]) -> None:
        assert self.lm.update(texts) is self.lm
        self.texts.update(texts)

    @precondition(lambda self: self.texts.total() > 1)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        held = sorted(self.texts.elements())
        chosen = data.draw(st.lists(st.sampled_from(range(len(held))), unique=True, min_size=1, max_size=len(held) - 1))
        removed = [held[number] for number in chosen]
        assert self.lm.forget(removed) == len(removed)
        self.texts.subtract(removed)

    @rule(texts=documents)
    def forget_what_is_not_counted(self, texts: list[str]) -> None:
        if not Counter(texts) - self.texts:
            texts = [*texts, *self.texts.elements()]  # all of it, and some of it once more
        before = learned(self.lm)
        with pytest.raises(SaffuError):
            self.lm.forget(texts)
        assert learned(self.lm) == before

    @rule(texts=documents)
    def forget_what_is_there(self, texts: list[str]) -> None:
        removed = Counter(texts) & self.texts
        if removed == self.texts:
            before = learned(self.lm)
            with pytest.raises(SaffuError):
                self.lm.forget(texts, skip_uncounted=True)
            assert learned(self.lm) == before
        else:
            assert self.lm.forget(texts, skip_uncounted=True) == removed.total()
            self.texts.subtract(removed)

    @rule(texts=documents)
    def merge(self, texts: list[str]) -> None:
        other = SaffuLM(encoder=basis()).fit(texts)
        before = learned(self.lm), learned(other)
        self.lm, parts = self.lm.merge(other), (self.lm, other)
        assert tuple(map(learned, parts)) == before
        self.texts.update(texts)

    @rule()
    def merge_with_itself(self) -> None:
        self.lm = self.lm.merge(self.lm)
        self.texts += self.texts
        if self.texts.total() > 60:
            removed = list((self.texts - Counter(set(self.texts))).elements())
            assert self.lm.forget(removed) == len(removed)
            self.texts.subtract(removed)

    @rule()
    def merge_with_another_basis(self) -> None:
        before = learned(self.lm)
        with pytest.raises(SaffuError):
            self.lm.merge(SaffuLM(CONFIG).fit(sentences(6, 90)))
        assert learned(self.lm) == before

    @rule(check=st.booleans(), compact=st.booleans())
    def save_and_load(self, check: bool, compact: bool) -> None:
        self.number += 1
        folder = self.place / f"model {self.number}"
        self.lm.save(folder, compact=compact)
        self.lm = saffu.load(folder, check=check)

    @rule()
    def save_over_an_older_one(self) -> None:
        folder = self.place / "model"
        self.lm.save(folder)
        assert learned(saffu.load(folder)) == learned(self.lm)

    @rule()
    def pickle(self) -> None:
        self.lm = pickle.loads(pickle.dumps(self.lm))

    @rule()
    def copy(self) -> None:
        self.lm, original = copy.copy(self.lm), self.lm
        before = learned(original)
        self.lm.update(POOL[:2])
        self.texts.update(POOL[:2])
        assert learned(original) == before

    @rule(source=st.dictionaries(st.sampled_from(["text", "note"]), st.text(max_size=5), max_size=2))
    def set_the_source(self, source: dict[str, str]) -> None:
        self.lm.source_ = source

    @rule(text=st.sampled_from(POOL), memory=st.booleans())
    def use(self, text: str, memory: bool) -> None:
        """Everything that only reads a model, whose folder and arrays stay as they are."""
        folder = self.place / "used"
        self.lm.save(folder)
        before, files = learned(self.lm), files_of(folder)
        for lm in (self.lm, saffu.load(folder)):
            bits = lm.score([text]).nll / np.log(2)
            assert bits == pytest.approx(sum(word.bits for word in lm.surprisals(text, memory=True)), rel=1e-4)
            assert np.isfinite([row.bits for row in lm.score_lines([text], memory=memory)]).all()
            assert lm.score([text], online=True).targets == lm.score([text]).targets
            explanation = lm.explain(text)
            total = np.sum([term.values for term in explanation.terms], axis=0)
            predicted = np.isfinite(explanation.log_probabilities)
            assert np.allclose(total[predicted], explanation.log_probabilities[predicted], atol=1e-4)
            assert all(0 <= p <= 1 for p in lm.complete_word(text[:4]).values())
            generated = lm.generate(text, seed=3, max_tokens=8)
            assert set(generated.encode()) <= set("".join(self.texts.elements()).encode())  # nothing forgotten
        assert learned(self.lm) == before
        assert files_of(folder) == files

    @invariant()
    def equals_counting_again(self) -> None:
        again = counted_again(self.texts)
        mine, theirs = learned(self.lm), learned(again)
        assert mine.keys() == theirs.keys()
        assert [name for name in mine if mine[name] != theirs[name]] == []


class TestChanges(Changes.TestCase):
    settings = settings(
        max_examples=80,
        stateful_step_count=20,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],  # a failure is shown as it was found: to make it smaller takes minutes
        suppress_health_check=list(HealthCheck),
    )
