"""Count a text: the default model and its rivals, scored on a held-out part; a network trained next to the counts."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any

from saffu.errors import SaffuError
from saffu.model.language_model import SaffuLM
from saffu.model.solutions import preset
from saffu.play.subject import NetworkTraining, Subject
from saffu.play.texts import Texts, beginnings, split_text
from saffu.text.default_corpus import default_corpus
from saffu.text.tokenizer import Tokenizer

EVERY = 10  # every tenth document is held out
STAGES = (
    "split it into documents",
    "find its words and their pieces",
    "count what follows what, and set some documents aside",
    "test the model on those",
    "count those, too",
)
NO_TORCH = "The paper's model needs PyTorch: pip install torch"
TOO_SHORT = (
    "this text has fewer than ten documents, so none is held out to see whether training helps; count a longer text"
)

OnStage = Callable[[int], None]


def story() -> str:
    """A short book that was written to try models with, a document per line."""
    return (files("saffu.play") / "story.txt").read_text("utf-8")


def english_of_python() -> str:
    return "\n".join(default_corpus())


DEMOS = {"story": ("The Keeper’s Log", story), "python": ("the English that ships with Python", english_of_python)}
STORY_PROMPTS = [
    "A whale ",
    "The lamp was lit at ",
    "I found a piano ",
    "I wrote to the harbor ",
    "The gull Bishop ",
    "Anna says ",
]


def count(id: str, name: str, text: str, split: str, on_stage: OnStage) -> Subject:
    """The model of a text.

    Once the held-out documents have been scored, they are counted, too, so the model covers the whole text.
    """
    on_stage(0)
    documents = split_text(text, split)
    if not documents:
        raise SaffuError("there is no text to count; paste some text, or drop a file")
    held_out = [document for number, document in enumerate(documents) if number % EVERY == EVERY - 1]
    fitted = [document for number, document in enumerate(documents) if number % EVERY != EVERY - 1]
    on_stage(1)
    began = time.perf_counter()
    tokenizer = Tokenizer.train(fitted)
    on_stage(2)
    lm = SaffuLM(tokenizer=tokenizer).fit(fitted)
    lm.source_ = {"split": "paragraph" if any("\n" in document for document in documents) else "line"}
    scores = {"seconds": time.perf_counter() - began, "held_out": len(held_out), "fitted": len(fitted)}
    on_stage(3)
    if held_out:
        scores["calibrated"] = lm.score(held_out).bits_per_byte
        scores["kneser_ney"] = lm.reference_scores(held_out)["5-gram"].bits_per_byte
    on_stage(4)
    if held_out:
        lm.update(held_out)
    subject = Subject(id, name, lm, Texts.of(dict(enumerate(documents)), lm))
    subject.scores = scores
    subject.examples = beginnings(documents)
    subject.fitted, subject.held_out = fitted, held_out
    subject.version.typist.suggest("")
    return subject


def add_rival(subject: Subject) -> None:
    """Fit the paper's model to the same text, and score it on the same held-out part."""
    fitted, held_out = subject.fitted, subject.held_out
    if importlib.util.find_spec("torch") is None:
        subject.rival_note = NO_TORCH
        return
    try:
        began = time.perf_counter()
        lm = SaffuLM(preset("paper")).fit(fitted, references=False)
        rival = Subject(f"{subject.id}-paper", "the paper's explicit solution", lm)
        scores = {"paper_seconds": time.perf_counter() - began}
        if held_out:
            scores["paper"] = lm.score(held_out).bits_per_byte
    except SaffuError as error:
        subject.rival_note = f"The paper's model cannot be fitted to this text: {error}"
        return
    subject.scores |= scores
    subject.rival, subject.rival_note = rival, ""


def add_network(subject: Subject, training: NetworkTraining) -> Subject | None:
    """Train a network next to counts of the same text; None if it fails, or does not help, as `training` then says.

    The documents that were held out stay so: they show after every tenth of the time how well the model predicts now.
    """

    def on_row(row: dict[str, Any]) -> None:
        names = {"bits": "dev_bits_per_byte", "network": "network_bits_per_byte", "counts": "counted_bits_per_byte"}
        moment = {name: row[key] for name, key in names.items() if key in row}
        training.moments = [*training.moments, {"seconds": row["seconds"], **moment}]

    try:
        if not subject.held_out:
            raise SaffuError(TOO_SHORT)
        config: Any = preset("companion")
        config = replace(config, minutes=training.minutes)
        lm = SaffuLM(config, tokenizer=subject.version.lm.tokenizer_).fit(subject.fitted, references=False)
        lm.source_ = subject.version.lm.source_
        lm.backprop(subject.fitted, subject.held_out, on_fold=on_row)
    except SaffuError as error:
        training.failed = str(error)
        return None
    training.outcome = lm.log_[-1].get("outcome", "")
    if not lm.model_.has_network:
        return None
    trained = Subject(
        f"{subject.id}-network", f"{subject.name}, with a network", lm, Texts.of(dict(enumerate(subject.fitted)), lm)
    )
    trained.examples = subject.examples
    return trained
