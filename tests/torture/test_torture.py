"""The torture suite in short: a few attempts of every attack (`make torture` runs it for minutes or hours)."""

import random
import shutil
import sys
from importlib import import_module
from itertools import islice

import pytest

from torture.__main__ import ATTACKS
from torture.faults import attack

ATTEMPTS = {
    "kills": 8,
    "faults": 12,
    "interrupts": 3,
    "options": 20,
    "texts": 10,
    "damage": 40,
    "races": 3,
    "full_disk": 4,
    "on_ray": 1,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("torture")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks, limits memory, and looks into /proc")
@pytest.mark.filterwarnings("ignore")  # of forking
@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "faults"])
def test_attack(place, name):
    (place / name).mkdir()
    attempts = import_module(f"torture.{name}").attack(random.Random(0), place / name)
    found = list(islice(attempts, ATTEMPTS.get(name, 2)))
    attempts.close()
    assert [attempt for attempt in found if attempt[1]] == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="preloads a library")
def test_faults(place):
    """Some calls of some commands; `python -m torture.faults` tries all of them."""
    attempts = attack(random.Random(0), place / "faults", only="update,forget,merge replacing,embed")
    found = list(islice(attempts, 24))
    attempts.close()
    assert [attempt for attempt in found if attempt[1]] == []
    assert len({tried for tried, _ in found}) >= 12
