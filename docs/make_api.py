"""Write docs/api.md from the docstrings: python docs/make_api.py [--check]"""

import ast
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "saffu"
PAGE = HERE / "api.md"

CONTENTS = {
    "The model": [("model.language_model", "SaffuLM"), ("__init__", "load"), ("calibrated.storage", "memory_limit")],
    "Settings": [
        ("model.solutions", "preset"),
        ("calibrated.config", "CalibratedConfig"),
        ("companion.config", "CompanionConfig"),
        ("paper.config", "PaperConfig"),
        ("paper.config", "TrainingConfig"),
        ("text.tokenizer", "TokenizerConfig"),
        ("tools.generate", "Sampling"),
    ],
    "Results": [
        ("interface", "Score"),
        ("tools.scores", "LineScore"),
        ("tools.words", "WordScore"),
        ("interface", "Explanation"),
        ("interface", "Term"),
        ("tools.word_vectors", "WordVectors"),
    ],
    "The paper's layers": [
        ("paper.layers", "ExplicitClassifier"),
        ("paper.layers", "solve_head"),
        ("paper.layers", "SAFFU"),
    ],
    "Minimal pairs": [
        ("tools.minimal_pairs", "evaluate_pairs"),
        ("tools.minimal_pairs", "read_pairs"),
        ("tools.minimal_pairs", "Pair"),
        ("tools.minimal_pairs", "PairScore"),
    ],
    "Text": [
        ("text.sources", "find_files"),
        ("text.documents", "read_lines"),
        ("text.documents", "read_records"),
        ("text.default_corpus", "default_corpus"),
        ("text.tokenizer", "Tokenizer"),
        ("text.corpus", "TokenCorpus"),
    ],
    "The interface of all models": [("interface", "Model"), ("interface", "Sums")],
    "Errors": [("errors", "SaffuError"), ("errors", "NotFittedError")],
}

DOCUMENTED = {"__init__", "__getitem__"}  # private names that readers need
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    lines = [
        "# Python",
        "",
        "Generated from the docstrings by `docs/make_api.py`. Names such as `saffu.load` need only `import saffu`.",
    ]
    for title, names in CONTENTS.items():
        lines += ["", f"## {title}"]
        for module, name in names:
            lines += ["", *section(module, name)]
    return "\n".join(lines) + "\n"


def section(module: str, name: str) -> list[str]:
    text = (SOURCE / f"{module.replace('.', '/')}.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if isinstance(n, Function | ast.ClassDef) and n.name == name)
    title = f"### `{public_name(module, name)}`"
    if isinstance(node, Function):
        return [title, "", f"`{name}({arguments(node)})`", "", documentation(node)]
    lines = [title, "", documentation(node)]
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and is_documented(field)]
    if is_dataclass(node) and fields:
        lines += ["", *table(fields, text.splitlines())]
    for method in methods(node):
        lines += ["", f"#### `{signature(method, name)}`", "", documentation(method)]
    return lines


def public_name(module: str, name: str) -> str:
    """The shortest name by which it can be imported: of saffu, of the package in it, or of the file."""
    package = module.rpartition(".")[0]
    for place in [Path(), Path(package)] if module != "__init__" else []:
        if f'"{name}"' in (SOURCE / place / "__init__.py").read_text("utf-8"):
            return ".".join(["saffu", *place.parts, name])
    return f"saffu.{module}.{name}".replace(".__init__", "")


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """The public methods with a docstring."""
    found = [method for method in node.body if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)]
    return [method for method in found if not method.name.startswith("_") or method.name in DOCUMENTED]


def signature(method: Function, owner: str) -> str:
    """How a method is called: "fit(documents)"; a property has no brackets."""
    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
    if decorators & {"property", "cached_property"}:
        return method.name
    if method.name == "__init__":
        return f"{owner}({arguments(method)})"
    if method.name == "__getitem__":
        return f"[{arguments(method)}]"
    return f"{method.name}({arguments(method)})"


def arguments(node: Function) -> str:
    """The arguments with their defaults, without types, which are in the source."""
    bare = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(bare, Function)
    for argument in [*bare.args.posonlyargs, *bare.args.args, *bare.args.kwonlyargs, bare.args.vararg, bare.args.kwarg]:
        if argument is not None:
            argument.annotation = None
    bare.args.args = [argument for argument in bare.args.args if argument.arg not in ("self", "cls")]
    return ast.unparse(bare.args)


def documentation(node: Function | ast.ClassDef) -> str:
    """The docstring; indented and aligned paragraphs and examples become code."""
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    code = re.compile(r"^(    |>>> )")
    parts = []
    for paragraph in paragraphs:
        lines = paragraph.split("\n")
        aligned = sum("   " in line.strip() for line in lines) > len(lines) / 2
        is_example = lines[0].startswith(">>>") or (len(lines) == 1 and "(" in lines[0] and " → " in lines[0])
        is_list = all(line.startswith("    ") for line in lines[1:]) and lines[0].endswith(":") and len(lines) > 1
        is_code = all(code.match(line) for line in lines) or is_example or is_list or (aligned and len(lines) > 1)
        parts.append("```\n" + paragraph + "\n```" if is_code else paragraph)
    return "\n\n".join(parts)


def is_documented(field: ast.AnnAssign) -> bool:
    public = isinstance(field.target, ast.Name) and not field.target.id.startswith("_")
    return public and not ast.unparse(field.annotation).startswith("ClassVar")


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def table(fields: list[ast.AnnAssign], source: list[str]) -> list[str]:
    """Name, default, and meaning of each field; the meaning is in `setting(…)` or in the comment next to it."""
    rows = ["| | default | |", "| --- | --- | --- |"]
    for field in fields:
        default, meaning = "", ""
        value = field.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "setting":
            default = ast.unparse(value.args[0])
            meaning = str(ast.literal_eval(value.args[1]))
        else:
            if value is not None and not isinstance(value, ast.Call):
                default = ast.unparse(value)
            before = source[field.lineno - 2].strip()
            after = source[field.lineno - 1].partition("  # ")[2]
            meaning = after or (before.removeprefix("# ") if before.startswith("# ") else "")
        meaning = re.sub("(?<!`)<", "&lt;", meaning.replace("|", "\\|"))  # code keeps its brackets
        rows.append(f"| `{ast.unparse(field.target)}` | {f'`{default}`' if default else ''} | {meaning} |")
    return rows


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(None if PAGE.read_text("utf-8") == page() else "docs/api.md is out of date; run docs/make_api.py")
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
