"""Count a text: the default model and its rivals, scored on a held-out part; a network trained next to the counts."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError, install_command
from saffu.model.language_model import SaffuLM
from saffu.model.solutions import preset
from saffu.play.subject import WITH_NETWORK, Subject
from saffu.play.texts import Texts, beginnings, divided, split_text
from saffu.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from saffu.play.studio import NetworkTraining

TOO_SHORT = (
    "this text has fewer than ten documents, so none is held out to see whether training helps; count a longer text"
)

OnStage = Callable[[int], None]
OnSubject = Callable[[Subject], None]


def count(id: str, name: str, text: str, split: str, on_stage: OnStage, on_subject: OnSubject) -> None:
    """Make the model of a text, then score it.

    Documents that are held out at first are counted, too, so the model that `on_subject` gets covers the whole text.
    They are scored by what was counted before: that takes longer, and nobody waits for it.
    """
    on_stage(0)
    documents = split_text(text, split)
    if not documents:
        raise SaffuError("there is no text to count; paste some text, or drop a file")
    fitted, held_out = divided(dict(enumerate(documents)))
    on_stage(1)
    began = time.perf_counter()
    tokenizer = Tokenizer.train(fitted)
    on_stage(2)
    trial = SaffuLM(tokenizer=tokenizer).fit(fitted)
    trial.source_ = {"split": "paragraph" if any("\n" in document for document in documents) else "line"}
    on_stage(3)
    lm = copy.copy(trial)
    if held_out:
        lm.update(held_out)
    seconds = time.perf_counter() - began
    subject = Subject(id, name, lm, Texts.of(dict(enumerate(documents)), lm))
    subject.scores = {"seconds": seconds, "held_out": len(held_out), "fitted": len(fitted)}
    subject.examples = beginnings(documents)
    subject.version.typist.suggest("")
    on_subject(subject)
    if held_out:
        ours = trial.score(held_out).bits_per_byte
        kneser_ney = trial.reference_scores(held_out)["5-gram"].bits_per_byte
        subject.scores = {**subject.scores, "calibrated": ours, "kneser_ney": kneser_ney}


def add_rival(subject: Subject) -> None:
    """Fit the paper's model to the same text, and score it on the same held-out part."""
    if importlib.util.find_spec("torch") is None:
        subject.rival_note = f"The paper's model needs PyTorch; install it with `{install_command('torch')}`"
        return
    fitted, held_out = divided(documents_of(subject))
    try:
        if subject.changes:
            raise SaffuError("documents were forgotten or added since the counted model was scored; undo that first")
        began = time.perf_counter()
        lm = SaffuLM(preset("paper")).fit(fitted, references=False)
        rival = Subject(f"{subject.id}-paper", "the paper's explicit solution", lm)
        scores = {"paper_seconds": time.perf_counter() - began}
        if held_out:
            scores["paper"] = lm.score(held_out).bits_per_byte
    except SaffuError as error:
        subject.rival_note = f"The paper's model cannot be fitted to this text: {error}"
        return
    subject.scores = {**subject.scores, **scores}
    subject.rival = rival
    subject.rival_note = ""


def documents_of(subject: Subject) -> Mapping[int, str]:
    """Return the documents that a model counts now, by number."""
    texts = subject.version.texts
    if texts is None:
        raise SaffuError("a model folder holds counts, not text; count a text here instead")
    return texts.documents


def add_network(subject: Subject, training: NetworkTraining) -> Subject | None:
    """Train a network next to counts of the same text; None if it fails, or does not help, as `training` then says.

    The documents that were held out stay so: they show after every tenth of the time how well the model predicts now.
    What has been forgotten is not counted again.
    """
    documents = documents_of(subject)
    fitted, held_out = divided(documents)

    def on_row(row: dict[str, Any]) -> None:
        names = {"bits": "dev_bits_per_byte", "network": "network_bits_per_byte", "counts": "counted_bits_per_byte"}
        moment = {name: row[key] for name, key in names.items() if key in row}
        training.moments = [*training.moments, {"seconds": row["seconds"], **moment}]

    try:
        if not held_out:
            raise SaffuError(TOO_SHORT)
        config: Any = preset("companion")
        config = replace(config, minutes=training.minutes)
        lm = SaffuLM(config, tokenizer=subject.version.lm.tokenizer_).fit(fitted, references=False)
        lm.source_ = subject.version.lm.source_
        lm.backprop(fitted, held_out, on_fold=on_row)
        if documents.keys() - documents_of(subject).keys():
            raise SaffuError("documents were forgotten while the network was trained on them; train again")
    except SaffuError as error:
        training.failed = str(error)
        return None
    training.outcome = lm.log_[-1].get("outcome", "")
    if not lm.model_.has_network:
        return None
    trained = Subject(f"{subject.id}-network", subject.name + WITH_NETWORK, lm, Texts.of(dict(enumerate(fitted)), lm))
    trained.examples = subject.examples
    return trained
