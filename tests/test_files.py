import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import saffu
from saffu import SaffuError, store


@pytest.fixture
def folder(small_lm, tmp_path):
    small_lm.save(tmp_path / "model")
    return tmp_path / "model"


def test_no_folder_and_no_model(tmp_path):
    with pytest.raises(SaffuError, match="no model folder"):
        saffu.load(tmp_path / "nowhere")
    with pytest.raises(SaffuError, match="no config"):
        saffu.load(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "counts.safetensors", "ngrams.safetensors", "tokenizer.json"])
def test_damage_is_found(folder, name):
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SaffuError, match=rf"{name} is damaged"):
        saffu.load(folder)
    path.write_bytes(whole[:-20] + b"x" + whole[-19:])
    with pytest.raises(SaffuError, match=rf"{name} is damaged"):
        saffu.load(folder)
    path.unlink()
    with pytest.raises(SaffuError, match=rf"{name} is missing"):
        saffu.load(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "x"}', '{"format": 1}'])
def test_damaged_manifest(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(SaffuError, match=r"damaged|newer"):
        saffu.load(folder)


def test_newer_format(folder):
    manifest = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(manifest | {"format": store.FORMAT + 1}))
    with pytest.raises(SaffuError, match="newer than this saffu"):
        saffu.load(folder)


def test_unknown_setting(folder):
    manifest = json.loads((folder / "config.json").read_text())
    manifest["config"]["colour"] = "red"
    (folder / "config.json").write_text(json.dumps(manifest))
    with pytest.raises(SaffuError, match="colour"):
        saffu.load(folder)


def test_a_full_disk_leaves_the_old_folder(small_lm, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def no_space(path, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(store, "_write_durably", no_space)
    with pytest.raises(OSError, match="No space"):
        small_lm.save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("exchange", ["at once", "in two steps"])
def test_replacing_a_folder(tmp_path, monkeypatch, exchange):
    if exchange == "in two steps":
        monkeypatch.setattr(sys, "platform", "elsewhere")
    store.write_folder(tmp_path / "a", {"n": 1}, {"old": b"1"})
    store.write_folder(tmp_path / "a", {"n": 2}, {"new": b"2"})
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "new"]
    assert store.read_file(tmp_path / "a", "new", store.read_manifest(tmp_path / "a")) == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


WRITER = """
import sys
from pathlib import Path
from saffu import store
folder = Path(sys.argv[1])
for n in range(10**6):
    store.write_folder(folder, {"n": n}, {"x": str(n).encode() * 50_000, "y": str(n).encode()})
    print(n, flush=True)
"""


def test_killed_while_writing_the_folder_is_whole(tmp_path):
    """SIGKILL at arbitrary moments: the folder is always one of those written, complete."""
    folder = tmp_path / "a"
    for writes in range(1, 6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
        for _ in range(writes):
            writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        manifest = store.read_manifest(folder)
        number = str(manifest["n"]).encode()
        assert store.read_file(folder, "y", manifest) == number
        assert store.read_file(folder, "x", manifest) == number * 50_000


def test_require_writable(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SaffuError, match="is a file"):
        store.require_writable(tmp_path / "file", force=True)
    with pytest.raises(OSError, match=r"Not a directory|exists"):
        store.require_writable(tmp_path / "file" / "model", force=False)
    store.require_writable(tmp_path / "new" / "model", force=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(SaffuError, match="not empty"):
        store.require_writable(tmp_path / "full", force=False)
    with pytest.raises(SaffuError, match="none of a model's files"):
        store.require_writable(tmp_path / "full", force=True)
    with pytest.raises(SaffuError, match="inside it"):
        store.require_writable(Path("/"), force=True)


def test_only_a_model_is_replaced(folder, small_lm, tmp_path):
    store.require_writable(folder, force=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(SaffuError, match=r"thesis\.tex"):
        small_lm.save(folder)
    assert (folder / "thesis.tex").read_text() == "years of work"
    (folder / "thesis.tex").unlink()
    (tmp_path / "link").symlink_to(folder)
    small_lm.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert saffu.load(tmp_path / "link").config == small_lm.config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]


@pytest.mark.parametrize(
    "change",
    [{"checksums": []}, {"trained_on": {}}, {"vocabulary": 5}, {"config": {"block": 4}}, {"config": []}],
    ids=str,
)
def test_a_manifest_that_does_not_fit(folder, change):
    manifest = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(manifest | change))
    with pytest.raises(SaffuError):
        saffu.load(folder)
