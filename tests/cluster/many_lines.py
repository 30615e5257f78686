"""A million lines scored on Ray, line by line as in one process. Run by `make test-cluster`."""

import csv
import io
import random

import pytest

from cluster.test_ray import SMALL
from cluster.test_ray import folder as folder
from conftest import sentences

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own

LINES, FILES = 1_000_000, 8


def test_a_million_lines(folder, saffu):
    assert saffu(f"train text --split line --out model {SMALL}").status == 0
    rng, known = random.Random(0), sentences(0, 5000)
    (folder / "many").mkdir()
    for number in range(FILES):
        lines = (f"{rng.choice(known)} {rng.randrange(10**6)}" for _ in range(LINES // FILES))
        (folder / "many" / f"{number}.txt").write_text("\n".join(lines) + "\n")
    alone = list(csv.reader(io.StringIO(saffu("score model many").out), delimiter="\t"))
    done = saffu("score model many --out scores --ray")
    assert done.status == 0, done.err
    rows = []
    for path in sorted((folder / "scores").iterdir()):
        head, *scored = csv.reader(path.open(newline=""), delimiter="\t")
        assert head == alone[0][1:]
        assert [row[0] for row in scored] == [str(number) for number in range(1, LINES // FILES + 1)]
        rows += scored
    assert len(rows) == LINES
    assert rows == [row[1:] for row in alone[1:]]
