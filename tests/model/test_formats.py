"""Folders of earlier releases are read as if they had been written today."""

import json

import numpy as np
import pytest

from lab.golden_folders import GOLDEN, answers
from saffu import SaffuError, SaffuLM, files
from saffu.calibrated.views import memory_parts, memory_slices
from saffu.model import formats
from saffu.model.formats import Migration

FOLDERS = sorted(path.parent for path in GOLDEN.glob("*/*/config.json"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: "-".join(folder.parts[-2:]))
@pytest.mark.parametrize("check", [False, True])
def test_folders_of_earlier_releases_say_what_they_said(folder, check):
    expected = json.loads((folder.parent / "answers.json").read_text("utf-8"))[folder.name]
    found = answers(SaffuLM.load(folder, check=check))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), name


def test_a_release_has_a_folder_of_each_kind():
    for release in GOLDEN.iterdir():
        presets = {json.loads(path.read_text("utf-8"))["preset"] for path in release.glob("*/config.json")}
        assert presets == {"calibrated", "companion", "paper"}


@pytest.mark.parametrize("release", ["0.2.0", "0.3.0"])
def test_views_that_were_called_memory_are_called_ngrams(release):
    lm = SaffuLM.load(GOLDEN / release / "calibrated")
    names = [view.name for view in lm.model_.views]
    assert "n-grams" in names and not any("memory" in name for name in names)
    assert list(lm.log_[-1]["exponents"])[1 : 1 + len(names)] == names


def test_an_older_format_is_migrated_step_by_step(fitted, tmp_path, monkeypatch):
    """Two formats later, a setting and an array have other names, and the folder still loads."""
    lm = fitted("calibrated")

    def rename_setting(manifest):
        settings = dict(manifest["settings"])
        return manifest | {"settings": settings | {"order": settings.pop("n")}}

    def rename_array(manifest, arrays):
        assert "n" in manifest["settings"]  # as it was written
        return {("frequencies" if name == "f" else name): array for name, array in arrays.items()}

    def unchanged(manifest, arrays):
        assert "order" in manifest["settings"]  # as the step before left it
        return arrays

    lm.save(tmp_path / "model")
    old = json.loads((tmp_path / "model" / "config.json").read_text())
    old["settings"]["n"] = old["settings"].pop("order")
    extra = {name: (tmp_path / "model" / name).read_bytes() for name in old["checksums"] if name != "config.json"}
    extra["references.safetensors"] = {"f": lm.frequencies_}
    files.write_folder(
        tmp_path / "old", {name: old[name] for name in old if name not in ("format", "checksums")}, extra
    )
    monkeypatch.setattr(files, "FORMAT", files.FORMAT + 2)
    monkeypatch.setattr(formats, "FORMAT", files.FORMAT)
    steps = {files.FORMAT - 2: Migration(rename_setting, rename_array), files.FORMAT - 1: Migration(dict, unchanged)}
    monkeypatch.setattr(formats, "MIGRATIONS", steps)
    again = SaffuLM.load(tmp_path / "old")
    assert again.config == lm.config
    assert again.frequencies_.tolist() == lm.frequencies_.tolist()
    again.update(["the dog saw a house ."])
    again.save(tmp_path / "new")
    assert json.loads((tmp_path / "new" / "config.json").read_text())["format"] == files.FORMAT


def test_a_format_that_is_too_old_or_too_new_is_an_error(fitted, tmp_path, monkeypatch):
    fitted("toy").save(tmp_path / "model")
    monkeypatch.setattr(files, "OLDEST_FORMAT", files.FORMAT + 1)
    with pytest.raises(SaffuError, match=f"older saffu \\(format {files.FORMAT}\\)"):
        SaffuLM.load(tmp_path / "model")
    monkeypatch.setattr(files, "FORMAT", files.FORMAT - 1)
    monkeypatch.setattr(files, "OLDEST_FORMAT", files.FORMAT)
    with pytest.raises(SaffuError, match="newer than this saffu's"):
        SaffuLM.load(tmp_path / "model")


def test_format_5_ignores_a_match_that_format_4_does_not_know(fitted):
    exponents = fitted("calibrated").model_.encoder.memory
    config = fitted("calibrated").config
    match = memory_slices(config)[1 + memory_parts(config).index("document, longest match")]
    manifest = {"format": 4, "settings": {"word_classes": config.word_classes}}
    arrays = {"encoder.memory": np.delete(exponents, range(match.start, match.stop), axis=1)}
    found = formats.migrated_arrays(manifest, arrays)["encoder.memory"]
    expected = exponents.copy()
    expected[:, match] = 0
    assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(("written", "added"), [(6, 1), (2, 2)])
def test_a_gate_ignores_what_its_format_did_not_show_it(written, added):
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = formats.migrated_arrays({"format": written, "settings": {}}, {"trained.gate.weight": weights})
    assert found["trained.gate.weight"].tolist() == np.pad(weights, [(0, 0), (0, added)]).tolist()
