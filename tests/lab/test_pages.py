"""The numbers of the documentation are those of docs/results."""

import json
from pathlib import Path

import pytest

from lab import companion_results
from lab.__main__ import main
from lab.pages import best_rate, stale_pages

DOCS = Path(__file__).parents[2] / "docs"


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
    sizes = {"tokens": 10**7, "full_vocabulary": 30_000, "vocabulary": 3000, "parameters": 5, "test_targets": 7}
    return facts | sizes | {"test_perplexity": test, "seed": seed}


def test_the_pages_are_up_to_date():
    assert not stale_pages(DOCS), "run `make numbers`"


def test_every_figure_of_these_pages_exists():
    for name in ("warm-cold.svg", "protocol.svg"):
        assert (DOCS / "figures" / name).is_file()


def test_the_best_rate_is_that_of_the_lowest_mean():
    runs = [run("explicit", 8, 50.0), run("explicit", 8, 60.0, seed=1), run("explicit", 8, 54.0, learning_rate=0.003)]
    assert best_rate(runs, "explicit", 8) == runs[2:]
    assert best_rate(runs, "explicit", 128) == []


def test_command(tmp_path, monkeypatch):
    docs = tmp_path / "docs"
    (docs / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text("No part of it is computed.\n")
    monkeypatch.setattr(companion_results, "parts", lambda results: {})
    monkeypatch.setattr(companion_results, "draw", lambda results, figures: None)
    contents = {
        "warm-starts": [run("explicit", 8, 50.0)],
        "protocol": [protocol_run(), protocol_run(seed=1, test=54.0)],
    }
    for name, rows in contents.items():
        (docs / "results" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, parts in {
        "paper.md": ("protocol", "default-protocol", "stopped"),
        "warm-start.md": ("warm-starts",),
        "companion.md": (),
    }.items():
        (docs / name).write_text("\n".join(f"<!-- {part} --> outdated <!-- /{part} -->" for part in parts))
    with pytest.raises(SystemExit, match=r"error: out of date: paper\.md, warm-start\.md"):
        main(["pages", str(docs), "--check"])
    main(["pages", str(docs)])
    main(["pages", str(docs), "--check"])
    page = (docs / "paper.md").read_text()
    best, tests = "49.5 (49.5 to 49.5 over 2 seeds)", "52.0 (50.0 to 54.0 over 2 seeds)"
    assert f"| warm, r = 8, rate 0.01 | 99.0 | {best} | 1 | {tests} | 15.5 | 23.84 | 5 |" in page
    assert "outdated" not in page
    assert "| warm, r = 8 | 100.0 | 50.0 | 23.84 |" in (docs / "warm-start.md").read_text()
    for name in ("warm-cold.svg", "protocol.svg"):
        assert (docs / "figures" / name).is_file()
