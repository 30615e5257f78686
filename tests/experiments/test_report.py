"""Tables, figures, verdicts and the page, from cells with made-up perplexities."""

import csv
import functools
import io
import itertools
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from saffu import SaffuError, figures, tables
from saffu import verdicts as judged
from saffu.cells import Cell, Results
from saffu.evaluate import Score
from saffu.grid import grid
from saffu.report import Report
from saffu.verdicts import FAILS, HOLDS, IN_PART, UNTOLD, Grid, verdicts

FACTS = {"text": "0" * 24, "vocabulary": 100, "tokens": 1000, "documents": 10, "bytes": 5000, "dev_targets": 100}
FACTS |= {"dev_references": {"unigram": 300.0}}


def as_the_paper(config) -> float:
    """Dev perplexities of which each of the paper's claims is true."""
    best = judged.PAPER_BEST[f"{config.block_mode}/{config.radius_mode}"]
    by_block = 128 / config.block if config.block_mode == "sum" else abs(math.log2(config.block / 32)) * 3
    by_radius = {2: 9, 4: 6, 8: 0.2, 16: 2.5, 32: 2, 64: 0.1, 128: 0}[config.radius]
    change = 5 * (config.attention == "uniform") + (config.attention_priming == "slots")
    return best + 0.1 * by_block + by_radius + change - 0.05 * bool(config.documents)


def scored(config, dev: float, ratio: float = 1.035, parameters: int | None = None) -> Cell:
    train, dev = Score(100 * math.log(dev / ratio), 100, 200), Score(100 * math.log(dev), 100, 200)
    size = 1000 + 10 * config.block * config.radius + len(config.block_mode + config.radius_mode)
    return Cell(config, size if parameters is None else parameters, train, dev, 0.01)


@functools.cache
def paper_cells() -> list[Cell]:
    configs = grid() + grid([8, 128], [8], documents=0, settings={"attention": ["uniform"]})
    configs += grid([128], [8, 128], documents=0, settings={"attention_priming": ["slots"]})
    return [scored(config, as_the_paper(config)) for config in configs]


def judge(found: list[Cell]) -> dict[int, judged.Verdict]:
    base = [cell for cell in found if tables.settings(cell) == tables.base_settings(found)]
    return {verdict.number: verdict for verdict in verdicts(Grid(found, base))}


def results(folder, found) -> Results:
    new = Results(folder)
    new.begin(FACTS)
    new.append(found)
    return Results(folder)


def test_all_claims_hold_where_they_are_true():
    found = judge(paper_cells())
    assert list(found) == [1, 2, 3, 4, 5, 6, 7, 12]
    assert {number: verdict.verdict for number, verdict in found.items()} == dict.fromkeys(found, HOLDS)
    assert "sum/cat 44.8 < cat/cat 44.8 < cat/sum 51.9 < sum/sum 52.2" in found[1].evidence
    assert "10.15 % worse in the middle of 8 pairs" in found[5].evidence
    assert "0.01 per target" in found[7].evidence


@pytest.mark.parametrize(
    ("number", "verdict", "change"),
    [
        (1, IN_PART, lambda c, dev: dev - 3 * (c.block_mode == c.radius_mode == "cat")),
        (1, FAILS, lambda c, dev: dev + 20 * (c.radius_mode == "cat")),
        (2, IN_PART, lambda c, dev: dev + 5 * (c.radius == 128)),
        (2, FAILS, lambda c, dev: dev + 5 * (c.radius == 128) - 3 * (c.radius == 16)),
        (3, IN_PART, lambda c, dev: dev + 9 * (c.block == 32 and c.block_mode == "cat")),
        (3, FAILS, lambda c, dev: dev + 9 * (c.block == 32)),
        (4, IN_PART, lambda c, dev: dev + 5 * bool(c.documents)),
        (4, FAILS, lambda c, dev: dev - 5 * bool(c.documents)),
        (5, IN_PART, lambda c, dev: dev - 4 * (c.attention == "uniform")),
        (5, FAILS, lambda c, dev: dev - 5 * (c.attention == "uniform")),
        (6, FAILS, lambda c, dev: dev - 2 * (c.attention_priming == "slots")),
        (
            6,
            IN_PART,
            lambda c, dev: dev - 2 * (c.attention_priming == "slots" and c.block_mode == c.radius_mode == "sum"),
        ),
    ],
)
def test_claims_fail_where_they_are_false(number, verdict, change):
    found = [scored(cell.config, change(cell.config, cell.dev.perplexity)) for cell in paper_cells()]
    assert judge(found)[number].verdict == verdict


def test_generalisation_and_failures():
    far = [scored(cell.config, cell.dev.perplexity, ratio=1.3) for cell in paper_cells()]
    assert judge(far)[12].verdict == FAILS
    assert judge(far[:80] + paper_cells()[80:])[12].verdict == IN_PART
    failed = Cell(replace(paper_cells()[0].config, tune=1), 10, failure="V outgrew its bound c")
    assert judge([*paper_cells(), failed])[7].verdict == FAILS


def test_what_a_grid_cannot_tell_is_said():
    (cell,) = grid([4], [4], ["sum/sum"], 0)
    found = judge([replace(scored(cell, 50.0), least_attention=None)])
    assert {number for number, verdict in found.items() if verdict.verdict == UNTOLD} == {1, 2, 3, 4, 5, 6, 7}
    assert all(verdict.evidence for verdict in found.values())


@pytest.fixture
def table():
    configs = grid([2, 6], [2, 4], ["sum/cat"], 0)
    perplexities = dict(zip([(2, 2), (6, 2), (2, 4), (6, 4)], [50.04, 40.01, 60.0, 40.04], strict=True))
    found = [scored(c, perplexities[c.block, c.radius], ratio=2.0) for c in configs]
    return tables.tables(found)[0]


def test_markdown(table):
    assert tables.markdown(table).splitlines() == [
        "Train, dev perplexity without a document model: block summation, radial concatenation. Best dev in bold.",
        "",
        "| | b = 2 | b = 6 |",
        "| --- | --- | --- |",
        "| **r = 2** | 25.0, 50.0 | **20.0, 40.0** |",
        "| **r = 4** | 30.0, 60.0 | **20.0, 40.0** |",
    ]


def test_latex(table):
    lines = tables.latex(table).splitlines()
    assert r" & $b = 2^1$ & $b = 6$ \\" in lines
    assert r"$r = 2^2$ & 30.0, 60.0 & \textbf{20.0, 40.0} \\" in lines
    assert lines.count(r"\begin{tabular}{lll}") == 1


def test_comma_separated(table):
    rows = list(csv.reader(io.StringIO(tables.comma_separated(table))))
    assert rows[0] == ["r", "b=2 train", "b=2 dev", "b=6 train", "b=6 dev"]
    assert [float(x) for x in rows[2]] == pytest.approx([4, 30.0, 60.0, 20.02, 40.04])


def test_cells_that_failed_or_are_missing_leave_a_gap():
    done, failed, *_ = grid([2, 4], [2, 4], ["sum/sum"], 0)
    found = tables.tables([scored(done, 10.0), Cell(failed, 5, failure="why")])[0]
    assert found.printed(4, 2) == found.printed(2, 4) == "–"
    assert found.is_best(2, 2) and not found.is_best(4, 2)


def test_five_tables_in_the_papers_order():
    base = tables.base_settings(paper_cells())
    found = tables.tables([cell for cell in paper_cells() if tables.settings(cell) == base])
    assert [t.title for t in found] == ["sum/sum", "cat/sum", "sum/cat", "cat/cat", "sum/cat + documents"]
    assert all(len(t.cells) == 49 for t in found)


def test_sweeps_compare_cell_by_cell():
    found = paper_cells()
    sweeps = tables.sweeps(found, tables.base_settings(found))
    assert [(sweep.label, sweep.cells) for sweep in sweeps] == [
        ("attention uniform", 8),
        ("attention priming slots", 8),
    ]
    assert sweeps[1].best.dev.perplexity == pytest.approx(44.7 + 0.1 + 1)
    assert sweeps[1].ratios[0] == pytest.approx(1 + 1 / (51.9 + 0.6 + 0.2))


def test_pareto_front_is_what_nothing_beats():
    found = [cell for cell in paper_cells() if not cell.config.documents]
    front = figures.pareto_front(found)
    beaten = {
        cell.key
        for cell, other in itertools.product(found, found)
        if (other.parameters, other.dev.nll) != (cell.parameters, cell.dev.nll)
        and other.parameters <= cell.parameters
        and other.dev.nll <= cell.dev.nll
    }
    levels = {(cell.parameters, cell.dev.nll) for cell in found if cell.key not in beaten}
    assert {(cell.parameters, cell.dev.nll) for cell in front} == levels


def test_colours_grow_lighter_and_stay_legible():
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    lights = [luminance(figures.colour(i / 50)) for i in range(51)]
    assert lights == sorted(lights)
    scale = figures.Scale([])
    scale.low, scale.high = 10.0, 1000.0
    for i in range(51):
        fill, ink = map(luminance, scale.colours(10 * 100 ** (i / 50)))
        assert (max(fill, ink) + 0.05) / (min(fill, ink) + 0.05) > 4.2


def test_panels_share_one_scale():
    configs = grid([2], [2], ["sum/sum", "cat/cat"], 0)
    found = tables.tables([scored(configs[0], 10.0), scored(configs[1], 1000.0)])
    drawn = figures.heat_maps(found)
    assert f'fill="{figures.colour(0)}"' in drawn and f'fill="{figures.colour(1)}"' in drawn


class Reader(HTMLParser):
    """Collects what a page refers to, and checks that what opens is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.references, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.references += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_loads_nothing(tmp_path):
    Report(results(tmp_path, paper_cells())).write(tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == [] and reader.references == []
    assert not re.search(r"url\(|@import|<script", page)
    assert "245 models" in reader.text and "grossly" in reader.text and "attention uniform" in reader.text
    assert page.count('class="best"') >= 5
    for name in ("heat-maps.svg", "pareto.svg"):
        assert ElementTree.parse(tmp_path / "report" / name).getroot().tag.endswith("svg")
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "report" / "cells.csv").read_text())))) == len(paper_cells())
    assert sorted(path.name for path in (tmp_path / "report").glob("*-*.csv"))[0] == "cat-cat.csv"


def test_without_cells_there_is_no_report(tmp_path):
    with pytest.raises(SaffuError, match="holds no cells"):
        Report(Results(tmp_path))


def test_lines_survive_the_way_to_disk_and_back(tmp_path):
    found = paper_cells()[:3]
    assert list(results(tmp_path, found).cells.values()) == found
    assert json.loads((tmp_path / "run.json").read_text())["format"] == 1
