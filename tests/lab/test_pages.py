"""The numbers of the documentation are those of docs/results."""

import json
import math
from pathlib import Path

import pytest

from lab import companion_results
from lab.__main__ import main
from lab.claims import FAILS, HOLDS, IN_PART, OPEN
from lab.pages import stale_pages
from lab.search_results import grid_table, search_table, validation_table
from lab.structure import printed_logs
from lab.verdicts import Results, all_verdicts, cells_of, grid_verdicts, verdict_table
from saffu.errors import SaffuError

TILTS = [(0.0, {"hidden_dimension": 128}), (0.1, {"hidden_dimension": 64})]
STARTS = [("explicit", 8), ("explicit", 128), ("random", 8), ("random", 128)]
DOCS = Path(__file__).parents[2] / "docs"


def row(reading="default", level=1.0, **changes):
    """A made-up reading with a few cells."""
    cells = [
        [modes, False, b, r, level * (100 - b), level * (104 - b)]
        for modes in ("sum/cat", "cat/cat")
        for b in (2, 8)
        for r in (2, 8)
    ]
    facts = {"text": "t", "tokens": 10**6, "documents": 9, "vocabulary": 50, "unigram": {"train": 99.0, "dev": 101.0}}
    return {"reading": reading, "changes": changes, **facts, "least_attention": 0.1, "perplexities": cells}


def run(start, radius, best, **facts):
    curve = [{"fold": fold, "tokens": fold, "seconds": fold, "dev_perplexity": best * (2 - fold)} for fold in (0, 1)]
    row = {"start": start, "radius": radius, "seed": 0, "learning_rate": 0.01, "tokens": 5, "dev_targets": 3}
    return {**row, "vocabulary": 50, "best_dev_perplexity": best, "curve": curve, **facts}


def protocol_run(start="explicit", size="10M", test=50.0, seed=0):
    log = [{"stage": "init", "dev_perplexity": 99.0}]
    log += [
        {"stage": f"train {n}", "fold": n, "tokens": n, "seconds": n, "dev_perplexity": 99 / (n + 1)} for n in (0, 1)
    ]
    log = [row | {"dev_bits_per_byte": 2.0} for row in log]
    facts = {"run": f"{start}-8", "start": start, "radius": 8, "size": size, "learning_rate": 0.01, "log": log}
    facts["seed"] = seed
    sizes = {
        "tokens": 10**7,
        "text_tokens": 10**8,
        "full_vocabulary": 30_000,
        "vocabulary": 3000,
        "parameters": 5,
        "test_targets": 7,
    }
    return facts | sizes | {"test_perplexity": test}


def tuned():
    stages = {"init": 99.0, "tune 1": 98.0}
    facts = {"radius": 8, "seed": 0, "tokens": 10**7, "fold_tokens": 10**6, "dev_targets": 5}
    return facts | {"dev_perplexities": stages, "without_tuning": 97.0}


def written(folder, readings, runs=(), protocol=(), tunings=()):
    folder.mkdir()
    contents = {"readings-spoken": readings, "warm-starts": runs, "protocol": protocol, "tunings": tunings}
    for name, rows in contents.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Results(folder)


def test_the_pages_are_up_to_date():
    assert not stale_pages(DOCS), "run `make numbers`"


def test_every_figure_of_these_pages_exists():
    for name in ("ablation-heat-maps.svg", "warm-cold.svg", "protocol.svg"):
        assert (DOCS / "figures" / name).is_file()


def test_cells_are_rebuilt(tmp_path):
    cell = cells_of(row(slot_weight="unit"))[0]
    assert (cell.modes, cell.config.block, cell.config.radius, cell.config.slot_weight) == ("sum/cat", 2, 2, "unit")
    assert cell.perplexities == pytest.approx((98, 102))
    assert cell.parameters > 50 * (128 + 32)


def test_verdicts_come_from_readings_that_differ_in_one_setting():
    rows = [row(), row("uniform-attention", 1.2, attention="uniform"), row("scaled-0.5", slot_weight="0.5 ln K")]
    rows.append(row("tuned-once", 0.9, tune_folds=1, fold_tokens=500))
    verdicts = grid_verdicts(rows)
    assert verdicts[5].verdict == HOLDS and verdicts[5].effect == pytest.approx(0.2)
    assert verdicts[6].verdict == OPEN
    assert verdicts[8].verdict == HOLDS and verdicts[8].effect == pytest.approx(1 / 0.9 - 1)
    assert grid_verdicts(rows, "unit-weights") == {}


def test_verdicts_are_merged_over_choices_of_documents():
    rows = [row(), row("uniform-attention", 1.2, attention="uniform")]
    rows += [row() | {"draw": 1}, row("uniform-attention", 1.1, attention="uniform") | {"draw": 1}]
    found = grid_verdicts(rows)[5]
    assert (found.verdict, found.seeds) == (HOLDS, 2)
    assert (found.effect, found.spread) == (pytest.approx(0.15), pytest.approx(0.1 / math.sqrt(2)))
    rows[3] = row("uniform-attention", 0.9, attention="uniform") | {"draw": 1}
    assert grid_verdicts(rows)[5].verdict == IN_PART
    rows[1] = row()  # undecided on the first choice
    assert grid_verdicts(rows)[5].verdict == FAILS


def test_every_claim_has_a_verdict(tmp_path):
    runs = [run(start, r, best, alone=True) for (start, r), best in zip(STARTS, (20, 30, 60, 60.5), strict=True)]
    protocol = [protocol_run(), protocol_run(size="100M", test=90.0)]
    protocol += [protocol_run(seed=1), protocol_run(size="100M", test=94.0, seed=1)]
    rows = [row(), row("natural-logarithm", slot_weight="natural")]
    results = written(tmp_path / "results", rows, runs, protocol)
    results.stopped = [run | {"until_stopped": False} for run in protocol]
    found = all_verdicts(results)
    assert list(found) == list(range(1, 22))
    assert {number: found[number].verdict for number in (9, 10, 11, 13, 15)} == dict.fromkeys(
        (9, 10, 11, 13, 15), HOLDS
    )
    assert found[8].verdict == OPEN and found[9].toy and not found[11].toy
    results.tunings = [tuned()]
    assert all_verdicts(results)[8].verdict == IN_PART
    table = verdict_table(results)
    assert "| spoken, 5 tokens counted, toy-sized |" in table
    assert "| **holds** | +84.0% (+143.5%) | ± 5.66 (2) | spoken, 10,000,000 tokens counted |" in table


def test_other_verdicts_are_listed(tmp_path):
    results = written(tmp_path / "results", [row(), row("uniform-attention", 1.2, attention="uniform")])
    results.readings["mixed"] = [row(), row("uniform-attention", 0.9, attention="uniform")]
    results.readings["spoken-published"] = results.readings["spoken"]
    (line,) = [line for line in verdict_table(results).splitlines() if line.startswith("| 5 |")]
    assert line.endswith(f"the same: 1; {FAILS}: mixed |")


def search_row(text, tilt=0.0, **reading):
    """A grid with the printed numbers, and with blocks that are worse or better than printed."""
    nats = [[m, b, r, value + tilt * math.log2(b)] for (m, _, b, r), value in printed_logs().items()]
    return {"rung": "sizes", "text": text, "reading": reading, "tokens": 9, "dev_targets": 5, "nats": nats}


def test_the_search_decides_the_claims_about_the_tables(tmp_path):
    rows = [search_row(text, tilt, **reading) for text in ("babylm-small", "spoken") for tilt, reading in TILTS]
    results = written(tmp_path / "results", [row("0.2.0", radius_span="blocks")])
    assert (results.main_text, results.main_reading) == ("spoken", "0.2.0")
    assert all_verdicts(results)[1].verdict == OPEN  # two of the four tables are missing
    results.search = rows
    assert [all_verdicts(results)[number].verdict for number in (1, 2, 3)] == [HOLDS] * 3
    assert "as 0.2.0 read the paper |" in verdict_table(results)
    table = search_table(rows)
    assert "| **the default** ✓ | spoken | 0.000 | 0.000 / 0.000 | 1.00 |" in table
    assert "| hidden_dimension 64 ✓ | spoken | 0.200 | 0.200 / 0.200 |" in table
    validated = validation_table(rows)
    assert "| sum radius | **the default** | 0.000 | cat radius | 0.000 | 0.000 |" in validated
    assert "| cat radius | no model: constant | – | sum radius | 0.065 | 0.065 |" in validated
    assert "| **r = 8** | 52.4, 52.4 |" in grid_table(rows[0], "spoken")


def test_command(tmp_path, monkeypatch):
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "README.md").write_text("This part: <!-- claims --> outdated <!-- /claims -->\n")
    monkeypatch.setattr(companion_results, "parts", lambda results: {})
    monkeypatch.setattr(companion_results, "draw", lambda results, figures: None)
    cells = row()["perplexities"] + [["sum/cat", False, 128, 8, 90.0, math.e**4]]
    written(
        docs / "results",
        [row() | {"perplexities": cells}],
        [run("explicit", 8, 50.0)],
        [protocol_run(), protocol_run(seed=1, test=54.0)],
        [tuned()],
    )
    for name, parts in {
        "ablation.md": ("search", "properties", "validation", "readings", "readings-published", "grid"),
        "paper.md": ("verdicts", "magnitude", "log", "protocol", "default-protocol", "stopped"),
        "warm-start.md": ("warm-starts",),
        "companion.md": (),
    }.items():
        (docs / name).write_text("\n".join(f"<!-- {part} --> outdated <!-- /{part} -->" for part in parts))
    with pytest.raises(SystemExit, match=r"error: out of date: README\.md, ablation\.md, paper\.md, warm-start\.md"):
        main(["pages", str(docs), "--check"])
    main(["pages", str(docs)])
    main(["pages", str(docs), "--check"])
    page = (docs / "paper.md").read_text()
    assert "| sum/cat, b = 128, r = 8 | 44.9 | 54.6 | 16.0 | 241.9 |" in page
    assert "| init | 99.00 | 24.17 | 43.33 |" in page and "| all 2 folds, without tuning | 97.00 |" in page
    best, tests = "49.5 (49.5 to 49.5 over 2 seeds)", "52.0 (50.0 to 54.0 over 2 seeds)"
    assert f"| warm, r = 8, rate 0.01 | 99.0 | {best} | 1 | {tests} | 15.5 | 23.84 | 5 |" in page
    assert "| warm, r = 8 | 100.0 | 50.0 | 23.84 |" in (docs / "warm-start.md").read_text()
    for name in ("warm-cold.svg", "protocol.svg"):
        assert (docs / "figures" / name).is_file()
    assert "outdated" not in (docs / "ablation.md").read_text()


def test_missing_results_are_an_error(tmp_path):
    with pytest.raises(SaffuError, match="no results of the default reading"):
        _ = written(tmp_path / "none", []).main
