"""Tables, figures, and the page, from cells with made-up perplexities."""

import csv
import io
import itertools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from grid_data import as_printed, paper_cells, scored
from saffu import files
from saffu.errors import SaffuError
from saffu.experiments import figures, tables
from saffu.experiments.grid import grid
from saffu.experiments.report import Report
from saffu.experiments.results import Cell, Results
from saffu.experiments.tables import printed_perplexities

FACTS = {"text": "0" * 24, "vocabulary": 100, "tokens": 1_000_000, "documents": 10, "bytes": 5000, "dev_targets": 100}
FACTS |= {"dev_references": {"unigram": 300.0}}


def results(folder, cells) -> Results:
    new = Results(folder)
    new.save_run(FACTS)
    new.append(cells)
    return Results(folder)


@pytest.fixture
def table():
    configs = grid([2, 6], [2, 4], ["sum/cat"], 0)
    perplexities = dict(zip([(2, 2), (6, 2), (2, 4), (6, 4)], [50.04, 40.01, 60.0, 40.04], strict=True))
    cells = [scored(c, perplexities[c.block, c.radius], ratio=2.0) for c in configs]
    return tables.tables_of(cells)[0]


def test_markdown(table):
    assert tables.markdown(table).splitlines() == [
        "Train, dev perplexity without a document model: block summation, radial concatenation. Best dev in bold.",
        "",
        "| | b = 2 | b = 6 |",
        "| --- | --- | --- |",
        "| **r = 2** | 25.0, 50.0 | **20.0, 40.0** |",
        "| **r = 4** | 30.0, 60.0 | **20.0, 40.0** |",
    ]


def test_the_papers_table_has_the_same_layout(table):
    printed = tables.matching(table, printed_perplexities())
    assert printed.formatted(2, 4) == "54.4, 56.4"
    assert printed.formatted(6, 2) == "–"  # the paper has no b = 6
    assert (printed.blocks, printed.radii, printed.is_best(2, 4)) == ([2, 6], [2, 4], True)


def test_latex(table):
    lines = tables.latex(table).splitlines()
    assert r" & $b = 2^1$ & $b = 6$ \\" in lines
    assert r"$r = 2^2$ & 30.0, 60.0 & \textbf{20.0, 40.0} \\" in lines
    assert lines.count(r"\begin{tabular}{lll}") == 1


def test_comma_separated(table):
    rows = list(csv.reader(io.StringIO(tables.comma_separated(table))))
    assert rows[0] == ["r", "b=2 train", "b=2 dev", "b=6 train", "b=6 dev"]
    assert [float(x) for x in rows[2]] == pytest.approx([4, 30.0, 60.0, 20.02, 40.04])


def test_failed_and_missing_cells_leave_a_gap():
    done, failed, *_ = grid([2, 4], [2, 4], ["sum/sum"], 0)
    found = tables.tables_of([scored(done, 10.0), Cell(failed, 5, failure="why")])[0]
    assert found.formatted(4, 2) == found.formatted(2, 4) == "–"
    assert found.is_best(2, 2) and not found.is_best(4, 2)


def test_five_tables_in_the_papers_order():
    base = tables.base_settings(paper_cells())
    found = tables.tables_of([cell for cell in paper_cells() if tables.settings(cell) == base])
    assert [t.title for t in found] == ["sum/sum", "cat/sum", "sum/cat", "cat/cat", "sum/cat + documents"]
    assert all(len(t.cells) == 49 for t in found)


def test_best_cells():
    best = tables.best_cells(paper_cells())
    assert list(best)[-1] == "sum/cat + documents"
    assert (best["cat/sum"].config.block, best["cat/sum"].config.radius) == (32, 8)
    assert best["sum/cat"].config.tune_folds == 10


def test_sweeps_compare_cell_by_cell():
    cells = paper_cells()
    sweeps = tables.sweeps(cells, tables.base_settings(cells))
    assert [(sweep.label, sweep.cells) for sweep in sweeps] == [
        ("attention uniform", 8),
        ("attention_priming slots", 8),
        ("tune_folds 10", 1),
    ]
    assert sweeps[1].best.dev.perplexity == pytest.approx(44.7 + 1)
    assert sweeps[1].ratios[0] == pytest.approx(1 + 1 / 54.7)  # the highest perplexity: cat/sum, b = r = 128


def test_pareto_front():
    cells = [cell for cell in paper_cells() if not cell.config.document_shards]
    front = tables.pareto_front(cells)
    beaten = {
        cell.config
        for cell, other in itertools.product(cells, cells)
        if (other.parameters, other.dev.nll) != (cell.parameters, cell.dev.nll)
        and other.parameters <= cell.parameters
        and other.dev.nll <= cell.dev.nll
    }
    levels = {(cell.parameters, cell.dev.nll) for cell in cells if cell.config not in beaten}
    assert {(cell.parameters, cell.dev.nll) for cell in front} == levels


def test_figures_are_reproducible_svg():
    cells = [scored(config, as_printed(config)) for config in grid([2, 8], [4, 8], document_shards=0)]
    found = tables.tables_of(cells)
    maps, front = figures.heat_maps(found), figures.pareto(cells)
    assert (maps, front) == (figures.heat_maps(found), figures.pareto(cells))
    words = {"".join(element.itertext()).strip() for element in ElementTree.fromstring(maps).iter()}
    assert {"sum/cat", "cat/cat", "b=8", "r=4", "49.6", "dev perplexity"} <= words  # 49.6: sum/cat, b = r = 8
    assert "parameters" in front


def test_figures_of_one_cell_and_of_none():
    (config,) = grid([2], [2], ["sum/sum"], 0)
    figures.heat_maps(tables.tables_of([scored(config, 10.0)]))
    figures.heat_maps(tables.tables_of([Cell(config, 5, failure="why")]))
    figures.pareto([Cell(config, 5, failure="why")])


class Reader(HTMLParser):
    """Collects the references of a page, and checks that every element is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.references, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.references += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.references += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", ["index.html", "tables.md", "checksums.json"])
def test_what_was_edited_in_a_report_stays(tmp_path, name):
    report = Report(results(tmp_path, paper_cells()[:4]))
    for _ in range(2):
        report.write(tmp_path / "report")  # which replaces its own files
    edited = tmp_path / "report" / name
    edited.write_text("my notes\n" + edited.read_text())
    before = {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()}
    with pytest.raises(SaffuError, match="it is not as saffu report wrote it; move it, or pass another `out`"):
        report.write(tmp_path / "report")
    assert {path.name: path.read_bytes() for path in (tmp_path / "report").iterdir()} == before


def test_a_report_that_was_interrupted_is_written_again(tmp_path, monkeypatch):
    first = Report(results(tmp_path, paper_cells()[:4]))
    first.write(tmp_path / "report")
    second = Report(results(tmp_path, paper_cells()[:8]))
    write = files.write_file

    def interrupted(path, content):
        if path.name == "tables.md":
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_file", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.write(tmp_path / "report")
    Report(results(tmp_path, paper_cells()[:6])).write(tmp_path / "report")


def test_the_page_is_complete_and_loads_nothing(tmp_path):
    report = Report(results(tmp_path, paper_cells()))
    report.write(tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text()
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in reader.references)
    assert not re.search(r"url\((?!#)|@import|<script|\$[a-z]", page)
    assert "245 models" in reader.text and "attention uniform" in reader.text
    assert page.count('class="best"') >= 10  # ours and the paper's
    assert page.count("Rank correlation with our table: 1.000") == 5
    assert page.count('<div class="scroll') == page.count("<table>") + 2  # every table and figure can scroll
    for name in ("heat-maps.svg", "pareto.svg"):
        assert ElementTree.parse(tmp_path / "report" / name).getroot().tag.endswith("svg")
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "report" / "cells.csv").read_text())))) == len(paper_cells())
    assert sorted(path.name for path in (tmp_path / "report").glob("*-*.csv"))[0] == "cat-cat.csv"


def test_the_report_as_markdown_and_as_json(tmp_path):
    report = Report(results(tmp_path, paper_cells()))
    text = report.markdown()
    assert "Rank correlation of dev perplexities with the paper's tables: 1.000 over 196 cells" in text
    assert text.count("Rank correlation with ours: 1.000.") == 5
    facts = json.loads(json.dumps(report.to_dict()))
    assert facts["agreement"]["spearman"] == pytest.approx(1.0)
    assert facts["best"]["cat/sum"] == {
        "block": 32,
        "radius": 8,
        "train_perplexity": pytest.approx(51.9 / 1.035),
        "dev_perplexity": pytest.approx(51.9),
    }


def test_a_report_needs_no_torch(tmp_path):
    results(tmp_path, paper_cells()[:20])
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from saffu.experiments.report import Report; from saffu.experiments.results import Results\n"
        f"Report(Results(Path({str(tmp_path)!r}))).write(Path({str(tmp_path / 'report')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (tmp_path / "report" / "index.html").exists()


def test_without_cells_there_is_no_report(tmp_path):
    with pytest.raises(SaffuError, match="holds no cells"):
        Report(Results(tmp_path))


def test_folders_of_other_formats_are_rejected(tmp_path):
    (tmp_path / "text.json").write_text(json.dumps({"format": 1, "text": "0", "runs": []}))
    with pytest.raises(SaffuError, match="has format 1"):
        Results(tmp_path)


def test_lines_survive_a_round_trip(tmp_path):
    cells = paper_cells()[:3]
    assert list(results(tmp_path, cells).cells.values()) == cells
    assert json.loads((tmp_path / "text.json").read_text())["format"] == 3
