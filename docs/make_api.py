"""Write docs/api.md from the docstrings: python docs/make_api.py [--check]"""

import ast
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "saffu"
PAGE = HERE / "api.md"

CONTENTS = {
    "The model": [("model", "SaffuLM"), ("__init__", "load")],
    "Settings": [("config", "SaffuConfig"), ("config", "TrainingConfig"), ("generate", "Sampling")],
    "What a model tells": [
        ("evaluate", "Score"),
        ("explain", "Explanation"),
        ("explain", "Term"),
        ("embeddings", "Embeddings"),
    ],
    "Minimal pairs": [("pairs", "evaluate_pairs"), ("pairs", "read_pairs"), ("pairs", "Pair"), ("pairs", "PairScore")],
    "Text": [
        ("text", "find_files"),
        ("text", "read_documents"),
        ("text", "default_corpus"),
        ("tokenizer", "Tokenizer"),
        ("corpus", "TokenCorpus"),
    ],
    "Errors": [("errors", "SaffuError"), ("errors", "NotFittedError")],
}

SPOKEN = {"__init__", "__getitem__"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    lines = [
        "# API",
        "",
        "Written from the docstrings by `docs/make_api.py`. `import saffu` gives the names without a module.",
    ]
    for title, names in CONTENTS.items():
        lines += ["", f"## {title}"]
        for module, name in names:
            lines += ["", *section(module, name)]
    return "\n".join(lines) + "\n"


def section(module: str, name: str) -> list[str]:
    text = (SOURCE / f"{module}.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if isinstance(n, Function | ast.ClassDef) and n.name == name)
    public = f'"{name}"' in (SOURCE / "__init__.py").read_text("utf-8") or module == "__init__"
    where = "saffu" if public else f"saffu.{module}"
    if isinstance(node, Function):
        return [f"### `{where}.{name}`", *described(node, name)]
    lines = [f"### `{where}.{name}`", "", documentation(node)]
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and is_public(field)]
    if is_dataclass(node) and fields:
        lines += ["", *table(fields, text.splitlines())]
    for method in node.body:
        spoken = isinstance(method, Function) and (not method.name.startswith("_") or method.name in SPOKEN)
        if spoken and ast.get_docstring(method):
            lines += ["", f"#### `{shown(method, name)}`", "", documentation(method)]
    return lines


def described(node: Function, name: str) -> list[str]:
    return ["", f"`{name}({arguments(node)})`", "", documentation(node)]


def shown(method: Function, owner: str) -> str:
    """How a method is called: "lm.fit(documents)", a property without brackets."""
    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
    if decorators & {"property", "cached_property"}:
        return method.name
    if method.name == "__init__":
        return f"{owner}({arguments(method)})"
    if method.name == "__getitem__":
        return f"[{arguments(method)}]"
    return f"{method.name}({arguments(method)})"


def arguments(node: Function) -> str:
    """The arguments with their defaults; types are in the source, and most are told by the names."""
    bare = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(bare, Function)
    for argument in [*bare.args.posonlyargs, *bare.args.args, *bare.args.kwonlyargs, bare.args.vararg, bare.args.kwarg]:
        if argument is not None:
            argument.annotation = None
    bare.args.args = [argument for argument in bare.args.args if argument.arg not in ("self", "cls")]
    return ast.unparse(bare.args)


def documentation(node: Function | ast.ClassDef) -> str:
    """The docstring; what is indented or an example becomes code."""
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    code = re.compile(r"^(    |>>> )")
    parts = []
    for paragraph in paragraphs:
        lines = paragraph.split("\n")
        aligned = sum("   " in line.strip() for line in lines) > len(lines) / 2
        is_example = lines[0].startswith(">>>") or (len(lines) == 1 and "(" in lines[0] and " → " in lines[0])
        is_code = all(code.match(line) for line in lines) or is_example or (aligned and len(lines) > 1)
        parts.append("```\n" + paragraph + "\n```" if is_code else paragraph)
    return "\n\n".join(parts)


def is_public(field: ast.AnnAssign) -> bool:
    return isinstance(field.target, ast.Name) and not field.target.id.startswith("_")


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def table(fields: list[ast.AnnAssign], source: list[str]) -> list[str]:
    """Name, default and meaning of each field; the meaning is in `setting(…)` or in the comment beside it."""
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
            beside = source[field.lineno - 1].partition("  # ")[2]
            meaning = beside or (before.removeprefix("# ") if before.startswith("# ") else "")
        cells = (ast.unparse(field.target), default, meaning.replace("|", "\\|"))
        rows.append(f"| `{cells[0]}` | {f'`{cells[1]}`' if cells[1] else ''} | {cells[2]} |")
    return rows


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(None if PAGE.read_text("utf-8") == page() else "docs/api.md is out of date; run docs/make_api.py")
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
