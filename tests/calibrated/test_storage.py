"""Fitting within a limit on memory: the same model, from files that are never seen."""

from __future__ import annotations

import errno
import io
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from calibrated_data import SMALL, random_corpus, random_encoder
from conftest import corpus_of, part, sentences
from saffu.calibrated import storage
from saffu.calibrated.config import CalibratedConfig
from saffu.calibrated.fit import fit
from saffu.calibrated.kneser_ney import Draft
from saffu.calibrated.model import CalibratedModel
from saffu.calibrated.ngrams import NgramCounts
from saffu.calibrated.storage import Limit, memory_limit
from saffu.calibrated.views import CalibratedSums
from saffu.errors import SaffuError
from saffu.text.tokenizer import EOD

LARGE = 1 << 40
CONFIG = CalibratedConfig(order=4, slots=5, word_classes=8, output_classes=5, cache=20)


@pytest.fixture(scope="module")
def corpus():
    lines = [line.split() for line in sentences(1, 400)]
    known = {word: n for n, word in enumerate(sorted({word for line in lines for word in line}), EOD + 1)}
    return corpus_of([[known[word] for word in line] for line in lines])


@pytest.fixture
def little_memory(monkeypatch):
    """Every array goes to a file, and only about as much may be allocated as the largest bucket takes."""
    parts: list[int] = []

    def plan(*arguments, **more):
        cuts, workers = usual(*arguments, **more)
        parts.append(len(cuts) - 1)
        return cuts, workers

    usual = storage.plan
    monkeypatch.setattr(storage, "SMALL", 0)
    monkeypatch.setattr(storage, "plan", plan)
    monkeypatch.setattr(Limit, "left", lambda self: 40_000)
    return parts


def bytes_of(model: CalibratedModel) -> dict[str, bytes]:
    arrays = {**model.arrays(), **{f"sums.{name}": array for name, array in model.sums.arrays().items()}}
    return {name: array.dtype.str.encode() + array.tobytes() for name, array in arrays.items()}


def test_a_bounded_fit_gives_the_same_model(corpus, little_memory, tmp_path):
    vocabulary = int(corpus.ids.max()) + 1
    (plain,) = fit(corpus, vocabulary, CONFIG)
    usual_parts = max(little_memory)
    with memory_limit(LARGE, tmp_path):
        (bounded,) = fit(corpus, vocabulary, CONFIG)
        found = bytes_of(bounded.model)
        assert bounded.model.log_probabilities(corpus).tolist() == plain.model.log_probabilities(corpus).tolist()
        assert list(tmp_path.iterdir()) == []
    assert found == bytes_of(plain.model)
    assert max(little_memory) > usual_parts
    assert bounded.model.tables[0].levels[0]["follow"].base is not None  # but memory that is mapped


def test_bounded_sums_add_and_subtract(little_memory, tmp_path):
    first, second = (random_corpus(seed, documents=60) for seed in (1, 2))
    encoder = random_encoder(SMALL, 3)

    def changed() -> list[dict[str, bytes]]:
        one, two = (CalibratedSums.count(c, SMALL, len(encoder.output_classes)) for c in (first, second))
        return [bytes_of(CalibratedModel.from_sums(SMALL, encoder, sums)) for sums in (one + two, one + two - one, two)]

    plain = changed()
    with memory_limit(LARGE, tmp_path):
        bounded = changed()
    assert bounded == plain
    assert bounded[1] == bounded[2]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SaffuError])
def test_nothing_is_left_after_an_error(corpus, little_memory, tmp_path, monkeypatch, error):
    def fail(*_):
        raise error("stop")

    monkeypatch.setattr(Draft, "table", fail)
    with pytest.raises(error), memory_limit(LARGE, tmp_path):
        list(fit(corpus, int(corpus.ids.max()) + 1, CONFIG))
    assert list(tmp_path.iterdir()) == []
    assert storage.empty(1 << 20, np.uint8).base is None  # there is no limit any more


class FullDisk(io.BytesIO):
    def write(self, *_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_line(little_memory, tmp_path, monkeypatch, saffu):
    """An error when room is reserved, instead of a crash when a mapped page is written."""
    (tmp_path / "text.txt").write_text("\n".join(sentences(1, 60)))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FullDisk())
    line = f"train {tmp_path / 'text.txt'} --split line --quiet --order 3 --out {tmp_path / 'm'} --memory-limit 1G"
    ended = saffu(line.split())
    assert ended.status == 2 and ended.err.count("\n") == 1 and os.strerror(errno.ENOSPC) in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_the_smallest_limit_that_works_is_named(corpus, monkeypatch, tmp_path):
    """A limit that leaves nothing to allocate, and then the one that the error names."""
    used, vocabulary = 100 * 10**6, int(corpus.ids.max()) + 1
    monkeypatch.setattr(storage, "allocated", lambda: used)
    with pytest.raises(SaffuError, match="too small"), memory_limit(used):
        pass
    with pytest.raises(SaffuError) as caught, memory_limit(int(used / storage.PLANNED), tmp_path):
        NgramCounts.count(corpus, 4, vocabulary)
    size = re.search(r"use (\d+)M or more", str(caught.value))
    assert size is not None
    with memory_limit(int(size[1]) * 10**6, tmp_path):
        assert NgramCounts.count(corpus, 4, vocabulary).distinct > 100


def test_files_do_not_count_as_allocated(tmp_path):
    with memory_limit(LARGE, tmp_path):
        before = storage.allocated()
        array = storage.empty(1 << 26, np.uint8)
        array[:] = 7
        assert array.min() == array.max() == 7
        assert storage.allocated() < before + (1 << 24)


def test_the_command_line(tmp_path, saffu):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(1, 60)))
    options = f"train {text} --split line --hold-out 0 --quiet --order 3 --slots 3 --word-classes 8".split()
    assert saffu([*options, "--out", str(tmp_path / "plain")]).status == 0
    assert saffu([*options, "--out", str(tmp_path / "bounded"), "--memory-limit", "2G"]).status == 0
    for name in ("model.safetensors", "sums.safetensors", "references.safetensors", "tokenizer.json"):
        assert part(tmp_path / "bounded", name).name == part(tmp_path / "plain", name).name
    for name, limit in (("one", []), ("two", ["--memory-limit", "2G"])):
        merged = [str(tmp_path / "plain"), str(tmp_path / "bounded"), "--out", str(tmp_path / name), "--quiet"]
        assert saffu(["merge", *merged, *limit]).status == 0
    for name in ("model.safetensors", "sums.safetensors"):
        assert part(tmp_path / "one", name).name == part(tmp_path / "two", name).name
    refused = saffu([*options, "--out", str(tmp_path / "none"), "--memory-limit", "1M"])
    assert refused.status == 2
    assert re.search(r"^saffu: --memory-limit is too small for this text; use \d+M or more$", refused.err)
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["bounded", "one", "plain", "text.txt", "two"]
