"""What a user can do wrong without a cluster."""

import sys

import pytest

from conftest import each, sentences
from saffu.cluster import engine
from saffu.cluster.engine import Lost
from saffu.errors import SaffuError, install_command


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(sentences(1, 50)) + "\n")
    return tmp_path


def left_over(folder):
    return sorted(path.name for path in folder.iterdir())


def test_ray_must_be_installed(saffu, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = saffu("train text.txt --out model --ray")
    assert refused.status == 2
    assert install_command("cluster") in refused.err and len(refused.err.splitlines()) == 1
    assert left_over(folder) == ["text.txt"]


@each(
    "line, message",
    [
        ("train --out model --ray text.txt", "text.txt is a path, not the address of a cluster"),
        ("train text.txt --out model --ray --preset paper", "neither solves the paper's preset nor trains a network"),
        ("train text.txt --out model --ray --minutes 1", "--ray counts"),
        ("train text.txt --out model --ray --hold-out 1", "--hold-out must be 0 (off) or at least 2"),
        ("train text.txt --out model --ray 127.0.0.1:1", "no Ray cluster at 127.0.0.1:1"),
        ("score model text.txt --ray", "--ray needs --out DIR"),
        ("score model text.txt --out scores", "add --ray, or redirect"),
    ],
)
def test_one_line_and_nothing_left(saffu, folder, line, message):
    pytest.importorskip("ray", reason="ray is not installed")
    refused = saffu(line)
    assert refused.status == 2 and message in refused.err, refused.err
    assert len(refused.err.splitlines()) == 1
    assert left_over(folder) == ["text.txt"]


def test_termination_while_ray_starts(saffu, folder, monkeypatch):
    """Ray has put its own handler in place by then, which exits with another status."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setattr(ray, "init", lambda *_, **__: sys.exit(15))
    assert saffu("train text.txt --out model --ray").status == 143
    assert not (folder / "model").exists()


def refused_by_node(kept, version="1.0"):
    return engine.on_node()(version, str(kept), "saffu.cluster.engine", "named", "[]")


def test_a_node_says_what_is_wrong_with_it(folder, monkeypatch):
    assert "install the same version on every node" in refused_by_node(folder / "x.json")
    monkeypatch.setattr("saffu.__version__", "1.0")
    assert "does not see" in refused_by_node(folder / "missing" / "stage" / "x.json")
    monkeypatch.setitem(sys.modules, "saffu", None)
    assert "has no saffu; install saffu 1.0 on every node" in refused_by_node(folder / "x.json")


def test_work_is_kept_only_if_it_can_go_on(folder):
    out, job = folder / "model", {"order": 3}
    for error, kept in ((SaffuError("x"), False), (Lost("x"), True), (KeyboardInterrupt(), True), (OSError(), True)):
        with pytest.raises(type(error)), engine.work_folder(out, job):
            raise error
        assert engine.is_begun(out, job) == kept
    assert not engine.is_begun(out, {"order": 4})
    (engine.place_of(out) / "mark").touch()
    with engine.work_folder(out, job) as place:
        assert (place / "mark").exists()
    assert not place.exists()
    with pytest.raises(OSError), engine.work_folder(out, job):
        raise OSError
    with engine.work_folder(out, {"order": 4}) as place:
        assert not (place / "mark").exists()


def test_scratch_of_a_killed_process_is_removed(folder, monkeypatch):
    monkeypatch.setattr(engine, "scratch_place", lambda: folder)
    monkeypatch.setattr(engine, "is_running", lambda process: process == 7)
    for process in (7, 8):
        (folder / f"{engine.SCRATCH}{process}-abc").mkdir()
    engine.remove_scratch()
    assert left_over(folder) == ["saffu-ray-7-abc", "text.txt"]
