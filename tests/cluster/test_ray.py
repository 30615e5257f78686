"""A small model counted on Ray, on this machine; see faults.py for what takes longer."""

import json
import os
from pathlib import Path

import pytest

from conftest import part, sentences
from saffu.cluster import engine

pytest.importorskip("ray", reason="ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own

SMALL = "--order 4 --slots 5 --word-classes 20 --set output_classes=8"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    for number in range(4):
        (tmp_path / "text" / f"{number}.txt").write_text("\n".join(sentences(number, 300)) + "\n")
    return tmp_path


def content(folder: Path) -> dict[str, bytes | list | dict]:
    """All that a model folder holds but for how long it took."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    log = part(folder, "log.jsonl").name
    rows = [json.loads(line) for line in found.pop(log).splitlines()]
    config = json.loads(found.pop("config.json"))
    for row in rows:
        del row["seconds"]
    for name in (log, "config.json"):
        del config["checksums"][name]
    return found | {"log": rows, "config": config}


def test_ray_gives_what_one_process_gives(folder, saffu):
    assert saffu(f"train text --out alone {SMALL}").status == 0
    done = saffu(f"train text --out model {SMALL} --ray")
    assert done.status == 0, done.err
    assert content(folder / "model") == content(folder / "alone")
    assert sorted(path.name for path in folder.iterdir()) == ["alone", "model", "text"]
    assert not list(engine.scratch_place().glob(f"{engine.SCRATCH}{os.getpid()}-*"))
    done = saffu("score model text --out scores --ray")
    assert done.status == 0, done.err
    alone = "".join(saffu(f"score model text/{number}.txt").out for number in range(4))
    assert "".join(path.read_text() for path in sorted((folder / "scores").iterdir())) == alone
