"""The recipes of docs/recipes.md, and those for pipelines in docs/ecosystem.md, run and give what the pages say."""

import gzip
import json
import math
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import saffu
from conftest import each, sentences
from saffu.calibrated.kneser_ney import KneserNey

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "recipes.md").read_text("utf-8")
PIPELINES = (DOCS / "ecosystem.md").read_text("utf-8").split("## Pipelines")[1]
COMMANDS = re.findall(r"^\$ (.+)$", PAGE, re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(PAGE)
SMALL = " --order 4 --slots 2 --word-classes 10 --hold-out 0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Texts, and all that the commands of the page write."""
    folder = tmp_path_factory.mktemp("using")
    noise = [" ".join(reversed(line.split())) for line in sentences(9, 300)]
    texts = {"text": sentences(1, 600), "good": sentences(2, 400), "average": noise, "stories": sentences(3, 300)}
    texts |= {"talk": noise, "unknown": sentences(4, 50), "crawl": [*sentences(5, 60), *noise[:60]]}
    texts |= {"mine": sentences(6, 30), "letter": sentences(7, 5), "unseen": sentences(8, 60)}
    for name, lines in texts.items():
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    records = "".join(json.dumps({"url": n, "text": line}) + "\n" for n, line in enumerate(texts["crawl"]))
    (folder / "crawl.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    items = [f"{n}\t{'ab'[n % 2]}\t{line}" for n, line in enumerate(sentences(3, 4))]
    (folder / "items.tsv").write_text("\n".join(["item\tcondition\tsentence", *items]) + "\n")
    (folder / "code").mkdir()
    (folder / "code" / "names.py").write_text("for name in self.names:\n    print(name)\n" * 200)
    for name, lines in {
        "yesterday": sentences(1, 300),
        "today": [*sentences(8, 30), "kernel panic: not syncing"],
    }.items():
        (folder / f"{name}.log").write_text("\n".join(lines) + "\n")
    for command in COMMANDS:
        line = re.sub(r"(^|\| )saffu ", rf"\1{shlex.quote(sys.executable)} -m saffu ", command)
        own = {"--encoder": " --hold-out 0", "saffu train": SMALL}
        line += next((more for option, more in own.items() if option in line), "")
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], cwd=folder, capture_output=True, text=True)
        said = [
            line for line in done.stderr.splitlines() if not re.search("note:|in more than one of the models", line)
        ]
        assert done.returncode == 0 and not said, command
    return folder


@pytest.mark.slow
def test_commands(folder):
    texts = {path.stem: path.read_text().splitlines() for path in folder.glob("*.txt")}
    clean = [json.loads(line) for line in (folder / "clean.jsonl").read_text().splitlines()]
    assert {record["url"] for record in clean} >= set(range(50)) and all(row["bits_per_byte"] < 2.5 for row in clean)
    assert sum(line in texts["crawl"][:60] for line in texts["clean"]) > 40 and len(texts["clean"]) < 70
    ratios = [json.loads(line)["log_ratio_per_byte"] for line in (folder / "ratios.jsonl").read_text().splitlines()]
    assert len(ratios) == 50 and np.mean(ratios) > 1
    assert (folder / "unusual.txt").read_text().splitlines() == ["kernel panic: not syncing"]
    header, *rows = [line.split("\t") for line in (folder / "surprisals.tsv").read_text().splitlines()]
    assert header == ["id", "position", "word", "tokens", "bits", "punctuation"]
    assert [row[2] for row in rows if row[0] == "7" and row[2] != "<eod>"] == texts["stories"][6].split()
    command = [
        sys.executable,
        "-m",
        "saffu",
        "eval",
        "model",
        "stories.txt",
        "--split",
        "line",
        "--no-memory",
        "--json",
    ]
    evaluated = json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)
    assert sum(float(row[4]) for row in rows) == pytest.approx(evaluated["nll"] / math.log(2), rel=1e-5)
    header, *rows = [line.split("\t") for line in (folder / "items-surprisals.tsv").read_text().splitlines()]
    assert header[:3] == ["id", "item", "condition"] and {tuple(row[1:3]) for row in rows} == {
        ("0", "a"), ("1", "b"), ("2", "a"), ("3", "b")
    }  # fmt: skip


@pytest.mark.slow
@each("block", BLOCKS)
def test_python(folder, monkeypatch, block):
    for name in ("pandas", "kenlm", "sklearn"):
        if re.search(rf"(import|from) {name}\b", block):
            pytest.importorskip(name, reason=f"pip install {name}")
    monkeypatch.chdir(folder)
    names = {"texts": sentences(1, 200)}
    exec(block, names)
    lm = saffu.load("model")
    if "clean" in names:
        assert 50 < len(names["clean"]) < 100 and names["clean"].text.iloc[0] in sentences(5, 60)
    if "reading" in names:
        assert names["words"].bits.sum() == pytest.approx(lm.score_lines(["the old king saw the house ."])[0].bits)
        assert list(names["reading"].word) == ["the", "old", "king", "saw", "the", "house", "."]
    if "best" in names:
        assert names["nbest"][names["best"]][0] == "the old king saw the sea ."
    if "following" in names:
        assert names["following"] == "<eod>"
        (row,) = lm.score_lines(["the old king saw the sea ."], memory=True)
        assert -names["total"] / math.log(2) == pytest.approx(row.bits)
    if "log10" in names:
        counted = KneserNey(lm.references_, 4).log_probabilities(lm.tokenize(["the old king saw the sea ."]))
        assert names["log10"] == pytest.approx(counted.sum() / math.log(10), abs=1e-4)
    if "accepted" in names:
        assert 0.5 < names["accepted"] <= 1
    if "more" in names:
        assert names["more"] > 0.5
    if "personal" in names:
        words = names["personal"].complete_word("the que")
        assert next(iter(words)) == "queen" and words["queen"] > 0.5
    if "search" in names:
        assert names["lm"].config.order in (3, 5) and names["lm"].trained_on_["documents"] == 200
    if "complete_word" in block:
        words = lm.complete_word("the old ki")
        assert next(iter(words)) == "king" and words["king"] > 0.9
        assert set(lm.complete_word("the old ", number=3)) <= {"dog", "cat", "girl", "king"}


class ProcessingStage:
    """Stands for NeMo Curator's class of this name, of which the recipe uses only that it can be subscripted."""

    def __class_getitem__(cls, tasks):
        return cls


class Batch(types.SimpleNamespace):
    """Stands for NeMo Curator's DocumentBatch."""

    def to_pandas(self):
        return self.data


def test_pipelines(monkeypatch, tmp_path):
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    classes = {
        "datatrove.pipeline.filters.base_filter": types.SimpleNamespace(BaseFilter=object),
        "nemo_curator.stages.base": types.SimpleNamespace(ProcessingStage=ProcessingStage),
        "nemo_curator.tasks": types.SimpleNamespace(DocumentBatch=Batch),
    }
    for name, module in classes.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    saffu.SaffuLM(saffu.CalibratedConfig(order=4, slots=2, word_classes=10)).fit(sentences(1, 600)).save("good")
    texts = [*sentences(5, 6), "zxq vvk 88f plk mnb qqj", "4f 8e 1c 9d 0a 77", ""]
    expected = [score.bits_per_byte for score in saffu.load("good").score_lines(texts)]
    names = {}
    common, frames, *stages = BLOCK.findall(PIPELINES)
    for block in (common, *stages):
        exec(block, names)
    frame = pandas.DataFrame({"url": range(9), "text": texts}, index=range(10, 19))
    names |= {"frame": frame}
    exec(next(line for line in frames.splitlines() if "# pandas" in line), names)
    assert np.array_equal(names["frame"].bits_per_byte, expected, equal_nan=True)
    assert names["columns"]({"text": texts[:2]}) == {"bits_per_byte": expected[:2]}
    documents = [types.SimpleNamespace(text=text, metadata={}) for text in texts]
    step = names["SaffuFilter"]()
    assert step.filter_batch(documents) == [True] * 6 + [False] * 3 and step.filter(documents[0])
    assert documents[7].metadata == {"bits_per_byte": expected[7]}
    kept = names["SaffuStage"]().process(Batch(data=frame)).data
    assert kept.url.tolist() == list(range(6)) and kept.bits_per_byte.tolist() == expected[:6]
