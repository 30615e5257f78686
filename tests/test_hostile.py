"""Hostile files: what a folder or a text says is validated before use, and cannot control a terminal."""

import io
import json
import re
import zipfile

import pytest

from conftest import part
from damage import sign
from saffu import SaffuError
from saffu.cli.output import Harmless, print_json
from saffu.experiments.download import unpack
from saffu.model.folder import log_facts, source_facts, trained_on_facts
from saffu.text.documents import read_lines, read_records
from saffu.text.sources import _ZstdFile

RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what controls a terminal, newline and tab aside
EVIL = "\x1b]0;owned\x07\x9b31m\u202e"


def test_valid_facts_stay_as_they_are():
    row = {"stage": "fit", "dev_perplexity": 3.5, "dev_bits_per_byte": float("inf"), "exponents": {"near": [0.1, 0.2]}}
    assert log_facts(json.dumps(row) + "\n" + json.dumps({"stage": "forget", "documents": 3}) + "\n")[0] == row
    assert source_facts({"split": None, "hold_out": 0, "mine": [1]}) == {"split": None, "hold_out": 0, "mine": [1]}
    with pytest.raises(ValueError, match="lines is not a count"):
        trained_on_facts({"documents": 1, "parts": 1, "lines": -1, "tokens": 1, "bytes": 1})
    with pytest.raises(ValueError, match="documents without parts"):
        trained_on_facts({"documents": 2, "parts": 1, "lines": 1, "tokens": 1, "bytes": 1})


def test_nothing_in_a_folder_controls_a_terminal(saffu, fitted, tmp_path):
    folder = tmp_path / "model"
    fitted("calibrated").save(folder)
    row = {"stage": EVIL, "dev_perplexity": 1.0, "dev_bits_per_byte": 1.0, EVIL: EVIL, "list": [EVIL], "sample": EVIL}
    row |= {"table": {EVIL: [EVIL, 1], "shorter": 2}}
    part(folder, "log.jsonl").write_text(json.dumps(row) + "\n")
    sign(folder, source={"mine": EVIL})
    for words in (["info", folder], ["info", folder, "--json"]):
        result = saffu(words)
        assert result.status == 0, result.err
        assert "owned" in result.out
        assert not RAW.search(result.out) and not RAW.search(result.err)
    assert json.loads(saffu(["info", folder, "--json"]).out)["log"][0]["stage"] == EVIL


def test_a_terminal_is_never_controlled():
    screen = io.StringIO()
    print(EVIL, "a\tb", file=Harmless(screen))
    assert screen.getvalue() == "\\x1b]0;owned\\x07\\x9b31m\\u202e a\tb\n"


def test_json_has_no_numbers_that_json_does_not_have(capsys):
    print_json({"a": [float("nan"), float("inf"), 1.5], "b": {"c": -float("inf")}})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "b": {"c": None}}


# Records


def parquet(path, columns):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns(arrow)), path)
    return path


def invalid_strings(arrow):
    binary = arrow.array([b"good", b"bad \xff\xfe", b"fine"])
    return arrow.Array.from_buffers(arrow.string(), 3, binary.buffers())


def test_parquet_strings_that_are_not_utf8(tmp_path):
    path = parquet(tmp_path / "a.parquet", lambda arrow: {"text": invalid_strings(arrow)})
    with pytest.raises(SaffuError, match=r"record 2 is not UTF-8 in the field 'text'; fix it, or set `bad_records`"):
        list(read_lines([path]))
    skipped = {}
    assert [text for _, text in read_lines([path], bad_records="skip", skipped=skipped)] == ["good", "fine"]
    assert skipped[str(path)].first == [2]
    assert [text for _, text in read_lines([path], errors="replace")] == ["good", "bad \ufffd\ufffd", "fine"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_two_columns_of_text(tmp_path, ending):
    """Neither is read in place of the other."""
    path = tmp_path / f"a.{ending}"
    if ending == "csv":
        path.write_text("text,text\none,two\n")
    else:
        arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
        columns = [arrow.array(["one"]), arrow.array(["two"])]
        parquet.write_table(arrow.Table.from_arrays(columns, names=["text", "text"]), path)
    with pytest.raises(SaffuError, match="has several columns 'text'; rename all but the one to read"):
        list(read_lines([path]))


def test_parquet_names_of_columns_that_are_not_utf8(tmp_path):
    path = tmp_path / "a.parquet"
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = arrow.table({"text": ["one"], "name": ["a"]})
    pytest.importorskip("pyarrow.parquet").write_table(table, path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"name", b"n\x9bme"))
    with pytest.raises(SaffuError, match="is corrupt or not a Parquet file"):
        list(read_lines([path]))


def test_parquet_pages_that_are_corrupt(tmp_path):
    path = parquet(tmp_path / "a.parquet", lambda arrow: {"text": [f"line {number}" for number in range(100)]})
    data = path.read_bytes()
    messages = set()
    for at in range(4, len(data) - 8, 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :])
        try:
            list(read_lines([path], errors="replace"))
        except SaffuError as error:
            messages.add(str(error))
    assert any(message.startswith(f"{path} is corrupt (") for message in messages)
    assert not [message for message in messages if "not a . file" in message or "\n" in message]


def test_dates_that_python_does_not_have(tmp_path):
    def columns(arrow):
        days = arrow.array([0, 2**30, 1], arrow.int32()).cast(arrow.date32())
        return {"text": ["one", "two", "three"], "day": days}

    path = parquet(tmp_path / "a.parquet", columns)
    assert [text for _, text in read_lines([path])] == ["one", "two", "three"]  # which does not read other columns
    with pytest.raises(SaffuError, match=r"record 2 has a value in the field 'day' that cannot be read"):
        list(read_records([path]))
    assert [record.text for record in read_records([path], bad_records="skip")] == ["one", "three"]


def test_the_problem_of_a_record_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    for line, problem in {
        f'{{"text": "a", "n": {"9" * 5000}}}': "has an integer of too many digits",
        '{"text": "a"': "is not a JSON object",
        '["text"]': "is not a JSON object",
        "[" * 100_000: "is not a JSON object",
    }.items():
        path.write_text(line + "\n")
        with pytest.raises(SaffuError, match=f"record 1 ({problem})"):
            list(read_lines([path]))


def test_little_compressed_data_takes_little_memory(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    path = tmp_path / "bomb.zst"
    path.write_bytes(zstandard.ZstdCompressor(level=1).compress(bytes(1 << 28)))
    with path.open("rb") as file:
        sizes = [len(piece) for piece in _ZstdFile(file, zstandard)._decompressed()]
    assert sum(sizes) == 1 << 28 and max(sizes) <= 1 << 25


# Archives


def zipped(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def test_two_members_of_one_name(tmp_path):
    path = zipped(tmp_path / "a.zip", [("one/x.train", b"first\n"), ("two/x.train", b"second\n")])
    with pytest.raises(SaffuError, match=r"has two members called x\.train"):
        unpack(path, "train", "10M", tmp_path)


def test_an_encrypted_member(tmp_path):
    path = zipped(tmp_path / "a.zip", [("x.train", b"text\n" * 100)])
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    path.write_bytes(data)
    with pytest.raises(SaffuError, match="is encrypted"):
        unpack(path, "train", "10M", tmp_path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_corrupt_members(tmp_path, method):
    path = zipped(tmp_path / "a.zip", [("x.train", bytes(range(256)) * 200)], method)
    whole = path.read_bytes()
    for place in range(35, len(whole) - 120, max(1, len(whole) // 40)):
        path.write_bytes(whole[:place] + bytes(255 - byte for byte in whole[place : place + 9]) + whole[place + 9 :])
        folder = tmp_path / str(place)
        folder.mkdir()
        try:
            unpack(path, "train", "10M", folder)
        except SaffuError as error:
            assert "corrupt" in str(error)
