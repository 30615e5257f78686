"""The script of the page: modules by panel, without circles, whose state is few variables each."""

import re
from importlib.resources import files

STATIC = files("saffu.play") / "static"
SCRIPTS = {path.name: path.read_text("utf-8") for path in STATIC.iterdir() if path.name.endswith(".js")}
IMPORT = re.compile(r'^import \{[^}]+\} from "\./([\w.]+)";$', re.MULTILINE)


def imports(name: str) -> list[str]:
    return IMPORT.findall(SCRIPTS[name])


def test_modules_import_only_modules_of_the_page_and_no_circles():
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"circle: {' → '.join([*path, name])}"
        if name not in done:
            for other in imports(name):
                visit(other, (*path, name))
            done.add(name)

    visit("play.js", ())
    assert done == set(SCRIPTS)  # each is used
    for name, script in SCRIPTS.items():
        assert len(re.findall(r"^import ", script, re.MULTILINE)) == len(imports(name)), name


def test_modules_are_short_and_hold_little_state():
    for name, script in SCRIPTS.items():
        assert script.count("\n") <= 300, name
        assert len(re.findall(r"^let ", script, re.MULTILINE)) <= 6, name


def test_text_enters_the_page_as_text_only():
    for name, script in SCRIPTS.items():
        lines = [
            line
            for line in script.split("\n")
            if re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", line)
        ]
        assert all("// numbers only" in line for line in lines), name


def test_every_id_that_a_module_asks_for_is_on_the_page():
    page = (STATIC / "index.html").read_text("utf-8")
    ids = set(re.findall(r'\bid="([\w-]+)"', page))
    asked = {id for script in SCRIPTS.values() for id in re.findall(r'byId\("([\w-]+)"\)', script)}
    assert asked <= ids and len(asked) > 40
