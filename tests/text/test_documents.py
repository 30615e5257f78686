import bz2
import gzip
import json
import lzma
import tracemalloc
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import each
from saffu.errors import SaffuError
from saffu.text.corpus import lines_of
from saffu.text.documents import SNIFFED_BYTES, Lines, documents_from, hold_out, read_lines, read_records
from saffu.text.records import Record, Skipped

any_line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0\ufeff"), max_size=6)
some_lines = st.lists(st.sampled_from(["", " ", "a", "b c", "{}x"]) | any_line, max_size=30)
with_files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def read(folder: Path, content: bytes | str, split: str = "file", name: str = "a.txt", **options) -> list[str]:
    """Documents, each with its lines joined by "|"."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return joined(read_lines([folder / name], split, **options))


def joined(lines) -> list[str]:
    documents: list[list[str]] = []
    for begins, text in lines:
        if begins:
            documents.append([])
        documents[-1].append(text)
    return ["|".join(document) for document in documents]


# Plain text


@each(
    "content, files, paragraphs, lines",
    [
        (b"", [], [], []),
        (b"\n \n\t\r\n", [], [], []),
        (b"a", ["a"], ["a"], ["a"]),
        (b"a\nb", ["a|b"], ["a|b"], ["a", "b"]),
        (b"\n\na\r\n\r\n \n\nb\r\n\n", ["a||||b"], ["a", "b"], ["a", "b"]),
        (b"  a  \n\tb", ["  a  |\tb"], ["  a  |\tb"], ["  a  ", "\tb"]),
        (b"a\r\r\nb\rc", ["a\r|b\rc"], ["a\r|b\rc"], ["a\r", "b\rc"]),  # one \r belongs to the line end
        ("a\u2028b\x0bc\x0cd\x1ce\x85f\u2029g\n".encode(), *([["a\u2028b\x0bc\x0cd\x1ce\x85f\u2029g"]] * 3)),
        ("\ufeffa\n\ufeffb".encode(), ["a|\ufeffb"], ["a|\ufeffb"], ["a", "\ufeffb"]),
    ],
)
def test_splits(tmp_path: Path, content: bytes, files: list[str], paragraphs: list[str], lines: list[str]) -> None:
    assert read(tmp_path, content, "file") == files
    assert read(tmp_path, content, "paragraph") == paragraphs
    assert read(tmp_path, content, "line") == lines


@with_files
@given(some_lines, st.sampled_from(["\n", "\r\n"]))
def test_splitting_round_trips(tmp_path: Path, lines: list[str], end: str) -> None:
    """Against plain string methods on the whole text."""
    content = end.join(lines)
    text = "\n".join("" if not line.strip() else line for line in lines)
    whole = text.strip("\n")
    assert read(tmp_path, content, "file") == ([whole.replace("\n", "|")] if whole else [])
    paragraphs = [part.strip("\n") for part in text.split("\n\n")]
    assert read(tmp_path, content, "paragraph") == [part.replace("\n", "|") for part in paragraphs if part]
    assert read(tmp_path, content, "line") == [line for line in lines if line.strip()]
    assert list(read_lines([tmp_path / "a.txt"])) == list(lines_of([content]))  # a string is split like a file


def test_documents_never_cross_files(tmp_path: Path) -> None:
    paths = [tmp_path / "1.txt", tmp_path / "2.txt"]
    for path in paths:
        path.write_text("a\nb")
    assert joined(read_lines(paths)) == ["a|b", "a|b"]
    assert joined(read_lines(paths, "paragraph")) == ["a|b", "a|b"]
    assert joined(read_lines(paths, "line")) == ["a", "b", "a", "b"]


def test_a_very_long_line(tmp_path: Path) -> None:
    line = "é" * SNIFFED_BYTES * 200
    assert read(tmp_path, f"{line}\nend") == [f"{line}|end"]


def test_reading_streams(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a line\n" * 10_000 + b"\xff")
    lines = read_lines([tmp_path / "a.txt"])
    assert next(lines) == (True, "a line")  # long before the damage at the end
    with pytest.raises(SaffuError, match=r"not UTF-8 at line 10001, byte 70000; .* set `encoding_errors` to replace"):
        list(lines)


@pytest.mark.parametrize("split", ["file", "paragraph", "line"])
def test_a_large_file_is_never_in_memory(tmp_path: Path, split: str) -> None:
    with (tmp_path / "a.txt").open("w") as file:
        file.writelines(f"line {number}\n\n\n" for number in range(60_000))  # 0.8 MB
    tracemalloc.start()
    try:
        count = sum(1 for _ in hold_out(read_lines([tmp_path / "a.txt"], split), 10, held_out=False))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count >= 50_000
    assert peak < 200_000


def test_encoding_errors(tmp_path: Path) -> None:
    with pytest.raises(SaffuError, match=r"a\.txt is not UTF-8 at line 2, byte 6;"):
        read(tmp_path, b"\xc3\xa9\nabc\xe9")
    assert read(tmp_path, b"\xc3\xa9\nabc\xe9", errors="replace") == ["é|abc\ufffd"]


def test_utf_16_with_its_mark(tmp_path: Path) -> None:
    for coding in ("utf-16", "utf-16-be"):
        text = "é one\r\ntwo 😀\n" + "x" * SNIFFED_BYTES
        mark = "\ufeff" if coding == "utf-16-be" else ""
        for errors in ("strict", "replace"):
            assert read(tmp_path, (mark + text).encode(coding), errors=errors) == [
                text.replace("\r", "").replace("\n", "|")
            ]
    with pytest.raises(SaffuError, match="not valid UTF-16"):
        read(tmp_path, "odd".encode("utf-16") + b"x")


def test_binary_files(tmp_path: Path) -> None:
    with pytest.raises(SaffuError, match=r"looks like a binary file.*`skip_bad_files`"):
        read(tmp_path, b"a\0b")
    assert read(tmp_path, b"a\0b", errors="replace") == ["a\0b"]
    late = b"a" * SNIFFED_BYTES + b"\0"
    assert read(tmp_path, late) == [late.decode()]
    assert read(tmp_path, b"BZhang wrote\n") == ["BZhang wrote"]


@each(
    "content, program",
    [
        (gzip.compress(b"a", mtime=0), "gzip"),  # the name of a test must not depend on the time
        (b"\x1f\x8b without NUL bytes", "gzip"),
        (bz2.compress(b"a"), "bzip2"),
        (lzma.compress(b"a"), "xz"),
        (b"\x28\xb5\x2f\xfd\x24\x01\x09\x00\x00a\x00\x8b\x96\xa8", "zstd"),
    ],
)
def test_compressed_files_that_are_not_named_so(tmp_path: Path, content: bytes, program: str) -> None:
    with pytest.raises(SaffuError, match=rf"a\.txt is compressed; decompress it first, with `{program} -dc`"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"split": "word"}, "`split` must be one of file, paragraph, line, got 'word'"),
        ({"errors": "ignore"}, "`encoding_errors` must be one of strict, replace, got 'ignore'"),
        ({"bad_records": "keep"}, "`bad_records` must be one of error, skip, got 'keep'"),
    ],
)
def test_unknown_choices(option: dict[str, str], message: str) -> None:
    with pytest.raises(SaffuError, match=message):
        list(read_lines([], **option))


# Records

RECORDS = [
    {"text": "one", "id": "1"},
    {"text": "two\nlines\n\nand more", "id": "2"},
    {"text": "", "id": "3"},
    {"text": 'a "quoted", text', "id": "4"},
]
FORMATS = ["jsonl", "ndjson", "csv", "tsv", "parquet", "parquet.gz", "jsonl.gz"]


def write_records(path: Path, records: list[dict]) -> Path:
    kind = path.name.split(".", 1)[1].removesuffix(".gz")
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        parquet.write_table(arrow.Table.from_pylist(records), path)
    elif kind in ("csv", "tsv"):
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(records[0]), delimiter="," if kind == "csv" else "\t")
            table.writeheader()
            table.writerows(records)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    if path.suffix == ".gz":
        import gzip

        path.write_bytes(gzip.compress(path.read_bytes()))
    return path


@each("ending", FORMATS)
def test_records(tmp_path: Path, ending: str) -> None:
    path = write_records(tmp_path / f"a.{ending}", RECORDS)
    assert joined(read_lines([path])) == ["one", "two|lines||and more", 'a "quoted", text']
    assert joined(read_lines([path], "paragraph")) == ["one", "two|lines", "and more", 'a "quoted", text']
    assert joined(read_lines([path], "line", field="id")) == ["1", "2", "3", "4"]
    assert list(read_records([path])) == [
        Record(record["text"], number, str(path), {"id": record["id"]}) for number, record in enumerate(RECORDS, 1)
    ]
    with pytest.raises(SaffuError, match=rf"a\.{ending} has no field 'body'; set `field` to one of 'text', 'id'"):
        list(read_lines([path], field="body"))


def test_columns_separated_by_semicolons(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text;id\none;1\n")
    with pytest.raises(SaffuError, match=r"a\.csv has one column, 'text;id'; separate columns by commas"):
        list(read_lines([tmp_path / "a.csv"]))


@each("ending", FORMATS)
def test_records_without_a_text_field(tmp_path: Path, ending: str) -> None:
    path = write_records(tmp_path / f"a.{ending}", [{"body": "x", "id": "1"}])
    with pytest.raises(SaffuError, match=r"has no field 'text'; set `field` to one of 'body', 'id'"):
        list(read_lines([path], bad_records="skip"))


def test_many_fields_are_not_all_listed(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.jsonl", [{f"f{number}": "x" for number in range(100)}])
    with pytest.raises(SaffuError, match=r"'f0', .*'f11', …$"):
        list(read_lines([path]))


@with_files
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=8)
)
@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_texts_of_records_round_trip(tmp_path: Path, ending: str, texts: list[str]) -> None:
    path = write_records(tmp_path / f"a.{ending}", [{"id": str(n), "text": text} for n, text in enumerate(texts)])
    found = list(read_records([path]))
    assert [record.text for record in found] == texts
    assert list(read_lines([path])) == list(lines_of(texts))


@each(
    "name, content, message",
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "b"\n', r"a\.jsonl: record 2 is not a JSON object"),
        ("a.jsonl", '{"text": "a"}\n\n["b"]\n', "record 3 is not a JSON object"),
        ("a.jsonl", '{"text": "a"}\n{"text": null}\n', "record 2 has no valid text"),
        ("a.jsonl", '{"text": "a"}\n{"body": "b"}\n', "record 2 has no valid text"),
        ("a.jsonl", '{"text": "a"}\n{"text": "\\ud800"}\n', "record 2 has no valid text"),
        ("a.jsonl", '{"text": "a"}\n' + '{"text": ' * 10**5 + "\n", "record 2 is not a JSON object"),
        ("a.csv", "id,text\n1,a\n2,b,c\n", "record 2 has 3 fields instead of 2"),
        ("a.csv", 'id,text\n1,a\n2,"b"c\n', "record 2 is malformed"),
        ("a.tsv", 'id\ttext\n1\ta\n2\t"b', "record 2 is malformed"),
    ],
)
def test_malformed_records(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(SaffuError, match=f"{message}.*; fix it, or set `bad_records` to skip") as error:
        read(tmp_path, content, name=name)
    assert "\n" not in str(error.value)
    skipped: dict[str, Skipped] = {}
    for _ in range(2):  # a second pass does not count twice
        assert read(tmp_path, content, name=name, bad_records="skip", skipped=skipped) == ["a"]
        number = int(message.split("record ")[1].split()[0])
        assert skipped == {str(tmp_path / name): Skipped(1, [number])}


def test_halves_of_characters_are_replaced(tmp_path: Path) -> None:
    content = '{"text": "a\\ud800b\\ud83d\\ude00"}\n'
    assert read(tmp_path, content, name="a.jsonl", errors="replace") == ["a\ufffdb😀"]


def test_a_malformed_first_record(tmp_path: Path) -> None:
    assert read(tmp_path, 'oops\n{"text": "a"}\n', name="a.jsonl", bad_records="skip") == ["a"]


def test_parquet_that_is_not(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with pytest.raises(SaffuError, match=r"a\.parquet is corrupt or not a Parquet file"):
        read(tmp_path, "plain text", name="a.parquet")
    path = write_records(tmp_path / "b.parquet", [{"text": 1}, {"text": None}])
    with pytest.raises(SaffuError, match="record 1 has no valid text"):
        list(read_lines([path]))


def test_json_in_a_text_file_is_not_text(tmp_path: Path) -> None:
    content = "\n".join(json.dumps({"body": f"text {number}"}) for number in range(30))
    for name in ("a.txt", "a", "a.json"):
        with pytest.raises(SaffuError, match="holds JSON objects, not plain text; set `field`"):
            read(tmp_path, content, name=name)
        assert len(read(tmp_path, content, name=name, field="body")) == 30
    assert len(read(tmp_path, "{}\n" * 19 + "text\n")) == 1
    with pytest.raises(SaffuError, match="not JSON Lines; write one object per line"):
        read(tmp_path, '[\n  {"text": "a"}\n]\n', name="a.json")


def test_plain_text_next_to_records(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain\n\ntext\n")
    write_records(tmp_path / "b.jsonl", [{"body": "record", "n": 1}])
    paths = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    assert joined(read_lines(paths, field="body")) == ["plain||text", "record"]
    found = list(read_records(paths, field="body"))
    assert [(record.text, record.number, record.fields) for record in found] == [
        ("plain", 1, {}), ("text", 3, {}), ("record", 1, {"n": 1}),
    ]  # fmt: skip
    assert [record.source for record in found] == [str(paths[0]), str(paths[0]), str(paths[1])]


def test_numbers_are_those_of_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\n \t\r\nfour\r\n")
    assert [(record.number, record.text) for record in read_records([tmp_path / "a.txt"])] == [(1, "one"), (4, "four")]
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n\n{bad\n{"text": "four"}\n')
    found = read_records([tmp_path / "a.jsonl"], bad_records="skip")
    assert [(record.number, record.text) for record in found] == [(1, "one"), (4, "four")]
    (tmp_path / "a.csv").write_text('id,text\na,one\nb,two,three\nc,"x\ny"\nd,four\n')
    found = read_records([tmp_path / "a.csv"], bad_records="skip")
    assert [record.number for record in found] == [1, 3, 4]


def test_records_from_a_pipe_are_json(tmp_path: Path) -> None:
    from saffu.text.sources import Source

    (tmp_path / "0").write_text('{"body": "a"}\n')
    piped = Source(tmp_path / "0", "standard input", spooled=True)
    assert joined(read_lines([piped], field="body")) == ["a"]
    (tmp_path / "0").write_text("plain\n")
    with pytest.raises(SaffuError, match="standard input: record 1 is not a JSON object"):
        list(read_lines([piped], field="body"))
    assert joined(read_lines([piped])) == ["plain"]


# Held-out text

documents_of_lines = st.lists(st.integers(1, 12) | st.just(400), max_size=12).map(
    lambda sizes: [(at == 0, f"{n}.{at}") for n, size in enumerate(sizes) for at in range(size)]
)


@settings(max_examples=100, deadline=None)
@given(documents_of_lines, st.integers(2, 5), st.integers(1, 5))
def test_the_two_sides_partition_the_lines(lines, every: int, stretch: int) -> None:
    sides = [list(hold_out(lines, every, held_out, stretch)) for held_out in (False, True)]
    kept, held = ([text for _, text in side] for side in sides)
    assert sorted(kept + held) == sorted(text for _, text in lines)
    order = {text: at for at, (_, text) in enumerate(lines)}
    assert kept == sorted(kept, key=order.__getitem__)
    for side in sides:
        for at, (begins, text) in enumerate(side):
            original, place = lines[order[text]][0], order[text]
            follows = at > 0 and order[side[at - 1][1]] == place - 1
            assert begins == (original or not follows)


def test_every_nth_document_is_held_out() -> None:
    lines = [(True, str(number)) for number in range(1, 101)]
    assert [text for _, text in hold_out(lines, 20, held_out=True)] == ["20", "40", "60", "80", "100"]
    lines = [line for number in range(100) for line in [(True, str(number)), (False, "…")]]
    assert len(list(hold_out(lines, 20, held_out=True))) > 1


def test_stretches_of_running_text_are_held_out() -> None:
    running = [(number == 0, str(number)) for number in range(100_000)]
    held = list(hold_out(running, 10, held_out=True))
    begins = [at for at, (begins, _) in enumerate(held) if begins]
    inside = set(range(len(held))) - set(begins)
    sizes = [after - before for before, after in pairwise(begins)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1, 100)
    assert 9_500 < len(held) < 10_500
    assert all(int(held[at][1]) == int(held[at - 1][1]) + 1 for at in inside)
    assert [int(text) for _, text in hold_out(running[:90], 20, held_out=True)] == [19, 39, 59, 79]


def test_nothing_is_held_out() -> None:
    lines = [(True, "a"), (False, "b")]
    assert list(hold_out(lines, 0, held_out=False)) == lines
    assert list(hold_out(lines, 0, held_out=True)) == []
    for every in (1, -1):
        with pytest.raises(SaffuError, match="`hold_out` must be at least 2, or 0"):
            list(hold_out(lines, every, held_out=True))


# Documents from Python


class Reiterable:
    def __init__(self, items):
        self.items, self.passes = items, 0

    def __iter__(self):
        self.passes += 1
        return iter(self.items)


@each("once", [False, True])
@each(
    "items, field",
    [
        (["a\nb", "", "c"], None),
        ([{"text": "a\nb"}, {"text": " "}, {"text": "c"}], None),
        ([{"body": "a\nb"}, {"body": "c"}], "body"),
        ([(True, "a"), (False, "b"), (True, "c")], None),
    ],
)
def test_documents_from_python(items, field, once: bool) -> None:
    documents = documents_from(iter(items) if once else items, field)
    for _ in range(2):
        assert joined(documents) == ["a|b", "c"]
    assert documents_from(documents) is documents


def test_documents_are_read_again_rather_than_kept() -> None:
    source = Reiterable(["a", "b"])
    documents = documents_from(source)
    first, second = iter(documents), iter(documents)
    assert (next(first), next(second)) == ((True, "a"), (True, "a"))
    passes = source.passes
    list(documents)
    assert source.passes == passes + 1


def test_the_copy_of_an_iterator_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    documents = documents_from(text for text in ["é\n", "中\u2028"])
    assert list(documents) == [(True, "é"), (True, "中\u2028")]
    del documents
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=6))
def test_iterators_and_lists_agree(texts: list[str]) -> None:
    assert list(documents_from(iter(texts))) == list(documents_from(texts)) == list(lines_of(texts))


class DataFrame:
    columns, iloc = ("text",), None

    def __iter__(self):
        return iter(self.columns)


@each(
    "wrong, message",
    [
        ("text", r"a single string is not a collection of documents; pass a list of strings, such as \[text\]"),
        (b"text", "a single string"),
        (Path("a.txt"), "a single path"),
        (DataFrame(), r"pass one of its columns, such as frame\['text'\]"),
        ({"text": "a"}, "'dict' is not a collection of documents"),
        (5, "'int' is not a collection"),
        (None, "'NoneType' is not a collection"),
    ],
)
def test_what_is_not_a_collection_of_documents(wrong, message: str) -> None:
    with pytest.raises(SaffuError, match=message):
        documents_from(wrong)


@each(
    "wrong, message",
    [
        (["a", b"b"], "document 2 is not a string but 'bytes'"),
        (["a", float("nan")], "document 2 is not a string but 'float'"),
        ([["a"]], "document 1 is not a string but 'list'"),
        ([{"body": "a"}], "document 1 has no field 'text'; set `field` to one of 'body'"),
        ([{"text": None}], "document 1 is not a string but 'NoneType'"),
        (["a\udcff"], "document 1 is not valid Unicode"),
        ([("a", "b")], "document 1 is not a string but 'tuple'"),
    ],
)
@each("once", [False, True])
def test_documents_that_are_not_strings(wrong, message: str, once: bool) -> None:
    with pytest.raises(SaffuError, match=message):
        list(documents_from(iter(wrong) if once else wrong))


def test_lines_are_read_anew() -> None:
    calls: Counter[str] = Counter()

    def read():
        calls["read"] += 1
        yield True, "a"

    lines = Lines(read)
    assert list(lines) == list(islice(lines, 1)) == [(True, "a")]
    assert calls["read"] == 2
