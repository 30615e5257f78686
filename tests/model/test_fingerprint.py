"""The fingerprint of what was counted: equal for equal text, whoever counts it where, and for nothing else."""

import copy
import json

import pytest

from conftest import CONFIGS, MODELS, sentences
from saffu import SaffuLM, load

TEXT = sentences(5, 60)
COUNTED = "c3def1438a0e08350ca7f9168045d97c086a2d32e2bf511fe18a9dbb66f15d5c"


def test_it_is_the_same_on_every_machine():
    assert SaffuLM(CONFIGS["calibrated"]()).fit(TEXT).fingerprint_ == COUNTED


def test_parts_that_are_merged_have_that_of_the_whole():
    whole = SaffuLM(CONFIGS["calibrated"]()).fit(TEXT)
    parts = [SaffuLM(encoder=whole).fit(part) for part in (TEXT[:20], TEXT[20:])]
    assert parts[0].merge(parts[1]).fingerprint_ == COUNTED


@pytest.mark.parametrize("threads", ["1", "2"])
def test_the_command_counts_what_python_counts_in_any_number_of_threads(saffu, monkeypatch, tmp_path, threads):
    monkeypatch.setenv("SAFFU_THREADS", threads)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXT), "utf-8")
    settings = "--order 4 --slots 4 --word-classes 20 --set output_classes=8"
    assert saffu(f"train '{text}' --split line --hold-out 0 {settings} --out '{tmp_path}/model'").status == 0
    assert json.loads(saffu(f"info '{tmp_path}/model' --json").out)["fingerprint"] == COUNTED
    assert f"fingerprint  {COUNTED[:16]}" in saffu(f"info '{tmp_path}/model'").out


@pytest.mark.parametrize("kind", MODELS)
def test_it_is_saved_with_the_model(fitted, kind, tmp_path):
    fitted(kind).save(tmp_path / "model")
    assert load(tmp_path / "model").fingerprint_ == fitted(kind).fingerprint_ is not None


def test_it_follows_what_is_counted(fitted, train_text, tmp_path):
    lm = copy.copy(fitted("calibrated"))
    before = lm.fingerprint_
    lm.save(tmp_path / "compact", compact=True)
    assert load(tmp_path / "compact").fingerprint_ == before
    lm.update(["the girl saw a king in the garden ."])
    assert lm.fingerprint_ != before
    lm.forget(["the girl saw a king in the garden ."])
    assert lm.fingerprint_ == before
    lm.forget(train_text[:1])
    assert lm.fingerprint_ != before


def test_other_settings_and_other_tokenizers_have_other_fingerprints():
    config = CONFIGS["calibrated"]()
    others = [SaffuLM(config).fit(TEXT[:-1]), SaffuLM(type(config)(order=3)).fit(TEXT)]
    fingerprints = {COUNTED, *(lm.fingerprint_ for lm in others)}
    assert len(fingerprints) == 3


def test_a_model_without_its_counts_has_none(fitted, saffu, tmp_path):
    pytest.importorskip("transformers")
    fitted("calibrated").export_hf(tmp_path / "exported")
    assert load(tmp_path / "exported").fingerprint_ is None
    shown = saffu(["info", tmp_path / "exported", "--json"])
    assert shown.status == 0 and json.loads(shown.out)["fingerprint"] is None
