"""The remedy for a missing package."""

import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import saffu
from saffu.cli.main import EXTRAS
from saffu.errors import install_command

ROOT = Path(__file__).parent.parent
REQUIRED = ["numpy>=1", "torch>=2.4; extra == 'torch'", 'starlette>=0.37; extra == "play"', "uvicorn; extra == 'play'"]


@pytest.fixture
def own_pip(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))


@pytest.mark.parametrize(("extra", "packages"), [("torch", '"torch>=2.4"'), ("play", '"starlette>=0.37" "uvicorn"')])
def test_an_installed_package_names_what_an_extra_needs(monkeypatch, own_pip, extra, packages):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: REQUIRED)
    assert install_command(extra) == f"pip install {packages}"


def test_a_checkout_is_installed_with_an_extra_that_it_has_gained(monkeypatch, own_pip):
    monkeypatch.setattr("importlib.metadata.requires", lambda name: REQUIRED)
    assert install_command("icu") == f'pip install -e "{ROOT}[icu]"'


def test_a_checkout_that_is_not_installed_is(monkeypatch, own_pip):
    def requires(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.requires", requires)
    assert install_command("torch") == f'pip install -e "{ROOT}[torch]"'


@pytest.mark.parametrize("pip", [None, "/elsewhere/bin/pip"])
def test_another_environments_pip_is_not_named(monkeypatch, pip):
    monkeypatch.setattr("shutil.which", lambda name: pip)
    monkeypatch.setattr("sys.executable", "/with space/python")
    assert install_command("torch").startswith('"/with space/python" -m pip install ')


def test_extras_that_messages_name_exist():
    source = "".join(path.read_text("utf-8") for path in Path(saffu.__file__).parent.rglob("*.py"))
    named = {*re.findall(r"install_command\(['\"](\w+)['\"]\)", source), *EXTRAS.values()}
    extras = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    assert len(named) > 6 and named <= {*re.findall(r"^(\w+) = \[", extras, re.MULTILINE)}
    assert "pip install" not in source
