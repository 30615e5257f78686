import bz2
import gzip
import lzma
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import each
from saffu.errors import SaffuError, install_command
from saffu.text import sources as module
from saffu.text.documents import read_lines
from saffu.text.sources import Source, Sources, find_files, other_files


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.txt", "a.txt.gz", "notes.md", "deep/er/c.txt", "deep/er/d.JSONL.zst", "none/picture.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each(
    "patterns, names",
    [
        (["."], ["a.txt.gz", "b.txt", "deep/er/c.txt", "deep/er/d.JSONL.zst", "notes.md"]),
        (["notes.md", "b.txt"], ["b.txt", "notes.md"]),
        (["b.txt", "./b.txt", "*.txt", "deep/../b.txt"], ["b.txt"]),
        (["**/*.txt"], ["b.txt", "deep/er/c.txt"]),
        (["d*/e?/[abc].txt"], ["deep/er/c.txt"]),
        ([], []),
    ],
)
def test_find_files(folder: Path, patterns: list[str], names: list[str]) -> None:
    expected = [folder / name for name in names]
    assert [path.resolve() for path in find_files(patterns)] == expected
    assert [path.resolve() for path in find_files([folder / pattern for pattern in patterns])] == expected


def test_other_files_of_a_folder(folder: Path) -> None:
    for name in (".hidden.txt", "deep/.git/x.txt", "._b.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "link.txt").symlink_to(folder / "b.txt")
    assert other_files(["."]) == [Path("none/picture.png")]
    assert other_files(["deep", "notes.md", "*.txt", "-", "missing"]) == []
    assert [str(path) for path in find_files(["deep"])] == ["deep/er/c.txt", "deep/er/d.JSONL.zst"]


def test_files_of_models_are_not_text(folder: Path) -> None:
    """Models often lie next to their text. Their files are read only if they are named."""
    for name, config in {"model": '{"model_type": "saffu"}', "data": '{"rate": 1}', "bad": "\xff"}.items():
        (folder / "deep" / name).mkdir()
        (folder / "deep" / name / "config.json").write_text(config, "latin-1")
        (folder / "deep" / name / "log.jsonl").touch()
    read = ["bad/log.jsonl", "data/log.jsonl", "er/c.txt", "er/d.JSONL.zst"]
    assert find_files(["deep"]) == [Path("deep") / name for name in read]
    assert other_files(["deep"]) == [Path("deep/bad/config.json"), Path("deep/data/config.json")]
    assert find_files(["deep/model/log.jsonl"]) == find_files(["deep/m*/*"])[1:] == [Path("deep/model/log.jsonl")]
    with pytest.raises(SaffuError, match="no text in the folder deep/model"):
        find_files(["deep/model"])


def test_a_named_file_may_look_like_a_glob(folder: Path) -> None:
    (folder / "[x].txt").touch()
    assert find_files(["[x].txt"]) == [Path("[x].txt")]


@each(
    "pattern, message",
    [
        ("", "empty file name"),
        ("missing.txt", r"no such file or folder: missing\.txt"),
        ("*.csv", r"no file matches \*\.csv"),
        ("none", r"no text in the folder none \(files ending in \.txt, \.md, \.jsonl,"),
        ("x" * 5000, "cannot look up x+: File name too long"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_find_files_errors(pattern: str, message: str) -> None:
    with pytest.raises(SaffuError, match=message):
        find_files([pattern])


@each(
    "name, form, compression",
    [
        ("a.txt", "txt", ""),
        ("a.b.jsonl.GZ", "jsonl", "gz"),
        ("x/a.csv.zst", "csv", "zst"),
        ("a.gz", "", "gz"),
        ("standard input", "", ""),
        ("/dev/fd/63", "", ""),
        ("a.parquet", "parquet", ""),
    ],
)
def test_formats_by_name(name: str, form: str, compression: str) -> None:
    source = Source(Path(name), name)
    assert (source.format, source.compression) == (form, compression)


# Pipes


def write_in_background(path: Path, content: bytes) -> threading.Thread:
    thread = threading.Thread(target=path.write_bytes, args=(content,))
    thread.start()
    return thread


def test_pipes_are_copied_and_read_twice(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file\n")
    os.mkfifo(tmp_path / "b.txt")
    writer = write_in_background(tmp_path / "b.txt", b"from a pipe\n")
    with Sources([tmp_path / "a.txt", tmp_path / "b.txt"]) as sources:
        writer.join()
        assert len(sources) == 2
        for _ in range(2):
            assert list(read_lines(sources)) == [(True, "from a file"), (True, "from a pipe")]
        [copied] = [source.path for source in sources if source.spooled]
        assert copied.parent != tmp_path
        assert copied.exists()
    assert not copied.exists()


def test_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\nb\n")
    (tmp_path / "c.txt").write_bytes(b"c\n")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        sources = Sources(["-", tmp_path / "c.txt", "-"])
    assert [source.name for source in sources] == ["standard input", str(tmp_path / "c.txt")]
    for _ in range(2):
        assert list(read_lines(sources, "line")) == [(True, "a"), (True, "b"), (True, "c")]
    sources.close()
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SaffuError, match="standard input is closed"):
        Sources(["-"])


PROGRAM = """
import os, signal, sys
sys.stdout.reconfigure(line_buffering=True)
from saffu.text.documents import read_lines
from saffu.text.sources import Sources
sources = Sources(sys.argv[1:])
for _ in range(2):
    print([text for _, text in read_lines(sources)])
print(len([source for source in sources if source.spooled]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_process_substitution_leaves_nothing_even_when_killed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    (tmp_path / "b.txt").write_text("b\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = f'"{sys.executable}" -c "$PROGRAM" a.txt <(cat b.txt) <(cat b.txt a.txt) - <<< "typed"'
    result = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PROGRAM": PROGRAM, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    first, second, spooled = result.stdout.splitlines()
    assert sorted(re.findall(r"\w+", first)) == ["a", "a", "b", "b", "typed"]
    assert second == first
    assert spooled == "3"
    assert sys.platform != "linux" or not list(scratch.iterdir())


def test_an_error_leaves_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_bytes(b"a\n")
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    for wrong, message in [("/dev/zero", "neither a file nor a pipe"), (tmp_path / "missing", "no such file")]:
        with (tmp_path / "in").open() as stdin, pytest.raises(SaffuError, match=message):
            monkeypatch.setattr(sys, "stdin", stdin)
            Sources(["-", wrong])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


# Compression


def zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    return zstandard.ZstdCompressor().compress(data)


COMPRESSORS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}


@each("kind", COMPRESSORS)
def test_compressed_files(tmp_path: Path, kind: str) -> None:
    compress, path = COMPRESSORS[kind], tmp_path / f"a.txt.{kind}"
    path.write_bytes(compress(b"a\n") + compress(b"b\n" * 100_000))  # files may be concatenated
    lines = [text for _, text in read_lines([path])]
    assert lines == ["a"] + ["b"] * 100_000
    path.write_bytes(compress(b""))
    assert list(read_lines([path])) == []


@each("damage", [lambda data: data[:-20], lambda data: b"plain text", lambda data: data[:200]])
@each("kind", COMPRESSORS)
def test_damaged_compressed_files(tmp_path: Path, kind: str, damage) -> None:
    path = tmp_path / f"a.txt.{kind}"
    path.write_bytes(damage(COMPRESSORS[kind](os.urandom(10_000).hex().encode())))
    with pytest.raises(SaffuError, match=rf"a\.txt\.{kind} is corrupt or not a \.{kind} file"):
        list(read_lines([path]))


@each("kind", COMPRESSORS)
def test_corrupt_compressed_files(tmp_path: Path, kind: str) -> None:
    data = bytearray(COMPRESSORS[kind](os.urandom(1000).hex().encode()))
    for at in range(12, len(data) - 8):
        data[at] ^= 0x5A
    (tmp_path / f"a.txt.{kind}").write_bytes(data)
    with pytest.raises(SaffuError, match=rf"a\.txt\.{kind} is corrupt"):
        list(read_lines([tmp_path / f"a.txt.{kind}"], errors="replace"))


@pytest.mark.parametrize(("name", "package"), [("a.txt.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"{package}.parquet", raising=False)
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SaffuError, match=re.escape(install_command("formats"))):
        list(read_lines([tmp_path / name]))


def test_unreadable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, reason in [(tmp_path, "Is a directory"), (tmp_path / "missing.gz", "No such file")]:
        with pytest.raises(SaffuError, match=f"cannot read {re.escape(str(path))}: {reason}"):
            list(read_lines([path]))

    def refuse(source: Source) -> None:  # root may read anything, so permissions cannot be taken away for real
        raise PermissionError(13, "Permission denied", str(source.path))

    monkeypatch.setattr(module, "_open", refuse)
    with pytest.raises(SaffuError, match=r"cannot read a\.txt: Permission denied"):
        list(read_lines(["a.txt"]))
