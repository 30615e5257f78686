"""Text that is read in shards is the text that is read in one go: lines, what is held out, tokenizer, ids."""

import gzip
import json
import random

import numpy as np
import pytest

from cluster_tasks import InProcess
from conftest import each, sentences
from saffu.cluster import corpus
from saffu.cluster.train import OnCluster
from saffu.errors import SaffuError
from saffu.text.selection import Reading, TextSelection, TrainingText
from saffu.text.sources import Source
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

CONFIG = TokenizerConfig()


@pytest.fixture
def files(tmp_path):
    """Files of several formats and lengths, so that the first stretches that are held out lie in different ones."""
    rng = random.Random(5)
    for number, size in enumerate((3, 40, 0, 900, 1, 2500)):
        lines = ["" if rng.random() < 0.1 else line for line in sentences(number, size)]
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    (tmp_path / "6.txt.gz").write_bytes(gzip.compress("\n".join(sentences(6, 700)).encode()))
    records = [json.dumps({"text": "\n".join(sentences(n, 3))}) for n in range(30)]
    (tmp_path / "7.jsonl").write_text("\n".join(records) + "\n")
    return tmp_path


def both(files, folder, **changes):
    """The text as one process reads it, and as a cluster does; with their tokenizers."""
    reading = Reading(changes.pop("split", "file"), skip_bad_files=changes.pop("skip_bad_files", False))
    choice = TextSelection(
        (str(files),), changes.pop("dev", ()), changes.pop("hold_out", 20), changes.pop("max_tokens", None), reading
    )
    with TrainingText(choice) as text:
        text.leave_out_bad_files()
        learned = Tokenizer.train((line for _, line in text.training_lines()), CONFIG)
        alone = text.tokenized(learned)
    with TrainingText(choice) as text:
        tokenizer, *on_cluster = OnCluster(InProcess(folder)).tokenize(text, CONFIG)
    assert tokenizer.to_json() == learned.to_json()
    return alone, on_cluster


def assert_equal(alone, on_cluster):
    for one, other in zip(alone, on_cluster, strict=True):
        for name in ("ids", "starts", "sizes"):
            here, there = getattr(one, name), getattr(other, name)
            assert here.dtype == there.dtype and np.array_equal(here, there), name


@each("split", ["file", "paragraph", "line"])
@each("hold_out", [0, 2, 20])
def test_shards_give_the_same_corpus(files, tmp_path, split, hold_out, monkeypatch):
    monkeypatch.setattr(corpus, "SHARD", 20_000)
    place = tmp_path / f"{split} {hold_out}"
    alone, found = both(files, place, split=split, hold_out=hold_out)
    assert_equal(alone, found)
    assert len(list((place / "tokens").glob("*.json"))) > 3


@each("max_tokens", [1, 10, 5000, 10**9])
def test_the_first_tokens_are_the_same(files, tmp_path, max_tokens, monkeypatch):
    monkeypatch.setattr(corpus, "SHARD", 10_000)
    alone, found = both(files, tmp_path / str(max_tokens), split="line", max_tokens=max_tokens)
    assert_equal(alone, found)


def test_bad_files_are_named_or_skipped(files, tmp_path, caplog):
    whole = (files / "6.txt.gz").read_bytes()
    (files / "2.txt.gz").write_bytes(whole[: len(whole) // 2])
    (files / "4.txt").write_bytes(b"a line\n" + b"caf\xe9\n")
    with pytest.raises(SaffuError, match=r"2\.txt\.gz is corrupt"):
        both(files, tmp_path / "one")
    with pytest.raises(SaffuError, match=r"2\.txt\.gz is corrupt"):
        shards = [corpus.Shard((Source(files / "2.txt.gz", "2.txt.gz"),), {})]
        corpus.surveyed(InProcess(tmp_path / "two"), shards, skip_bad=False)
    alone, found = both(files, tmp_path / "three", skip_bad_files=True)
    assert_equal(alone, found)
    lines = caplog.messages
    assert sum("2.txt.gz is corrupt" in line for line in lines) == 2  # once by each way
    assert sum("4.txt is not UTF-8 at line 2" in line for line in lines) == 2
    assert lines.count("skipped 2 bad files") == 2
