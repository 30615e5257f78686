"""Everything behind the page of one user: models by id, and work in the background.

What makes models is imported by that work, so that the page need not wait for it.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saffu.errors import SaffuError, install_command
from saffu.play.demos import DEMOS

if TYPE_CHECKING:
    from saffu.model.language_model import SaffuLM
    from saffu.play.subject import Change, Subject, Version

STAGES = (
    "split it into documents",
    "find its words and their pieces",
    "count what follows what, except in every tenth document",
    "count those, too",
)
STAGE_SECONDS = 1.0  # that an answer waits at most for the next stage
PLAIN_NAME = re.compile(r"\w[\w.-]{0,63}")
MOST_SHARED = 64  # snapshots with a link
MOST_PAGES = 32  # open pages whose latest keystroke is remembered
FITTING = "The paper's model is being fitted to the same text; typing is slower until it is done."
FOLDER = "folder"  # id of the model that was opened from a folder


@dataclass
class Job:
    """A text being counted."""

    name: str
    stage: int = 0
    began: float = field(default_factory=time.monotonic)
    subject: str = ""  # id of the model, once it is ready
    error: str = ""

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "stages": STAGES,
            "stage": self.stage,
            "seconds": round(time.monotonic() - self.began, 1),
            "subject": self.subject,
            "error": self.error,
        }


@dataclass
class NetworkTraining:
    """A network being trained next to the counts of a text, and how well held-out text was predicted along the way."""

    minutes: float
    moments: list[dict[str, float]] = field(default_factory=list)  # seconds; bits per byte of model, network, counts
    model: str = ""  # id of the trained model, once it is ready
    outcome: str = ""
    failed: str = ""
    done: bool = False


class Studio:
    """The models and jobs of one user on one machine."""

    def __init__(self, lm: SaffuLM | None = None, name: str = "", saved_in: Path | None = None) -> None:
        """Open with a model, if one is given. `saved_in` is where models are saved [the current folder]."""
        self.subjects: dict[str, Subject] = {}
        self.saved_in = Path.cwd() if saved_in is None else saved_in
        self.job: Job | None = None
        self.shared: dict[str, str] = {}  # snapshots by key and name
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._progress = threading.Condition()  # of the job
        self._workers: list[threading.Thread] = []
        self._counted = 0
        self._newest: dict[tuple[str, str], int] = {}  # number of the latest keystroke, by page and model
        if lm is not None:
            from saffu.play.subject import Subject

            self.subjects[FOLDER] = Subject(FOLDER, name, lm)

    def subject(self, id: str) -> Subject:
        for subject in list(self.subjects.values()):
            if subject.id == id:
                return subject
            if subject.rival is not None and subject.rival.id == id:
                return subject.rival
        raise SaffuError("this model is no longer available; reload the page")

    def facts(self, stage: int | None = None) -> dict[str, Any]:
        """All that the page shows; once the job has left a `stage`, if it does so soon."""
        if stage is not None:
            with self._progress:
                self._progress.wait_for(lambda: self.job is None or self.job.stage != stage, STAGE_SECONDS)
        subjects = [subject.facts() for subject in list(self.subjects.values())]
        return {"models": subjects, "job": None if self.job is None else self.job.facts()}

    def count_demo(self, demo: str) -> Job:
        """Start counting one of the texts that need not be brought."""
        if demo not in DEMOS:
            raise SaffuError(f"`demo` must be one of {', '.join(DEMOS)}, got {demo!r:.40}")
        text = DEMOS[demo]
        return self.count(text.read, "line", text.name, text.prompts)

    def count(self, read: Callable[[], str], split: str = "auto", name: str = "", prompts: Sequence[str] = ()) -> Job:
        """Start reading and counting a text in the background."""
        with self._lock:
            if self.job is not None and not (self.job.subject or self.job.error):
                raise SaffuError("another text is being counted; wait until it is done")
            self._counted += 1
            id = f"text-{self._counted}"
            self.job = job = Job(name or "your text")
        self._in_background(lambda: self._count(job, id, read, split, prompts))
        return job

    def _count(self, job: Job, id: str, read: Callable[[], str], split: str, prompts: Sequence[str]) -> None:
        def on_stage(number: int) -> None:
            with self._progress:
                job.stage = number
                self._progress.notify_all()

        def on_subject(subject: Subject) -> None:
            subject.examples = list(prompts) or subject.examples
            opened = {FOLDER: self.subjects[FOLDER]} if FOLDER in self.subjects else {}
            self.subjects = {**opened, id: subject}
            job.subject = id
            on_stage(len(STAGES))

        try:
            from saffu.play.counting import count

            count(id, job.name, read(), split, on_stage, on_subject)
        except SaffuError as error:
            job.error = str(error)
        except BaseException:
            job.error = "counting failed unexpectedly; the terminal shows why"
            raise
        finally:
            on_stage(len(STAGES))

    def compare(self, id: str) -> None:
        """Start fitting the paper's model to the same text in the background."""
        subject = self.subject(id)
        if subject.version.texts is None:
            raise SaffuError("a model folder holds counts, not text; count a text to compare with the paper's model")
        with self._lock:
            if subject.rival is not None or subject.rival_note == FITTING:
                return
            subject.rival_note = FITTING
        from saffu.play.counting import add_rival

        self._in_background(lambda: add_rival(subject))

    def train(self, id: str, minutes: float) -> None:
        """Start training a network next to the counts of the same text in the background."""
        subject = self.subject(id)
        if subject.version.texts is None:
            raise SaffuError("a model folder holds counts, not text; train it with `saffu train --minutes`")
        if importlib.util.find_spec("torch") is None:
            raise SaffuError(f"training needs PyTorch; install it with `{install_command('torch')}`")
        with self._lock:
            if any(each.training and not each.training.done for each in self.subjects.values()):
                raise SaffuError("a network is being trained already; wait until it is done")
            training = subject.training = NetworkTraining(minutes)
        self._in_background(lambda: self._train(subject, training))

    def _train(self, subject: Subject, training: NetworkTraining) -> None:
        from saffu.play.counting import add_network

        try:
            trained = add_network(subject, training)
            if trained is not None and subject.id in self.subjects:
                self.subjects[trained.id] = trained
                training.model = trained.id
        except BaseException:
            training.failed = "training failed unexpectedly; the terminal shows why"
            raise
        finally:
            training.done = True

    def suggest(
        self, id: str, text: str, page: str, number: int, rest: str = "", ending: str | None = None
    ) -> dict[str, Any] | None:
        """Words that may follow, and surprisals; None if the page has sent a later keystroke in the meantime."""
        key = (page, id)
        with self._lock:
            self._newest[key] = max(number, self._newest.pop(key, 0))
            while len(self._newest) > MOST_PAGES:
                del self._newest[next(iter(self._newest))]
        typist = self.subject(id).version.typist
        return typist.suggest(text, rest, ending, lambda: self._newest.get(key, number) > number)

    def change(self, id: str, work: Callable[[Subject], tuple[Change, Version]]) -> dict[str, Any]:
        """Change a model, and check the result in the background; return all that the page shows now."""
        from saffu.play.subject import check

        change, after = work(self.subject(id))

        def check_alone() -> None:
            with self._checking:
                check(change, after)

        self._in_background(check_alone)
        return self.facts()

    def save(self, id: str, name: str) -> str:
        """Save a model under a plain name in the folder in which `saffu play` runs; never replaces anything."""
        if not PLAIN_NAME.fullmatch(name) or name.endswith("."):
            raise SaffuError("a model name may contain only letters, digits, and . _ -, and at most 64 characters")
        from saffu.commit import require_writable

        folder = self.saved_in / name
        if folder.exists() or folder.is_symlink():
            raise SaffuError(f"{name} already exists; choose another name")
        require_writable(folder, force=False)
        self.subject(id).version.lm.save(folder)
        return name

    def share(self, name: str, page: str) -> str:
        """Keep a snapshot while the server runs; the part of its link that nobody can guess, and its name."""
        if not PLAIN_NAME.fullmatch(name):
            raise SaffuError(
                "the name of a page may contain only letters, digits, and . _ -, and at most 64 characters"
            )
        path = f"{secrets.token_urlsafe(12)}/{name}"
        with self._lock:
            self.shared[path] = page
            while len(self.shared) > MOST_SHARED:
                del self.shared[next(iter(self.shared))]
        return path

    def _in_background(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException:
                logging.getLogger(__name__).exception("work in the background failed")

        self._workers = [worker for worker in self._workers if worker.is_alive()]
        self._workers.append(threading.Thread(target=guarded, daemon=True))
        self._workers[-1].start()

    @property
    def is_working(self) -> bool:
        return any(worker.is_alive() for worker in self._workers)

    def wait(self) -> None:
        """Wait until all work in the background is done."""
        for worker in list(self._workers):
            worker.join()
