"""The command as a person uses it: each test runs it in an empty folder."""

import gzip
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import saffu as package
from conftest import each, part, sentences
from saffu.cli import train
from saffu.cli.explain import label
from saffu.errors import install_command

SMALL = "--preset paper --block 16 --radius 4 --block-dimension 16 --radius-dimension 12 --hidden-dimension 32"
QUICK = "--order 3 --slots 2 --word-classes 0"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(sentences(1, 400)) + "\n")
    with gzip.open(tmp_path / "dev.txt.gz", "wt") as file:
        file.write("\n".join(sentences(2, 60)) + "\n")
    return tmp_path


@pytest.fixture
def model(fitted, tmp_path):
    """The folder of a small model."""
    fitted("toy").save(tmp_path / "model")
    return tmp_path / "model"


def facts(result):
    assert result.status == 0, result.err
    return json.loads(result.out)


def test_the_whole_way(saffu, tmp_path):
    trained = saffu(f"train train.txt --dev dev.txt.gz --out model --tune-folds 2 --fold-tokens 1000 {SMALL}")
    assert trained.status == 0, trained.err
    assert "training on 400 documents of one line" in trained.out
    assert "scored on 60 documents of one line" in trained.out
    rows = [json.loads(line) for line in part(tmp_path / "model", "log.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["init", "tune 1", "tune 2"]
    for row in rows:
        assert f"{row['stage']:<14}  {row['dev_perplexity']:>9.2f}" in trained.out

    score = facts(saffu("eval model dev.txt.gz --json"))
    assert score["perplexity"] == pytest.approx(math.exp(score["nll"] / score["targets"]))
    assert score["perplexity"] == pytest.approx(rows[-1]["dev_perplexity"], rel=1e-5)
    assert score["bits_per_byte"] == pytest.approx(score["nll"] / math.log(2) / score["bytes"])
    assert score["bytes"] == sum(len(text) + 1 for text in sentences(2, 60))
    assert score["trigram_perplexity"] < score["bigram_perplexity"] < score["unigram_perplexity"]
    shown = saffu("eval model dev.txt.gz").out
    assert shown.startswith("60 documents of one line, ") and f"{score['perplexity']:.2f}" in shown

    first, again = (saffu("generate model 'the small' --seed 3 --samples 2").out for _ in range(2))
    assert first == again and first.startswith("the small") and first.count("\n") == 2

    info = facts(saffu("info model --json"))
    assert info["settings"]["block"] == 16
    assert info["trained_on"]["documents"] == 400
    assert (info["source"]["default_corpus"], info["source"]["split"]) == (False, "line")
    assert f"{info['parameters']:,}" in saffu("info model").out


def test_the_default_is_calibrated_and_reads_running_text(saffu):
    trained = saffu(f"train train.txt --dev dev.txt.gz --out model {QUICK}")
    assert trained.status == 0, trained.err
    assert "training on running text: 1 document, 400 lines" in trained.out
    score = facts(saffu("eval model dev.txt.gz --json"))
    assert score["perplexity"] < score["unigram_perplexity"]
    info = facts(saffu("info model --json"))
    assert (info["preset"], info["settings"]["order"], info["source"]["split"]) == ("calibrated", 3, "file")
    assert "  memory_tokens      " in saffu("info model").out  # as its option
    assert saffu("generate model the --seed 1").out.startswith("the")
    assert "running text: 1 document, 60 lines" in saffu("eval model dev.txt.gz").out
    assert "60 documents of one line" in saffu("eval model dev.txt.gz --split line").out


def test_held_out_lines_are_not_trained_on(saffu):
    trained = facts(saffu(f"train train.txt --out m --json {SMALL}"))
    assert trained["trained_on"]["documents"] == 380
    assert "dev_perplexity" in trained["log"][0]
    trained = facts(saffu(f"train train.txt --out m2 --hold-out 0 --json {SMALL}"))
    assert trained["trained_on"]["documents"] == 400
    assert "dev_perplexity" not in trained["log"][0]


def test_empty_files_are_not_copies_of_each_other(saffu, tmp_path):
    for name in ("empty-train.txt", "empty-dev.txt"):
        (tmp_path / name).touch()
    trained = saffu(f"train train.txt empty-train.txt --dev dev.txt.gz empty-dev.txt --out m {SMALL}")
    assert trained.status == 0, trained.err


def test_max_tokens(saffu):
    trained = facts(saffu(f"train train.txt --out m --max-tokens 1k --json {SMALL}"))
    assert 1000 <= trained["trained_on"]["tokens"] < 1100


def test_standard_input_is_text_like_any_other(saffu, tmp_path):
    text = (tmp_path / "train.txt").read_text()
    piped = facts(saffu(f"train - --out piped --hold-out 10 --json {SMALL}", stdin=text))
    named = facts(saffu(f"train train.txt --out named --hold-out 10 --json {SMALL}"))
    assert piped["trained_on"] == named["trained_on"]
    assert piped["log"][0]["dev_perplexity"] == named["log"][0]["dev_perplexity"]
    assert facts(saffu("eval named - --json", stdin=text))["bytes"] == len(text)


def test_a_tokenizer_learned_elsewhere(saffu, tmp_path):
    (tmp_path / "private.txt").write_text("zyzzyva zyzzyva zyzzyva\n" * 20 + (tmp_path / "train.txt").read_text())
    saffu(f"train train.txt --out public {SMALL}")
    for name in ("model.safetensors", "tokenizer.json"):
        assert part(tmp_path / "public", name).exists()
    facts(saffu(f"train private.txt --out private --tokenizer public --json {SMALL}"))
    assert (
        part(tmp_path / "private", "tokenizer.json").read_bytes()
        == (part(tmp_path / "public", "tokenizer.json")).read_bytes()
    )
    assert "zyzzyva" not in part(tmp_path / "private", "tokenizer.json").read_text()


def test_unknown_words_are_counted(saffu, tmp_path):
    assert saffu(f"train train.txt --dev dev.txt.gz --out w --words-as-tokens {QUICK}").status == 0
    (tmp_path / "new.txt").write_text("the zebra saw the okapi\n")
    assert facts(saffu("eval w new.txt --json"))["unknown_words"] == 2
    assert "(33.3% of the tokens are <unk>" in saffu("eval w new.txt").out
    assert facts(saffu("eval w dev.txt.gz --json"))["unknown_words"] == 0
    assert "<unk>" not in saffu("eval w dev.txt.gz").out


def test_baselines_can_be_built_from_other_text(saffu, model):
    stored = facts(saffu("eval model dev.txt.gz --json"))
    rebuilt = facts(saffu("eval model dev.txt.gz --baseline-text train.txt --json"))
    assert rebuilt["trigram_perplexity"] != stored["trigram_perplexity"]
    assert rebuilt["trigram_perplexity"] == pytest.approx(stored["trigram_perplexity"], rel=0.5)


def test_models_change(saffu, tmp_path):
    assert saffu(f"train train.txt --split line --hold-out 0 --out model {QUICK}").status == 0
    before = facts(saffu("eval model dev.txt.gz --json"))
    (tmp_path / "new.txt").write_text("a brand new line .\n")
    assert "added 1 document (" in saffu("update model new.txt").out
    forgotten = saffu("forget model new.txt")
    assert "removed 1 document; model now holds 400 documents" in forgotten.out
    assert "the tokenizer and the encoder stay" in forgotten.out and "--tokenizer DIR" in forgotten.out
    assert facts(saffu("eval model dev.txt.gz --json"))["nll"] == pytest.approx(before["nll"], rel=1e-9)
    assert saffu("forget model new.txt").status == 2
    assert facts(saffu("forget model new.txt --skip-uncounted --json"))["removed"] == 0
    assert saffu("train new.txt --encoder model --hold-out 0 --out other").status == 0
    merged = saffu("merge model other --out both")
    assert "merged 2 models: 401 documents" in merged.out
    assert facts(saffu("info both --check --json"))["checked"] is True


def test_files_of_which_lines_were_held_out_can_be_forgotten(saffu, tmp_path):
    text = (tmp_path / "train.txt").read_text()
    (tmp_path / "two.txt").write_text(text.replace("the", "a"))
    (tmp_path / "short.txt").write_text("the first line .\nthe second line .\n")
    saffu(f"train train.txt --split file --hold-out 0 --out public {QUICK}")
    train = "--split file --encoder public --out"
    assert saffu(f"train train.txt short.txt two.txt {train} cut").status == 0
    counted = facts(saffu("info cut --json"))["trained_on"]
    forgotten = facts(saffu("forget cut two.txt --json"))
    assert forgotten["removed"] == 1 and forgotten["removed_parts"] > 1 and forgotten["held_out_lines"] > 10
    assert forgotten["trained_on"]["lines"] == counted["lines"] - text.count("\n") + forgotten["held_out_lines"]
    saffu(f"train train.txt short.txt {train} never")
    assert (
        part(tmp_path / "cut", "model.safetensors").read_bytes()
        == (part(tmp_path / "never", "model.safetensors")).read_bytes()
    )
    result = saffu("forget cut train.txt").out
    assert re.match(r"removed 1 document in \d+ parts; \d+ lines had been held out; cut now holds 1 document ", result)
    refused = saffu("forget cut two.txt")
    assert refused.status == 2 and "this document is not in the model" in refused.err


def test_info_check_finds_damage(saffu, model):
    assert saffu("info model --check").status == 0
    file = part(model, "model.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    checked = saffu("info model --check")
    assert checked.status == 2 and file.name in checked.err and checked.err.count("\n") == 1


@pytest.fixture
def spoiled(tmp_path):
    """Files and folders that cannot be used."""
    (tmp_path / "copy.txt").write_bytes((tmp_path / "train.txt").read_bytes())
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("\n  \n\n")
    (tmp_path / "latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1") * 50)
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "few.txt").write_text("one line\nand another\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years of work")


@each(
    "line, message",
    [
        ("train nowhere.txt --out m", "no such file or folder: nowhere.txt; check"),
        ("train *.none --out m", "no file matches"),
        ("train folder --out m", "no text in the folder"),
        ("train '' --out m", "empty file name"),
        ("train empty.txt --out m", "text"),
        ("train blank.txt --out m", "text"),
        ("train latin.txt --out m", "--encoding-errors"),
        ("train binary.txt --out m", "binary"),
        ("train bad.jsonl --out m", "bad.jsonl"),
        ("train train.txt --dev blank.txt --out m", "the text of --dev is empty"),
        ("train train.txt --dev train.txt --out m", "both training and held-out text"),
        ("train train.txt --dev copy.txt --out m", "is a copy of"),
        ("train train.txt --dev copy.txt --max-tokens 500 --out m", "is a copy of"),
        ("train - --dev - --out m", "standard input"),
        ("train train.txt --order 1 --out m", "--order is 1; it must be an integer from 2 to"),
        ("train train.txt --order 99999999999999999999 --out m", "--order"),
        ("train train.txt --order many --out m", "must be an integer, got 'many'"),
        ("train train.txt --seed -1 --out m", "--seed"),
        ("train train.txt --preset best --out m", "invalid choice: 'best'"),
        ("train train.txt --preset companion --out m", "companion models are made by saffu train --minutes N"),
        ("train train.txt --block 16 --out m", "--block belongs to --preset paper; add that, or remove --block"),
        ("train train.txt --block=16 --out m", "--block belongs to --preset paper"),
        ("train train.txt --device cuda --out m", "--device requires --minutes or --epochs"),
        ("train train.txt --learning-rate 1 --out m", "--learning-rate belongs to --preset paper"),
        ("train train.txt --preset paper --order 3 --out m", "--order belongs to --preset counted"),
        ("train train.txt --preset paper --minutes 3 --out m", "--minutes belongs to --preset counted"),
        (
            "train train.txt --backprop --out m",
            "--backprop belongs to --preset paper; add that",
        ),
        ("train train.txt --preset paper --learning-rate 1 --out m", "--learning-rate requires --backprop"),
        ("train train.txt --preset paper --backprop --hold-out 0 --out m", "--backprop needs held-out text"),
        ("train train.txt --preset paper --block 1 --out m", "--block is 1; it must be"),
        ("train train.txt --preset paper --block 0 --radius 0 --out m", "--block and --radius are both 0"),
        ("train train.txt --preset paper --smoothing 1 --out m", "use --set smoothing=VALUE"),
        ("train train.txt --preset paper --set smoothing=-1 --out m", "--set smoothing is -1.0; it must be"),
        ("train train.txt --preset paper --block 1000000000000 --out m", "from 2 to 16384"),
        ("train train.txt --preset paper --block 1000000000000000 --out m", "from 2 to 16384"),
        ("train train.txt --preset paper --batch-size 99999999999999999999 --out m", "must be an integer of at most"),
        ("train train.txt --preset paper --device warp --out m", "warp"),
        ("train train.txt --set order=3 --out m", "use --order 3"),
        ("train train.txt --set colour=3 --out m", "--set has no setting 'colour'; see --set help"),
        ("train train.txt --max-tokens none --out m", "invalid number 'none'"),
        ("train train.txt --max-tokens 1e999 --out m", "invalid number '1e999'"),
        ("train train.txt --hold-out 1 --out m", "--hold-out must be 0 (off) or at least 2"),
        ("train train.txt --hold-out -3 --out m", "must be an integer of at least 0"),
        ("train train.txt --tokenizer folder --out m", "folder"),
        ("train train.txt --encoder nowhere --out m", "nowhere"),
        ("train train.txt --encoder nowhere --order 3 --out m", "--order cannot be combined with --encoder"),
        ("train --resume nowhere", "nowhere"),
        ("train --resume nowhere --out m", "remove --out"),
        ("train --resume nowhere --hold-out 5", "remove --hold-out"),
        ("train --resume nowhere --bad-records skip", "remove --bad-records"),
        ("train --resume train.txt", "train.txt is a file, not a model folder; pass a folder"),
        ("train train.txt --epochs 1e25 --out m", "--epochs is 1e+25; it must be a number from 0 to 100000"),
        ("train train.txt --minutes 1e25 --out m", "--minutes is 1e+25; it must be a number from 0 to 100000"),
        ("train train.txt --networks 2 --out m", "--networks requires --minutes or --epochs"),
        ("train train.txt --out taken", "taken"),
        ("train train.txt --out taken --force", "thesis.tex"),
        ("train train.txt --out .", "not empty"),
        ("train train.txt --out train.txt", "is a file"),
        ("train train.txt --out train.txt/m", "train.txt"),
        ("train train.txt", "missing output folder; pass --out DIR"),
        ("train train.txt --outt m", "did you mean --out?"),
        ("train train.txt --tmep m", "unknown option --tmep; see `saffu train --help`"),
        ("train train.txt --hlep", "did you mean --help?"),
        ("help trian", "unknown command 'trian'; did you mean train?"),
        ("generate nowhere --temp 1", "unknown option --temp; did you mean --temperature?"),
        ("update nowhere train.txt", "nowhere"),
        ("update nowhere train.txt --minutes 1", "--minutes needs --dev FILE"),
        ("update nowhere train.txt --dev dev.txt.gz", "pass --minutes N too, or remove --dev"),
        ("merge one one --out m", "listed twice"),
        ("merge one --out m", "nothing to merge"),
        ("eval nowhere dev.txt.gz", "nowhere"),
        ("eval taken dev.txt.gz", "config.json"),
        ("info folder", "config.json"),
        ("info train.txt", "train.txt is a file, not a model folder"),
        ("export nowhere --to arpa --prune 9999999999 --out x", "must be an integer of at most 4294967295"),
        ("generate nowhere", "nowhere"),
        ("generate nowhere --temperature -1", "--temperature"),
        ("generate nowhere --top-p 2", "--top-p"),
        ("generate nowhere --top-k -2", "--top-k"),
        ("generate nowhere --max-tokens 0", "--max-tokens"),
        ("generate nowhere --samples 0", "--samples"),
        ("generate nowhere --seed one", "--seed"),
        ("explain nowhere --rows 0", "--rows"),
        ("explain nowhere --top 0", "--top must be at least 1"),
        ("embed nowhere", "no word to look up"),
        ("embed nowhere x --out folder", "is a folder"),
        ("compare folder folder", "listed twice"),
        ("compare folder taken --names a", "1 name for 2 runs"),
        ("report nowhere", "saffu ablate"),
        ("export nowhere --out ''", "empty name; check for an unset variable"),
        ("reproduce logs --data folder --max-folds -1", "--max-folds: must be an integer of at least 1"),
        ("reproduce fame --data folder", "invalid choice: 'fame'"),
        ("download everything --out x", "invalid choice: 'everything'"),
    ],
)
def test_bad_input_is_one_clear_line(saffu, spoiled, tmp_path, line, message):
    before = set(tmp_path.rglob("*"))
    result = saffu(line)
    assert result.status == 2
    assert message in result.err
    assert result.err.startswith("saffu: ")
    assert result.err.count("\n") == 1
    assert "`" not in re.sub("`saffu .*?`", "", result.err)
    assert result.out == "" or "not enough memory" in result.err
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("preset", ["--preset paper", "--epochs 1"])
def test_a_missing_torch_is_noticed_before_the_work(saffu, monkeypatch, preset):
    monkeypatch.setitem(sys.modules, "torch", None)
    result = saffu(f"train train.txt --out m {preset}")
    assert (result.status, result.out) == (2, "") and install_command("torch") in result.err


def test_no_minutes_are_no_training(saffu):
    result = saffu(f"train train.txt --dev dev.txt.gz --minutes 0 --out m {QUICK}")
    assert result.status == 0, result.err
    assert facts(saffu("info m --json"))["preset"] == "calibrated"


def test_an_exported_copy_is_neither_exported_nor_changed(saffu, model):
    (model / "modeling_saffu.py").write_text("")
    for line in (
        "export model --out x",
        "export model --to arpa --out x",
        "update model train.txt",
        "merge folder model --out x",
    ):
        result = saffu(line)
        assert result.status == 2 and "is an exported copy" in result.err


def test_scores_of_counted_text_come_with_a_warning(saffu, tmp_path):
    lines = sentences(1, 400)
    (tmp_path / "part.txt").write_text("\n".join(lines[:100]) + "\n")
    trained = saffu(f"train train.txt --split line --dev part.txt --out m {QUICK}")
    assert trained.status == 0 and "the model has counted 100% of this text" in trained.err
    assert saffu(f"train train.txt --out running {QUICK}").status == 0  # which holds out a part of the file
    assert "the model has counted 95% of this text" in saffu("eval running train.txt --json").err
    (tmp_path / "begin.txt").write_text("".join((tmp_path / "train.txt").read_text().splitlines(True)[:150]))
    assert re.search("the model has counted [89].% of this text", saffu("eval running begin.txt").err)
    (tmp_path / "mixed.txt").write_text("\n".join([*lines[:10], *(f"{line} {line}" for line in lines[:10])]) + "\n")
    for text in ("dev.txt.gz", "mixed.txt"):
        assert saffu(f"eval m {text}").err == ""


def test_no_text_to_evaluate_on(saffu, model):
    result = saffu("eval model")
    assert result.status == 2 and "no text to evaluate on" in result.err


def test_replacing_takes_force(saffu):
    assert saffu(f"train train.txt --out model {SMALL}").status == 0
    assert saffu(f"train train.txt --out model {SMALL} --radius 5").status == 2
    assert facts(saffu(f"train train.txt --out model --force {SMALL} --radius 5 --json"))["settings"]["radius"] == 5


def test_undecodable_bytes_can_be_replaced(saffu, tmp_path):
    (tmp_path / "latin.txt").write_bytes("\n".join(sentences(1, 100)).encode() + b"\n" + b"caf\xe9\n" * 20)
    assert saffu(f"train latin.txt --out m --encoding-errors replace {SMALL}").status == 0


def test_malformed_records_can_be_skipped(saffu, tmp_path):
    lines = [json.dumps({"body": text}) for text in sentences(1, 100)]
    (tmp_path / "r.jsonl").write_text("\n".join(["{broken", *lines]) + "\n")
    result = saffu(f"train r.jsonl --field body --bad-records skip --hold-out 0 --out m --json {SMALL}")
    assert facts(result)["trained_on"]["documents"] == 100
    assert "skipped 1 malformed record: number" in result.err


def test_bad_files_can_be_skipped(saffu, spoiled, tmp_path):
    (tmp_path / "broken.txt.gz").write_bytes(b"not gzip")
    trained = saffu(f"train train.txt latin.txt --dev dev.txt.gz broken.txt.gz --skip-bad-files --out m {QUICK}")
    assert trained.status == 0 and trained.err.count("skipped a file: ") == 2
    assert "skip_bad_files" not in trained.err, "what has been done is no remedy"
    before = facts(saffu("eval m dev.txt.gz --json"))
    assert saffu("eval m dev.txt.gz latin.txt").status == 2
    assert facts(saffu("eval m dev.txt.gz latin.txt --skip-bad-files --json")) == before
    assert facts(saffu("update m few.txt broken.txt.gz --skip-bad-files --json"))["added"] == 1
    assert facts(saffu("forget m few.txt broken.txt.gz --skip-bad-files --json"))["removed"] == 1
    none = saffu("eval m latin.txt --skip-bad-files")
    assert none.status == 2 and "there is no text to score" in none.err


def test_runs_that_skip_bad_files_can_be_resumed(saffu, spoiled, tmp_path):
    run = f"train train.txt latin.txt --dev dev.txt.gz --skip-bad-files --out m --backprop --max-folds 1 {SMALL}"
    assert saffu(f"{run} --fold-tokens 500").status == 0
    resumed = saffu("train --resume m --max-folds 2")
    assert resumed.status == 0 and resumed.err.count("skipped a file: ") == 1


def test_files_of_a_folder_that_are_not_read_are_listed(saffu, tmp_path):
    (tmp_path / "books").mkdir()
    for name in ("a.txt", "notes.rst", "LICENSE"):
        (tmp_path / "books" / name).write_text((tmp_path / "train.txt").read_text())
    trained = saffu(f"train books --out m {QUICK}")
    assert trained.status == 0 and "did not read 2 files of unknown format (LICENSE, notes.rst)" in trained.err
    assert "did not read" not in saffu("eval m books/*.rst books/LICENSE").err


@pytest.mark.parametrize("text", ["one line\n", "one\ntwo\nthree\n", "a word " * 2000])
def test_a_tiny_text_is_counted_whole(saffu, tmp_path, text):
    (tmp_path / "tiny.txt").write_text(text)
    trained = saffu(f"train tiny.txt --out m {QUICK}")
    assert trained.status == 0 and "too few to hold out every 20th part; all of it is counted" in trained.err
    assert saffu("generate m --seed 1").status == 0
    refused = saffu("train tiny.txt --out n --epochs 1")
    assert refused.status == 2 and "needs held-out text" in refused.err and not (tmp_path / "n").exists()


def test_the_default_text_is_named(saffu, monkeypatch):
    monkeypatch.setattr("saffu.text.default_corpus.default_corpus", lambda: iter(sentences(1, 100)))
    assert "no TEXT is given; reading the English text that ships with Python" in saffu(f"train --out m {QUICK}").err
    assert saffu(f"train --out m --force --quiet {QUICK}").err == ""


def test_options_may_stand_anywhere(saffu, model):
    plain = saffu("generate model the --seed 1")
    assert plain.status == 0
    assert saffu("generate model --seed 1 the").out == plain.out
    assert saffu("generate --seed 1 model the").out == plain.out
    assert saffu("eval model --json dev.txt.gz").status == 0


def test_quiet_prints_nothing(saffu):
    result = saffu(f"train train.txt --out m --quiet {SMALL}")
    assert result == (0, "", "")


def test_set_help_lists_rare_settings(saffu):
    assert "smoothing=0.001" in saffu("train --preset paper --set help").out
    assert "smoothing" not in saffu("train --set help").out


def test_backprop_and_resume(saffu, tmp_path, monkeypatch):
    run = "--backprop --fold-tokens 2000 --max-folds 1 --batch-size 64"
    trained = saffu(f"train train.txt --dev dev.txt.gz --out run {run} {SMALL}")
    assert trained.status == 0, trained.err
    assert "train 1" in trained.out and "best dev perplexity" in trained.out
    resumed = saffu("train --resume run --max-folds 2")
    assert resumed.status == 0, resumed.err
    assert "resuming in fold" in resumed.out and "train 2" in resumed.out
    refused = saffu("train --resume run --batch-size 32")
    assert refused.status == 2 and "--batch-size cannot change" in refused.err


@pytest.mark.parametrize("begun", [True, False])
def test_an_interrupted_run_says_how_to_resume(saffu, monkeypatch, begun):
    from saffu.model.language_model import SaffuLM

    def interrupted(lm, *_, folder, **__):
        if begun:
            lm.save(folder, {"checkpoint.json": b"{}"})
        raise KeyboardInterrupt

    monkeypatch.setattr(SaffuLM, "backprop", interrupted)
    result = saffu(f"train train.txt --dev dev.txt.gz --out run --backprop {SMALL}")
    assert result.status == 130
    assert ("saffu train --resume run" in result.err) == begun and "Traceback" not in result.err
    assert ("training had not begun, but run holds the model before it" in result.err) != begun
    assert saffu("info run --check").status == 0


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
def test_a_closed_pipe_loses_no_model(saffu, tmp_path):
    command = f"{sys.executable} -m saffu train train.txt --out piped {SMALL} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True, cwd=tmp_path)
    assert done.stderr == b""
    assert saffu("info piped").status == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_full_disk_of_the_log_loses_no_model(saffu, tmp_path):
    command = f"{sys.executable} -m saffu train train.txt --out logged {QUICK} > /dev/full"
    subprocess.run(["bash", "-c", command], capture_output=True, check=True, cwd=tmp_path)
    assert saffu("info logged --check").status == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.parametrize("stream", ["2>&-", "2> /dev/full", "> /dev/full 2>&1"])
def test_an_error_that_cannot_be_printed_is_one(tmp_path, stream):
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m saffu info nothing {stream}"], check=False, cwd=tmp_path)
    assert done.returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="does not delete the current folder")
def test_a_current_folder_that_was_deleted(saffu, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = saffu("info ../model")
    assert (result.status, result.err) == (2, "saffu: MODEL: the current folder was deleted; change to another one\n")


def test_the_prompt_comes_after_the_first_token(saffu, model, monkeypatch, capsys):
    """Otherwise a progress bar of the first prediction would overwrite it on a terminal."""
    from saffu.model.language_model import SaffuLM

    printed = []

    def stream(self, prompt, **_):
        printed.append(capsys.readouterr().out)
        yield " there"

    monkeypatch.setattr(SaffuLM, "stream", stream)
    assert saffu("generate model hello").out == "hello there\n"
    assert printed == [""]


def test_samples_as_json(saffu, model):
    chosen = "--seed 3 --samples 2 --lines 2"
    found = facts(saffu(f"generate model 'the small' {chosen} --json"))
    assert (found["prompt"], found["seed"], found["lines"]) == ("the small", 3, 2)
    assert [sample["seed"] for sample in found["samples"]] == [3, 4]
    printed = saffu(f"generate model 'the small' {chosen}").out
    assert "".join(f"the small{sample['text']}\n" for sample in found["samples"]) == printed


def test_a_seed_that_was_not_given_is_reported(saffu, model):
    found = facts(saffu("generate model 'the small' --samples 2 --json"))
    again = facts(saffu(f"generate model 'the small' --samples 2 --seed {found['seed']} --json"))
    assert again == found and again["samples"][1]["seed"] == found["seed"] + 1
    assert facts(saffu("generate model 'the small' --json"))["seed"] != found["seed"]


def test_prompts_that_end_with_a_space(saffu, model):
    assert "ends with a space" in saffu("explain model 'the small '").err
    for command in ("generate", "explain"):
        assert saffu(f"{command} model 'the small'").err == saffu(f"{command} model").err == ""
    greedy = [saffu(f"generate model '{prompt}' --temperature 0") for prompt in ("the small", "the small ")]
    assert greedy[0].out == greedy[1].out and greedy[1].err == ""
    assert saffu(f"train train.txt --dev dev.txt.gz --out w --words-as-tokens {QUICK}").status == 0
    assert saffu("generate w 'the small '").err == ""


def test_prompts_that_are_not_utf8(saffu, model):
    result = saffu(["generate", model, os.fsdecode(b"caf\xe9")])
    assert result.status == 2 and "not UTF-8" in result.err


def test_words_and_vectors(saffu, model):
    shown = facts(saffu("embed model dog --top 3 --json"))
    assert [word["word"] for word in shown["words"]] == ["dog"]
    assert len(shown["words"][0]["neighbors"]) == 3
    assert saffu("embed model --out vectors.txt").status == 0
    head = Path("vectors.txt").read_text().splitlines()[0].split()
    assert int(head[0]) == np.count_nonzero(package.load("model").frequencies_)


def test_explanations_add_up(saffu, model):
    shown = facts(saffu("explain model 'the small' --target dog --json"))
    sums = [sum(column) for column in zip(*(term["values"] for term in shown["terms"]), strict=True)]
    assert sums == pytest.approx(shown["log_probabilities"], abs=1e-4)
    table = saffu("explain model 'the small' --rows 1 --all").out
    assert "= log₂ p" in table and "\033" not in table


@pytest.mark.parametrize("options", ["", "--target dog", "--target dog cat --top 1 --rows 3"])
def test_an_explanation_is_a_sentence_and_reasons(saffu, fitted, options):
    """Of each token: in words of the text, the strongest first, and none of the terms that only the sum needs."""
    fitted("calibrated").save("m")
    shown = saffu(f"explain m 'the old king saw the small' {options}").out
    *blocks, _ = shown.split("\n\n")
    assert len(blocks) == 2 * max(1, options.count("dog") + options.count("cat") + options.count("--top"))
    for sentence, lines in zip(blocks[::2], blocks[1::2], strict=True):
        assert "“the old king saw the small”" in sentence and max(map(len, sentence.splitlines())) < 80
        bits = [abs(float(line.split()[0].replace("−", "-"))) for line in lines.splitlines()]
        assert len(bits) == (3 if "--rows" in options else 5) and bits == sorted(bits, reverse=True)
    assert not re.search(r"<|▁|slot|normalizer|other|token", shown)


def test_exponents_that_round_to_zero_have_no_sign():
    term = {"name": "slot 2", "slots": 1, "seen": []}
    shown = [label(term | {"weight": weight}).split()[-1] for weight in (-0.004, 0.004, -0.03)]
    assert shown == ["0.00", "0.00", "−0.03"]


def test_explanations_of_half_words(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "m")
    half = saffu("explain m 'the old kin'")
    assert "'kin' becomes 'king'" in half.err and "“king”" in half.out
    assert facts(saffu("explain m 'the old kin' --top 1 --json"))["context"][-1] == " old"
    whole = saffu("explain m 'the old kin' --target g --top 0")  # a target says what is meant
    assert "inside a word" not in whole.err


def test_explanations_show_what_the_memory_holds(saffu, fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "m")
    shown = saffu("explain m 'the dog saw the cat and the' --target cat king --top 0 --all").out
    _, lines = shown.split("earlier in the document\n")
    assert " ".join(lines.split()) == "▁cat 1 time, last 3 tokens back: the▁dog▁saw▁the▁cat"
    assert "earlier" not in saffu("explain m 'the dog saw' --target king --top 0 --all").out


def test_fitting_and_training_know_the_same_settings():
    from dataclasses import fields

    from saffu.paper.config import TrainingConfig

    assert set(train.MAY_CHANGE) <= {entry.name for entry in fields(TrainingConfig)}
