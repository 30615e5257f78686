"""What the page without a server must answer as the server does: questions, and a comparison of answers."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest

import hatch_build

ROUNDING = 1e-6  # of probabilities, and of bits relative to the largest of a sum: kernels compute in single precision
MULTILINGUAL = [
    "",
    "Don't she'll we've I'm 'tis IT'S",
    "  two  spaces\tand\ttabs  \u00a0\u2003x ",
    "naïve café — “quoted” … 1234 ½ ²³ Ⅷ",
    "今天天气很好。我喜欢吃苹果。ラーメンを食べます 한국어 ไทย",
    "שלום עולם مرحبا بالعالم हिन्दी தமிழ்",
    "👩‍👩‍👧‍👦 🎉🦓 e\u0301 \u200d\ufeff\u202e x\u0085y\u001cz\ufffd",
    "<eod><pad> Ġthe ĊÀ",
]


def random_texts(number: int) -> list[str]:
    rng = random.Random(1)
    ranges = [(32, 127), (32, 127), (0xA0, 0x250), (0x370, 0x500), (0x5D0, 0x5EA), (0x4E00, 0x4F00), (0x1F300, 0x1F5FF)]
    return ["".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randint(1, 40))) for _ in range(number)]


@pytest.fixture(scope="session")
def browser_kernels(tmp_path_factory) -> Path:
    """The kernels, compiled for browsers from the sources as they are."""
    if not hatch_build.can_compile_for_browsers():
        pytest.skip("no clang with the C++ library for wasm32")
    library = tmp_path_factory.mktemp("web") / "kernels.wasm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEB_CXXFLAGS", "-O1")  # which takes half the time
        hatch_build.compile_for_browsers(library)
    assert library.exists()
    return library


def questions(page: Any, id: str, texts: list[str]) -> list[tuple[str, dict[str, Any], Any]]:
    """Requests about some texts, and what the server answers: suggestions, reasons, documents."""
    asked = []

    def ask(name: str, **body: Any) -> Any:
        answer = page.post(name, model=id, **body)
        asked.append((name, body, answer))
        return answer

    for text in texts:
        words = ask("suggest", text=text, rest="", ending=None, page="test", number=len(asked))["words"]
        for word in words[:3]:
            ask("why", text=text, ending=None, word=word["word"])
            ask("documents", text=text, ending=None, word=word["word"])
        if text.strip():
            ask("read", text=text[: len(text) // 2], rest=text[len(text) // 2 :])
    return asked


def require_same(expected: Any, answer: Any, path: str = "", scale: float = 1.0) -> None:
    """Two answers are the same, numbers up to rounding."""
    if isinstance(expected, float) and isinstance(answer, int | float):
        assert math.isclose(expected, answer, rel_tol=0, abs_tol=ROUNDING * scale), path
    elif isinstance(expected, dict):
        assert expected.keys() == answer.keys(), path
        bits = [abs(row["bits"]) for row in expected.get("rows", [])]
        for key, value in expected.items():
            own = 1.0 if key == "p" else 1100.0 if key == "spans" else max([scale, *bits])  # spans have three digits
            require_same(value, answer[key], f"{path}.{key}", max(own, abs(value)) if key == "bits" else own)
    elif isinstance(expected, list):
        assert len(expected) == len(answer), path
        for place, (one, other) in enumerate(zip(expected, answer, strict=True)):
            require_same(one, other, f"{path}[{place}]", scale)
    else:
        assert expected == answer, path
