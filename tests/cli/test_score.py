"""saffu score: rows in order, filters, records, and pipes."""

import json
import math
import subprocess
import sys

import pytest

from conftest import sentences
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
    assert head == ["id", "tokens", "bytes", "bits", "bits_per_byte", "perplexity"]
    assert first[0] == "1" and len(first) == 6 and len(rest) == 299


def test_standard_input(saffu):
    text = "\n".join(LINES) + "\n"
    named = saffu("score model lines.txt").out
    assert saffu("score model", stdin=text).out == named
    assert saffu("score model -", stdin=text).out == named


def test_filters_print_the_text(saffu):
    scored = rows(saffu("score model lines.txt --json"))
    middle = sorted(row["bits_per_byte"] for row in scored)[150]
    low = saffu(f"score model lines.txt --below {middle}").out.splitlines()
    high = saffu(f"score model lines.txt --above {middle}").out.splitlines()
    assert low == [line for line, row in zip(LINES, scored, strict=True) if row["bits_per_byte"] < middle]
    assert high == [line for line, row in zip(LINES, scored, strict=True) if row["bits_per_byte"] > middle]
    both = rows(saffu(f"score model lines.txt --above {middle} --json"))
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
    blank, line = running.line_scores([(True, ""), (False, LINES[7])])
    assert scored[7]["bits"] == pytest.approx(line.nll / math.log(2))
    assert scored[7]["bytes"] == line.bytes == len(LINES[7]) + 1
    assert blank.bytes == 1


def test_no_text_gives_no_rows(saffu):
    assert saffu("score model --json", stdin="\n\n") == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
def test_rows_come_before_the_input_ends(tmp_path, fitted):
    """The first batch is printed while standard input is still open; a reader who leaves ends it quietly."""
    from saffu.model import solutions

    if "toy" in solutions.PRESETS:  # another process does not know it
        fitted("paper").save(tmp_path / "network")
    command = [sys.executable, "-m", "saffu", "score", "network"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        text = ("\n".join(LINES) + "\n").encode()
        process.stdin.write(text * 8)
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"id\t")
        assert process.stdout.readline().startswith(b"1\t")
        process.stdout.close()
        process.stdin.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")
