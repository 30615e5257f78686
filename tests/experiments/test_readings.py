"""The search over readings, on a tiny grid."""

import json
import os
import subprocess
import sys

import pytest

from conftest import sentences
from saffu.errors import SaffuError
from saffu.experiments import readings, scoring
from saffu.experiments.agreement import printed_perplexities
from saffu.experiments.grid import SWEPT, grid
from saffu.experiments.readings import READINGS, build_corpus, changes_of, compare, in_first_half, main, run_readings


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


def test_halves_are_of_similar_size_and_disjoint():
    keys = [key for key in printed_perplexities() if not key[1]]
    first = [key for key in keys if in_first_half(key)]
    assert 80 < len(first) < 116
    parts = compare(dict(printed_perplexities()))
    assert parts["selection"].cells == len(first)
    assert parts["selection"].cells + parts["check"].cells == parts["all"].cells == 196


def test_each_reading_is_one_line_and_is_run_once(files, tmp_path, monkeypatch):
    train, dev = files
    corpus = build_corpus([train], [dev], tokens=1200, eval_tokens=300)
    assert 1200 <= corpus.train.targets < 1300
    monkeypatch.setattr(readings, "READINGS", {"default": {}, "unit-weights": {"slot_weight": "unit"}})
    chosen = {"blocks": [2, 4, 8], "radii": [2], "modes": ["sum/cat", "cat/cat"]}
    run_readings(tmp_path, corpus, ["default"], **chosen)
    run_readings(tmp_path, corpus, ["default", "unit-weights"], **chosen)
    lines = [json.loads(line) for line in (tmp_path / "readings.jsonl").read_text().splitlines()]
    assert [(line["reading"], line["changes"], line["cells"]) for line in lines] == [
        ("default", {}, 6),
        ("unit-weights", {"slot_weight": "unit"}, 6),
    ]
    assert lines[0]["agreement"]["all"]["cells"] == 6
    assert -1 <= lines[0]["agreement"]["all"]["spearman"] <= 1
    assert not (tmp_path / "default" / "units").exists()
    table = (tmp_path / "readings.md").read_text()
    assert "| default | none |" in table and "| unit-weights | slot_weight unit |" in table
    monkeypatch.setattr(scoring, "run_grid", None)
    run_readings(tmp_path, corpus, ["default"], **chosen)


def test_command(files, tmp_path, capsys):
    train, dev = files
    arguments = ["--train", train, "--dev", dev, "--tokens", "1e3", "--eval-tokens", "200", "--sizes", "2,4"]
    main([*map(str, arguments), "--out", str(tmp_path), "--readings", "hidden-128"])
    assert "| hidden-128 | hidden_dimension 128 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="error: unknown reading 'x'"):
        main([*map(str, arguments), "--out", str(tmp_path), "--readings", "x"])


def test_imports_need_only_torch_numpy_tokenizers_safetensors_and_tqdm():
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'transformers', 'scipy', 'pandas', 'sklearn'):\n"
        "    sys.modules[name] = None\n"
        "import saffu.experiments.readings"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
