"""The packages: which may import which, where torch may be imported, who may print, and how long functions may grow."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import saffu

ROOT = Path(saffu.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
REPOSITORY = Path(__file__).parent.parent
NOT_INSTALLED = sorted(path for folder in ("lab", "reference") for path in (REPOSITORY / folder).glob("*.py"))

PACKAGES = {"text": 1, "training": 3, "calibrated": 4, "paper": 4, "tools": 5, "companion": 6, "model": 7}
PACKAGES |= {"cluster": 8, "experiments": 8, "play": 8, "cli": 9}
TOP = {"interface": 2, "__init__": 10, "__main__": 10}  # every other file at the top is 0
TORCH = ("paper/", "training/", "companion/", "experiments/", "model/transformers/")
NO_TORCH = tuple(f"companion/{name}.py" for name in ("config", "kernels", "model", "networks", "rows"))
NO_TORCH += ("companion/weights.py", "companion/window.py")  # a trained model is used without it
TORCH_INSIDE_FUNCTIONS = ("workers.py",)
MOST_LINES, MOST_ARGUMENTS = 55, 9  # of a function


def place(module: str) -> str:
    """The package of a module, or the name of a file at the top: "saffu.text.corpus" → "text"."""
    return [*module.split("."), "__init__"][1]


def level(name: str) -> int:
    return PACKAGES.get(name, TOP.get(name, 0))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


def imported(path: Path) -> list[tuple[str, bool]]:
    """All modules that a file imports, wherever in it, and whether inside a function (or for type checkers only)."""
    modules: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            modules.extend((alias.name, inside) for alias in node.names if alias.name != "saffu")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "transformers" in path.parts, f"{path} has a relative import"
            modules.extend((resolved(node.module or "", alias.name), inside) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "saffu":
            modules.append((resolved("saffu", node.attr), inside))  # after `import saffu`
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_type_checkers(node)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text("utf-8")), False)
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


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_import_only_what_comes_before_them(path):
    here = place(module_of(path))
    for module, _ in imported(path):
        if module.split(".")[0] == "saffu" and place(module) != here:
            there = place(module)
            assert level(there) <= level(here), f"{module_of(path)} imports {module}"
            assert level(there) < level(here) or level(here) == 0, f"{module_of(path)} imports its neighbor {module}"


@pytest.mark.parametrize("line", ["from saffu import cli", "from saffu import SaffuLM", "from saffu.cli import main"])
def test_no_spelling_of_an_import_is_overlooked(line, tmp_path):
    (tmp_path / "file.py").write_text(f"{line}\n")
    (tmp_path / "other.py").write_text(f"import saffu\nx = saffu.{line.split()[-1]}\n")
    (module, _), *_ = imported(tmp_path / "file.py")
    assert place(module) in ("cli", "model")
    if line.startswith("from saffu import"):
        assert imported(tmp_path / "other.py") == [(module, False)]


def test_files_do_not_import_each_other_in_circles():
    """Neither directly nor by way of others, not even inside functions; what only a type checker imports is exempt."""
    graph = {module_of(path): imported_at_run_time(path) for path in FILES}
    assert not circles(graph)


def imported_at_run_time(path: Path) -> set[str]:
    tree = ast.parse(path.read_text("utf-8"))
    for node in ast.walk(tree):
        if is_for_type_checkers(node):
            node.body = []
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            modules |= {resolved(node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_only_where_it_may_be(path):
    name = path.relative_to(ROOT).as_posix()
    for module, inside in imported(path):
        if module.split(".")[0] in ("torch", "transformers"):
            allowed = (name.startswith(TORCH) and name not in NO_TORCH) or (name in TORCH_INSIDE_FUNCTIONS and inside)
            assert allowed, f"{name} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_ray_is_imported_only_by_the_cluster(path):
    """And never while modules are loaded: the cluster is imported inside functions, and imports ray inside its own."""
    for module, inside in imported(path):
        if module.split(".")[0] == "ray":
            assert place(module_of(path)) == "cluster" and inside, f"{module_of(path)} imports {module}"
        if module.startswith("saffu.cluster") and place(module_of(path)) != "cluster":
            assert inside, f"{module_of(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_command_line_prints(path):
    if place(module_of(path)) != "cli":
        names = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Name)]
        printed = [node.lineno for node in names if node.id == "print"]
        assert not printed, f"{module_of(path)} prints in line {printed[0]}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_unpickled(path):
    assert not {module.split(".")[0] for module, _ in imported(path)} & {"dill", "marshal", "pickle", "shelve"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_asks_which_kind_of_model_it_holds(path):
    """Except for `model/solutions.py`, and the packages of the solutions themselves."""
    if place(module_of(path)) not in ("calibrated", "companion", "paper") and path.name != "solutions.py":
        assert not questions(ast.parse(path.read_text("utf-8"))), module_of(path)


def questions(tree: ast.AST) -> list[str]:
    """Comparisons of a preset with a name, tests of a model's class, and of its attributes.

    >>> questions(ast.parse("x = lm.config.preset != 'paper' and isinstance(model, PaperModel)"))
    ["lm.config.preset != 'paper'", 'isinstance(model, PaperModel)']
    >>> questions(ast.parse("x = getattr(lm.model_, 'side', None) or getattr(options, 'side')"))
    ["getattr(lm.model_, 'side', None)"]
    """
    comparison = r".*preset.*'(calibrated|companion|paper)'|.*'(calibrated|companion|paper)'.*preset"
    call = r"isinstance\(.*(Calibrated|Companion|Paper)(Model|Config|Sums)\b|(has|get)attr\([\w.]*model_?\b"
    texts = [(ast.unparse(node), node) for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.Call)]
    return [text for text, node in texts if re.match(comparison if isinstance(node, ast.Compare) else call, text)]


@pytest.mark.parametrize("path", [*FILES, *NOT_INSTALLED], ids=lambda path: "/".join(path.parts[-2:]))
def test_functions_fit_on_a_screen_and_take_few_arguments(path):
    for function in functions(ast.parse(path.read_text("utf-8"))):
        where = f"{path.name}: {function.name}"
        assert lines_of_body(function) <= MOST_LINES, f"{where} has {lines_of_body(function)} lines"
        assert len(arguments_of(function)) <= MOST_ARGUMENTS, f"{where} takes {', '.join(arguments_of(function))}"


BELONG_TOGETHER = [{"lo", "hi"}, {"low", "high"}, {"begin", "end"}, {"first", "last"}, {"one", "two"}]
BELONG_TOGETHER += [{"left", "right"}, {"before", "after"}, {"train", "dev"}]


@pytest.mark.parametrize("path", [*FILES, *NOT_INSTALLED], ids=lambda path: "/".join(path.parts[-2:]))
def test_unrelated_values_are_assigned_on_lines_of_their_own(path):
    assert not packed_assignments(ast.parse(path.read_text("utf-8")))


def packed_assignments(tree: ast.AST) -> list[str]:
    """Assignments of several values to as many names, unless these go together, are constants, or change places.

    >>> packed_assignments(ast.parse("a, n = f(), 0; lo, hi = f(0), f(1); A, B = 1, 2; x, y = y, x + y"))
    ['a, n = (f(), 0)']
    """
    packed = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            targets = [ast.unparse(target) for target in node.targets[0].elts]
            names = {target.removeprefix("self.") for target in targets}
            read = {
                ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, ast.Name | ast.Attribute | ast.Subscript)
            }
            constant = all(isinstance(value, ast.Constant) for value in node.value.elts)
            if not (constant or set(targets) & read or names in BELONG_TOGETHER or "(" in "".join(targets)):
                packed.append(ast.unparse(node))
    return packed


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_of_body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without its docstring and without functions inside it."""
    has_docstring = ast.get_docstring(function) is not None and len(function.body) > 1
    first = function.body[1 if has_docstring else 0].lineno
    inside = [node for statement in function.body for node in functions(statement)]
    return function.end_lineno - first + 1 - sum(node.end_lineno - node.lineno + 1 for node in inside)


def arguments_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def test_few_files_lie_at_the_top():
    assert len([path for path in ROOT.iterdir() if path.is_file()]) <= 13


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
    shutil.copytree(Path(__file__).parent / "golden" / "0.2.0" / "companion", tmp_path / "model")
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
    shutil.copytree(Path(__file__).parent / "golden" / "0.2.0" / "companion", tmp_path / "model")
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
