import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from damage import declared, raw
from saffu import files, writing
from saffu.errors import SaffuError

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([True, False]), "c": np.arange(2)}


@pytest.fixture
def folder(tmp_path):
    content = {"model.safetensors": ARRAYS, "tokenizer.json": b"{}", "log.jsonl": lambda: b'{"x": 1}\n'}
    files.write_folder(tmp_path / "model", {"model_type": "saffu", "settings": {"smoothing": 0.1}}, content)
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
    assert sorted(manifest["checksums"]) == ["config.json", "log.jsonl", "model.safetensors", "tokenizer.json"]
    assert equal(files.read_arrays(folder, "model.safetensors", manifest), ARRAYS)
    assert files.read_file(folder, "log.jsonl", manifest) == b'{"x": 1}\n'
    with pytest.raises(SaffuError, match="not recorded"):
        files.read_file(folder, "other.json", manifest)
    (folder / "config.json").write_text(json.dumps(dict(reversed(manifest.items()))))  # says the same
    assert files.read_manifest(folder) == manifest
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_files_are_on_the_disk_before_they_appear(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    files.write_folder(tmp_path / "model", {}, {"text": b"abc", "arrays": {"x": np.arange(3)}})
    files.write_file(tmp_path / "file", b"abc")
    written = [*(tmp_path / "model").iterdir(), tmp_path / "file"]
    assert len(written) == 4 and {path.stat().st_ino for path in written} == {*synced}


def test_no_folder_and_no_model(tmp_path):
    with pytest.raises(SaffuError, match="no model in"):
        files.read_manifest(tmp_path / "nowhere")
    with pytest.raises(SaffuError, match=r"not a model folder \(no config"):
        files.read_manifest(tmp_path)
    with pytest.raises(SaffuError, match="no model in"), files.changing(tmp_path / "no" / "where", wait=True):
        pass


def test_manifest_values_that_json_changes(tmp_path):
    files.write_folder(tmp_path / "a", {"shape": (1, 2), "counts": {10: 1, 9: 2}, "x": float("inf")}, {})
    manifest = files.read_manifest(tmp_path / "a")
    assert manifest["shape"] == [1, 2]
    assert manifest["counts"] == {"10": 1, "9": 2}


def test_a_folder_saved_by_transformers_has_no_checksums(folder):
    manifest = json.loads((folder / "config.json").read_text())
    recorded = manifest.pop("checksums")
    (folder / "config.json").write_text(json.dumps(manifest | {"auto_map": {}}))
    found = files.read_manifest(folder)["checksums"]
    assert found["model.safetensors"] == recorded["model.safetensors"]
    assert equal(files.read_arrays(folder, "model.safetensors", files.read_manifest(folder)), ARRAYS)


@pytest.mark.parametrize("name", ["", "..", ".", "a/b", "../x", "/etc/x", "a\\b", "config.json"])
def test_only_plain_names(tmp_path, name):
    with pytest.raises(SaffuError, match="plain name"):
        files.write_folder(tmp_path / "a", {}, {name: b""})
    with pytest.raises(SaffuError, match="plain name"):
        files.read_file(tmp_path, name, {"checksums": {name: ""}})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_old_folder(folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def no_space(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        files.write_folder(folder, {}, {"x": b"x"})
    with pytest.raises(OSError, match="No space"):
        files.write_file(folder / "tokenizer.json", b"x")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("exchange", ["at once", "in two steps"])
def test_replacing_a_folder(tmp_path, monkeypatch, exchange):
    if exchange == "in two steps":
        monkeypatch.setattr(sys, "platform", "elsewhere")
    files.write_folder(tmp_path / "a", {"n": 1}, {"old": b"1"})
    files.write_folder(tmp_path / "a", {"n": 2}, {"new": b"2"})
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["config.json", "new"]
    assert files.read_file(tmp_path / "a", "new", files.read_manifest(tmp_path / "a")) == b"2"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


WRITER = """
import sys
from pathlib import Path
import numpy as np
from saffu import files
folder = Path(sys.argv[1])
for n in range(10**6):
    files.write_folder(folder, {"n": n}, {"x": {"a": np.full(100_000, n)}, "y": str(n).encode()})
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
    with files.changing(folder, wait=False):  # a lock ends with its process
        assert [path.name for path in tmp_path.iterdir() if path.name.endswith("lock")] == [".a.lock"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_folder_moved_aside_is_put_back(folder):
    folder.rename(folder.with_name(f".model.writing-01234abc{writing.OLD}"))
    folder.with_name(".model.writing-1234abcd").mkdir()
    with files.changing(folder, wait=True):
        assert files.read_manifest(folder)["settings"] == {"smoothing": 0.1}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_require_writable(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SaffuError, match="is a file"):
        files.require_writable(tmp_path / "file", force=True)
    with pytest.raises(OSError, match=r"Not a directory|exists"):
        files.require_writable(tmp_path / "file" / "model", force=False)
    files.require_writable(tmp_path / "new" / "model", force=False)
    files.write_folder(tmp_path / "other", {"model_type": "saffu"}, {})
    manifest = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(manifest | {"format": 1}))
    files.require_writable(tmp_path / "other", force=True)  # a folder of another format may be replaced
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    with pytest.raises(SaffuError, match="not empty"):
        files.require_writable(tmp_path / "full", force=False)
    with pytest.raises(SaffuError, match="it is not a saved model, but holds 'x'"):
        files.require_writable(tmp_path / "full", force=True)
    with pytest.raises(SaffuError, match="inside it"):
        files.require_writable(Path("/"), force=True)


@pytest.mark.parametrize("name", ["", ".", "..", "../model", "link"])
def test_the_current_folder_is_never_replaced(folder, monkeypatch, name):
    monkeypatch.chdir(folder)
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(SaffuError, match="is the current folder"):
        files.write_folder(Path("../link") if name == "link" else Path(name), {}, {})
    assert Path.cwd() == folder
    assert files.read_manifest(folder)


def test_only_a_model_is_replaced(folder, tmp_path):
    files.require_writable(folder, force=True)
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(SaffuError, match=r"thesis\.tex"):
        files.write_folder(folder, {}, {})
    assert (folder / "thesis.tex").read_text() == "years of work"
    (folder / "thesis.tex").unlink()
    (folder / "log.jsonl").unlink()
    (folder / "log.jsonl").mkdir()
    with pytest.raises(SaffuError, match=r"log\.jsonl"):
        files.write_folder(folder, {}, {})
    (folder / "log.jsonl").rmdir()
    (tmp_path / "link").symlink_to(folder)
    files.write_folder(tmp_path / "link", {"n": 2}, {})
    assert (tmp_path / "link").is_symlink()
    assert files.read_manifest(folder)["n"] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]


# Locks

HOLDER = """
import sys
from pathlib import Path
from saffu import files
with files.changing(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    sys.stdin.readline()
    files.write_folder(Path(sys.argv[1]), {"by": "holder"}, {})
"""


def test_writers_take_turns(folder):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        busy = pytest.raises(SaffuError, match="another saffu process is writing to")
        with busy, files.changing(folder, wait=False):
            pass
        holder.stdin.write("\n")
        holder.stdin.flush()
        with files.changing(folder, wait=True):
            seen = files.read_manifest(folder)
            files.write_folder(folder, {"by": "waiter"}, {})
    assert seen["by"] == "holder"
    assert files.read_manifest(folder)["by"] == "waiter"
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


TAKER = """
import sys
from pathlib import Path
from saffu import files
folder, counter = map(Path, sys.argv[1:])
for _ in range(300):
    with files.changing(folder, wait=True):
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
        with files.changing(folder, wait=True):
            order.append("other")

    thread, seen = threading.Thread(target=other), Seen()
    logging.getLogger("saffu").addHandler(seen)
    try:
        with files.changing(folder, wait=False), files.changing(folder, wait=False):  # one thread may take it again
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
    with pytest.raises(KeyError), files.changing(folder, wait=False):
        raise KeyError
    with files.changing(folder, wait=False):
        pass


# Arrays

some_arrays = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__"),
    hnp.arrays(
        st.sampled_from([np.dtype(name) for name in writing.DTYPE_NAMES]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    max_size=5,
)


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].shape == array.shape
        and found[name].dtype == array.dtype
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


@settings(max_examples=60, deadline=None)
@given(content=some_arrays)
def test_arrays_round_trip_and_agree_with_the_library(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("arrays") / "a.safetensors"
    files.write_file(path, content)
    assert same(files.load_arrays(path), content)
    assert same(files.map_arrays(path), content)
    assert same(safetensors.numpy.load_file(path), content)
    path.write_bytes(safetensors.numpy.save(content))
    assert same(files.load_arrays(path), content)
    assert same(files.map_arrays(path), content)


def test_strided_and_big_endian_arrays(tmp_path):
    square = np.arange(9.0).reshape(3, 3)
    files.write_file(tmp_path / "a", {"t": square.T, "big": square.astype(">f8"), "every": square[:, ::2]})
    found = files.load_arrays(tmp_path / "a")
    assert np.array_equal(found["t"], square.T)
    assert np.array_equal(found["big"], square)
    assert np.array_equal(found["every"], square[:, ::2])
    assert found["big"].dtype == np.dtype("<f8")


def test_mapped_arrays_are_mapped_aligned_and_read_only(tmp_path):
    path = tmp_path / "a"
    files.write_file(path, {"small": np.ones(3, np.uint8), "large": np.ones(1000), "middle": np.ones(5, np.int16)})
    mapped = files.map_arrays(path)
    assert all(array.flags.aligned and not array.flags.writeable for array in mapped.values())
    assert not any(array.flags.owndata for array in mapped.values())
    loaded = files.load_arrays(path)
    assert all(array.flags.aligned and array.flags.writeable for array in loaded.values())
    files.write_file(path, b"replaced")  # the mapped file lives on
    assert mapped["large"].sum() == 1000


def test_foreign_safetensors_may_be_unaligned_or_of_half_precision(tmp_path):
    values = np.array([1.5, -2, 0], dtype=np.float32)
    half = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    header = {"a": declared("U8", [1], [0, 1]), "b": declared("F32", [3], [1, 13])}
    header["c"] = declared("BF16", [3], [13, 19])
    (tmp_path / "a").write_bytes(raw(header, b"\x07" + values.tobytes() + half))
    for read in (files.load_arrays, files.map_arrays):
        found = read(tmp_path / "a")
        assert found["a"].tolist() == [7]
        assert found["b"].tolist() == found["c"].tolist() == [1.5, -2, 0]
        assert found["b"].flags.aligned


def test_links_to_regular_files_are_read(folder, tmp_path):
    (folder / "tokenizer.json").rename(tmp_path / "blob")
    (folder / "tokenizer.json").symlink_to(tmp_path / "blob")
    assert files.read_file(folder, "tokenizer.json", files.read_manifest(folder)) == b"{}"


def test_writing_does_not_copy_the_arrays():
    large = np.zeros(1000)
    _, piece = writing.to_safetensors({"a": large})
    assert np.shares_memory(piece, large)


def test_write_file(tmp_path):
    files.write_file(tmp_path / "new" / "a.txt", b"1")
    files.write_file(tmp_path / "new" / "a.txt", lambda: b"2")
    assert (tmp_path / "new" / "a.txt").read_bytes() == b"2"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.txt"]
