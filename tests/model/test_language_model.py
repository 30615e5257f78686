"""SaffuLM: fitting, scoring, what is learned, saving and loading, and errors that a user can cause."""

import copy
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import saffu
from conftest import CONFIGS, each, part, sentences
from saffu import SaffuError, SaffuLM, Tokenizer, TokenizerConfig
from saffu.errors import NotFittedError
from saffu.files import FORMAT, read_manifest, stored_names
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import EOD
from toy_model import ToyConfig


def same_arrays(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype, name
        assert np.array_equal(array, other[name]), name


def test_learns_what_a_unigram_cannot(lm, dev_text):
    references = lm.reference_scores(dev_text)
    assert lm.perplexity(dev_text) < 0.6 * references["unigram"].perplexity
    assert references["trigram"].perplexity < references["bigram"].perplexity < references["unigram"].perplexity


def test_score_is_the_sum_over_single_targets(lm, dev_text):
    """And the states of generation predict what scoring does."""
    score, nll, targets = lm.score(dev_text[:5]), 0.0, 0
    for document in dev_text[:5]:
        state = lm.model_.start()
        for token in [*lm.tokenizer_.encode(document), EOD]:
            nll -= float(lm.model_.next_log_probabilities([state])[0, token])
            state = lm.model_.advance(state, token)
            targets += 1
    assert score.nll == pytest.approx(nll, rel=1e-5)
    assert score.targets == targets
    assert score.bytes == sum(len(document.encode()) + 1 for document in dev_text[:5])
    assert score.perplexity == pytest.approx(math.exp(nll / targets), rel=1e-4)
    assert score.bits_per_byte == pytest.approx(nll / math.log(2) / score.bytes, rel=1e-5)


def test_facts_of_the_training_text(lm, train_text, dev_text):
    corpus = lm.tokenize(train_text)
    sizes = {"documents": 600, "parts": 600, "lines": 600, "tokens": corpus.targets, "bytes": corpus.bytes}
    assert lm.trained_on_ == sizes
    assert np.array_equal(lm.frequencies_, corpus.frequencies(len(lm.tokenizer_)))
    assert lm.frequencies_[EOD] == 600
    assert (lm.ledger_ is None) == (lm.model_.sums is None)
    assert lm.ledger_ is None or lm.ledger_.documents == 600
    assert lm.log_[-1]["dev_targets"] == lm.tokenize(dev_text).targets
    assert lm.log_[-1]["dev_perplexity"] == pytest.approx(lm.perplexity(dev_text), rel=1e-9)
    assert lm.log_[-1]["dev_bits_per_byte"] == pytest.approx(lm.score(dev_text).bits_per_byte, rel=1e-9)
    assert lm.log_[-1]["sample"].count("<sod>") == 4
    assert lm.parameters_ == lm.model_.size > 0


@pytest.mark.parametrize("kind", CONFIGS)
def test_any_iterable_gives_the_same_model(kind, fitted, train_text, tmp_path):
    once = SaffuLM(CONFIGS[kind]()).fit(text for text in train_text)
    same_arrays(once.model_.arrays(), fitted(kind).model_.arrays())
    corpus = TokenCorpus.build(lines_of(train_text), once.tokenizer_, tmp_path)
    on_disk = SaffuLM(CONFIGS[kind](), tokenizer=once.tokenizer_).fit(corpus)
    same_arrays(on_disk.model_.arrays(), fitted(kind).model_.arrays())


def test_tokenizers_can_be_given_or_configured(train_text):
    trained = Tokenizer.train(train_text, TokenizerConfig(bpe_kept_words=5))
    by_settings = SaffuLM(ToyConfig(), tokenizer=TokenizerConfig(bpe_kept_words=5)).fit(train_text)
    assert by_settings.tokenizer_.to_json() == trained.to_json()
    assert by_settings.tokenizer_settings_["bpe_kept_words"] == 5
    assert SaffuLM(ToyConfig(), tokenizer=trained).fit(train_text).tokenizer_ is trained
    paper, calibrated = (saffu.model.solutions.PRESETS[name].tokenizer for name in ("paper", "calibrated"))
    assert (paper.bpe_count, calibrated.bpe_count) == ("types", "tokens")


def test_a_loaded_model_is_the_saved_one(lm, dev_text, tmp_path):
    lm.save(tmp_path / "a")
    loaded = saffu.load(tmp_path / "a")
    assert loaded.config == lm.config
    assert loaded.trained_on_ == lm.trained_on_
    assert loaded.log_ == lm.log_
    assert repr(loaded) == repr(lm)
    assert loaded.score(dev_text) == lm.score(dev_text)
    assert loaded.generate("the", seed=3) == lm.generate("the", seed=3)
    assert loaded.reference_scores(dev_text) == lm.reference_scores(dev_text)
    same_arrays(loaded.model_.arrays(), lm.model_.arrays())
    loaded.save(tmp_path / "b")
    names = ["ledger.safetensors", "log.jsonl", "model.safetensors", "references.safetensors"]
    names += ["sums.safetensors", "tokenizer.json"]
    if lm.model_.sums is None:
        names = [name for name in names if name not in ("ledger.safetensors", "sums.safetensors")]
    else:
        same_arrays(loaded.model_.sums.arrays(), lm.model_.sums.arrays())
    assert sorted(stored_names(read_manifest(tmp_path / "a"))) == names
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_config_is_plain_json(lm, tmp_path):
    lm = copy.copy(lm)
    lm.source_ = {"hold_out": 20}
    lm.save(str(tmp_path / "m"), {"notes.txt": b"mine"})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (config["format"], config["model_type"], config["preset"]) == (FORMAT, "saffu", lm.config.preset)
    assert type(lm.config).from_dict(config["settings"]) == lm.config
    assert config["parameters"] == lm.parameters_
    assert config["vocabulary"] == len(lm.tokenizer_)
    assert part(tmp_path / "m", "notes.txt").read_bytes() == b"mine"
    assert saffu.load(tmp_path / "m").source_ == {"hold_out": 20}


def test_only_what_is_needed_is_read(lm, tmp_path, dev_text):
    """Scoring and generating work without the ledger and the references; changing the model does not."""
    lm.save(tmp_path / "m")
    loaded = saffu.load(tmp_path / "m")
    part(tmp_path / "m", "ledger.safetensors").unlink(missing_ok=True)
    part(tmp_path / "m", "references.safetensors").write_bytes(b"damaged")
    assert loaded.perplexity(dev_text) == lm.perplexity(dev_text)
    assert saffu.load(tmp_path / "m").generate("the", seed=1) == lm.generate("the", seed=1)
    uses = [lambda: loaded.frequencies_, lambda: loaded.save(tmp_path / "n")]
    if lm.model_.sums is not None:
        uses.append(lambda: loaded.update(["a"]))
    for use in uses:
        with pytest.raises(SaffuError, match=r"(ledger|references)-\w+\.safetensors is (missing|damaged)"):
            use()
    with pytest.raises(SaffuError, match=r"(ledger|references)-\w+\.safetensors is (missing|damaged)"):
        saffu.load(tmp_path / "m", check=True)
    assert not (tmp_path / "n").exists()


def test_a_flipped_bit_is_found_before_a_model_changes(fitted, tmp_path):
    fitted("toy").save(tmp_path / "m")
    data = bytearray(part(tmp_path / "m", "sums.safetensors").read_bytes())
    data[-1] ^= 1
    part(tmp_path / "m", "sums.safetensors").write_bytes(data)
    with pytest.raises(SaffuError, match=r"sums-\w+\.safetensors is damaged: its checksum"):
        saffu.load(tmp_path / "m", check=True)
    loaded = saffu.load(tmp_path / "m")
    with pytest.raises(SaffuError, match=r"sums-\w+\.safetensors is damaged: its checksum"):
        loaded.update(["the dog"])
    with pytest.raises(SaffuError, match=r"sums-\w+\.safetensors is damaged: its checksum"):
        loaded.save(tmp_path / "n")


@each(
    "change, message",
    [
        (lambda config: config | {"format": 1}, "earlier saffu"),
        (lambda config: config | {"format": 99}, "upgrade saffu"),
        (lambda config: config | {"trained_on": {}}, "damaged"),
        (lambda config: [], "damaged"),
    ],
)
def test_odd_folders_are_one_line(fitted, tmp_path, change, message):
    fitted("toy").save(tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(change(config)))
    with pytest.raises(SaffuError, match=message) as error:
        saffu.load(tmp_path / "m")
    assert "\n" not in str(error.value)


def test_a_folder_replaced_after_loading_is_noticed(fitted, tmp_path):
    lm = copy.copy(fitted("toy"))
    lm.save(tmp_path / "m")
    loaded = saffu.load(tmp_path / "m")
    lm.update(["the dog"]).save(tmp_path / "m")
    with pytest.raises(SaffuError, match="replaced after this model was loaded; load it again"):
        loaded.update(["the dog"])
    assert saffu.load(tmp_path / "m").update(["the dog"]).trained_on_["documents"] == 602


def test_a_reader_meets_the_folder_being_replaced(fitted, tmp_path, monkeypatch):
    lm = copy.copy(fitted("toy"))
    lm.save(tmp_path / "m")
    changed = copy.copy(lm).update(["the dog"])
    from_json = Tokenizer.from_json

    def replaced_meanwhile(text):
        monkeypatch.setattr(Tokenizer, "from_json", from_json)
        changed.save(tmp_path / "m")
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        return from_json(text)

    monkeypatch.setattr(Tokenizer, "from_json", replaced_meanwhile)
    loaded = saffu.load(tmp_path / "m")
    same_arrays(loaded.model_.sums.arrays(), changed.model_.sums.arrays())
    assert loaded.trained_on_["documents"] == 601


def test_unusable_places_are_one_line(fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    for place in (".", "file", Path("file")):
        with pytest.raises(SaffuError, match=r"is not a saved model, but holds 'file'|is a file"):
            fitted("toy").save(place)
    for folder in ("nowhere", Path("nowhere")):
        with pytest.raises(SaffuError, match="no model in nowhere"):
            saffu.load(folder)
    with pytest.raises(SaffuError, match=r"no config\.json"):
        saffu.load(".")


def test_wrong_text_is_refused(fitted):
    lm = fitted("toy")
    with pytest.raises(SaffuError, match=r"no words|no text"):
        SaffuLM(ToyConfig()).fit([])
    with pytest.raises(SaffuError, match=r"such as \[text\]"):
        lm.perplexity("a text")
    for use in (lm.perplexity, lm.score, lm.reference_scores):
        for nothing in ([], [" "]):
            with pytest.raises(SaffuError, match="no text"):
                use(nothing)
    with pytest.raises(SaffuError, match="needs its tokenizer"):
        SaffuLM(ToyConfig()).fit(lm.tokenize(["a"]))


def test_blank_documents_are_skipped(fitted, train_text):
    documents = [train_text[0], "", train_text[1], " \t\n", "\u2003"]
    lm = SaffuLM(ToyConfig()).fit(documents)
    assert lm.trained_on_["documents"] == 2
    assert lm.score(documents) == lm.score(documents[:1] + documents[2:3])


def test_tokens_never_seen_are_finite(lm):
    assert math.isfinite(lm.perplexity(["ζ 鶴 \x00 🦉 xyzzy"]))


def test_counts_of_a_calibrated_model_give_its_baselines(fitted, train_text, dev_text, tmp_path):
    """They are stored once; a model without trigrams has them counted separately."""
    lm = fitted("calibrated")
    assert lm.references_ is lm.model_.sums.ngrams
    assert lm.statistics_.ngrams is None
    lm.save(tmp_path / "m")
    loaded = saffu.load(tmp_path / "m")
    assert loaded.reference_scores(dev_text) == lm.reference_scores(dev_text)
    shorter = SaffuLM(replace(lm.config, order=2)).fit(train_text)
    assert shorter.references_ is shorter.statistics_.ngrams
    assert shorter.reference_scores(dev_text) == fitted("toy").reference_scores(dev_text)


def test_references_are_optional(train_text, tmp_path):
    lm = SaffuLM(ToyConfig()).fit(train_text, references=False)
    lm.save(tmp_path / "m")
    for model in (lm, saffu.load(tmp_path / "m")):
        assert model.references_ is None
        with pytest.raises(SaffuError, match="references=True"):
            model.reference_scores(["the dog"])


def test_short_texts_draw_no_bar(fitted, dev_text, monkeypatch):
    titles = []
    model = fitted("toy").model_
    monkeypatch.setattr(
        type(model),
        "log_probabilities",
        lambda self, corpus, progress=None: titles.append(progress) or np.zeros(corpus.targets),
    )
    fitted("toy").score(dev_text)
    fitted("toy").score(sentences(3, 15_000))
    assert titles == [None, "evaluate"]


def test_what_is_learned_is_not_there_before_fit(fitted, tmp_path):
    lm = SaffuLM(ToyConfig(smoothing=2.0))
    assert repr(lm) == "<SaffuLM toy, smoothing=2.0; not fitted>"
    uses = [lm.generate, lambda: lm.perplexity(["a"]), lambda: lm.parameters_, lambda: lm.word_vectors_]
    uses += [lambda: lm.references_, lambda: lm.save(tmp_path / "m"), lambda: lm.update(["a"]), lambda: lm.explain()]
    for use in uses:
        with pytest.raises(NotFittedError, match="call `fit`"):
            use()
    assert not hasattr(lm, "model_")
    with pytest.raises(AttributeError, match="no attribute 'fits'"):
        _ = lm.fits
    assert repr(fitted("toy")).startswith("<SaffuLM toy; ")
    assert repr(copy.deepcopy(fitted("toy"))) == repr(fitted("toy"))


def test_a_second_fit_replaces_the_first(train_text, tmp_path):
    lm = SaffuLM(ToyConfig()).fit(train_text[:50])
    lm.save(tmp_path / "m")
    again = saffu.load(tmp_path / "m").fit(train_text)
    assert again.trained_on_["documents"] == again.ledger_.documents == 600
    assert len(again.log_) == 1


def test_scikit_learn_can_clone_it(fitted):
    def cloned(estimator):  # what sklearn.base.clone does
        parameters = estimator.get_params(deep=False)
        copies = {name: copy.deepcopy(value) for name, value in parameters.items()}
        made = type(estimator)(**copies)
        for name, value in made.get_params(deep=False).items():
            assert value is copies[name]
        return made

    lm = fitted("toy")
    assert cloned(lm).config == lm.config
    assert "not fitted" in repr(cloned(lm))
    recount = SaffuLM(encoder=lm).__sklearn_clone__()
    assert recount.get_params()["encoder"] is lm
    assert SaffuLM().set_params(config=ToyConfig()).config == ToyConfig()
    assert SaffuLM(ToyConfig()).set_params(device="cuda").get_params() == {
        "config": ToyConfig(),
        "tokenizer": None,
        "encoder": None,
        "device": "cuda",
    }
    sklearn = pytest.importorskip("sklearn.base")
    assert sklearn.clone(lm).config == lm.config


def test_presets():
    assert saffu.preset("paper", radius=5).radius == 5
    assert SaffuLM().config == saffu.preset("calibrated") == saffu.CalibratedConfig()
    with pytest.raises(SaffuError, match="unknown preset 'foo'; choose one of counted, companion, paper"):
        saffu.preset("foo")
    with pytest.raises(SaffuError, match="unknown setting 'radios'"):
        saffu.preset("paper", radios=5)


def test_options_of_other_solutions_are_refused(fitted, train_text):
    with pytest.raises(SaffuError, match="run on the CPU"):
        SaffuLM(device="cuda").fit(train_text)
    with pytest.raises(SaffuError, match="counted models do not support `embeddings`"):
        SaffuLM().fit(train_text, embeddings=np.zeros((3, 3)))
    with pytest.raises(SaffuError, match="do not support `training`"):
        SaffuLM(encoder=fitted("toy")).fit(train_text, training=saffu.TrainingConfig())
    with pytest.raises(SaffuError, match="no trainable weights"):
        copy.copy(fitted("toy")).backprop(train_text, train_text)
    with pytest.raises(SaffuError, match="don't pass them too"):
        SaffuLM(ToyConfig(), encoder=fitted("toy"))


def test_word_vectors_can_replace_the_cipher(fitted, train_text, dev_text):
    lm = fitted("paper")
    vectors = np.random.default_rng(0).normal(size=(len(lm.tokenizer_), 24)).astype(np.float32)
    other = SaffuLM(lm.config, tokenizer=lm.tokenizer_).fit(train_text, embeddings=vectors)
    exponentials = np.exp(vectors)
    assert np.allclose(other.model_.vectors()["radius.E"], exponentials / exponentials.sum(1, keepdims=True), atol=1e-6)
    assert other.perplexity(dev_text) < len(lm.tokenizer_)


@each("kind", CONFIGS)
@each("documents", [["a"], ["a", "b"], ["ab\nc"]])
def test_tiny_corpora_work(kind, documents):
    config = CONFIGS[kind]()
    lm = SaffuLM(config, tokenizer=Tokenizer.from_merges([])).fit(documents)
    assert math.isfinite(lm.perplexity(["a", "b", "c d"]))
    assert lm.perplexity(documents) < len(lm.tokenizer_)
    assert isinstance(lm.generate(seed=1, max_tokens=5), str)


def test_backprop_saves_and_resumes(fitted, train_text, dev_text, tmp_path):
    lm, rows = copy.copy(fitted("paper")), []
    training = saffu.TrainingConfig(max_folds=1, learning_rate=1e-3)
    lm.backprop(train_text, dev_text, training, folder=tmp_path / "m", source={"files": 2}, on_fold=rows.append)
    assert [row["fold"] for row in rows] == [0, 1]
    assert lm.log_[1:] == rows
    assert all(row["sample"].count("<sod>") == 4 for row in rows)
    assert lm.perplexity(dev_text) < fitted("paper").perplexity(dev_text)
    assert lm.model_.sums is lm.ledger_ is None
    loaded = saffu.load(tmp_path / "m")
    assert loaded.perplexity(dev_text) == pytest.approx(lm.perplexity(dev_text), rel=1e-6)
    assert loaded.references_ is not None
    longer = replace(training, max_folds=2)
    resumed = SaffuLM.resume(tmp_path / "m", train_text, dev_text, training=longer, on_fold=rows.append)
    assert [row["fold"] for row in rows] == [0, 1, 2]
    whole = copy.copy(fitted("paper"))
    whole.backprop(train_text, dev_text, longer)
    same_arrays(resumed.model_.arrays(), whole.model_.arrays())
