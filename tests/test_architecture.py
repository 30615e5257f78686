"""The packages: which may import which, where torch may be imported, and how large files may grow."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import saffu

ROOT = Path(saffu.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

PACKAGES = {"text": 1, "calibrated": 3, "paper": 3, "tools": 4, "training": 5, "companion": 6, "model": 7}
PACKAGES |= {"cluster": 8, "experiments": 8, "play": 8, "cli": 9}
TOP = {"interface": 2, "__init__": 10, "__main__": 10}  # every other file at the top is 0
TORCH = ("paper/", "training/", "companion/", "experiments/", "model/export.py", "model/transformers/")
TORCH_INSIDE_FUNCTIONS = ("processes.py",)


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
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or "transformers" in path.parts, f"{path} has a relative import"
            base = node.module or ""
            for alias in node.names:
                is_module = (ROOT.parent / base.replace(".", "/") / f"{alias.name}.py").exists()
                found.append((f"{base}.{alias.name}" if is_module else base, inside))
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_for_type_checkers(node)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(path.read_text("utf-8")), False)
    return found


def is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packages_import_only_what_comes_before_them(path):
    here = place(module_of(path))
    for module, _ in imported(path):
        if module.split(".")[0] == "saffu" and place(module) != here and module != "saffu":
            there = place(module)
            assert level(there) <= level(here), f"{module_of(path)} imports {module}"
            assert level(there) < level(here) or level(here) == 0, f"{module_of(path)} imports its neighbor {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_torch_is_imported_only_where_it_may_be(path):
    name = path.relative_to(ROOT).as_posix()
    for module, inside in imported(path):
        if module.split(".")[0] in ("torch", "transformers"):
            allowed = name.startswith(TORCH) or (name in TORCH_INSIDE_FUNCTIONS and inside)
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
def test_files_are_short(path):
    assert len(path.read_text("utf-8").splitlines()) <= 300


def test_few_files_lie_at_the_top():
    assert len([path for path in ROOT.iterdir() if path.is_file()]) <= 12


def test_names_of_the_package_are_listed():
    assert set(saffu.__all__) <= set(dir(saffu))
    for name in saffu.__all__:
        assert getattr(saffu, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'SaffuML'"):
        _ = saffu.SaffuML


def run_without_torch(code: str, folder: Path) -> str:
    """What a process prints in which `import torch` fails."""
    script = f"import sys\nsys.modules['torch'] = None\n{code}"
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
):
    try:
        main(line.split())
    except SystemExit as exit:
        assert not exit.code, line
"""
    assert run_without_torch(code, tmp_path)
