"""The scripts of the page, with and without a server: modules without circles, whose state is few variables each."""

import re
from importlib.resources import files

import pytest

STATIC, WEB = (files("saffu.play") / name for name in ("static", "web"))


def scripts_of(*folders):
    return {
        path.name: path.read_text("utf-8") for folder in folders for path in folder.iterdir() if path.name[-3:] == ".js"
    }


PAGES = [(scripts_of(STATIC), ["play.js"]), (scripts_of(STATIC, WEB), ["play.js", "engine.js"])]
SCRIPTS = {**scripts_of(STATIC), **{f"web/{name}": script for name, script in scripts_of(WEB).items()}}
IMPORT = re.compile(r'^import \{[^}]+\} from "\./([\w.]+)";$', re.MULTILINE)


@pytest.mark.parametrize(("scripts", "roots"), PAGES, ids=["served", "static"])
def test_modules_import_only_modules_of_the_page_and_no_circles(scripts, roots):
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"circle: {' → '.join([*path, name])}"
        if name not in done:
            for other in IMPORT.findall(scripts[name]):
                visit(other, (*path, name))
            done.add(name)

    for root in roots:
        visit(root, ())
    assert done == set(scripts)  # each is used
    for name, script in scripts.items():
        assert len(re.findall(r"^import ", script, re.MULTILINE)) == len(IMPORT.findall(script)), name


def test_all_modules_are_loaded_at_once():
    page = (STATIC / "index.html").read_text("utf-8")
    preloaded = re.findall(r'<link rel="modulepreload" href="([\w.]+)">', page)
    assert sorted([*preloaded, "play.js"]) == sorted(scripts_of(STATIC))


def test_only_the_server_is_replaced_on_a_page_without_one():
    assert scripts_of(STATIC).keys() & scripts_of(WEB).keys() == {"server.js"}


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
