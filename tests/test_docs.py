"""What is written about the library is true: the API page, the tutorial, the citation, the package's metadata."""

import argparse
import re
import runpy
import sys
from pathlib import Path

import pytest

import saffu
from saffu.cli import parser

ROOT = Path(__file__).parent.parent


def test_the_api_page_is_up_to_date():
    page = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == page, "run `python docs/make_api.py`, or `make format`"


def test_all_that_is_public_is_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in set(saffu.__all__) - {"PRESETS"}:
        assert f"### `saffu.{name}`" in page
    for name in ("fit", "perplexity", "generate", "explain", "embeddings_", "save"):
        assert re.search(rf"#### `{name}\b", page)


def test_public_names_can_be_imported():
    for name in saffu.__all__:
        assert getattr(saffu, name) is not None
    with pytest.raises(AttributeError):
        _ = saffu.nothing


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "docs" / "tutorial.py"))
    out = capsys.readouterr().out
    assert names["score"].perplexity < names["lm"].reference_scores(names["held_out"])["trigram"].perplexity
    together, logit = re.search(r"together (\S+), the logit (\S+)", out).groups()
    assert together == logit
    before, after = (row["dev_perplexity"] for row in names["paper"].log_[:: len(names["paper"].log_) - 1])
    assert after < before
    assert list(tmp_path.iterdir()) == []


def test_every_verb_shows_an_example():
    (verbs,) = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert {"explain", "pairs", "embed", "data", "reproduce"} <= set(verbs.choices)
    for name, verb in verbs.choices.items():
        assert f"saffu {name} " in verb.format_help().split("example:")[1]


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE).group(1) == saffu.__version__
    assert f"## {saffu.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_every_supported_python_is_named():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    named = set(re.findall(r"Python :: (3\.\d+)", project))
    assert named == {"3.10", "3.11", "3.12", "3.13"}
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in named or sys.version_info >= (3, 14)


def test_every_link_between_pages_leads_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
