"""The code of docs/scale.md runs: with Ray Data (in faults.py), and as a plain function for other engines."""

import re
from pathlib import Path

import pytest

from conftest import sentences

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_a_plain_function_scores_batches_and_frames(tmp_path, fitted, monkeypatch):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    monkeypatch.chdir(tmp_path)
    lm = fitted("toy")
    lm.save("model")
    names: dict = {}
    exec(next(block for block in BLOCKS if "def scored" in block), names)
    texts = sentences(4, 20)
    expected = [score.bits_per_byte for score in lm.score_lines(texts)]
    assert names["scored"]({"text": texts}) == {"text": texts, "bits_per_byte": expected}
    frames = [pandas.DataFrame({"text": texts[:7]}), pandas.DataFrame({"text": texts[7:]})]
    found = pandas.concat(names["scored_frames"](iter(frames)))
    assert found["text"].tolist() == texts and found["bits_per_byte"].tolist() == expected
