"""What the pages say that commands print is what they print."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

import saffu
from lab.transcripts import FACTS, TRANSCRIPTS, fingerprint, printed, same

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_every_transcript_is_on_a_page():
    docs = RESULTS.parent
    pages = "".join(page.read_text("utf-8") for page in [docs.parent / "README.md", *docs.glob("*.md")])
    assert [name for name in TRANSCRIPTS if f"<!--file {name}-->" not in pages] == []


@pytest.mark.slow
def test_commands_print_what_the_pages_say(tmp_path):
    if json.loads((RESULTS / FACTS).read_text("utf-8"))["text"] != fingerprint():
        pytest.skip("the transcripts are of another version of Python, which comes with another text")
    for name, text in printed(tmp_path).items():
        assert same(text, (RESULTS / name).read_text("utf-8")), f"{text}\nrun `python -m lab pages --demo`"
    pytest.importorskip("transformers", reason="pip install transformers")
    page = (RESULTS.parent / "ecosystem.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(from transformers .*?|import torch\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", "".join(blocks)], cwd=tmp_path, capture_output=True, text=True)
    shown = re.findall(r"^(?:print\(.*\)  )?# (.+)$", "".join(blocks), re.MULTILINE)
    assert len(blocks) == 2 and len(shown) == 4, "the page has other examples now"
    assert same(done.stdout, "\n".join(shown)), f"{done.stdout}{done.stderr}"
    assert harness_bits_per_byte(page, tmp_path / "demo-model") == pytest.approx(
        float(re.search(r"\|bits_per_byte\|↓  \|(\S+)\|", page)[1]), rel=0.02
    )


def harness_bits_per_byte(page: str, model: Path) -> float:
    """What lm_eval reports of the texts on the page: it does not score the end of the last line."""
    lm = saffu.load(model)
    texts = [json.loads(line)["text"] for line in re.findall(r'^{"text": .*}$', page, re.MULTILINE)]
    nats = -sum(lm.model_.log_probabilities(lm.tokenize([text]))[:-1].sum() for text in texts)
    return nats / math.log(2) / sum(len(text.encode()) for text in texts)
