"""Counts and tables from many small tasks are those of one process, byte for byte."""

import json

import numpy as np
import pytest

from cluster_tasks import InProcess
from conftest import each, sentences
from saffu import CalibratedConfig
from saffu.calibrated import fit as fitting
from saffu.calibrated import model as modeling
from saffu.calibrated import views
from saffu.calibrated.fit import fit
from saffu.calibrated.views import View
from saffu.cluster import corpus as reading
from saffu.cluster import train
from saffu.cluster.train import OnCluster
from saffu.text.selection import Reading, TextSelection, TrainingText
from saffu.text.tokenizer import TokenizerConfig

USUAL = CalibratedConfig(order=4, slots=6, word_classes=20, output_classes=8, cache=100)
CONFIGS = {
    "usual": {},
    "long n-grams": {"order": 7, "slots": 3},
    "bigrams": {"order": 2, "slots": 2},
    "no slots": {"slots": 0},
    "no classes": {"word_classes": 0},
    "pruned": {"prune": 1, "order": 5},
    "no cache": {"cache": 0},
}


def stage_on_cluster(folder, texts, split, config, rows):
    """What tasks of at most that many rows give; and the corpus."""
    choice = TextSelection((str(texts),), (), 0, None, Reading(split))
    cluster = InProcess(folder)
    with TrainingText(choice) as text:
        tokenizer, corpus, _ = OnCluster(cluster).tokenize(text, TokenizerConfig(bpe_kept_words=30))
    (folder / "rows.json").write_text(json.dumps(rows))
    (stage,) = train.stages(cluster, corpus, len(tokenizer), config)
    return stage, corpus, len(tokenizer), cluster


def assert_same(stage, expected):
    assert (stage.name, stage.facts) == (expected.name, expected.facts)
    assert stage.model.size == expected.model.size
    for arrays, others in (
        (stage.model.arrays(), expected.model.arrays()),
        (stage.model.sums.arrays(), expected.model.sums.arrays()),
    ):
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            assert array.dtype == others[name].dtype and np.array_equal(array, others[name]), name


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number, size in enumerate((300, 5, 500)):
        (folder / f"{number}.txt").write_text("\n".join(sentences(number, size)) + "\n")
    return folder


@each("name", CONFIGS)
def test_tasks_give_the_same_model(texts, tmp_path, name, monkeypatch):
    monkeypatch.setattr(reading, "SHARD", 5000)
    config = CalibratedConfig(**USUAL.to_dict() | CONFIGS[name])
    stage, corpus, vocabulary, cluster = stage_on_cluster(tmp_path / name, texts, "file", config, 1500)
    (expected,) = fit(corpus, vocabulary, config)
    assert_same(stage, expected)
    assert cluster.ran.count("counts") == -(-corpus.targets // 1500) > 4
    assert cluster.ran.count("merged") > 1


@each("view", [View("skip", (2, 3)), View("far", (9,)), View("classes apart", (1, 3), 4), View("near", (1, 2))])
def test_a_view_that_was_added_works_with_and_without_a_cluster(texts, tmp_path, monkeypatch, view):
    """One line in `views_of`, here a patch, is all."""
    usual = views.views_of
    for module in (views, fitting, train, modeling):
        monkeypatch.setattr(module, "views_of", lambda config: [*usual(config), view])
    stage, corpus, vocabulary, _ = stage_on_cluster(tmp_path / view.name, texts, "file", USUAL, 1500)
    (expected,) = fit(corpus, vocabulary, USUAL)
    assert_same(stage, expected)
    assert expected.model.views[-1] == view and view.name in stage.facts["exponents"]
    terms = expected.model.explain([5, 6, 7]).terms
    assert view.name in [term.name for term in terms]


@each("split", ["line", "paragraph"])
@each("rows", [10**9, 3000])
def test_documents_may_be_short(texts, tmp_path, split, rows):
    stage, corpus, vocabulary, _ = stage_on_cluster(tmp_path / "work", texts, split, USUAL, rows)
    (expected,) = fit(corpus, vocabulary, USUAL)
    assert_same(stage, expected)


@pytest.mark.parametrize("text", ["a", "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3])
def test_very_little_text(tmp_path, text):
    (tmp_path / "text.txt").write_text(text)
    stage, corpus, vocabulary, _ = stage_on_cluster(tmp_path / "work", tmp_path / "text.txt", "file", USUAL, 10)
    (expected,) = fit(corpus, vocabulary, USUAL)
    assert_same(stage, expected)
    assert stage.facts["warnings"]


def test_an_encoder_is_kept(texts, tmp_path):
    stage, _, vocabulary, _ = stage_on_cluster(tmp_path / "work", texts, "line", USUAL, 3000)
    model = stage.model
    again = InProcess(tmp_path / "again")
    choice = TextSelection((str(texts / "0.txt"),), (), 0, None, Reading("line"))
    with TrainingText(choice) as text:
        _, corpus, _ = OnCluster(again).tokenize(text, TokenizerConfig(bpe_kept_words=30))
    part = corpus.slice(0, corpus.documents)
    (recounted,) = train.stages(again, part, vocabulary, USUAL, encoder=model.encoder)
    expected = model.solved(model.count(part))
    assert recounted.name == "recount"
    for name, array in expected.arrays().items():
        assert np.array_equal(recounted.model.arrays()[name], array), name
