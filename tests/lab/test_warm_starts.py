"""Warm against cold starts, on a toy text."""

import json

import pytest

from conftest import sentences
from lab import warm_starts
from lab.__main__ import main


def test_command(tmp_path, monkeypatch, capsys):
    for name, seed, number in (("train.txt", 1, 60), ("dev.txt", 2, 10)):
        (tmp_path / name).write_text("\n".join(sentences(seed, number)) + "\n")
    monkeypatch.setattr(warm_starts, "RATES", {8: (0.01,)})
    monkeypatch.setattr(warm_starts, "BLOCK", 8)
    out = tmp_path / "rows.jsonl"
    arguments = ["--train", tmp_path / "train.txt", "--dev", tmp_path / "dev.txt", "--out", out]
    arguments += ["--max-folds", "2", "--seeds", "2"]
    main(["warm-starts", *map(str, arguments)])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["start"], row["seed"]) for row in rows] == [(s, n) for n in (0, 1) for s in warm_starts.STARTS]
    warm, cold, cipher = rows[:3]
    for row in rows:
        assert [point["fold"] for point in row["curve"]] == [0, 1, 2]
        assert row["best_dev_perplexity"] == min(point["dev_perplexity"] for point in row["curve"])
    assert warm["curve"][0]["dev_perplexity"] < cold["curve"][0]["dev_perplexity"]
    assert cold["curve"][0] != cipher["curve"][0]  # their embeddings differ
    assert warm["curve"][0]["dev_perplexity"] == rows[3]["curve"][0]["dev_perplexity"]  # counted, not drawn
    assert cold["curve"][0]["dev_perplexity"] != rows[4]["curve"][0]["dev_perplexity"]
    assert "explicit start, r = 8, rate 0.01, seed 1: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: "):
        main(["warm-starts", "--train", str(tmp_path / "none.txt"), "--dev", str(out), "--out", str(out)])
