"""What the pages say is true: commands parse and run, links resolve, the API page and the tutorial are up to date."""

import argparse
import ast
import gzip
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import saffu
from conftest import each
from lab.transcripts import FACTS, fingerprint, same
from saffu.cli.commands import COMMANDS
from saffu.cli.main import parse, run
from saffu.cli.options import Parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OTHER_TOOLS = {  # options of other programs that pages name
    "--nproc-per-node", "--model", "--model_args", "--tasks", "--include_path", "--batch_size", "--check", "--train",
    "--wheel", "--no-isolation", "--plat", "--strip", "--cases",
}  # fmt: skip
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "king",
    "house",
    "sat",
    "ran",
    "saw",
    "on",
    "to",
    "in",
    "by",
    "mat",
    "sea",
    "small",
    "old",
]


def commands_of(text: str) -> list[str]:
    """The command lines of a page's code blocks that run saffu, without comments and prompts."""
    blocks = [block for _, block in BLOCK.findall(text)] + re.findall(r"^    (saffu .*)$", text, re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]
    return [line for line in lines if re.search(r"(^|\| )saffu [a-z]", line)]


def saffu_words(line: str) -> list[str]:
    """The words after `saffu` of a command line, which may be part of a pipe and may write to a file."""
    return shlex.split(re.split(r" > | \| ", re.split(r"(?:^|\| )saffu ", line)[1])[0])


ALL_COMMANDS = [(page.name, line) for page in PAGES for line in commands_of(page.read_text("utf-8"))]


@each("page, line", ALL_COMMANDS)
def test_every_command_on_the_pages_parses(page, line, monkeypatch):
    preset = "companion" if "model" in line else "paper"
    monkeypatch.setattr("saffu.files.read_manifest", lambda folder: {"preset": preset})  # of a run that is resumed
    assert parse(saffu_words(line)) is not None


def parsers() -> list[Parser]:
    found = []
    for command in COMMANDS.values():
        for words in ([], ["--preset", "paper"]) if command.name == "train" else ([],):
            found.append(Parser(command))
            command.add_options(found[-1], words)
    return found


def test_pages_name_only_options_that_exist():
    known = {flag for parser in parsers() for flag in parser._option_string_actions} | OTHER_TOOLS
    for page in PAGES:
        named = set(re.findall(r"(?<![\w!-])--[a-z][a-z_-]*[a-z]", page.read_text("utf-8")))
        assert named <= known, f"{page.name} names {sorted(named - known)}"


def test_pages_name_only_commands_that_exist():
    for page in PAGES:
        for name in re.findall(r"`saffu ([a-z]+)", page.read_text("utf-8")):
            assert name in COMMANDS, f"{page.name} names saffu {name}"


def test_every_command_shows_examples_that_parse(monkeypatch):
    monkeypatch.setattr("saffu.files.read_manifest", lambda folder: {"preset": "paper"})
    for name, command in COMMANDS.items():
        lines = [line.split("  #")[0] for line in command.examples.splitlines()]
        assert any(f"saffu {name} " in line for line in lines), name
        for line in lines:
            assert isinstance(parse(saffu_words(line)), argparse.Namespace), line


@pytest.fixture
def text_folder(tmp_path, monkeypatch):
    """A folder with small texts under all names that the pages use; the demo's text is small too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("saffu.format._hidden", True)

    def lines(seed: int, number: int = 120) -> list[str]:
        places = [(seed * 7919 + step * step * 31 + step) % 9973 for step in range(6 * number)]
        words = [WORDS[place % len(WORDS)] for place in places]
        return [" ".join(words[6 * row : 6 * row + 6]) + f" {seed} ." for row in range(number)]

    monkeypatch.setattr("saffu.text.default_corpus.default_corpus", lambda: iter(lines(99)))
    names = ["books/one", "books/two", "good", "average", "stories", "talk", "held-out", "unknown"]
    names += ["crawl", "text", "news", "lines", "mine", "shard1", "shard2", "shard3", "part-0000", "part-0001"]
    for seed, name in enumerate(names):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines(seed)) + "\n", encoding="utf-8")
    shutil.copy("news.txt", "withdrawn.txt")
    records = "".join(json.dumps({"id": n, "text": line}) + "\n" for n, line in enumerate(lines(50)))
    Path("crawl.jsonl.gz").write_bytes(gzip.compress(records.encode()))
    for folder in ("blimp_filtered", "supplement_filtered"):
        Path(folder).mkdir()
        pair = {"sentence_good": "the cat sat .", "sentence_bad": "cat the . sat"}
        (Path(folder) / f"{folder}.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    return tmp_path


NOT_RUN = re.compile(
    r"saffu (download|reproduce|compare|ablate|report)|--minutes|--backprop|--resume|tuned|babylm|0002|--ray"
)


def prepared(line: str) -> str:
    """A command line that can be run again in one folder, and does not need long texts."""
    words = shlex.split(line) if "|" not in line else []
    if words[1:2] in (["train"], ["merge"], ["export"]):
        line += " --force"
    if words[1:2] == ["train"] and "--encoder" not in words and "--order" not in words and "paper" not in words:
        line += " --order 3 --slots 2 --word-classes 4"
    return line


def execute(line: str) -> None:
    """Run a command line in this process or, if it has a pipe, in a shell."""
    if "|" in line or " > " in line:
        command = re.sub(r"(^|\| )saffu ", rf"\1{shlex.quote(sys.executable)} -m saffu ", line)
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
    else:
        assert run(shlex.split(line)[1:]) == 0, line


@pytest.mark.slow
@each("name", ["README.md", "docs/commands.md", "docs/living-models.md", "docs/scale.md"])
def test_the_commands_of_a_page_run_in_order(name, text_folder):
    execute(prepared("saffu train books/ --hold-out 0 --out model"))
    execute("saffu update model withdrawn.txt")
    execute(prepared("saffu train books/ --split line --hold-out 0 --out base"))
    execute(prepared("saffu train --out demo-model"))
    lines = [line for line in commands_of((ROOT / name).read_text("utf-8")) if not NOT_RUN.search(line)]
    assert len(lines) >= 3
    for line in lines:
        execute(prepared(line))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/living-models.md"])
def test_the_python_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    documents = [f"the {animal} sat on the {place} ." for animal in WORDS[2:6] for place in WORDS[13:]] * 4
    names = {
        "saffu": saffu,
        "documents": documents,
        "held_out": documents[:3],
        "more": documents,
        "withdrawn": documents,
    }
    if name != "README.md":
        names |= {"lm": saffu.SaffuLM().fit(documents), "base": saffu.SaffuLM().fit(documents * 2)}
    blocks = [block for kind, block in BLOCK.findall((ROOT / name).read_text("utf-8")) if kind == "python"]
    for block in blocks:
        exec(block.replace('"Once upon a time"', '"the cat"'), names)
    assert isinstance(names["lm"], saffu.SaffuLM)


@each("page", PAGES)
def test_every_python_block_parses_and_imports_what_saffu_has(page):
    for block in [block for kind, block in BLOCK.findall(page.read_text("utf-8")) if kind == "python"]:
        tree = ast.parse(block)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "saffu":
                path = ROOT / "src" / Path(*node.module.split("."))
                source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
                assert all(re.search(rf"\b{name.name}\b", source) for name in node.names), block
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "saffu":
                assert hasattr(saffu, node.attr), node.attr


def test_the_readme_begins_with_the_two_commands_that_ci_runs():
    _, first = BLOCK.findall((ROOT / "README.md").read_text("utf-8"))[0]
    targets = [line.split("#")[0].removeprefix("make ").strip() for line in first.splitlines()]
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert all(f"\n{target}: setup\n" in makefile for target in targets)


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@each("page", [*PAGES, ROOT / "CHANGELOG.md"])
def test_every_link_between_pages_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            text = BLOCK.sub("", linked.read_text("utf-8"))
            assert anchor in [slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)], anchor


@pytest.mark.slow
def test_the_site_builds_without_a_broken_link(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install mkdocs-material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site" / "choose" / "index.html").exists()


def test_the_notebook_is_the_tutorial():
    cells = runpy.run_path(str(ROOT / "docs" / "make_tutorial.py"))["cells"](
        (ROOT / "docs" / "tutorial.py").read_text("utf-8")
    )
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text("utf-8"))
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert found == cells, "run `python docs/make_tutorial.py`"
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    assert all(content in page for _, content in cells), "run `python docs/make_tutorial.py`"


def test_the_moving_picture_shows_what_the_commands_print():
    figure = runpy.run_path(str(ROOT / "docs" / "make_terminal_figure.py"))
    drawn = (ROOT / "docs" / "figures" / "terminal.svg").read_text("utf-8")
    assert drawn == figure["drawing"](figure["screens"]()), "run `make numbers`"


def test_the_api_page_is_up_to_date():
    page = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == page, "run `python docs/make_api.py`, or `make format`"


def test_all_public_names_are_on_the_api_page():
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in saffu.__all__:
        assert f"### `saffu.{name}`" in page
    for name in ("fit", "perplexity", "generate", "explain", "word_vectors_", "save"):
        assert re.search(rf"#### `{name}\b", page)


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(ROOT / "docs" / "tutorial.py"))
    out = capsys.readouterr().out
    assert names["score"].perplexity < names["lm"].reference_scores(names["held_out"])["5-gram"].perplexity
    together, log_probability = re.search(r"together (\S+), the log-probability (\S+)", out).groups()
    assert together == log_probability
    assert names["after"] == names["before"]
    first, *_, last = (row["dev_perplexity"] for row in names["paper"].log_)
    assert last < first
    assert list(tmp_path.iterdir()) == []
    assert not names["folder"].exists()
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    printed = "".join(text for language, text in BLOCK.findall(page) if language == "text")
    facts = json.loads((ROOT / "docs" / "results" / FACTS).read_text("utf-8"))
    if facts["text"] == fingerprint():  # of the same version of Python
        assert same(out, printed), "run `python docs/make_tutorial.py`"


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE).group(1) == saffu.__version__
    newest, date = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE).groups()
    assert newest == saffu.__version__
    if "dev" in newest:
        assert date == "unreleased"
    else:
        assert f"date-released: {date}\n" in citation and re.fullmatch(r"\d{4}-\d\d-\d\d", date)


@each("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")))
def test_actions_are_pinned_by_hash(workflow):
    used = re.findall(r"uses: (?!\./)(.+)$", workflow.read_text("utf-8"), re.MULTILINE)
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v[\d.]+", name) for name in used), used


def test_every_supported_python_is_named():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    named = set(re.findall(r"Python :: (3\.\d+)", project))
    assert named == {"3.10", "3.11", "3.12", "3.13", "3.14"}
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in named or sys.version_info >= (3, 15)
