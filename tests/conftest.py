"""What all tests share: a small generated text, one fitted model of each kind, and a runner of the command."""

from __future__ import annotations

import inspect
import io
import itertools
import os
import random
import shlex
import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny arrays: a second thread only waits
os.environ["TQDM_DISABLE"] = "1"  # progress, which a busy machine shows even of short work

import numpy as np
import pytest
from hypothesis import settings as hypothesis_settings

from saffu import CalibratedConfig, PaperConfig, SaffuLM
from saffu.files import MANIFEST, stored_names
from saffu.model import solutions
from saffu.settings import Settings
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD
from saffu.writing import facts_of_model
from toy_model import TOY, ToyConfig

hypothesis_settings.register_profile("saffu", deadline=None, derandomize=True, database=None)
hypothesis_settings.load_profile("saffu")

solutions.PRESETS["toy"] = TOY

CONFIGS: dict[str, Callable[[], Settings]] = {
    "toy": ToyConfig,
    "calibrated": lambda: CalibratedConfig(order=4, slots=4, word_classes=20, output_classes=8),
    "paper": lambda: PaperConfig(
        block=16,
        radius=4,
        block_dimension=16,
        radius_dimension=12,
        hidden_dimension=32,
        document_shards=3,
        fold_tokens=2000,
    ),
}
MODELS = tuple(CONFIGS)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and so would what the tests start
    config.addinivalue_line("markers", "slow: starts processes or kills them; left out by -m 'not slow'")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background, and their children, ignore it
    os.fsync = lambda _: None  # no test outlasts a power failure, and thousands of waits for a disk take a minute


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each case, like pytest.mark.parametrize, but as one item; all cases that fail are reported.

    Fixtures are made once, except that each case has a `monkeypatch` of its own. It may be repeated, for all pairs.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        own = names.split(", ")
        inner, test = getattr(test, "cases", ([{}], test))
        named = [dict(zip(own, case if len(own) > 1 else [case], strict=True)) for case in cases]
        every = [one | other for one in named for other in inner]

        def run(subtests: pytest.Subtests, **fixtures: Any) -> None:
            for case in every:
                with subtests.test(**case), pytest.MonkeyPatch.context() as patch:
                    test(**fixtures | ({"monkeypatch": patch} if "monkeypatch" in fixtures else {}), **case)

        parameters = inspect.signature(test).parameters
        fixtures = [parameter for name, parameter in parameters.items() if name not in every[0]]
        subtests = inspect.Parameter("subtests", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*fixtures, subtests])  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.cases = every, test  # type: ignore[attr-defined]
        run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
        return run

    return decorate


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


def corpus_of(documents: Sequence[Sequence[int] | Sequence[Sequence[int]]], dtype: type = np.uint16) -> TokenCorpus:
    """A corpus of documents given as token ids without `<eod>`, or as lists of lines; each token is one byte long."""
    lines = [[list(line) for line in document] if _has_lines(document) else [list(document)] for document in documents]
    tokens = [[token for line in document for token in [*line, EOD]] for document in lines]
    return TokenCorpus(
        np.array([token for document in tokens for token in document], dtype=dtype),
        np.cumsum([0, *(len(document) for document in tokens)], dtype=np.int64),
        np.array([len(line) + 1 for document in lines for line in document], dtype=np.int64),
    )


def _has_lines(document: Sequence) -> bool:
    return bool(document) and not isinstance(document[0], int | np.integer)


def part(folder: Path, name: str) -> Path:
    """The path of a file of a model, by its plain name."""
    stored = stored_names(facts_of_model(folder)) if (folder / MANIFEST).exists() else {}
    return folder / stored.get(name, name)


@pytest.fixture(scope="session")
def train_text() -> list[str]:
    return sentences(1, 600)


@pytest.fixture(scope="session")
def dev_text() -> list[str]:
    return sentences(2, 100)


@pytest.fixture(scope="session")
def fitted(train_text: list[str], dev_text: list[str]) -> Callable[[str], SaffuLM]:
    """`fitted(kind)`: a model of each kind, fitted once per session. Tests must not change it, but take copy.copy."""
    models: dict[str, SaffuLM] = {}

    def fit(kind: str) -> SaffuLM:
        if kind not in models:
            models[kind] = SaffuLM(CONFIGS[kind]()).fit(train_text, dev_text)
        return models[kind]

    return fit


@pytest.fixture(params=MODELS)
def lm(request: pytest.FixtureRequest, fitted: Callable[[str], SaffuLM]) -> SaffuLM:
    """Each test runs with one fitted model of every kind. Tests must not change it, but take copy.copy."""
    return fitted(request.param)


class Keyboard(io.TextIOWrapper):
    """Standard input as a terminal, at which some text is typed."""

    def __init__(self, typed: str) -> None:
        super().__init__(io.BytesIO(typed.encode()), "utf-8")

    def isatty(self) -> bool:
        return True


class Result(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def saffu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`saffu("train text.txt --out model")`: run the command in this process; status, output, and errors."""
    from saffu.cli.main import main

    def run(line: str | Sequence[object], stdin: str | bytes | io.TextIOWrapper = "") -> Result:
        if not isinstance(stdin, io.TextIOWrapper):
            data = stdin.encode() if isinstance(stdin, str) else stdin
            stdin = io.TextIOWrapper(io.BytesIO(data), "utf-8")
        monkeypatch.setattr("sys.stdin", stdin)
        words = shlex.split(line) if isinstance(line, str) else [str(word) for word in line]
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(words)
        captured = capsys.readouterr()
        return Result(int(exit.value.code or 0), captured.out, captured.err)

    return run
