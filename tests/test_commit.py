"""A folder as a commit: whole versions only, foreign files stay, what killed writers left is swept."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from conftest import part
from saffu import files
from saffu.commit import changing, commit, export, leftovers, read_folder, require_writable
from saffu.errors import SaffuError

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c": np.arange(2)}


@pytest.fixture
def folder(tmp_path):
    content = {"model.safetensors": ARRAYS, "tokenizer.json": b"{}", "log.jsonl": lambda: b'{"x": 1}\n'}
    commit(tmp_path / "model", {"model_type": "saffu", "settings": {"smoothing": 0.1}}, content)
    return tmp_path / "model"


def equal(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and np.array_equal(found[name], expected[name]) for name in expected
    )


# Folders


def test_a_folder_is_read_back(folder):
    manifest = files.read_manifest(folder)
    assert manifest["format"] == files.FORMAT
    assert manifest["settings"] == {"smoothing": 0.1}
    assert sorted(files.stored_names(manifest)) == ["log.jsonl", "model.safetensors", "tokenizer.json"]
    assert {path.name for path in folder.iterdir()} == set(manifest["checksums"])
    assert equal(files.read_arrays(folder, "model.safetensors", manifest), ARRAYS)
    assert files.read_file(folder, "log.jsonl", manifest) == b'{"x": 1}\n'
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_files_are_on_the_disk_before_they_appear(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    commit(tmp_path / "model", {}, {"text": b"abc", "arrays": {"x": np.arange(3)}})
    files.write_file(tmp_path / "file", b"abc")
    paths = [*(tmp_path / "model").iterdir(), tmp_path / "file"]
    folder = (tmp_path / "model").stat().st_ino
    assert {path.stat().st_ino for path in paths} == {*synced} - {folder} and len(paths) == 4
    manifest = (tmp_path / "model" / "config.json").stat().st_ino
    assert synced.index(folder) < synced.index(manifest), "the manifest must not name files that are not there yet"


def test_no_folder_and_no_model(tmp_path):
    with pytest.raises(SaffuError, match="no model in"):
        files.read_manifest(tmp_path / "nowhere")
    with pytest.raises(SaffuError, match=r"not a model folder \(no config"):
        files.read_manifest(tmp_path)
    with pytest.raises(SaffuError, match="no model in"), changing(tmp_path / "no" / "where", wait=True):
        pass


def test_manifest_values_that_json_changes(tmp_path):
    commit(tmp_path / "a", {"shape": (1, 2), "counts": {10: 1, 9: 2}, "x": float("inf")}, {})
    manifest = files.read_manifest(tmp_path / "a")
    assert manifest["shape"] == [1, 2]
    assert manifest["counts"] == {"10": 1, "9": 2}


def test_a_folder_saved_by_transformers_has_no_checksums(tmp_path):
    export(tmp_path / "hf", {"model_type": "saffu", "auto_map": {}}, {"model.safetensors": ARRAYS})
    manifest = json.loads((tmp_path / "hf" / "config.json").read_text())
    recorded = manifest.pop("checksums")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(manifest))
    found = files.read_manifest(tmp_path / "hf")
    assert found["checksums"]["model.safetensors"] == recorded["model.safetensors"]
    assert equal(files.read_arrays(tmp_path / "hf", "model.safetensors", found), ARRAYS)


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "../x", "/etc/x", "a\\b"])
def test_only_plain_names(tmp_path, name):
    with pytest.raises(SaffuError, match="plain name"):
        commit(tmp_path / "a", {}, {name: b""})
    with pytest.raises(SaffuError, match="plain name"):
        files.read_file(tmp_path, name, {"checksums": {name: "", "../x": "", "config.json": ""}})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_folder(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def no_space(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        commit(folder, {}, {"x": b"x"})
    with pytest.raises(OSError, match="No space"):
        files.write_file(folder / "notes", b"x")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from saffu.commit import changing, commit
folder = Path(sys.argv[1])
for n in range(10**6):
    commit(folder, {"model_type": "saffu", "n": n}, {"x": {"a": np.full(100_000, n)}, "y": str(n).encode()})
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
        manifest = files.read_manifest(folder)
        assert files.read_file(folder, "y", manifest) == str(manifest["n"]).encode()
        assert set(files.read_arrays(folder, "x", manifest)["a"]) == {manifest["n"]}
    with changing(folder, wait=False):  # a lock ends with its process
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith("lock")] == [".a.lock"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_new_version_takes_the_place_of_the_old_one(tmp_path):
    folder = tmp_path / "a"
    commit(folder, {"model_type": "saffu", "n": 1}, {"old": b"1", "same.json": b"{}"})
    kept = part(folder, "same.json").stat().st_ino
    commit(folder, {"model_type": "saffu", "n": 2}, {"new": b"2", "same.json": b"{}"})
    manifest = files.read_manifest(folder)
    assert {path.name for path in folder.iterdir()} == set(manifest["checksums"])
    assert sorted(files.stored_names(manifest)) == ["new", "same.json"]
    assert files.read_file(folder, "new", manifest) == b"2"
    assert part(folder, "same.json").stat().st_ino == kept, "a file with this content exists and must not be replaced"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_damaged_file_is_written_again(folder):
    path = part(folder, "tokenizer.json")
    path.write_bytes(b"damaged")
    commit(folder, {"model_type": "saffu"}, {"tokenizer.json": b"{}"})
    assert part(folder, "tokenizer.json") == path and path.read_bytes() == b"{}"


def test_what_a_killed_writer_left_is_swept_and_counts_as_nothing(tmp_path):
    folder = tmp_path / "a"
    folder.mkdir()
    left = [folder / ".model.safetensors.writing-0123456789ab", folder / "sums-0123456789abcdef.safetensors"]
    for path in left:
        path.write_bytes(b"half")
    assert leftovers(folder) == left
    require_writable(folder, force=False)
    commit(folder, {"model_type": "saffu"}, {})
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_foreign_files_stay(folder, tmp_path):
    foreign = ["thesis.tex", "model.safetensors", ".notes.writing-mine", "sums-01234.safetensors", "sub"]
    for name in foreign:
        (folder / name).write_text("years of work")
    (tmp_path / "link").symlink_to(folder)
    commit(tmp_path / "link", {"model_type": "saffu", "n": 2}, {})
    assert (tmp_path / "link").is_symlink() and files.read_manifest(folder)["n"] == 2
    assert sorted(path.name for path in folder.iterdir()) == sorted([*foreign, "config.json"])


def test_a_reader_whose_file_has_gone_reads_the_new_version(folder):
    versions = []

    def read(manifest):
        versions.append(manifest["settings"]["smoothing"])
        if len(versions) == 1:
            commit(folder, {"model_type": "saffu", "settings": {"smoothing": 0.2}}, {"tokenizer.json": b"[]"})
        return files.read_file(folder, "tokenizer.json", manifest)

    assert (read_folder(folder, read), versions) == (b"[]", [0.1, 0.2])
    part(folder, "tokenizer.json").unlink()
    with pytest.raises(SaffuError, match="is missing"):
        read_folder(folder, read)


def test_require_writable(tmp_path, folder):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SaffuError, match="is a file"):
        require_writable(tmp_path / "file", force=True)
    with pytest.raises(OSError, match=r"Not a directory|exists"):
        require_writable(tmp_path / "file" / "model", force=False)
    require_writable(tmp_path / "new" / "model", force=False)
    assert not (tmp_path / "new").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(SaffuError, match="not empty"):
        require_writable(tmp_path / "full", force=False)
    for content in (None, "", "[1]", '{"theme": "dark"}', '{"model_type": "bert"}'):
        if content is not None:
            (tmp_path / "full" / "config.json").write_text(content)
        with pytest.raises(SaffuError, match="it is not a saved model, but holds"):
            commit(tmp_path / "full", {}, {})
    assert (tmp_path / "full" / "x").read_text() == "x"
    require_writable(folder, force=True)


@pytest.mark.parametrize(("version", "message"), [(7, "earlier saffu"), (files.FORMAT + 1, "newer than this saffu")])
def test_other_formats(folder, version, message):
    manifest = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(manifest | {"format": version}))
    with pytest.raises(SaffuError, match=message):
        files.read_manifest(folder)
    require_writable(folder, force=True)  # it may be replaced all the same


def test_an_export_is_replaced_only_if_all_of_it_is_ours(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    export(folder, {"model_type": "saffu"}, {"README.md": b"card", "x.safetensors": ARRAYS})
    export(folder, {"model_type": "saffu"}, {"README.md": b"new card"})
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    monkeypatch.chdir(folder)
    with pytest.raises(SaffuError, match="replaced as a whole"):
        export(folder, {}, {})
    monkeypatch.chdir(tmp_path)
    (folder / "notes").write_text("mine")
    with pytest.raises(SaffuError, match="'notes' is not part of an export"):
        export(folder, {}, {})
    (folder / "notes").unlink()
    (folder / "README.md").write_text("my card")
    with pytest.raises(SaffuError, match=r"'README\.md' was changed"):
        export(folder, {}, {})
    assert (folder / "README.md").read_text() == "my card"


# Locks

HOLDER = """
import sys
from pathlib import Path
from saffu.commit import changing, commit
with changing(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    sys.stdin.readline()
    commit(Path(sys.argv[1]), {"model_type": "saffu", "by": "holder"}, {})
"""


def test_writers_take_turns(folder):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        busy = pytest.raises(SaffuError, match="another saffu process is writing to")
        with busy, changing(folder, wait=False):
            pass
        holder.stdin.write("\n")
        holder.stdin.flush()
        with changing(folder, wait=True):
            seen = files.read_manifest(folder)
            commit(folder, {"model_type": "saffu", "by": "waiter"}, {})
    assert seen["by"] == "holder"
    assert files.read_manifest(folder)["by"] == "waiter"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


TAKER = """
import sys
from pathlib import Path
from saffu.commit import changing, commit
folder, counter = map(Path, sys.argv[1:])
for _ in range(300):
    with changing(folder, wait=True):
        counter.write_text(str(int(counter.read_text()) + 1))
"""


@pytest.mark.slow
def test_no_two_writers_at_once_however_many_wait(folder, tmp_path):
    """Versions of filelock before 3.30 let several in when the lock file is removed."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", TAKER, str(folder), str(counter)]
    takers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    errors = [taker.communicate()[1] for taker in takers]
    assert [taker.returncode for taker in takers] == [0] * 4, errors
    assert counter.read_text() == "1200"


def test_a_waiting_writer_says_so(folder, caplog):
    """Another thread of the same process has to wait like another process."""
    waits, order = threading.Event(), []

    class Seen(logging.Handler):
        def emit(self, record):
            waits.set()

    def other():
        with changing(folder, wait=True):
            order.append("other")

    thread, seen = threading.Thread(target=other), Seen()
    logging.getLogger("saffu").addHandler(seen)
    try:
        with changing(folder, wait=False), changing(folder, wait=False):  # one thread may take it again
            thread.start()
            assert waits.wait(300)
            order.append("this")
        thread.join()
    finally:
        logging.getLogger("saffu").removeHandler(seen)
    assert order == ["this", "other"]
    assert caplog.messages == [f"waiting for another saffu process that is writing to {folder}"]
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_a_lock_is_released_after_an_error(folder):
    with pytest.raises(KeyError), changing(folder, wait=False):
        raise KeyError
    with changing(folder, wait=False):
        pass


def test_links_to_regular_files_are_read(folder, tmp_path):
    path = part(folder, "tokenizer.json")
    path.rename(tmp_path / "blob")
    path.symlink_to(tmp_path / "blob")
    assert files.read_file(folder, "tokenizer.json", files.read_manifest(folder)) == b"{}"
