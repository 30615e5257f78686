"""Hostile files: what a folder or a text says is validated before use, and cannot control a terminal."""

import hashlib
import io
import json
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import saffu as package
from conftest import sentences
from saffu import SaffuError
from saffu.cli.output import Harmless, print_json
from saffu.experiments.download import unpack
from saffu.files import load_arrays, to_safetensors
from saffu.model.folder import log_facts, source_facts, trained_on_facts
from saffu.text.documents import read_lines, read_records
from saffu.text.sources import _ZstdFile
from test_trust import GOLDEN, copied, one_line, sign  # noqa: F401

RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # what controls a terminal, newline and tab aside
EVIL = "\x1b]0;owned\x07\x9b31m\u202e"

LOGS = [
    "{}",
    "[]",
    "7",
    '"text"',
    '{"stage": 7}',
    '{"stage": null}',
    '{"stage": "x", "dev_perplexity": 3.0}',
    '{"stage": "x", "dev_bits_per_byte": 3.0}',
    '{"stage": "x", "dev_perplexity": "3", "dev_bits_per_byte": 3}',
    '{"stage": "x", "dev_perplexity": null, "dev_bits_per_byte": null}',
    '{"stage": "x", "dev_perplexity": NaN, "dev_bits_per_byte": 1}',
    '{"stage": "x", "documents": "many"}',
    '{"stage": "x", "documents": -1}',
    '{"stage": "x", "documents": 1e400}',
    '{"stage": "x", "fold": [1]}',
    '{"stage": "x", "warnings": 7}',
    '{"stage": "x", "warnings": [7]}',
    '{"stage": "x", "seconds": "long"}',
    '{"stage": "x", "y": [[[[1]]]]}',
    f'{{"stage": "x", "y": {"9" * 400}}}',
    f'{{"stage": "x", "y": {"9" * 5000}}}',
    '{"stage": "x"',
]
SOURCES = [
    [],
    7,
    {"split": "word"},
    {"split": 7},
    {"split": ["line"]},
    {"hold_out": "20"},
    {"hold_out": -1},
    {"hold_out": 1},
    {"hold_out": 2.5},
    {"hold_out": True},
    {"hold_out": 2**64},
    {"field": 7},
    {"dev": []},
]


@pytest.mark.parametrize("line", LOGS)
def test_a_log_is_validated(saffu, copied, line):  # noqa: F811
    folder = copied("calibrated")
    (folder / "log.jsonl").write_text(line + "\n")
    sign(folder)
    for command in ("info", "compare", "eval"):
        result = saffu([command, folder, *([folder / "tokenizer.json"] if command == "eval" else [])])
        assert result.status == 2 and "is damaged" in result.err, (line, result)
        one_line(result)


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_source_is_validated(saffu, copied, tmp_path, source):  # noqa: F811
    folder = copied("calibrated")
    manifest = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(manifest | {"source": source}))
    (tmp_path / "x.txt").write_text("the old dog\n")
    row = {"stage": "train", "fold": 0, "tokens": 1, "seconds": 1, "dev_perplexity": 9, "dev_bits_per_byte": 2}
    (folder / "log.jsonl").write_text(json.dumps(row) + "\n")
    sign(folder)
    for line in (
        ["info", folder],
        ["compare", folder, "--out", tmp_path / "figure"],
        ["forget", folder, tmp_path / "x.txt"],
    ):
        result = saffu(line)
        assert result.status == 2 and "is damaged" in result.err, (source, result)
        one_line(result)


def test_valid_facts_stay_as_they_are():
    row = {"stage": "fit", "dev_perplexity": 3.5, "dev_bits_per_byte": float("inf"), "exponents": {"near": [0.1, 0.2]}}
    assert log_facts(json.dumps(row) + "\n" + json.dumps({"stage": "forget", "documents": 3}) + "\n")[0] == row
    assert source_facts({"split": None, "hold_out": 0, "mine": [1]}) == {"split": None, "hold_out": 0, "mine": [1]}
    with pytest.raises(ValueError, match="lines is not a count"):
        trained_on_facts({"documents": 1, "lines": -1, "tokens": 1, "bytes": 1})
    with pytest.raises(ValueError, match="documents without parts"):
        trained_on_facts({"documents": 2, "parts": 1, "lines": 1, "tokens": 1, "bytes": 1})


def test_nothing_in_a_folder_controls_a_terminal(saffu, copied):  # noqa: F811
    folder = copied("calibrated")
    row = {"stage": EVIL, "dev_perplexity": 1.0, "dev_bits_per_byte": 1.0, EVIL: EVIL, "list": [EVIL], "sample": EVIL}
    row |= {"table": {EVIL: [EVIL, 1], "shorter": 2}}
    (folder / "log.jsonl").write_text(json.dumps(row) + "\n")
    manifest = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(manifest | {"source": {"mine": EVIL}}))
    sign(folder)
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


@pytest.mark.parametrize("name", ["../outside.txt", "/proc/self/pagemap", "a/b", "..", "", "nul\0", "back\\slash"])
def test_a_manifest_names_no_files_elsewhere(saffu, copied, tmp_path, name):  # noqa: F811
    """Otherwise a folder could test what other files contain, or wait for one that never ends."""
    folder = copied("calibrated")
    (tmp_path / "outside.txt").write_text("private")
    (tmp_path / "x.txt").write_text("the old dog\n")
    manifest = json.loads((folder / "config.json").read_text())
    manifest["checksums"].pop("config.json")
    manifest["checksums"][name] = hashlib.sha256(b"private").hexdigest()
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    manifest["checksums"]["config.json"] = own
    (folder / "config.json").write_text(json.dumps(manifest))
    for line in (["check", folder], ["info", folder], ["update", folder, tmp_path / "x.txt"]):
        one_line(saffu(line), "outside of")
    with pytest.raises(SaffuError):
        package.load(folder, check=True)


# Tables


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("model", "encoder.plain", 1e308),
        ("model", "encoder.plain", float("nan")),
        ("model", "frequencies", -1),
        ("model", "frequencies", 2**62),
        ("model", "counts", -5),
        ("references", "frequencies", -1),
    ],
)
def test_numbers_that_no_fit_gives(saffu, copied, tmp_path, file, name, value):  # noqa: F811
    folder = copied("calibrated")
    path = folder / f"{file}.safetensors"
    arrays = {key: array.copy() for key, array in load_arrays(path).items()}
    arrays[name].reshape(-1)[-1] = value
    path.write_bytes(b"".join(bytes(piece) for piece in to_safetensors(arrays)))
    sign(folder)
    (tmp_path / "x.txt").write_text("the old dog\n")
    result = saffu(["update", folder, tmp_path / "x.txt"])
    assert result.status == 2 and "damaged" in result.err, result
    one_line(result)


def rewrite(folder, file, change):
    """Change the arrays of a file of a model folder, and sign it again."""
    path = folder / f"{file}.safetensors"
    arrays = {key: array.copy() for key, array in load_arrays(path).items()}
    change(arrays)
    path.write_bytes(b"".join(bytes(piece) for piece in to_safetensors(arrays)))
    sign(folder)


def larger_vocabulary(arrays):
    """Counts of a larger vocabulary, with its tokens among them, that agree with each other."""
    for name in [name for name in arrays if name.endswith("shape")]:
        prefix = name.removesuffix("shape")
        arrays[name][1] += 3000
        offsets, keys = arrays[f"{prefix}offsets"], arrays[f"{prefix}keys"]
        arrays[f"{prefix}offsets"] = np.concatenate([offsets, np.full(3000, offsets[-1])])
        ends = offsets[1:][np.diff(offsets) > 0] - 1  # where larger tokens keep the order of their bucket
        keys[ends] |= keys.dtype.type(3000)


def markers_as_targets(arrays):
    for name in [name for name in arrays if name.endswith("keys")]:
        arrays[name][arrays[name.replace("keys", "offsets")][:-1][:1]] = 0


CHANGES = ("check {0}", "update {0} {1}", "forget {0} {1} --skip-uncounted", "merge {0} {3} --out {2}")


@pytest.mark.parametrize("classes", [0, 20])
@pytest.mark.parametrize("change", [larger_vocabulary, markers_as_targets])
def test_counts_that_do_not_fit_the_model(saffu, tmp_path, change, classes):
    """Kernels index arrays of the vocabulary's size by the tokens of counts."""
    text = sentences(1, 100)
    (tmp_path / "x.txt").write_text("\n".join(text))
    lm = package.SaffuLM(package.CalibratedConfig(order=3, slots=4, word_classes=classes)).fit(text)
    lm.save(tmp_path / "m")
    lm.save(tmp_path / "same")
    rewrite(tmp_path / "m", "sums", change)
    uses = (*CHANGES, "export {0} --to arpa --out {2}", "embed {0} --out {2}")
    for line in uses:
        result = saffu(line.format(tmp_path / "m", tmp_path / "x.txt", tmp_path / "out", tmp_path / "same"))
        one_line(result, "damaged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "same", "x.txt"]


def test_a_model_of_another_vocabulary_than_its_tokenizer(saffu, tmp_path):
    text = sentences(1, 100)
    small = package.SaffuLM().fit(text)
    package.SaffuLM().fit([*text, "other words: zebra zebra quagga quagga okapi okapi"] * 2).save(tmp_path / "m")
    small.save(tmp_path / "small")
    assert len(small.tokenizer_) != len(package.load(tmp_path / "m").tokenizer_)
    shutil.copy(tmp_path / "small" / "model.safetensors", tmp_path / "m")
    sign(tmp_path / "m")
    for line in ("generate {0} the", "explain {0} the", "complete {0} the", "check {0}"):
        one_line(saffu(line.format(tmp_path / "m")), "damaged")


def test_tables_whose_followers_are_markers(copied):  # noqa: F811
    """No text predicts a marker, and no kernel has room for one."""
    folder = copied("calibrated")

    def change(arrays):
        vocabulary = len(arrays["frequencies"])
        for name in [name for name in arrays if name.endswith(".1.follow")]:
            begin = arrays[name.replace("follow", "begin")]
            ends = begin[1:][np.diff(begin.astype(np.int64)) > 0] - 1
            arrays[name][ends] = vocabulary - 1

    rewrite(folder, "model", change)
    with pytest.raises(SaffuError, match="damaged"):
        package.load(folder)


def test_a_model_that_claims_to_have_counted_no_word(saffu, copied, tmp_path):  # noqa: F811
    folder = copied("calibrated")
    path = folder / "references.safetensors"
    arrays = {key: array.copy() for key, array in load_arrays(path).items()}
    arrays["frequencies"][:] = 0
    path.write_bytes(b"".join(bytes(piece) for piece in to_safetensors(arrays)))
    sign(folder)
    result = saffu(["embed", folder, "--out", tmp_path / "vectors.txt"])
    one_line(result, "no vectors to write")
    assert not (tmp_path / "vectors.txt").exists()


@pytest.mark.parametrize("settings", [7, None, [], "radius", {}])
def test_settings_of_an_older_folder_that_are_not_settings(saffu, tmp_path, settings):
    folder = tmp_path / "older"
    shutil.copytree(GOLDEN, folder)
    sign(folder, settings=settings)
    result = saffu(["info", folder])
    assert result.status == 2 and "damaged" in result.err, result
    one_line(result)


def test_sums_of_an_older_folder_that_do_not_fit(saffu, tmp_path):
    folder = tmp_path / "older"
    shutil.copytree(GOLDEN, folder)
    arrays = load_arrays(folder / "sums.safetensors") | {"encoder.memory": np.zeros(3)}
    (folder / "sums.safetensors").write_bytes(b"".join(bytes(piece) for piece in to_safetensors(arrays)))
    sign(folder)
    result = saffu(["info", folder])
    assert result.status == 2 and "sums.safetensors is damaged" in result.err, result
    one_line(result)


@pytest.mark.parametrize("shape", [[0, 2**60], [2**60, 0], [0, 2**31, 2**31]])
def test_shapes_that_no_array_has(saffu, copied, tmp_path, shape):  # noqa: F811
    folder = copied("calibrated")
    path = folder / "sums.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size]) | {
        "zz": {"dtype": "I64", "shape": shape, "data_offsets": [len(data) - 8 - size] * 2}
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    sign(folder)
    (tmp_path / "x.txt").write_text("the old dog\n")
    for words in (["info", folder, "--check"], ["update", folder, tmp_path / "x.txt"]):
        result = saffu(words)
        assert result.status == 2 and "a shape that no array has" in result.err, result
        one_line(result)


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


def test_loading_says_nothing_untrue(copied):  # noqa: F811
    assert package.load(copied("calibrated")).log_[0]["stage"]


def test_a_gate_that_is_never_in_doubt(tmp_path):
    """A folder that is signed may hold any finite number; what follows may be nonsense, but not a traceback."""
    golden = Path(__file__).parent / "golden" / "0.2.0" / "companion"
    for weight in (1e30, -1e30):
        folder = tmp_path / f"{weight}"
        shutil.copytree(golden, folder)
        arrays = load_arrays(folder / "model.safetensors")
        name = next(name for name in arrays if name.endswith("gate.weight"))
        arrays[name] = np.full_like(arrays[name], weight)
        (folder / "model.safetensors").write_bytes(b"".join(map(bytes, to_safetensors(arrays))))
        sign(folder)
        lm = package.load(folder)
        assert isinstance(lm.generate("the", seed=1, max_tokens=4), str)
