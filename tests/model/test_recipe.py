"""The recipe: what `saffu train` does, step by step, from Python."""

import json
from pathlib import Path

import pytest

from conftest import part, sentences
from saffu import CalibratedConfig, PaperConfig, SaffuLM, TokenizerConfig, TrainingConfig, load
from saffu.model.recipe import Recipe, ThisProcess, stored_run, stored_text
from saffu.text.selection import Reading, TextSelection, TrainingText

SMALL = CalibratedConfig(order=3, slots=2, word_classes=5, output_classes=4)
PAPER = PaperConfig(block=8, radius=2, block_dimension=10, radius_dimension=9, hidden_dimension=16)


@pytest.fixture
def selection(tmp_path):
    for name, seed, number in (("train.txt", 1, 150), ("dev.txt", 2, 20)):
        (tmp_path / name).write_text("\n".join(sentences(seed, number)) + "\n")
    names = [str(tmp_path / "train.txt")], [str(tmp_path / "dev.txt")]
    return TextSelection.of(*names, hold_out=20, max_tokens=None, reading=Reading("line"))


def counted(recipe):
    rows = []
    with TrainingText(recipe.selection) as text:
        corpora = recipe.tokenize(text, ThisProcess())
        lm = recipe.count(corpora, rows.append, ThisProcess())
    return lm, corpora, rows


def test_a_recipe_gives_the_model_that_python_gives(selection, tmp_path):
    lm, corpora, rows = counted(Recipe(selection, SMALL, TokenizerConfig(bpe_kept_words=50), tmp_path / "model"))
    assert (corpora.train.documents, corpora.dev.documents, selection.hold_out) == (150, 20, 0)
    expected = SaffuLM(SMALL, tokenizer=TokenizerConfig(bpe_kept_words=50)).fit(sentences(1, 150), sentences(2, 20))
    assert lm.model_.arrays().keys() == expected.model_.arrays().keys()
    assert all((array == expected.model_.arrays()[name]).all() for name, array in lm.model_.arrays().items())
    assert rows[0]["dev_perplexity"] == expected.log_[0]["dev_perplexity"]
    stored = json.loads((tmp_path / "model" / "config.json").read_text())
    assert stored["source"] == lm.source_ and lm.source_["split"] == "line" and lm.source_["dev"]
    assert stored["tokenizer"]["bpe_kept_words"] == 50 == expected.tokenizer_settings_["bpe_kept_words"]


def test_a_tokenizer_or_encoder_of_another_model_is_not_the_models_own(selection, tmp_path):
    lm, corpora, _ = counted(Recipe(selection, SMALL, TokenizerConfig(), tmp_path / "model"))
    first = load(tmp_path / "model")
    again, _, _ = counted(Recipe(selection, SMALL, first.tokenizer_, tmp_path / "again"))
    assert again.tokenizer_settings_ == {} != lm.tokenizer_settings_
    other, _, rows = counted(Recipe(selection, first.config, first.tokenizer_, tmp_path / "other", encoder=lm))
    assert other.tokenizer_settings_ == {} and rows[0]["stage"] == "recount"
    assert other.score(corpora.dev).nll == pytest.approx(lm.score(corpora.dev).nll)


def test_a_run_is_resumed_with_its_own_text(selection, tmp_path):
    training = TrainingConfig(max_folds=1)
    recipe = Recipe(selection, PAPER, TokenizerConfig(bpe_count="types"), tmp_path / "network", training=training)
    assert recipe.trains and not Recipe(selection, PAPER, TokenizerConfig(), tmp_path / "x").trains
    lm, corpora, _ = counted(recipe)
    rows = []
    recipe.train(lm, corpora, rows.append)
    assert rows[-1]["fold"] == 1
    checkpoint, found = stored_run(tmp_path / "network", [], [])
    assert found == selection and checkpoint.settings == training.to_dict()
    corpus, dev = stored_text(tmp_path / "network", found)
    assert (corpus.fingerprint(), dev.fingerprint()) == (corpora.train.fingerprint(), corpora.dev.fingerprint())


def test_a_checkpoint_does_not_say_where_on_the_disk_the_text_lies(selection, tmp_path):
    training = TrainingConfig(max_folds=1)
    recipe = Recipe(selection, PAPER, TokenizerConfig(bpe_count="types"), tmp_path / "network", training=training)
    lm, corpora, _ = counted(recipe)
    recipe.train(lm, corpora, lambda row: None)
    stored = part(tmp_path / "network", "checkpoint.json").read_text()
    assert str(tmp_path) not in stored and "../" in stored
    (tmp_path / "elsewhere").mkdir()
    for path in [*tmp_path.iterdir()]:  # moved together, they are found again
        if path.name != "elsewhere":
            path.rename(tmp_path / "elsewhere" / path.name)
    _, moved = stored_run(tmp_path / "elsewhere" / "network", [], [])
    assert [Path(name).parent.name for name in moved.text] == ["elsewhere"]
    corpus, _ = stored_text(tmp_path / "elsewhere" / "network", moved)
    assert corpus.fingerprint() == corpora.train.fingerprint()


def test_relative_names_are_found_from_another_folder(tmp_path, monkeypatch):
    """Messages show them as they were typed, and their files are read in one order, wherever a run is resumed."""
    (tmp_path / "here").mkdir()
    (tmp_path / "z.txt").write_text("\n".join(sentences(1, 60)) + "\n")
    (tmp_path / "here" / "a.txt").write_text("\n".join(sentences(2, 60)) + "\n")
    monkeypatch.chdir(tmp_path / "here")
    selection = TextSelection.of(["../z.txt", "a.txt"], [], 5, None, Reading("line"))
    training = TrainingConfig(max_folds=1)
    recipe = Recipe(selection, PAPER, TokenizerConfig(bpe_count="types"), Path("network"), training=training)
    lm, corpora, _ = counted(recipe)
    recipe.train(lm, corpora, lambda row: None)
    with TrainingText(selection) as text:
        assert [source.name for source in text.text.sources] == ["a.txt", "../z.txt"]
    monkeypatch.chdir(tmp_path)
    _, found = stored_run(Path("here/network"), [], [])
    corpus, _ = stored_text(Path("here/network"), found)
    assert corpus.fingerprint() == corpora.train.fingerprint()
