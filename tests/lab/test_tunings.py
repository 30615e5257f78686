"""Ten tunings fold after fold, on a toy text."""

import json

import pytest

from conftest import sentences
from lab import tunings
from lab.__main__ import main
from saffu.experiments import reproduce


def test_command(tmp_path, monkeypatch, capsys):
    for name, seed, number in (("train.txt", 1, 80), ("dev.txt", 2, 10)):
        (tmp_path / name).write_text("\n".join(sentences(seed, number)) + "\n")
    monkeypatch.setattr(tunings, "RADII", (3,))
    monkeypatch.setattr(reproduce, "TUNINGS", 3)
    monkeypatch.setattr(reproduce, "BLOCK", 16)
    monkeypatch.setattr(reproduce, "DOCUMENT_SHARDS", 5)
    out = tmp_path / "rows.jsonl"
    arguments = ["--train", tmp_path / "train.txt", "--dev", tmp_path / "dev.txt", "--out", out, "--seeds", "2"]
    main(["tunings", *map(str, arguments)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["seed"] for row in rows] == [0, 1]
    for row in rows:
        assert list(row["dev_perplexities"]) == ["init", "tune 1", "tune 2", "tune 3"]
        assert row["without_tuning"] < row["dev_perplexities"]["init"]  # four times the text
    assert rows[0]["dev_perplexities"] != rows[1]["dev_perplexities"]  # the documents come in another order
    assert rows[0]["tokens"] == rows[1]["tokens"]
    assert "r = 3, seed 1: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: "):
        main(["tunings", "--train", str(tmp_path / "none.txt"), "--dev", str(out), "--out", str(out)])


def test_only_the_folds_that_tuning_sees_are_counted(monkeypatch):
    from saffu.text.corpus import TokenCorpus, lines_of
    from saffu.text.tokenizer import Tokenizer

    texts = sentences(1, 60)
    corpus = TokenCorpus.build(lines_of(texts), Tokenizer.train(texts))
    monkeypatch.setattr(reproduce, "TUNINGS", 2)
    config = tunings.tuned_settings(corpus, 2)
    assert config.tune_folds == 2 and len(corpus.folds(config.fold_tokens)) == 3
    assert tunings.joined_head(corpus, config).targets == corpus.targets
    from dataclasses import replace

    fewer = tunings.joined_head(corpus, replace(config, tune_folds=1))
    assert fewer.targets == sum(fold.targets for fold in corpus.folds(config.fold_tokens)[:2])
