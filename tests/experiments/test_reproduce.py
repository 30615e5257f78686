"""The paper's experiments on a few sentences: the protocol, and that finished work is not repeated."""

import json

import pytest

from conftest import sentences
from saffu.errors import SaffuError
from saffu.experiments import reproduce
from saffu.experiments.grid import grid
from saffu.experiments.reproduce import Protocol, figure, logs, model_settings, tables, tokenized, training_settings
from saffu.model.language_model import SaffuLM
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines


@pytest.fixture
def protocol(tmp_path, monkeypatch):
    for name, number in (("train", 150), ("dev", 30), ("test", 31)):
        (tmp_path / name).mkdir()
        for seed, part in enumerate(["childes", "switchboard"]):
            text = "\n".join(sentences(10 * number + seed, number)) + "\n"
            (tmp_path / name / f"{part}.{name}").write_text(text)
    monkeypatch.setattr(reproduce, "BLOCK", 4)
    monkeypatch.setattr(reproduce, "RADII", (2, 3))
    monkeypatch.setattr(reproduce, "TUNINGS", 2)
    monkeypatch.setattr(reproduce, "DOCUMENT_SHARDS", 3)
    splits = {name: sorted((tmp_path / name).iterdir()) for name in ("train", "dev", "test")}
    return Protocol(**splits, out=tmp_path / "paper", learning_rate=0.01, max_folds=1)


def test_logs(protocol):
    lines = []
    run = logs(protocol, lines.append)
    stages = [row["stage"] for row in run["log"]]
    assert stages == ["init", "tune 1", "tune 2", "explicit start", "train 1"]
    shown = [line for line in lines if line.startswith("tune 2")]
    assert len(shown) == 1 and f"{run['log'][2]['dev_perplexity']:.2f}" in shown[0]
    lm = SaffuLM.load(run["folder"])
    assert lm.config.document_shards == 3
    corpora = tokenized(protocol)
    assert run["test_perplexity"] == pytest.approx(lm.perplexity(corpora.test))
    assert run["test_perplexity"] != pytest.approx(lm.perplexity(corpora.dev))
    facts = json.loads((protocol.out / "explicit-2.json").read_text())
    assert facts["test_targets"] == corpora.test.targets
    assert facts["full_vocabulary"] == corpora.full_vocabulary >= facts["vocabulary"] == len(lm.tokenizer_)
    assert any(line.startswith(f"vocabulary {corpora.full_vocabulary:,}, reduced to ") for line in lines)


def test_documents_are_shuffled_once(protocol):
    corpora = tokenized(protocol)
    again = tokenized(protocol)
    assert corpora.train.fingerprint() == again.train.fingerprint()
    in_order = TokenCorpus.build(read_lines(protocol.train, "line"), corpora.tokenizer)
    assert corpora.train.targets == in_order.targets
    assert corpora.train.fingerprint() != in_order.fingerprint()
    limited = Protocol(**{**vars(protocol), "max_tokens": 100})
    some = tokenized(limited)
    assert some.train.fingerprint() == corpora.train.head(100).fingerprint()
    assert some.text_tokens == corpora.train.targets


def test_nothing_is_left_if_the_process_is_killed(protocol, tmp_path, monkeypatch):
    """Token ids are in files without names."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    corpora = tokenized(protocol)
    assert corpora.train.targets > 0 and list((tmp_path / "scratch").iterdir()) == []


def test_a_finished_run_is_not_repeated(protocol, monkeypatch):
    first = logs(protocol, lambda _: None)
    monkeypatch.setattr(SaffuLM, "fit", None)
    again = logs(protocol, lambda _: None)
    assert again["log"] == first["log"]
    assert again["test_perplexity"] == pytest.approx(first["test_perplexity"])
    with pytest.raises(SaffuError, match="trained with other settings"):
        logs(Protocol(**{**vars(protocol), "learning_rate": 0.1}), lambda _: None)


def test_no_fold_is_counted_twice(protocol, monkeypatch):
    monkeypatch.setattr(reproduce, "TUNINGS", 10)
    corpora = tokenized(protocol)
    config = model_settings(protocol, corpora.train, "explicit", 2)
    assert config.tune_folds == 10
    assert len(corpora.train.folds(config.fold_tokens)) == 11
    assert model_settings(protocol, corpora.train, "random", 2).tune_folds == 0
    monkeypatch.setattr(reproduce, "TUNINGS", 10**6)
    config = model_settings(protocol, corpora.train, "explicit", 2)
    assert config.tune_folds == len(corpora.train.folds(config.fold_tokens)) - 1


def test_training_is_the_papers(protocol):
    paper = training_settings(Protocol(**{**vars(protocol), "learning_rate": None, "max_folds": None}), "explicit")
    assert (paper.learning_rate, paper.dropout, paper.max_grad_norm, paper.patience, paper.max_folds) == (
        5e-6,
        0,
        0,
        8,
        0,
    )
    assert training_settings(protocol, "random").trains_embeddings
    assert not training_settings(protocol, "cipher").trains_embeddings


def test_100m_models_are_initialized_on_a_tenth_and_not_tuned(protocol):
    run = logs(Protocol(**{**vars(protocol), "size": "100M"}), lambda _: None)
    assert [row["stage"] for row in run["log"]] == ["init", "explicit start", "train 1"]
    corpora = tokenized(protocol)
    assert run["log"][0]["tokens"] < 0.11 * corpora.train.targets


def test_figure(protocol):
    lines = []
    facts = figure(protocol, lines.append)
    names = [f"{start}-{radius}" for radius in (2, 3) for start in ("explicit", "random", "cipher")]
    assert [row["run"] for row in facts["runs"]] == list(facts["test_perplexity"]) == names
    assert facts["runs"][0]["start_dev_perplexity"] < facts["runs"][1]["start_dev_perplexity"]
    assert (protocol.out / "figure.svg").exists() and (protocol.out / "figure.png").exists()


def test_tables_use_the_first_tenth(protocol, monkeypatch):
    cells = grid([2, 4], [2], document_shards=0, settings={"hidden_dimension": [32]})
    monkeypatch.setattr(reproduce, "grid", lambda: cells)
    lines = []
    facts = tables(protocol, lines.append)
    corpora = tokenized(protocol)
    assert facts["tokens"] == corpora.train.head(corpora.train.targets // 10).targets
    assert facts["cells"] == 8
    assert (protocol.out / "grid" / "report" / "index.html").exists()
    assert any("rank correlation with the paper's tables" in line for line in lines)
