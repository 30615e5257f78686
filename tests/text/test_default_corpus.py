import re
import sys
from pathlib import Path

import pytest

from conftest import each
from saffu.errors import SaffuError
from saffu.text import default_corpus as module
from saffu.text.default_corpus import default_corpus


@each(
    "paragraph, is_prose",
    [
        ("Return the number of\nitems in the list.", True),
        ('If "x" is true (as it *may* well be), then call foo() a second time.', True),
        ("three words only", False),
        (">>> return the sum of all items", False),
        ("Use it so:\n>>> f(1)", False),
        (".. note:: this is a directive of reST", False),
        (":param x: the value that is used", False),
        ("A heading with many words\n=========================", False),
        ("| a | table with words in it |", False),
        ('suite ::= "if" test "then" suite and so on', False),
        ("x = the value of all this stuff", False),
        ("for item in all the things:\n    print(item)", False),
        ("a + b / c % d & e @ f", False),
    ],
)
def test_prose(paragraph: str, is_prose: bool) -> None:
    assert module._is_prose(paragraph) is is_prose


def test_docstrings_of_modules_classes_and_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tests/x.py", "json/tests/x.py", "_json.py", "foreign.py", "json/_private.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""This one is not to be read."""')
    (tmp_path / "os.py").write_text("def (")
    (tmp_path / "ast.py").write_text(
        '"""The module does this\n   and that, too.\n\n   >>> code is left out of it\n"""\n'
        'class A:\n    """The class does this and that."""\n'
        '    async def f(self):\n        """The method does this and that."""\n'
        'def g():\n    """The class does this and that."""\n    "This is not a docstring at all."\n'
    )
    (tmp_path / "json" / "__init__.py").write_text('"""The package does this and that."""')
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    monkeypatch.setattr(module, "_language_reference", lambda: ["Words of the reference\n\n   x = 1"])
    assert list(default_corpus()) == [
        "Words of the reference",
        "The module does this and that, too.",
        "The class does this and that.",
        "The method does this and that.",
        "The package does this and that.",
    ]


def test_without_library_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sysconfig, "get_paths", lambda: {"stdlib": "/missing/python.zip"})
    documents = list(default_corpus())
    assert len(documents) > 500
    assert documents == list(default_corpus())
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(SaffuError, match="comes without its reference and its library's source"):
        list(default_corpus())


def test_default_corpus() -> None:
    documents = list(default_corpus())
    assert len(documents) > 5000
    assert len(set(documents)) == len(documents)
    assert sum(len(document.split()) for document in documents) > 100_000
    assert not [document for document in documents if re.search(r">>>|::=| = |\n|  |^\.\. ", document)]
    assert min(len(re.findall(r"[A-Za-z]+", document)) for document in documents) >= 4
