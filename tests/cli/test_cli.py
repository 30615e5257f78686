"""The command as a person meets it: each test runs `main` in an empty folder."""

import ast
import gzip
import json
import math
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

import saffu as saffu_package
from conftest import sentences
from saffu import SaffuConfig, SaffuError
from saffu.cli import as_typed, main
from saffu.wording import number_of

SMALL = ["--block", "16", "--radius", "4", "--block-dimension", "16", "--radius-dimension", "12"]
SMALL += ["--hidden-dimension", "32", "--preset", "paper"]


class Result:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def saffu(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(sentences(1, 400)) + "\n")
    with gzip.open(tmp_path / "dev.txt.gz", "wt") as file:
        file.write("\n".join(sentences(2, 60)) + "\n")

    def run(*arguments):
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(exit.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def model(saffu, tmp_path):
    assert saffu("train", "train.txt", "--out", "model", *SMALL).status == 0
    return tmp_path / "model"


def test_the_whole_way(saffu, tmp_path):
    trained = saffu("train", "train.txt", "--dev", "dev.txt.gz", "--out", "model", "--tune", 2, "--fold", 1000, *SMALL)
    assert trained.status == 0
    assert "init" in trained.out
    assert "tune 2" in trained.out
    assert "<sod>" in trained.out
    rows = [json.loads(line) for line in (tmp_path / "model" / "log.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["init", "tune 1", "tune 2"]

    scored = saffu("eval", "model", "dev.txt.gz", "--json")
    facts = json.loads(scored.out)
    keys = ["targets", "bytes", "nll", "perplexity", "bits_per_byte"]
    keys += ["unigram_perplexity", "bigram_perplexity", "trigram_perplexity"]
    assert set(keys) <= set(facts)
    assert facts["perplexity"] == pytest.approx(math.exp(facts["nll"] / facts["targets"]))
    assert facts["bits_per_byte"] == pytest.approx(facts["nll"] / math.log(2) / facts["bytes"])
    assert facts["bytes"] == sum(len(text) + 1 for text in sentences(2, 60))
    assert facts["trigram_perplexity"] < facts["bigram_perplexity"] < facts["unigram_perplexity"]
    assert facts["perplexity"] < facts["unigram_perplexity"]
    assert f"{facts['perplexity']:.2f}" in saffu("eval", "model", "dev.txt.gz").out

    first, again = (saffu("generate", "model", "the small", "--seed", 3, "--count", 2).out for _ in range(2))
    assert first == again
    assert first.startswith("the small")
    assert first.count("\n") == 2

    told = json.loads(saffu("info", "model", "--json").out)
    assert told["config"]["block"] == 16
    assert told["trained_on"]["documents"] == 400
    assert told["parameters"] > told["vocabulary"] > 260
    assert f"{told['parameters']:,}" in saffu("info", "model").out


def test_the_default_is_calibrated(saffu):
    assert saffu("train", "train.txt", "--dev", "dev.txt.gz", "--out", "model", "--classes", 20).status == 0
    facts = json.loads(saffu("eval", "model", "dev.txt.gz", "--json").out)
    assert facts["perplexity"] < facts["trigram_perplexity"]
    told = json.loads(saffu("info", "model", "--json").out)
    assert told["config"]["solution"] == "calibrated"
    assert "memory of 20 classes" in saffu("info", "model").out
    assert saffu("generate", "model", "the", "--seed", 1).out.startswith("the")


def test_held_out_documents_are_not_trained_on(saffu):
    facts = json.loads(saffu("train", "train.txt", "--out", "m", "--json", *SMALL).out)
    assert facts["trained_on"]["documents"] == 380
    assert facts["trained_on"]["hold_out"] == 20
    facts = json.loads(saffu("train", "train.txt", "--out", "m2", "--hold-out", 0, "--json", *SMALL).out)
    assert facts["trained_on"]["documents"] == 400
    assert "dev_perplexity" not in facts["log"][0]


def test_tokens_takes_the_first_documents(saffu):
    facts = json.loads(saffu("train", "train.txt", "--out", "m", "--tokens", "1k", "--json", *SMALL).out)
    assert 1000 <= facts["trained_on"]["tokens"] < 1100


def test_references_can_be_recounted(saffu, model):
    kept = json.loads(saffu("eval", model, "dev.txt.gz", "--json").out)
    saffu("train", "train.txt", "--out", "bare", "--no-references", *SMALL)
    none = json.loads(saffu("eval", "bare", "dev.txt.gz", "--json").out)
    assert none["trigram_perplexity"] is None
    recounted = json.loads(saffu("eval", "bare", "dev.txt.gz", "--train", "train.txt", "--json").out)
    assert recounted["trigram_perplexity"] != kept["trigram_perplexity"]  # all documents, not 19 of 20
    assert recounted["trigram_perplexity"] == pytest.approx(kept["trigram_perplexity"], rel=0.2)


def test_no_text_to_score(saffu, model):
    result = saffu("eval", model)
    assert result.status == 2
    assert "no text to score" in result.err


def spoil(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n  \n\n")
    (tmp_path / "latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1") * 50)
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "few.txt").write_text("one line\nand another\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train nowhere.txt --out m", "no such file"),
        ("train *.none --out m", "no file matches"),
        ("train folder --out m", "no .txt"),
        ("train empty.txt --out m", "no words"),
        ("train blank.txt --out m", "no words"),
        ("train latin.txt --out m", "not UTF-8"),
        ("train binary.txt --out m", "binary"),
        ("train few.txt --out m", "too small to hold"),
        ("train train.txt --dev blank.txt --out m", "--dev is empty"),
        ("train train.txt --preset paper --block 1 --out m", "at least 2"),
        ("train train.txt --preset paper --radius 1 --out m", "at least 2"),
        ("train train.txt --radius -4 --out m", "negative"),
        ("train train.txt --preset paper --block many --out m", "invalid int"),
        ("train train.txt --preset best --out m", "invalid choice"),
        ("train train.txt --block 16 --out m", "use the preset paper"),
        ("train train.txt --preset paper --memory 3 --out m", "use the preset calibrated"),
        ("train train.txt --preset calibrated --backprop --out m", "no weights to train"),
        ("train train.txt --tokens none --out m", "no such number"),
        ("train train.txt --hold-out 1 --out m", "--hold-out"),
        ("train train.txt --preset paper --radius-dimension 4 --out m", "dimension of at least"),
        ("train train.txt --device warp --out m", "device 'warp' cannot be used; use cpu, or cuda, cuda:1, … where"),
        ("train train.txt --out taken", "not empty"),
        ("train train.txt --out taken --force", "none of a model's files"),
        ("train train.txt --out .", "inside it"),
        ("train train.txt --memory 1 --out m", "tells nothing"),
        ("train train.txt --radius 1000 --out m", "64 at most"),
        ("train train.txt --seed 99999999999999999999 --out m", "below 2**63"),
        ("train train.txt --out train.txt", "is a file"),
        ("train train.txt --out train.txt/m", "cannot read or write"),
        ("train train.txt", "--out"),
        ("fly", "invalid choice"),
        ("", "VERB"),
        ("eval nowhere dev.txt.gz", "no model folder"),
        ("eval taken dev.txt.gz", "no config.json"),
        ("info folder", "no config.json"),
        ("generate nowhere", "no model folder"),
    ],
)
def test_bad_input_is_one_clear_line(saffu, tmp_path, arguments, message):
    spoil(tmp_path)
    before = set(tmp_path.rglob("*"))
    result = saffu(*arguments.split())
    assert result.status == 2
    assert message in result.err
    assert result.err.startswith("saffu: ")
    assert len(result.err.strip().splitlines()) == 1
    assert result.out == "" or "tokenised" in result.out
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    ["--temperature -1", "--top-p 0", "--top-k -2", "--max-tokens 0", "--count 0", "--seed one", "--seed -1"],
)
def test_bad_sampling_is_one_clear_line_that_names_the_option(saffu, arguments):
    result = saffu("generate", "nowhere", *arguments.split())
    assert result.status == 2
    assert len(result.err.strip().splitlines()) == 1
    assert arguments.split()[0] in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--preset paper --block-dimension 1", "--block-dimension is 1; it must"),
        ("--preset paper --documents 3 --hidden-dimension 0", "give a --hidden-dimension above 0"),
        ("--block-mode cat", "--block-mode is a setting of the paper solution; use the preset paper"),
        ("--preset network --solution calibrated", "leave out --solution, or use the preset calibrated"),
        ("--preset calibrated --solution paper", "leave out --solution, or use the preset paper"),
        ("--preset network --tune 2", "--calibrate, which the preset network has, sets attention"),
        ("--preset network --no-calibrate", "add --calibrate, or use --embedding bits"),
        (
            "--preset network --block 16",
            "use --block 0, --hidden-dimension 0 and --radius-mode cat, or --embedding bits",
        ),
        ("--solution calibrated --backprop", "use --preset network with --backprop"),
        ("--preset paper --backprop --dropout 2", "--dropout is 2.0"),
    ],
)
def test_errors_of_settings_name_options(saffu, arguments, message):
    result = saffu("train", "train.txt", "--out", "m", *arguments.split())
    assert result.status == 2
    assert message in result.err
    assert "`" not in result.err


def test_a_solution_alone_means_its_preset(saffu):
    facts = json.loads(saffu("train", "train.txt", "--out", "m", "--json", "--solution", "paper", *SMALL[:-2]).out)
    assert facts["config"]["count_by"] == "types"


def test_one_is_no_plural(saffu, model, tmp_path):
    assert [number_of(n, "document") for n in (0, 1, 2000)] == ["0 documents", "1 document", "2,000 documents"]
    (tmp_path / "one.txt").write_text("a line\n")
    assert "a corpus of 1 document is too small" in saffu("train", "one.txt", "--out", "m").err
    trained = saffu("train", "train.txt", "--out", "t", *SMALL, "--backprop", "--max-folds", 1)
    assert "stopped: 1 fold done; " in trained.out


def test_only_settings_of_the_verb_are_shown_as_options(saffu, tmp_path):
    (tmp_path / "hold_out").mkdir()
    assert "hold_out is no model folder" in saffu("eval", "hold_out", "dev.txt.gz").err
    message = as_typed("raise `smoothing`, not `top_k`: `saffu --help`", Namespace(smoothing=1.0))
    assert message == "raise --smoothing, not `top_k`: `saffu --help`"


def test_in_python_settings_have_their_python_names():
    with pytest.raises(SaffuError, match="`block_dimension` is 1"):
        SaffuConfig(block_dimension=1)
    for path in Path(saffu_package.__file__).parent.glob("*.py"):
        for message in messages(path):
            words = re.sub(r"\(.*?\)|`[^`]* .*?`", "", message)  # both ways to say it, or a whole command
            assert not re.search(r"(?<![\w-])--[a-z]", words), (path.name, message)


def messages(path):
    """The texts of the errors a file raises."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "SaffuError":
            parts = ast.walk(node)
            yield "".join(p.value for p in parts if isinstance(p, ast.Constant) and isinstance(p.value, str))


def test_replacing_takes_force(saffu, model):
    assert saffu("train", "train.txt", "--out", "model", "--force", "--radius", 5, *SMALL[4:]).status == 0
    assert json.loads(saffu("info", "model", "--json").out)["config"]["radius"] == 5


def test_a_closed_pipe_loses_no_model(tmp_path, saffu):
    command = f"{sys.executable} -m saffu train train.txt --out piped --classes 0 --radius 2 | true"
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert saffu("info", "piped").status == 0


def test_undecodable_bytes_can_be_replaced(saffu, tmp_path):
    text = "\n".join(sentences(1, 100)).encode() + b"\n" + b"caf\xe9\n" * 20
    (tmp_path / "latin.txt").write_bytes(text)
    assert saffu("train", "latin.txt", "--out", "m", "--encoding-errors", "replace", *SMALL).status == 0


def test_help_is_quick_and_needs_no_torch():
    code = "import sys, saffu, saffu.cli; saffu.cli.parser().format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_verb_has_an_example(saffu):
    for verb in ("train", "eval", "generate", "info"):
        shown = saffu(verb, "--help")
        assert shown.status == 0
        assert f"saffu {verb} " in shown.out.split("example:")[1]


def test_options_may_stand_anywhere(saffu, model):
    plain = saffu("generate", "model", "the", "--seed", 1)
    assert plain.status == 0
    assert saffu("generate", "model", "--seed", 1, "the").out == plain.out
    assert saffu("generate", "--seed", 1, "model", "the").out == plain.out
    assert saffu("eval", "model", "--json", "dev.txt.gz").status == 0
    wrong = saffu("train", "train.txt", "--outt", "x")
    assert wrong.status == 2
    assert "saffu train --help" in wrong.err
