import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import saffu
from conftest import SMALL, sentences
from saffu import SaffuConfig, SaffuError, SaffuLM, Tokenizer
from saffu.corpus import TokenCorpus
from saffu.evaluate import evaluate, evaluate_references
from saffu.ngram import KneserNey, context_windows
from saffu.text import read_documents
from saffu.tokenizer import EOD


def test_learns_what_a_unigram_cannot(small_lm, dev_text):
    references = small_lm.reference_scores(dev_text)
    assert small_lm.perplexity(dev_text) < 0.6 * references["unigram"].perplexity
    assert references["trigram"].perplexity < references["bigram"].perplexity < references["unigram"].perplexity


def test_score_is_the_sum_over_single_targets(small_lm, dev_text):
    score = small_lm.score(dev_text[:5])
    corpus = small_lm.tokenize(dev_text[:5])
    nll = 0.0
    for targets in corpus.batches(1, small_lm.network_.lookback):
        logits = small_lm.network_(targets).detach().double()[0]
        nll -= float(logits[targets.ids[0]] - torch.logsumexp(logits, 0))
    assert score.nll == pytest.approx(nll, rel=1e-5)
    assert score.targets == corpus.targets == sum(len(small_lm.tokenizer_.encode(d)) + 1 for d in dev_text[:5])
    assert score.bytes == sum(len(d.encode()) + 1 for d in dev_text[:5])
    assert score.perplexity == pytest.approx(math.exp(nll / corpus.targets), rel=1e-5)
    assert score.bits_per_byte == pytest.approx(nll / math.log(2) / score.bytes, rel=1e-5)


def test_references_are_kneser_ney_on_the_same_targets(small_lm, dev_text):
    corpus = small_lm.tokenize(dev_text)
    scores = evaluate_references(small_lm.references_, corpus)
    ids, starts = corpus.ids, corpus.starts
    contexts = context_windows(ids, starts, 0, corpus.targets, 2)
    for name, order in {"unigram": 1, "bigram": 2, "trigram": 3}.items():
        expected = -KneserNey(small_lm.references_, order).log_probabilities(contexts, ids).sum().item()
        assert scores[name].nll == pytest.approx(expected)
        assert scores[name].targets == corpus.targets


def test_counts_and_facts(small_lm, train_text):
    corpus = small_lm.tokenize(train_text)
    assert small_lm.trained_on_ == {"documents": 600, "tokens": corpus.targets, "bytes": corpus.bytes}
    assert int(small_lm.frequencies_.sum()) == corpus.targets
    assert small_lm.frequencies_[EOD] == 600
    assert small_lm.counts_["final"].mean_norm == pytest.approx(2)  # two units, each a distribution
    assert [row["stage"] for row in small_lm.log_] == ["init"]
    assert small_lm.log_[0]["dev_perplexity"] > 1


def test_fit_accepts_any_iterable_and_is_deterministic(train_text, small_lm):
    again = SaffuLM(SMALL).fit(text for text in train_text)
    for name, weight in small_lm.network_.state_dict().items():
        assert torch.equal(weight, again.network_.state_dict()[name]), name


def test_tuning_gives_a_row_a_stage(train_text, dev_text):
    lm = SaffuLM(replace(SMALL, tune=3)).fit(train_text, dev_text)
    assert [row["stage"] for row in lm.log_] == ["init", "tune 1", "tune 2", "tune 3"]
    assert all(math.isfinite(row["dev_perplexity"]) for row in lm.log_)


@pytest.mark.parametrize(
    "change",
    [
        {"block": 0},
        {"radius": 0},
        {"hidden_dimension": 0},
        {"documents": 5},
        {"block_mode": "cat", "radius_mode": "sum"},
        {"attention": "uniform"},
        {"block": 2, "radius": 2},
        {"count_by": "tokens", "kept_words": 0},
    ],
    ids=str,
)
def test_every_shape_fits_evaluates_writes_and_travels(change, train_text, dev_text, tmp_path):
    lm = SaffuLM(replace(SMALL, **change)).fit(train_text[:200])
    lm.save(tmp_path / "model")
    loaded = saffu.load(tmp_path / "model")
    assert loaded.config == lm.config
    assert loaded.perplexity(dev_text[:20]) == lm.perplexity(dev_text[:20]) < len(lm.tokenizer_)
    assert loaded.generate("the", seed=3) == lm.generate("the", seed=3)


def test_word_vectors_can_replace_the_cipher(train_text, dev_text, small_lm):
    vectors = torch.randn(len(small_lm.tokenizer_), 24, generator=torch.Generator().manual_seed(0))
    lm = SaffuLM(SMALL, tokenizer=small_lm.tokenizer_).fit(train_text, embeddings=vectors)
    E = lm.network_.units["radius"].E
    assert E.shape == vectors.shape
    assert torch.allclose(E, torch.softmax(vectors, 1))
    assert lm.perplexity(dev_text) < len(small_lm.tokenizer_)
    with pytest.raises(SaffuError, match="embeddings"):
        SaffuLM(SMALL, tokenizer=small_lm.tokenizer_).fit(train_text, embeddings=vectors[:-1])


def test_corpus_on_disk_gives_the_same_model(train_text, small_lm, tmp_path):
    corpus = TokenCorpus.build(train_text, small_lm.tokenizer_, tmp_path)
    lm = SaffuLM(SMALL, tokenizer=small_lm.tokenizer_).fit(corpus)
    assert torch.equal(lm.network_.M, small_lm.network_.M)


def test_save_load_save_is_identical(small_lm, tmp_path):
    small_lm.save(tmp_path / "a")
    saffu.load(tmp_path / "a").save(tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [
        "config.json",
        "counts.safetensors",
        "ledger.safetensors",
        "log.jsonl",
        "model.safetensors",
        "ngrams.safetensors",
        "tokenizer.json",
    ]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    loaded = saffu.load(tmp_path / "b")
    for layer, counts in small_lm.counts_.items():
        assert torch.equal(counts.F, loaded.counts_[layer].F), layer
    assert np.array_equal(loaded.references_.keys, small_lm.references_.keys)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"block": 1}, "at least 2 slots"),
        ({"radius": 1}, "at least 2 slots"),
        ({"block": 0, "radius": 0}, "at least one unit"),
        ({"block": -3}, "negative"),
        ({"block": "8"}, "type int"),
        ({"block_mode": "mean"}, "sum or cat"),
        ({"smoothing": 0.0}, "above 0"),
        ({"radius_dimension": 1}, "at least 2"),
        ({"documents": 1}, "at least 2"),
        ({"documents": 4, "hidden_dimension": 0}, "final decoder"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong, message):
    with pytest.raises(SaffuError, match=message):
        SaffuConfig(**wrong)


def test_wrong_text_is_refused(small_lm):
    with pytest.raises(SaffuError, match="no words"):
        SaffuLM(SMALL).fit([])
    with pytest.raises(SaffuError, match="one string"):
        small_lm.perplexity("a text")
    with pytest.raises(SaffuError, match="no text"):
        small_lm.perplexity([])
    with pytest.raises(SaffuError, match="tokenizer"):
        SaffuLM(SMALL).fit(small_lm.tokenize(["a"]))


def test_blank_documents_are_none_as_in_files(train_text, tmp_path):
    documents = [train_text[0], "", train_text[1], " \t\n", "\u2003"]
    (tmp_path / "text.txt").write_text("\n".join(documents), "utf-8")
    read = SaffuLM(SMALL).fit(read_documents([tmp_path / "text.txt"]))
    lm = SaffuLM(SMALL).fit(documents)
    assert lm.trained_on_ == read.trained_on_
    assert lm.trained_on_["documents"] == 2
    assert lm.score(documents) == lm.score(documents[:1] + documents[2:3])
    with pytest.raises(SaffuError, match="no text"):
        lm.perplexity([" "])


def test_too_few_bits_name_the_remedy(train_text):
    with pytest.raises(SaffuError, match="use `radius_dimension` of at least 9"):
        SaffuLM(replace(SMALL, radius_dimension=4)).fit(train_text)


def test_tokens_never_seen_are_finite(small_lm):
    assert math.isfinite(small_lm.perplexity(["ζ 鶴 \x00 🦉 xyzzy"]))


def test_evaluation_does_not_depend_on_batches(small_lm, dev_text, monkeypatch):
    whole = small_lm.score(dev_text).nll
    monkeypatch.setattr(type(small_lm.network_), "batch_size", lambda self: 7)
    assert small_lm.score(dev_text).nll == pytest.approx(whole, rel=1e-6)


def test_log_and_manifest_are_plain_json(small_lm, tmp_path):
    small_lm.save(tmp_path / "m")
    manifest = json.loads((tmp_path / "m" / "config.json").read_text())
    assert manifest["format"] == 1
    assert manifest["parameters"] == small_lm.parameters_
    assert SaffuConfig.from_dict(manifest["config"]) == SMALL
    assert json.loads((tmp_path / "m" / "log.jsonl").read_text())["stage"] == "init"


def test_tiny_corpora_work():
    lm = SaffuLM(SMALL, tokenizer=Tokenizer.from_merges([])).fit(["a"])
    assert math.isfinite(lm.perplexity(["a", "b"]))
    assert evaluate(lm.network_, lm.tokenize(["a"])).perplexity < 50


def test_thinned_is_a_sample_of_the_whole(small_lm):
    corpus = small_lm.tokenize(sentences(5, 200))
    thin = corpus.thinned(corpus.targets // 4)
    assert thin.documents == 50
    for number in (0, 1, 49):
        a = thin.ids[thin.starts[number] : thin.starts[number + 1]]
        b = corpus.ids[corpus.starts[4 * number] : corpus.starts[4 * number + 1]]
        assert torch.equal(a, b)
    assert thin.bytes == int(corpus.sizes[::4].sum())


def test_what_is_learned_is_not_there_before_fit(small_lm):
    lm = SaffuLM(SMALL)
    assert repr(lm) == (
        "<SaffuLM paper, block=16, radius=4, block_dimension=16, radius_dimension=12, hidden_dimension=32, fold=2000;"
        " not fitted>"
    )
    for use in (lm.generate, lambda: lm.perplexity(["a"]), lambda: lm.parameters_, lambda: lm.save("nowhere")):
        with pytest.raises(SaffuError, match="call fit first"):
            use()
    assert not hasattr(lm, "network_")
    with pytest.raises(AttributeError, match="no attribute 'fits'"):
        _ = lm.fits
    assert "tokens counted, vocabulary" in repr(small_lm)
    assert repr(copy.deepcopy(small_lm)) == repr(small_lm)
