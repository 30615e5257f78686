"""The packages: which may import which, where torch may be imported, and who may print."""

import ast
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import saffu

ROOT = Path(saffu.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

PACKAGES = {"text": 1, "training": 3, "calibrated": 4, "paper": 4, "tools": 5, "companion": 6, "model": 7}
PACKAGES |= {"cluster": 8, "experiments": 8, "play": 8, "cli": 9}
TOP = {"interface": 2, "__init__": 10, "__main__": 10}  # every other file at the top is 0
TORCH = ("paper/", "training/", "companion/", "experiments/", "model/transformers/")
NO_TORCH = tuple(f"companion/{name}.py" for name in ("config", "kernels", "model", "networks", "rows"))
NO_TORCH += ("companion/weights.py", "companion/window.py")  # a trained model is used without it
TORCH_INSIDE_FUNCTIONS = ("workers.py",)
UNSAFE = {"dill", "marshal", "pickle", "shelve"}


def place(module: str) -> str:
    """The package of a module, or the name of a file at the top: "saffu.text.corpus" → "text"."""
    return [*module.split("."), "__init__"][1]


def level(name: str) -> int:
    return PACKAGES.get(name, TOP.get(name, 0))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


@cache
def imported(path: Path) -> list[tuple[str, str]]:
    """All modules that a file imports, each with where: at its top (""), inside a "function", or for "types" only."""
    modules: list[tuple[str, str]] = []

    def visit(node: ast.AST, inside: str) -> None:
        if isinstance(node, ast.Import):
            modules.extend((alias.name, inside) for alias in node.names if alias.name != "saffu")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "transformers" in path.parts, f"{path} has a relative import"
            modules.extend((resolved(node.module or "", alias.name), inside) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "saffu":
            modules.append((resolved("saffu", node.attr), inside))  # after `import saffu`
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = "function"
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            inside = "types"
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text("utf-8")), "")
    return [(module, inside) for module, inside in modules if module]


def resolved(base: str, name: str) -> str:
    """The module that `from base import name` loads; "" for the version of saffu, which anyone may ask for.

    >>> resolved("saffu", "cli"), resolved("saffu", "SaffuLM"), resolved("saffu.errors", "SaffuError")
    ('saffu.cli', 'saffu.model.language_model', 'saffu.errors')
    """
    if (base, name) == ("saffu", "__version__"):
        return ""
    if base == "saffu" and name == "load":
        return "saffu.model.language_model"
    if base == "saffu" and name in saffu._MODULES:
        return saffu._MODULES[name]
    place = ROOT.parent / base.replace(".", "/") / name
    return f"{base}.{name}" if place.is_dir() or place.with_suffix(".py").exists() else base


def test_packages_import_only_what_comes_before_them():
    wrong = []
    for path in FILES:
        here = place(module_of(path))
        for module, _ in imported(path):
            there = place(module)
            if module.split(".")[0] == "saffu" and there != here:
                allowed = level(there) < level(here) or level(there) == level(here) == 0
                wrong += [] if allowed else [f"{module_of(path)} imports {module}"]
    assert not wrong


def test_no_spelling_of_an_import_is_overlooked(tmp_path):
    spellings = ["from saffu import cli", "from saffu import SaffuLM", "from saffu.cli import main"]
    for number, text in enumerate([*spellings, "import saffu\nsaffu.cli", "import saffu\nsaffu.SaffuLM"]):
        path = tmp_path / f"{number}.py"
        path.write_text(text)
        ((module, inside),) = imported(path)
        assert place(module) in ("cli", "model") and not inside, text


def test_files_do_not_import_each_other_in_circles():
    """Neither directly nor by way of others, not even inside functions; what only a type checker imports is exempt."""
    graph = {module_of(path): {module for module, inside in imported(path) if inside != "types"} for path in FILES}
    groups = circles(graph)
    assert not groups


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules of which each can reach every other.

    >>> circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()})
    [['b', 'c']]
    """
    reach = {module: set(near) & set(graph) for module, near in graph.items()}
    for middle in graph:
        for module in graph:
            if middle in reach[module]:
                reach[module] |= reach[middle]
    groups = {tuple(other for other in graph if other in reach[module] and module in reach[other]) for module in graph}
    return [list(group) for group in sorted(groups) if len(group) > 1]


def test_large_and_unsafe_packages_are_imported_only_where_they_may_be():
    """Ray only inside functions of the cluster, which is itself imported inside functions; what unpickles nowhere."""
    wrong = []
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        in_cluster = place(module_of(path)) == "cluster"
        for module, inside in imported(path):
            package = module.split(".")[0]
            if package in ("torch", "transformers"):
                allowed = name not in NO_TORCH if name.startswith(TORCH) else inside and name in TORCH_INSIDE_FUNCTIONS
            elif package == "ray":
                allowed = in_cluster and inside
            elif module.startswith("saffu.cluster"):
                allowed = in_cluster or inside
            else:
                allowed = package not in UNSAFE
            wrong += [] if allowed else [f"{name} imports {module}"]
    assert not wrong


def test_only_the_command_line_prints():
    printing = []
    for path in FILES:
        if place(module_of(path)) != "cli":
            nodes = ast.walk(ast.parse(path.read_text("utf-8")))
            lines = [node.lineno for node in nodes if isinstance(node, ast.Name) and node.id == "print"]
            printing += [f"{module_of(path)}, line {line}" for line in lines]
    assert not printing


def test_names_of_the_package_are_listed():
    assert set(saffu.__all__) <= set(dir(saffu))
    for name in saffu.__all__:
        assert getattr(saffu, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'SaffuML'"):
        _ = saffu.SaffuML


REFUSE_TORCH = """
import sys
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refusal())
"""


def run_without_torch(code: str, folder: Path) -> str:
    """What a process prints in which `import torch` fails."""
    script = REFUSE_TORCH + code
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_quick(tmp_path):
    """`import saffu` loads nothing that is large, and the interface to all models does not need torch."""
    heavy = "[name for name in ('numpy', 'tokenizers', 'tqdm') if name in sys.modules]"
    assert run_without_torch(f"import saffu; print({heavy})", tmp_path) == "[]\n"
    assert run_without_torch("import saffu; print(saffu.SaffuLM(), saffu.preset('paper').block)", tmp_path)


@pytest.mark.slow
def test_a_calibrated_model_lives_without_torch(tmp_path):
    text = ["the cat sat on the mat .", "a dog ran to the sea .", "the king found a small house ."]
    (tmp_path / "text.txt").write_text("\n".join(text * 20) + "\n")
    (tmp_path / "one.txt").write_text(text[0] + "\n")
    code = """
from saffu.cli.main import main
for line in (
    "train text.txt --split line --out model",
    "eval model one.txt",
    "generate model --seed 1",
    "forget model one.txt --split line",
    "info model",
    "export model --out exported",
):
    try:
        main(line.split())
    except SystemExit as exit:
        assert not exit.code, line
"""
    assert run_without_torch(code, tmp_path)


@pytest.mark.slow
def test_a_trained_model_is_used_without_torch(tmp_path):
    """Everything but training: what torch trained is evaluated, asked, updated, pickled, and forgets its network."""
    shutil.copytree(Path(__file__).parent / "golden" / "companion", tmp_path / "model")
    (tmp_path / "one.txt").write_text("ann saw bob and ann ran\n")
    code = """
import copy, pickle
from saffu import load
from saffu.cli.main import main
lm = load("model")
assert lm.model_.networks is not None
assert "network" in [term.name for term in lm.explain("ann saw").terms]
assert lm.complete_word("ann s")["saw"] > 0.9
assert lm.word_vectors_ and lm.generate("ann", seed=1) and lm.generate("ann", temperature=0.5, seed=1)
text = ["ann saw bob and ann ran"]
assert pickle.loads(pickle.dumps(lm)).score(text) == copy.copy(lm).score(text) == lm.score(text)
for line in (
    "info model",
    "eval model one.txt",
    "score model one.txt --words",
    "generate model --seed 1",
    "explain model ann",
    "pairs model",
    "embed model ann",
    "update model one.txt",
    "forget model one.txt --drop-network",
):
    try:
        main(line.split())
    except SystemExit as exit:
        assert not exit.code, line
assert load("model").model_.networks is None
"""
    printed = run_without_torch(code, tmp_path)
    assert "bits" in printed


@pytest.mark.slow
def test_the_page_and_scikit_learn_use_a_trained_model_without_torch(tmp_path):
    for name in ("starlette", "httpx", "sklearn"):
        pytest.importorskip(name)
    shutil.copytree(Path(__file__).parent / "golden" / "companion", tmp_path / "model")
    code = f"""
sys.path.insert(0, {str(Path(__file__).parent / "play")!r})
from play_page import Page
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from saffu import load
from saffu.play.studio import FOLDER, Studio
lm = load("model")
text = ["ann saw bob and ann ran"]
assert Pipeline([("lm", lm)]).score(text) == lm.score(text)
assert clone(lm).config == lm.config
page = Page(Studio(lm, "model"))
ask = dict(model=FOLDER, text="ann saw bob and ann r", page="a", number=1)
assert page.post("suggest", **ask)["words"][0]["word"] == "ran"
settings = dict(temperature=0.8, top_p=1.0, max_tokens=9, seed=1)
answer = page.client.post("api/generate", json=dict(model=FOLDER, text="ann saw", **settings))
assert answer.status_code == 200 and answer.text
print("torch" in sys.modules)
"""
    assert run_without_torch(code, tmp_path) == "False\n"
