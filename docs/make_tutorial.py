"""Run docs/tutorial.py and write what it says, does, and prints: docs/tutorial.md and docs/tutorial.ipynb.

python docs/make_tutorial.py
"""

import contextlib
import io
import json
from pathlib import Path

HERE = Path(__file__).parent
LANGUAGE = {"name": "python", "display_name": "Python 3", "language": "python"}


def cells(source: str) -> list[tuple[str, str]]:
    """The cells of a script in the percent format, each as its kind (markdown or code) and its content.

    >>> cells("# %% [markdown]\\n# # Title\\n\\n# %%\\nx = 1\\n")
    [('markdown', '# Title'), ('code', 'x = 1')]
    """
    found = []
    for part in source.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if "markdown" in head:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(("markdown", "\n".join(lines)))
        else:
            found.append(("code", body.strip()))
    return found


def notebook(parts: list[tuple[str, str]], outputs: list[str]) -> dict[str, object]:
    """A notebook, as Jupyter stores it, with the output of each cell of code."""
    written = iter(outputs)
    entries = []
    for number, (kind, content) in enumerate(parts):
        entry = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": content.splitlines(keepends=True)}
        if kind == "code":
            text = next(written).splitlines(keepends=True)
            stream = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
            entry |= {"execution_count": None, "outputs": stream}
        entries.append(entry)
    return {"cells": entries, "metadata": {"kernelspec": LANGUAGE}, "nbformat": 4, "nbformat_minor": 5}


def page(parts: list[tuple[str, str]], outputs: list[str]) -> str:
    """The same as a page."""
    written = iter(outputs)
    pieces = []
    for kind, content in parts:
        pieces.append(content if kind == "markdown" else f"```python\n{content}\n```")
        if kind == "code" and (text := next(written)):
            pieces.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(pieces) + "\n"


def main() -> None:
    parts = cells((HERE / "tutorial.py").read_text("utf-8"))
    names: dict[str, object] = {}
    outputs = []
    for kind, content in parts:
        if kind == "code":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(content, names)
            outputs.append(out.getvalue())
    (HERE / "tutorial.ipynb").write_text(json.dumps(notebook(parts, outputs), indent=1) + "\n", "utf-8")
    (HERE / "tutorial.md").write_text(page(parts, outputs), "utf-8")


if __name__ == "__main__":
    main()
