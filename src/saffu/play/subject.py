"""One model on the page: its documents, and the changes made to it, which can be undone and are verified."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from saffu.errors import SaffuError
from saffu.model import living
from saffu.model.language_model import SaffuLM
from saffu.play.texts import Texts
from saffu.play.typist import Typist
from saffu.text.tokenizer import Tokenizer
from saffu.tools.generate import uncounted

if TYPE_CHECKING:
    from saffu.play.studio import NetworkTraining

MOST_UNDONE, KEPT_TOKENS = 10, 3_000_000  # changes that can be undone: each keeps a model, unless those grow large
WITH_NETWORK, WITHOUT_NETWORK = ", with a network", ", its network removed"  # after the name of a text
SHOWN = 200  # characters of a document that a change shows


class Version:
    """A model and the documents it counts; never changed."""

    def __init__(self, lm: SaffuLM, texts: Texts | None, forgotten: Set[int] = frozenset()) -> None:
        self.lm = lm
        self.texts = texts
        self.typist = Typist(lm)
        self.forgotten = forgotten  # tokens of documents that the tokenizer was trained on, and that are gone

    def changed(self, kind: str, document: str, texts: Texts | None, drop_network: bool = False) -> Version:
        """The version after one document was forgotten or learned."""
        lm = copy.copy(self.lm)
        if kind == "learn":
            lm.update([document])
            return Version(lm, texts, self.forgotten)
        lm.forget([document], drop_network=drop_network)
        return Version(lm, texts, self.forgotten | set(lm.tokenize([document]).ids.tolist()))


@dataclass
class Change:
    """A document that was forgotten or learned, and the fingerprints that show what that did."""

    kind: str  # "forget", "learn", or "recount"
    document: str
    before: str
    after: str
    check: str = ""  # fingerprint of a model made in another way, which must equal the one it is compared with
    equal: bool | None = None  # None while that is computed
    recounted: int | None = None  # documents counted from scratch for it; None if the change was reversed instead
    vanished: list[str] = field(default_factory=list)  # words that no document contains any longer
    pieces: list[str] = field(default_factory=list)  # tokens that only the tokenizer still knows
    failed: str = ""

    def facts(self) -> dict[str, Any]:
        shown = self.document[:SHOWN] + ("…" if len(self.document) > SHOWN else "")
        return {**vars(self), "document": shown}


class Subject:
    """A model with an undo history. Reading needs no lock: versions do not change."""

    def __init__(self, id: str, name: str, lm: SaffuLM, texts: Texts | None = None) -> None:
        self.id = id
        self.name = name
        self.versions = [Version(lm, texts)]
        self.changes: list[Change] = []
        self.scores: dict[str, Any] = {}
        self.examples: list[str] = []  # beginnings of texts to try
        self.rival: Subject | None = None  # the paper's model of the same text
        self.rival_note = ""  # why there is none, or none yet
        self.training: NetworkTraining | None = None
        self._next = 0 if texts is None else len(texts.documents)
        self._lock = threading.Lock()

    @property
    def version(self) -> Version:
        return self.versions[-1]

    def forget(self, number: int | None = None, text: str = "", drop_network: bool = False) -> tuple[Change, Version]:
        """Forget a document by its number or, if the documents are not available, by its text."""
        with self._lock:
            now = self.version
            if now.texts is None:
                return self._change("forget", text, None, drop_network)
            if number is None or number not in now.texts.documents:
                raise SaffuError("this document is no longer in the model; choose another")
            if len(now.texts.documents) == 1:
                raise SaffuError("this is the only document, and a model needs at least one; use another text instead")
            document = now.texts.documents[number]
            texts = now.texts.without(number)
            change, after = self._change("forget", document, texts, drop_network)
            change.vanished = texts.words_missing(document)
            return change, after

    def learn(self, text: str) -> tuple[Change, Version]:
        """Count one more document."""
        with self._lock:
            now = self.version
            texts = None if now.texts is None else now.texts.with_added(text, now.lm, self._next)
            self._next += 1
            return self._change("learn", text, texts)

    def recount(self) -> tuple[Change, Version]:
        """Count the documents with a tokenizer that knows no others."""
        with self._lock:
            now = self.version
            if now.texts is None:
                raise SaffuError("a model folder holds counts, not text; train again to get a fresh tokenizer")
            documents = list(now.texts.documents.values())
            lm = SaffuLM(tokenizer=Tokenizer.train(documents)).fit(documents)
            lm.tokenizer_settings_ = now.lm.tokenizer_settings_
            lm.source_ = now.lm.source_
            return self._replace("recount", "", Version(lm, Texts.of(now.texts.documents, lm)), now.lm)

    def _change(
        self, kind: str, document: str, texts: Texts | None, drop_network: bool = False
    ) -> tuple[Change, Version]:
        changed = self.version.changed(kind, document, texts, drop_network)
        before = copy.copy(self.version.lm)
        if drop_network:  # a removed network is not part of the comparison
            before.model_ = before.model_.without_network() or before.model_
        return self._replace(kind, document, changed, before)

    def _replace(self, kind: str, document: str, changed: Version, before: SaffuLM) -> tuple[Change, Version]:
        change = Change(kind, document, fingerprint(before), fingerprint(changed.lm), pieces=remaining_pieces(changed))
        kept = max(1, min(MOST_UNDONE, KEPT_TOKENS // changed.lm.trained_on_["tokens"]))
        self.versions = [*self.versions, changed][-1 - kept :]
        self.changes = [*self.changes, change]
        return change, changed

    def undo(self) -> None:
        """Return to the model before the last change."""
        with self._lock:
            if len(self.versions) == 1:
                raise SaffuError("there is nothing to undo; forget or add a document first")
            self.versions = self.versions[:-1]
            self.changes = self.changes[:-1]

    def facts(self) -> dict[str, Any]:
        """What the page shows about the model."""
        now = self.version
        return {
            "id": self.id,
            "name": self.name if now.lm.model_.has_network else self.name.replace(WITH_NETWORK, WITHOUT_NETWORK),
            "vocabulary": len(now.lm.tokenizer_),
            **{key: now.lm.trained_on_[key] for key in ("documents", "tokens", "bytes")},
            "has_texts": now.texts is not None,
            "has_network": now.lm.model_.has_network,
            "scores": self.scores,
            "rival": None if self.rival is None else self.rival.id,
            "rival_note": self.rival_note,
            "training": None if self.training is None else vars(self.training),
            "examples": self.examples,
            "changes": [change.facts() for change in self.changes],
            "can_undo": len(self.versions) > 1,
        }


def check(change: Change, after: Version) -> None:
    """Build a changed model in another way, and compare the fingerprints.

    If the documents are available, the remaining ones are counted from scratch: a model that never saw what was
    forgotten. Otherwise the change is reversed, which must restore the previous model.
    """
    try:
        if after.texts is not None:
            documents = list(after.texts.documents.values())
            scratch = copy.copy(after.lm)
            scratch.model_ = after.lm.model_.solved(after.lm.model_.count(after.lm.tokenize(documents)))
            change.check = fingerprint(scratch)
            change.recounted = len(documents)
            change.equal = change.check == change.after
        else:
            reverse = "learn" if change.kind == "forget" else "forget"
            change.check = fingerprint(after.changed(reverse, change.document, None).lm)
            change.equal = change.check == change.before
    except SaffuError as error:
        change.failed = str(error)


def remaining_pieces(version: Version) -> list[str]:
    """The forgotten tokens that only the tokenizer still knows; single bytes are in every tokenizer."""
    tokenizer = version.lm.tokenizer_
    tokens = sorted(version.forgotten & set(uncounted(version.lm.model_).tolist()))
    return [tokenizer.token(token) for token in tokens if len(tokenizer.decode_bytes([token])) > 1]


def fingerprint(lm: SaffuLM) -> str:
    """SHA-256 of everything a model predicts from: settings, tokenizer, encoder, tables, and counts."""
    digest = hashlib.sha256("".join(living.fingerprints(lm).values()).encode())
    sums = lm.model_.sums
    stored = {**lm.model_.arrays(), **({} if sums is None else {f"sums.{k}": v for k, v in sums.arrays().items()})}
    for name, array in sorted(stored.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
