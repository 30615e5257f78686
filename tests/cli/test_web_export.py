"""saffu export --to web."""

import json
import shutil

import pytest

from conftest import sentences
from saffu.play import web_page


@pytest.fixture
def model(saffu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(sentences(1, 120)) + "\n")
    assert saffu("train text.txt --split line --out model").status == 0


def test_a_page_is_written_whole_or_not_at_all(saffu, model, tmp_path, monkeypatch):
    code = tmp_path / "kernels.wasm"
    monkeypatch.setattr(web_page, "CODE", code)
    missing = saffu("export model --to web --out page")
    assert missing.status == 2 and "no kernels for browsers" in missing.err and not (tmp_path / "page").exists()
    code.write_bytes(b"\0asm")
    shown = saffu("export model --to web --out page")
    assert shown.status == 0 and "model.saffu holds the counts of the model" in shown.out
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert 'class="static"' in page and "wasm-unsafe-eval" in page and "icon.svg" not in page
    assert "replace it with --force" in saffu("export model --to web --out page").err
    facts = json.loads(saffu("export model --to web --text text.txt --out page --force --json").out)
    assert facts["bytes"] == sum(path.stat().st_size for path in (tmp_path / "page").iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--to web --out x --text other.txt", "must be all text that the model was made from"),
        ("--to web --out x --prune 1", "remove them"),
        ("--to hf --out x --text text.txt", "--text needs --to web"),
        ("--to web --out model --force", "is also an input"),
        ("--to web --out copy --force", "which an export would lose"),
    ],
)
def test_errors(saffu, model, tmp_path, options, message):
    (tmp_path / "other.txt").write_text("\n".join(sentences(2, 40)) + "\n")
    shutil.copytree(tmp_path / "model", tmp_path / "copy")
    refused = saffu(f"export model {options}")
    assert refused.status == 2 and message in refused.err and refused.err.count("\n") == 1
    assert not (tmp_path / "x").exists()
