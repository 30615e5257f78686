"""The search over readings: what it tries, selects, and continues."""

import time

import pytest
import torch

from conftest import sentences
from lab import search
from lab.rows import read_rows
from lab.search import OutOfTime, Rung, run_search, selected, structure_of
from lab.structure import printed_logs
from lab.texts import Text, load_text, save_text
from saffu.experiments.scoring import GridCorpus
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import Tokenizer

CPU = torch.device("cpu")
RUNGS = [Rung("all", 500, (2, 4), 0), *(Rung(name, 1 << 30, (2, 4), 1) for name in ("sizes", "hidden", "trials"))]
RUNGS.append(Rung("texts", 1 << 30, (2, 4), 1))


@pytest.fixture(scope="module")
def texts() -> list[Text]:
    tokenizer = Tokenizer.train(sentences(1, 100))
    parts = [TokenCorpus.build(lines_of(sentences(seed, 100)), tokenizer) for seed in (1, 2, 3)]
    return [
        Text(name, GridCorpus.build(part, parts[2], tokenizer, 300)) for name, part in zip("ab", parts, strict=False)
    ]


def test_search_halves_and_continues(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "FACTORS", {"radius_padding": ("right", "left"), "slot_weight": ("decimal", "natural")})
    monkeypatch.setattr(search, "HIDDEN", (32,))
    monkeypatch.setattr(search, "TRIALS", [{"smoothing": 0.1}])
    out = tmp_path / "search.jsonl"
    with pytest.raises(OutOfTime):
        run_search(out, texts, [], CPU, time.monotonic(), RUNGS)
    assert read_rows(out) == []
    later = time.monotonic() + 1e9
    run_search(out, texts, [], CPU, later, RUNGS[:1])
    first = read_rows(out)
    assert [row["text"] for row in first] == 4 * ["a"] + 4 * ["b"]
    run_search(out, texts, [Text("c", texts[0].corpus)], CPU, later, RUNGS)
    rows = read_rows(out)
    assert rows[:8] == first
    by_rung = {rung.name: [row for row in rows if row["rung"] == rung.name] for rung in RUNGS}
    best = selected(by_rung["all"], ["a", "b"], 1)
    assert 1 <= len(best) <= 3
    assert len(by_rung["sizes"]) == 2 * len(best)
    assert len(by_rung["hidden"]) == 2 * len(selected(by_rung["sizes"], ["a", "b"], 1))
    assert {row["reading"]["hidden_dimension"] for row in by_rung["hidden"]} == {32}
    assert {row["reading"]["smoothing"] for row in by_rung["trials"]} == {0.1}
    assert {row["text"] for row in by_rung["texts"]} == {"c"}
    run_search(out, texts, [Text("c", texts[0].corpus)], CPU, time.monotonic(), RUNGS)  # nothing is left to do
    assert read_rows(out) == rows


def test_each_half_selects_its_best_reading():
    """One reading has the printed numbers where the radius is summed, the other one where it is concatenated."""
    rows = []
    for name, half in ((1, "sum"), (2, "cat"), (3, "neither")):
        exact = {key: value if key[0].endswith(half) else 11.5 - value for key, value in printed_logs().items()}
        nats = [[modes, b, r, value] for (modes, _, b, r), value in exact.items()]
        rows.append({"reading": {"seed": name}, "text": "a", "nats": nats})
    assert selected(rows[:2], ["a"], 1) == [{"seed": 1}, {"seed": 2}]
    assert {"seed": 3} not in selected(rows, ["a"], 1)
    assert selected(rows, ["a", "b"], 1) == []  # no reading was tried on both texts
    assert structure_of(rows[0]).rms_by_half == {"sum radius": 0, "cat radius": pytest.approx(0.2387, abs=1e-4)}


def test_texts_are_saved_whole(texts, tmp_path):
    path = tmp_path / "a.safetensors"
    save_text(path, texts[0].corpus)
    loaded = load_text(path)
    assert loaded.name == "a"
    assert loaded.corpus.fingerprint == texts[0].corpus.fingerprint
    assert loaded.corpus.train.fingerprint() == texts[0].corpus.train.fingerprint()
    assert loaded.corpus.samples["dev"].fingerprint() == texts[0].corpus.samples["dev"].fingerprint()
    half = texts[0].part(texts[0].corpus.train.targets // 2)
    assert 0.4 < half.train.targets / texts[0].corpus.train.targets < 0.6
    assert half.fingerprint != texts[0].corpus.fingerprint
