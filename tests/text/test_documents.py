import gzip
import os
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saffu import text
from saffu.errors import SaffuError
from saffu.text import default_corpus, find_files, read_documents


def read(folder: Path, content: bytes, split: str = "line", errors: str = "strict") -> list[str]:
    path = folder / "a.txt"
    path.write_bytes(content)
    return list(read_documents([path], split, errors))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("b.txt", "a.txt.gz", "notes.md", "deep/er/c.txt", "none/picture.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["."], ["a.txt.gz", "b.txt", "deep/er/c.txt"]),
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


def test_a_named_file_may_look_like_a_glob(folder: Path) -> None:
    (folder / "[x].txt").touch()
    assert find_files(["[x].txt"]) == [Path("[x].txt")]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("missing.txt", "no such file or folder: missing.txt"),
        ("*.csv", r"no file matches \*\.csv"),
        ("none", r"no \.txt or \.txt\.gz file in the folder none"),
        ("x" * 5000, "cannot look up x+: File name too long"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_find_files_errors(pattern: str, message: str) -> None:
    with pytest.raises(SaffuError, match=message):
        find_files([pattern])


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"", []),
        (b"\n \n\t\r\n", []),
        (b"a", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\r\nb\r\n", ["a", "b"]),
        (b"  a  \n\tb", ["  a  ", "\tb"]),
        (b"a\r\r\nb\rc\r", ["a\r", "b\rc\r"]),  # only one \r belongs to the line end, and only before \n
        ("a\u2028b\x0bc\x0cd\x1ce\x85f\u2029g\n".encode(), ["a\u2028b\x0bc\x0cd\x1ce\x85f\u2029g"]),
        ("\ufeffa\n\ufeffb".encode(), ["a", "\ufeffb"]),
    ],
)
def test_lines(tmp_path: Path, content: bytes, documents: list[str]) -> None:
    assert read(tmp_path, content) == documents


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"a\nb\n\nc", ["a\nb", "c"]),
        (b"\n\n  a\r\n b \r\n \t\r\n\r\n\nc\r\n", ["  a\n b ", "c"]),
    ],
)
def test_paragraphs(tmp_path: Path, content: bytes, documents: list[str]) -> None:
    assert read(tmp_path, content, "paragraph") == documents


@pytest.mark.parametrize(
    ("content", "documents"),
    [(b"", []), (b"\n", []), ("\ufeff a\r\n\n\u2028b\n".encode(), [" a\r\n\n\u2028b\n"])],
)
def test_whole_files(tmp_path: Path, content: bytes, documents: list[str]) -> None:
    assert read(tmp_path, content, "file") == documents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.text().filter(lambda line: "\n" not in line and "\0" not in line)))
def test_lines_against_plain_split(tmp_path: Path, lines: list[str]) -> None:
    content = "\n".join(lines).removeprefix("\ufeff")
    expected = [line.removesuffix("\r") for line in content.split("\n")[:-1]] + content.split("\n")[-1:]
    assert read(tmp_path, content.encode()) == [line for line in expected if line.strip()]


def test_documents_never_cross_files(tmp_path: Path) -> None:
    paths = [tmp_path / "1.txt", tmp_path / "2.txt"]
    for path in paths:
        path.write_text("a\nb")
    assert list(read_documents(paths)) == ["a", "b", "a", "b"]
    assert list(read_documents(paths, "paragraph")) == ["a\nb", "a\nb"]


def test_a_very_long_line(tmp_path: Path) -> None:
    line = "é" * text.SNIFFED_BYTES * 200
    assert read(tmp_path, f"{line}\nend".encode()) == [line, "end"]


def test_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    assert list(read_documents([path])) == ["a", "b"]


def test_reading_streams(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a line\n" * 10_000 + b"\xff")
    documents = read_documents([path])
    assert next(documents) == "a line"  # long before the damage at the end
    with pytest.raises(SaffuError, match=r"not UTF-8 at line 10001, byte 70000; .*--encoding-errors replace"):
        list(documents)


def test_encoding_errors(tmp_path: Path) -> None:
    with pytest.raises(SaffuError, match=r"a\.txt is not UTF-8 at line 2, byte 6;"):
        read(tmp_path, b"\xc3\xa9\nabc\xe9")
    assert read(tmp_path, b"\xc3\xa9\nabc\xe9", errors="replace") == ["é", "abc\ufffd"]


def test_binary_files(tmp_path: Path) -> None:
    with pytest.raises(SaffuError, match="looks like a binary file"):
        read(tmp_path, "UTF-16".encode("utf-16"))
    assert read(tmp_path, b"a\0b", errors="replace") == ["a\0b"]
    late = b"a" * text.SNIFFED_BYTES + b"\0"
    assert read(tmp_path, late) == [late.decode()]


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"plain", lambda data: data[:200]])
def test_damaged_gzip(tmp_path: Path, damage) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(10_000).hex().encode())))
    with pytest.raises(SaffuError, match=r"a\.txt\.gz is damaged or no gzip file"):
        list(read_documents([path]))


def test_corrupt_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    data = bytearray(gzip.compress(b"some text\n" * 1000))
    data[12] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(SaffuError, match=r"a\.txt\.gz is damaged or no gzip file"):
        list(read_documents([path], errors="replace"))


def test_unreadable_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, reason in [(tmp_path, "Is a directory"), (tmp_path / "missing.gz", "No such file")]:
        with pytest.raises(SaffuError, match=f"cannot read {re.escape(str(path))}: {reason}"):
            list(read_documents([path]))

    def refuse(path: Path) -> None:  # root may read anything, so permissions cannot be taken away for real
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(text, "_open", refuse)
    with pytest.raises(SaffuError, match=r"cannot read a\.txt: Permission denied"):
        list(read_documents(["a.txt"]))


def test_unknown_choices() -> None:
    with pytest.raises(SaffuError, match="unknown split 'word'; choose one of line, paragraph, file"):
        list(read_documents([], split="word"))
    with pytest.raises(SaffuError, match="unknown way to treat encoding errors 'ignore'"):
        list(read_documents([], errors="ignore"))


@pytest.mark.parametrize(
    ("paragraph", "is_prose"),
    [
        ("Return the number of\nitems in the list.", True),
        ('If "x" is true (as it *may* well be), then call foo() a second time.', True),
        ("three words only", False),
        (">>> return the sum of all items", False),
        ("Use it so:\n>>> f(1)", False),
        (".. note:: this is a directive of reST", False),
        (":param x: the value that is used", False),
        ("A heading with many words\n=========================", False),
        ("| a | table with words in it |", False),
        ('suite ::= "if" test "then" suite and so on', False),
        ("x = the value of all this stuff", False),
        ("for item in all the things:\n    print(item)", False),
        ("a + b / c % d & e @ f", False),
    ],
)
def test_prose(paragraph: str, is_prose: bool) -> None:
    assert text._is_prose(paragraph) is is_prose


def test_docstrings_of_modules_classes_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "x.py").write_text('"""This one is not to be read."""')
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "a.py").write_text(
        '"""The module does this\n   and that, too.\n\n   >>> code is left out of it\n"""\n'
        'class A:\n    """The class does this and that."""\n'
        '    async def f(self):\n        """The method does this and that."""\n'
        'def g():\n    """The class does this and that."""\n    "No docstring is this one."\n'
    )
    monkeypatch.setattr(text.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(text, "_language_reference", lambda: ["Words of the reference\n\n   x = 1"])
    assert list(default_corpus()) == [
        "Words of the reference",
        "The module does this and that, too.",
        "The class does this and that.",
        "The method does this and that.",
    ]


def test_default_corpus_without_library_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text.sysconfig, "get_paths", lambda: {"stdlib": "/missing/python.zip"})
    documents = list(default_corpus())
    assert len(documents) > 500
    assert documents == list(default_corpus())
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(SaffuError, match="ships neither its reference nor its library's source"):
        list(default_corpus())


def test_default_corpus() -> None:
    documents = list(default_corpus())
    assert len(documents) > 5000
    assert len(set(documents)) == len(documents)
    assert sum(len(document.split()) for document in documents) > 100_000
    assert not [document for document in documents if re.search(r">>>|::=| = |\n|  |^\.\. ", document)]
    assert min(len(re.findall(r"[A-Za-z]+", document)) for document in documents) >= 4
