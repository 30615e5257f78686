"""saffu score: rows in order, filters, records, and pipes."""

import csv
import gzip
import json
import math
import subprocess
import sys
from contextlib import suppress
from unittest import mock

import pytest

from conftest import Keyboard, each, sentences
from saffu import SaffuLM

LINES = sentences(3, 300)


@pytest.fixture(autouse=True)
def model(fitted, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    fitted("toy").save(tmp_path / "model")
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path / "model"


def rows(result):
    assert result.status == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_one_row_per_line_in_order(saffu, fitted):
    scored = rows(saffu("score model lines.txt --json"))
    assert [row["id"] for row in scored] == list(range(1, 301))  # more than one batch
    assert [row["bytes"] for row in scored] == [len(line) + 1 for line in LINES]
    lm = fitted("toy")
    for row, line in zip(scored[250:260], LINES[250:260], strict=True):
        score = lm.score([line])
        assert row["bits_per_byte"] == pytest.approx(score.bits_per_byte)
        assert (row["tokens"], row["perplexity"]) == (score.targets, pytest.approx(score.perplexity))


def test_tables_have_a_header(saffu):
    shown = saffu("score model lines.txt")
    head, first, *rest = [line.split("\t") for line in shown.out.splitlines()]
    assert head == ["id", "bits", "tokens", "bytes", "bits_per_byte", "perplexity"]
    assert first[0] == "1" and len(first) == 6 and len(rest) == 299


def test_standard_input(saffu):
    text = "\n".join(LINES) + "\n"
    named = saffu("score model lines.txt").out
    assert saffu("score model", stdin=text).out == named
    assert saffu("score model -", stdin=text).out == named


@each("command", ["score model", "score model -", "complete model", "eval model -"])
def test_who_is_to_type_is_told_so(saffu, command):
    typed = saffu(command, stdin=Keyboard("the dog saw a"))
    assert len(typed.err.splitlines()) == 1
    assert saffu(command, stdin="the dog saw a") == typed._replace(err="")


def test_quiet_commands_do_not_say_who_is_to_type(saffu):
    assert saffu("score model --quiet", stdin=Keyboard("the dog saw a")).err == ""


def test_compressed_standard_input(saffu):
    """It has no name that says how it is compressed; to convert it to UTF-8 would not help."""
    records = b"".join(json.dumps({"text": line}).encode() + b"\n" for line in LINES)
    for content in (gzip.compress(records), gzip.compress(b"a\n", mtime=1 << 30)):
        for line in ("score model --field text", "score model -"):
            failed = saffu(line, stdin=content)
            expected = "saffu: standard input is compressed; decompress it first, with `gzip -dc`\n"
            assert (failed.status, failed.out, failed.err) == (2, "", expected)


def test_ids_are_numbers_of_lines(saffu, tmp_path):
    """Blank lines have no row, and what is skipped does not shift the numbers of the rest."""
    assert [row["id"] for row in rows(saffu("score model --json", stdin="one\n\n \nfour\n"))] == [1, 4]
    records = '{"text": "one"}\n{bad\n{"text": " "}\n\n{"text": "five"}\n{"id": "six", "text": "six"}\n'
    (tmp_path / "r.jsonl").write_text(records)
    assert [row["id"] for row in rows(saffu("score model r.jsonl --json --bad-records skip"))] == [1, 5, "six"]


def test_rows_of_several_files_name_them(saffu, tmp_path):
    (tmp_path / "b.txt").write_text("\nthe dog\n")
    (tmp_path / "a.txt").write_text("the cat\n")
    table = [line.split("\t") for line in saffu("score model b.txt a.txt").out.splitlines()]
    assert [row[:2] for row in table] == [["file", "id"], ["a.txt", "1"], ["b.txt", "2"]]
    table = [line.split("\t") for line in saffu("score model b.txt a.txt --words").out.splitlines()]
    assert [row[:2] for row in table] == [["file", "id"], *[["a.txt", "1"]] * 3, *[["b.txt", "2"]] * 3]
    assert [(row["file"], row["id"]) for row in rows(saffu("score model *.txt --json"))][:2] == [
        ("a.txt", 1),
        ("b.txt", 2),
    ]


def test_filters_print_the_text(saffu):
    scored = rows(saffu("score model lines.txt --json"))
    middle = sorted(row["bits_per_byte"] for row in scored)[150]
    low = saffu(f"score model lines.txt --keep bits_per_byte<{middle}").out.splitlines()
    high = saffu(f"score model lines.txt --keep bits_per_byte>{middle}").out.splitlines()
    assert low == [line for line, row in zip(LINES, scored, strict=True) if row["bits_per_byte"] < middle]
    assert high == [line for line, row in zip(LINES, scored, strict=True) if row["bits_per_byte"] > middle]
    both = rows(saffu(f"score model lines.txt --keep bits_per_byte>{middle} --json"))
    assert [row["text"] for row in both] == high


def test_records_keep_their_ids(saffu, tmp_path):
    records = [{"id": "a", "body": LINES[0]}, {"id": "b", "body": f"{LINES[1]}\n{LINES[2]}"}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    first, second = rows(saffu("score model r.jsonl --field body --json"))
    assert (first["id"], second["id"]) == ("a", "b")
    assert second["bytes"] == len(LINES[1]) + len(LINES[2]) + 2


def test_lines_of_running_text_are_scored_as_lines_that_follow(saffu, fitted, tmp_path):
    """A model of running text hardly knows how documents begin, but knows well how lines do."""
    running = SaffuLM(fitted("toy").config).fit(["\n".join(sentences(1, 600))])
    running.save(tmp_path / "running")
    scored = rows(saffu("score running lines.txt --json"))
    log_p = running.model_.log_probabilities(running.tokenize([(True, ""), (False, LINES[7])]))
    assert scored[7]["bits"] == pytest.approx(-log_p[1:].sum() / math.log(2))
    assert scored[7]["bytes"] == len(LINES[7]) + 1


def test_lines_add_up_to_eval(saffu):
    """Where lines are documents, scores by line are those of `eval`, and do not depend on other lines."""
    scored = rows(saffu("score model lines.txt --json"))
    evaluated = json.loads(saffu("eval model lines.txt --split line --json").out)
    assert math.fsum(row["bits"] for row in scored) * math.log(2) == pytest.approx(evaluated["nll"], rel=1e-12)
    assert sum(row["tokens"] for row in scored) == evaluated["targets"]
    assert sum(row["bytes"] for row in scored) == evaluated["bytes"]
    turned = rows(saffu("score model --json", stdin="\n".join(reversed(LINES))))
    assert [row["bits"] for row in reversed(turned)] == pytest.approx([row["bits"] for row in scored], rel=1e-12)


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_words_and_tokens_add_up_to_lines(saffu, unit):
    lines = rows(saffu("score model lines.txt --json"))
    parts = rows(saffu(f"score model lines.txt --json --{unit}"))
    for line, text in zip(lines, LINES, strict=True):
        own = [part for part in parts if part["id"] == line["id"]]
        assert [part["position"] for part in own] == list(range(1, len(own) + 1))
        assert math.fsum(part["bits"] for part in own) == pytest.approx(line["bits"], rel=1e-9)
        names = [part[unit[:-1]] for part in own]
        assert names[-1] == "<eod>"
        assert (names[:-1] == text.split()) if unit == "words" else ("".join(names[:-1]) == text)


def test_tables_can_be_read_back(saffu):
    """Quotes and control characters of words survive a reader of TSV."""
    shown = saffu("score model --words", stdin='say "hi \x1b[31m there"\n')
    table = list(csv.reader(shown.out.splitlines(), delimiter="\t"))
    assert [row[2] for row in table] == ["word", "say", '"hi', "\\x1b[31m", 'there"', "<eod>"]


def test_conditions(saffu, tmp_path):
    scored = rows(saffu("score model lines.txt --json"))
    kept = saffu(["score", "model", "lines.txt", "--keep", "perplexity >= 3", "--keep", "tokens!=9"]).out.splitlines()
    chosen = [line for line, row in zip(LINES, scored, strict=True) if row["perplexity"] >= 3 and row["tokens"] != 9]
    assert kept == chosen != []
    surprising = rows(saffu("score model lines.txt --words --json --keep bits>4"))
    assert 0 < len(surprising) < 1000 and all(row["bits"] > 4 for row in surprising)
    for wrong in ("bits", "bits<", "bits<x", "bits<1e", "__import__('os')<1", "bits<1<2", "word<1", "id<3"):
        result = saffu(["score", "model", "lines.txt", "--words", "--keep", wrong])
        assert result.status == 2 and result.err.count("\n") == 1, wrong


def test_models_are_compared_by_byte(saffu, fitted, tmp_path):
    """Two models may have different tokenizers; the log-ratio is that of whole lines, per byte."""
    fitted("paper").save(tmp_path / "paper")
    one, other = rows(saffu("score model lines.txt --json")), rows(saffu("score paper lines.txt --json"))
    both = rows(saffu("score model lines.txt --against paper --json"))
    expected = [(b["bits"] - a["bits"]) / a["bytes"] for a, b in zip(one, other, strict=True)]
    assert [row["log_ratio_per_byte"] for row in both] == pytest.approx(expected)
    better = saffu(["score", "model", "lines.txt", "--against", "paper", "--keep", "log_ratio_per_byte>0"])
    assert len(better.out.splitlines()) == sum(ratio > 0 for ratio in expected)
    assert "remove --words" in saffu("score model lines.txt --against paper --words").err


def test_several_models_are_compared(saffu, fitted, tmp_path):
    """The log-ratio is that against the best of the others; `best` names the model that predicts the line best."""
    SaffuLM(fitted("toy").config).fit(sentences(8, 50)).save(tmp_path / "few")
    SaffuLM(fitted("toy").config).fit(["zebra zoo"] * 9).save(tmp_path / "zoo")
    mixed = [*LINES[:20], "zebra zoo", "zoo zebra"]
    (tmp_path / "mixed.txt").write_text("\n".join(mixed) + "\n")
    found = rows(saffu("score model mixed.txt --against few --against zoo --json"))
    alone = {name: rows(saffu(f"score {name} mixed.txt --json")) for name in ("model", "few", "zoo")}
    for number, row in enumerate(found):
        bits = {name: scores[number]["bits_per_byte"] for name, scores in alone.items()}
        assert row["best"] == min(bits, key=bits.get)
        assert (row["bits_per_byte_few"], row["bits_per_byte_zoo"]) == pytest.approx((bits["few"], bits["zoo"]))
        assert row["log_ratio_per_byte"] == pytest.approx(min(bits["few"], bits["zoo"]) - bits["model"])
    kept = saffu("score model mixed.txt --against few --against zoo --keep best==zoo").out.splitlines()
    assert kept == ["zebra zoo", "zoo zebra"]
    assert "no model is named 'x'" in saffu("score model mixed.txt --against few --against zoo --keep best==x").err
    assert "different names" in saffu("score model mixed.txt --against model").err


def test_the_best_lines_are_kept(saffu, tmp_path):
    scored = rows(saffu("score model lines.txt --json"))
    order = sorted(range(300), key=lambda number: scored[number]["bits_per_byte"])
    best = [LINES[number] for number in sorted(order[:90])]
    assert saffu("score model lines.txt --keep-best 30%").out.splitlines() == best
    kept = rows(saffu("score model lines.txt --keep-best 0.3 --json"))
    assert kept == [scored[number] for number in sorted(order[:90])]
    text = "\n".join(LINES) + "\n"
    assert saffu("score model --keep-best 30%", stdin=text).out.splitlines() == best
    short = rows(saffu("score model lines.txt --keep-best 50% --keep tokens<8 --json"))
    assert len(short) == math.ceil(sum(row["tokens"] < 8 for row in scored) / 2)
    (tmp_path / "hundred.txt").write_text("\n".join(LINES[:100]) + "\n")
    for share in (7, 55):  # 0.07 * 100 is more than 7
        assert len(saffu(f"score model hundred.txt --keep-best {share}%").out.splitlines()) == share
    for wrong in ("0", "150%", "x", "nan", "snan"):
        assert "not a share" in saffu(f"score model lines.txt --keep-best {wrong}").err


def test_the_lines_that_are_kept_are_counted(saffu, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = saffu("score model lines.txt --keep-best 10% --keep tokens<8")
    assert f"{len(shown.out.splitlines())} of 300 lines kept" in shown.err


def test_the_file_of_a_record_is_where_it_was_read(saffu, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "the king", "file": "x"}\n')
    shown = saffu("score model a.jsonl b.jsonl --json")
    assert [row["file"] for row in rows(shown)] == ["a.jsonl", "b.jsonl"]
    assert "scores replaced fields of the same name: file" in shown.err
    table = saffu("score model a.jsonl b.jsonl")
    assert [line.split("\t")[:3] for line in table.out.splitlines()][:2] == [
        ["file", "id", "bits"],
        ["a.jsonl", "1", mock.ANY],
    ]
    assert "fields of the same name: file" in table.err


def test_line_ends_are_not_words(saffu, monkeypatch):
    """They have rows, but are neither counted as words nor part of the distribution."""
    words = [row for row in rows(saffu("score model lines.txt --words --json")) if row["word"] != "<eod>"]
    assert len(words) == sum(len(line.split()) for line in LINES)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    title, *bars = saffu("score model lines.txt --words --keep bits>=0").err.splitlines()
    assert title == f"bits: {len(words):,} words"
    assert sum(int(bar.split()[-1].replace(",", "")) for bar in bars) == len(words)


def test_only_files_are_scored_with_memory_by_default(saffu, fitted, tmp_path):
    lm = fitted("calibrated")
    lm.save(tmp_path / "counted")
    text = "the dog saw the dog and the dog saw the dog\n"
    corpus = lm.tokenize([text])
    bits = {
        memory: -model.log_probabilities(corpus).sum() / math.log(2)
        for memory, model in ((True, lm.model_), (False, lm.model_.without_memory()))
    }
    assert bits[True] != pytest.approx(bits[False])
    for options, memory in (
        ("", False), ("--memory", True), ("--split paragraph", False), ("--split file", True),
        ("--split file --no-memory", False),
    ):  # fmt: skip
        (row,) = rows(saffu(f"score counted --json {options}", stdin=text))
        assert row["bits"] == pytest.approx(bits[memory]), options
    assert [lm.score_lines([text], memory=memory)[0].bits for memory in bits] == pytest.approx([*bits.values()])
    assert lm.score_lines([text])[0].bits == pytest.approx(bits[False])
    words = saffu("score counted --json --words", stdin=text)
    assert math.fsum(row["bits"] for row in rows(words)) == pytest.approx(bits[False])
    assert "remove --memory" in saffu("score counted --repetition --memory", stdin=text).err


def test_repetition_costs(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "counted")
    spam = "saw dog house saw dog house saw dog house saw dog house"
    text = f"{LINES[0]}\n{spam}\n"
    plain = rows(saffu("score counted --json", stdin=text))
    cached = rows(saffu("score counted --json --memory", stdin=text))
    found = rows(saffu("score counted --json --repetition", stdin=text))
    for row, bare, eased in zip(found, plain, cached, strict=True):
        assert row["bits_per_byte"] == pytest.approx(bare["bits_per_byte"])
        assert row["repetition"] == pytest.approx(bare["bits_per_byte"] - eased["bits_per_byte"], abs=1e-9)
        assert row["cost"] == pytest.approx(2 * bare["bits_per_byte"] - eased["bits_per_byte"])
    assert saffu("score counted --repetition --keep-best 50%", stdin=text).out.splitlines() == [LINES[0]]
    refused = saffu("score counted --repetition --words", stdin=text).err
    assert "--repetition is for whole lines and one model; remove --against" in refused


def test_records_keep_their_fields(saffu, tmp_path):
    records = [{"id": "a", "body": LINES[0], "url": "u", "n": [1, None]}, {"body": "  ", "url": "v"}]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*records, *records]) + "{bad\n")
    result = saffu("score model r.jsonl --field body --json --bad-records skip")
    assert [row["url"] for row in rows(result)] == ["u", "u"]
    assert all(row["body"] == LINES[0] and row["n"] == [1, None] and row["bits"] > 0 for row in rows(result))
    assert "r.jsonl: skipped 1 malformed record: number 5\n" in result.err and "2 blank records" in result.err
    refused = saffu("score model r.jsonl --field body --json")
    assert refused.status == 2 and "record 5 is not a JSON object" in refused.err
    words = rows(saffu("score model r.jsonl --field body --json --bad-records skip --words"))
    assert words[0]["url"] == "u" and words[0]["word"] == LINES[0].split()[0] and "body" not in words[0]


@pytest.mark.parametrize("delimiter", ["\t", ","])
def test_a_table_from_a_pipe(saffu, tmp_path, delimiter):
    """As from a file: columns stay with their rows."""
    table = "".join(delimiter.join(row) + "\n" for row in (["name", "body"], ["a", LINES[0]], ["b", LINES[1]]))
    (tmp_path / f"t.{'csv' if delimiter == ',' else 'tsv'}").write_text(table)
    read = saffu(f"score model t.{'csv' if delimiter == ',' else 'tsv'} --field body")
    piped = saffu("score model --field body", stdin=table)
    assert piped == read and [line.split("\t")[1] for line in piped.out.splitlines()] == ["name", "a", "b"]
    plain = saffu("score model --field other", stdin=table)
    assert plain.status == 2 and "not a JSON object" in plain.err


def test_fields_that_scores_replace_are_named(saffu, tmp_path):
    (tmp_path / "r.jsonl").write_text(
        json.dumps({"text": "the dog", "bits": "mine", "tokens": 7, "source": "x"}) + "\n"
    )
    result = saffu("score model r.jsonl --json")
    assert rows(result)[0]["source"] == "x" and rows(result)[0]["bits"] > 0
    assert result.err == (
        "saffu: scores replaced fields of the same name: bits, tokens; rename these fields to keep them\n"
    )
    assert saffu("score model r.jsonl").err == result.err


def test_a_histogram_on_terminals(saffu, monkeypatch):
    assert saffu("score model lines.txt").err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = saffu("score model lines.txt --keep bits_per_byte>2").err.splitlines()
    assert shown[0].startswith("bits per byte: ") and shown[0].endswith("of 300 lines kept")
    assert sum(int(line.split()[-1]) for line in shown[1:]) == 300
    assert saffu("score model lines.txt --quiet").err == ""


def test_no_text_gives_no_rows(saffu):
    assert saffu("score model --json", stdin="\n\n") == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
def test_a_row_comes_when_its_line_has(tmp_path, fitted):
    """Rows are printed while standard input is still open; a reader who leaves ends it quietly."""
    fitted("calibrated").save(tmp_path / "counted")
    command = [sys.executable, "-m", "saffu", "score", "counted"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        for number, line in enumerate(LINES[:3], 1):
            process.stdin.write(f"{line}\n".encode())
            process.stdin.flush()
            rows = [b"id\t", b"1\t"] if number == 1 else [f"{number}\t".encode()]
            for row in rows:
                assert process.stdout.readline().startswith(row)
        process.stdout.close()
        with suppress(BrokenPipeError):  # it may have ended by now
            process.stdin.write(("\n".join(LINES) + "\n").encode() * 8)
        with suppress(BrokenPipeError):
            process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")


def test_other_columns_of_tables_are_kept(saffu, tmp_path):
    (tmp_path / "items.tsv").write_text("item\tcondition\ttext\tbits\n7\ta\tthe dog\t0\n8\tb\tthe cat\t0\n")
    table = [line.split("\t") for line in saffu("score model items.tsv --words").out.splitlines()]
    assert table[0] == ["id", "item", "condition", "position", "word", "tokens", "bits", "punctuation"]
    assert [row[:5] for row in table[1:3]] == [["1", "7", "a", "1", "the"], ["1", "7", "a", "2", "dog"]]
    head, first, _ = [line.split("\t") for line in saffu("score model items.tsv").out.splitlines()]
    assert head[:4] == ["id", "item", "condition", "bits"] and first[:3] == ["1", "7", "a"]


def test_json_holds_the_text(saffu, tmp_path):
    (tmp_path / "r.jsonl").write_text('{"body": "the dog"}\n')
    assert rows(saffu("score model r.jsonl --field body --json"))[0]["body"] == "the dog"
    assert rows(saffu("score model --json", stdin="the dog\n"))[0]["text"] == "the dog"


def test_documents_of_several_lines(saffu, fitted, tmp_path):
    (tmp_path / "a.txt").write_text("\nthe dog\na cat\n\nthe king\n")
    whole = rows(saffu("score model a.txt --split file --json"))
    assert [(row["id"], row["text"]) for row in whole] == [(2, "the dog\na cat\n\nthe king")]
    assert whole[0]["bits"] == pytest.approx(fitted("toy").score_lines([whole[0]["text"]])[0].bits)
    paragraphs = rows(saffu("score model a.txt --split paragraph --json"))
    assert [(row["id"], row["text"]) for row in paragraphs] == [(2, "the dog\na cat"), (5, "the king")]


def test_a_file_without_text_is_an_error_but_an_empty_pipe_is_not(saffu, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    result = saffu(f"score model {tmp_path / 'empty.txt'}")
    assert (result.status, result.out) == (2, "")
    assert "no text to score" in result.err
    assert saffu("score model -", "").status == 0


def test_online_lines_remember_those_before_them(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "counted")
    (tmp_path / "twice.txt").write_text("\n".join([*LINES, *LINES]) + "\n")
    before = {path.name: path.read_bytes() for path in (tmp_path / "counted").iterdir()}
    alone, online = (rows(saffu(f"score counted twice.txt --json {how}")) for how in ("", "--online"))
    gains = [a["bits"] - b["bits"] for a, b in zip(alone, online, strict=True)]
    assert sum(gains[300:]) > 100 + abs(sum(gains[:300]))  # several batches
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "counted").iterdir()}
    documents = SaffuLM.load(tmp_path / "counted").trained_on_["documents"]
    result = saffu("score counted twice.txt --json --online --update")
    assert rows(result) == online
    assert result.err.startswith("saffu: added ")
    assert SaffuLM.load(tmp_path / "counted").trained_on_["documents"] > documents


def test_online_errors(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "counted")
    for options, message in (
        ("score counted lines.txt --update", "pass --online too"),
        ("eval counted lines.txt --update", "pass --online too"),
        ("score counted --online --update", "standard input can be read once"),
        ("eval counted - --online --update", "--update counts whole files"),
        ("score counted lines.txt --online --repetition", "remove --repetition"),
        ("score model lines.txt --online", "cannot read online"),
        ("score counted lines.txt --online --words", "online, there are no states"),
    ):
        result = saffu(options, stdin="a line\n")
        assert result.status == 2 and message in result.err, options


def test_what_is_scored_online_is_what_is_counted(saffu, tmp_path):
    """A model's own text may stand in another field than usual."""
    for name, offset in (("train.jsonl", 0), ("new.jsonl", 150)):
        records = [{"body": LINES[offset + n], "text": f"other {n}"} for n in range(150)]
        (tmp_path / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert saffu("train train.jsonl --field body --split line --out own --order 3 --slots 1").status == 0
    expected = rows(saffu("score own new.jsonl --field body --json --online"))
    assert rows(saffu("score own new.jsonl --json --online --update")) == expected
    assert saffu("forget own new.jsonl --field body").status == 0  # which was counted


def test_eval_online_updates_if_asked(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "counted")
    documents = SaffuLM.load(tmp_path / "counted").trained_on_["documents"]
    first = json.loads(saffu("eval counted lines.txt --online --json").out)
    assert SaffuLM.load(tmp_path / "counted").trained_on_["documents"] == documents
    again = saffu("eval counted lines.txt --online --json --update")
    assert json.loads(again.out) == first
    assert SaffuLM.load(tmp_path / "counted").trained_on_["documents"] > documents
    assert json.loads(saffu("eval counted lines.txt --json").out)["bits_per_byte"] < first["bits_per_byte"]
