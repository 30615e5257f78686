"""Folders without the tables: smaller, and every command works on them."""

from pathlib import Path

import pytest

from conftest import part, sentences
from saffu import SaffuError, SaffuLM, load

QUICK = "--order 3 --slots 2 --word-classes 5 --split line --quiet"


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 1), ("b", 2)):
        Path(f"{name}.txt").write_text("\n".join(sentences(seed, 60)) + "\n")


def test_a_compact_folder_does_what_a_full_one_does(saffu, texts):
    assert saffu(f"train a.txt --out full {QUICK}").status == 0
    assert saffu(f"train a.txt --out small --compact {QUICK}").status == 0
    sizes = [part(Path(name), "model.safetensors").stat().st_size for name in ("full", "small")]
    assert sizes[1] < sizes[0] / 4
    for line in ("eval {0} b.txt --json", "score {0} b.txt", "generate {0} the --seed 1", "explain {0} the"):
        full, small = (saffu(line.format(name)) for name in ("full", "small"))
        assert full.status == small.status == 0 and full.out == small.out, line
    assert saffu("update small b.txt --split line --compact").status == 0
    assert saffu("check small").status == 0
    assert saffu("forget small b.txt --split line --compact").status == 0
    assert part(Path("small"), "model.safetensors").stat().st_size == sizes[1]
    assert saffu("train b.txt --encoder full --out other --compact --quiet --split line").status == 0
    assert saffu("merge small other --out both --compact").status == 0
    load("both").save("whole")
    load("small").save("again")
    assert part(Path("again"), "model.safetensors").name == part(Path("full"), "model.safetensors").name


def test_only_models_with_counts_can_be_compact(fitted, tmp_path):
    lm: SaffuLM = fitted("paper")
    with pytest.raises(SaffuError, match="only a counted model"):
        lm.save(tmp_path / "m", compact=True)
    assert not (tmp_path / "m").exists()
