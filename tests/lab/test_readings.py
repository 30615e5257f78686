"""The search over readings, on a tiny grid."""

import json

import numpy as np
import pytest

from conftest import sentences
from lab import readings
from lab.__main__ import main
from lab.readings import (
    READINGS,
    build_corpus,
    changes_of,
    joined,
    markdown,
    perplexities,
    run_readings,
    structure_of,
)
from saffu.errors import SaffuError
from saffu.experiments.grid import SWEPT, grid


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    for name, seed, number in (("train.txt", 1, 200), ("dev.txt", 2, 40)):
        (folder / name).write_text("\n".join(sentences(seed, number)) + "\n")
    return folder / "train.txt", folder / "dev.txt"


def test_readings_are_settings_that_a_grid_can_sweep():
    for changes in READINGS.values():
        assert set(changes) <= set(SWEPT)
        assert grid([2], [2], document_shards=0, settings={name: [value] for name, value in changes.items()})
    assert changes_of("left-padding+hidden-256") == {"padding": "left", "hidden_dimension": 256}
    with pytest.raises(SaffuError, match="unknown reading 'nothing'"):
        changes_of("default+nothing")


def test_each_reading_is_one_line_and_is_run_once(files, tmp_path, monkeypatch):
    train, _ = files
    corpus = build_corpus([train], [], tokens=1200, eval_tokens=300)
    assert 1150 <= corpus.train.targets < 1250
    chosen = {"blocks": [2, 4, 8], "radii": [2], "modes": ["sum/cat", "cat/cat"]}
    out = tmp_path / "rows.jsonl"
    run_readings(out, corpus, ["default"], **chosen)
    run_readings(out, corpus, ["default", "unit-weights"], **chosen)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["reading"], line["changes"], len(line["perplexities"])) for line in lines] == [
        ("default", {}, 9),  # the default reading has a table with a document model, too
        ("unit-weights", {"slot_weight": "unit"}, 6),
    ]
    ours = perplexities(lines[1])
    assert structure_of(lines[1]).cells == 6
    assert 0 < structure_of(lines[1]).rms < 1
    assert ours["sum/cat", False, 8, 2][1] < lines[1]["unigram"]["dev"]
    table = markdown(lines)
    assert "| **the default** |" in table and "| slot_weight unit |" in table
    monkeypatch.setattr(readings, "run_grid", None)
    run_readings(out, corpus, ["default"], **chosen)


def test_held_out_text_is_never_counted(files):
    train, dev = files
    whole = build_corpus([train], [dev], tokens=10**6, eval_tokens=10**6)
    part = build_corpus([train], [], tokens=1200, eval_tokens=10**6)
    assert part.train.targets + part.samples["dev"].targets == whole.train.targets
    assert part.samples["train"].fingerprint() == part.train.fingerprint()
    first = build_corpus([train], [], tokens=1200, eval_tokens=10**6, first=True)
    assert 1200 <= first.train.targets < 1220
    ids = np.concatenate([first.train.ids, first.samples["dev"].ids])
    assert np.array_equal(ids, whole.train.ids)
    with pytest.raises(SaffuError, match="all of the text is counted"):
        build_corpus([train], [], tokens=10**6)
    with pytest.raises(SaffuError, match="1 training files need as many held-out files, got 2"):
        build_corpus([train], [dev, dev], tokens=1200)


def test_documents_can_be_drawn_at_random(files):
    train, _ = files
    evenly, drawn, again = (build_corpus([train], [], tokens=1200, draw=draw) for draw in (0, 1, 1))
    assert drawn.fingerprint == again.fingerprint != evenly.fingerprint
    assert drawn.train.targets + drawn.samples["dev"].targets == evenly.train.targets + evenly.samples["dev"].targets


def test_held_out_files_contribute_in_proportion(files):
    train, dev = files
    corpus = build_corpus([train, dev], [dev, train], tokens=1200, eval_tokens=300)
    assert corpus.samples["dev"].targets == pytest.approx(300, rel=0.25)
    assert joined([corpus.train, corpus.samples["dev"]]).documents == (
        corpus.train.documents + corpus.samples["dev"].documents
    )


def test_command(files, tmp_path, capsys):
    train, dev = files
    arguments = ["--train", train, "--dev", dev, "--tokens", "1e3", "--eval-tokens", "200", "--sizes", "2,4"]
    arguments = [*map(str, arguments), "--out", str(tmp_path / "rows.jsonl")]
    main(["readings", *arguments, "--readings", "hidden-64"])
    assert "| hidden_dimension 64 |" in capsys.readouterr().out
    assert json.loads((tmp_path / "rows.jsonl").read_text())["draw"] == 0
    with pytest.raises(SystemExit, match="error: unknown reading 'x'"):
        main(["readings", *arguments, "--readings", "x"])
