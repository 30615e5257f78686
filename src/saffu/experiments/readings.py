"""A search over readings of the paper: which settings reproduce the pattern of its printed tables?

    python -m saffu.experiments.readings --train FILES --dev FILES --tokens 1e6 --out DIR [--device cuda]

Each reading is a grid of its own. Half of the cells select a reading, the other half checks the selection.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.agreement import Agreement, agreement, agreement_by_table, printed_perplexities
from saffu.experiments.grid import MODES, SIZES, CellKey, grid
from saffu.experiments.results import perplexities_of
from saffu.experiments.scoring import EVAL_TOKENS, GridCorpus, run_grid, usual_memory
from saffu.paper.devices import usable_device
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import Lines, read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

READINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "counted-specials": {"special_noise": "counted"},
    "unit-weights": {"slot_weight": "unit"},
    "normalized-bits": {"hidden_targets": "normalized"},
    **{f"hidden-{width}": {"hidden_dimension": width} for width in (128, 256, 1024, 2048)},
    **{f"smoothing-{value:g}": {"smoothing": value} for value in (1e-6, 1e-2, 0.1, 1.0)},
    "uniform-attention": {"attention": "uniform"},
    "attention-priming-slots": {"attention_priming": "slots"},
    "attention-priming-measured": {"attention_priming": "measured"},
    "decoder-priming-measured": {"decoder_priming": "measured"},
    "negative-variation": {"variation_sign": -1},
    "query-first": {"query_slot": "first"},
    "sliding-blocks": {"block_advance": "sliding"},
    "left-padding": {"padding": "left"},
    "radius-within-block": {"radius_span": "block"},
    "tuned-once": {"tune_folds": 1, "fold_tokens": 500_000},
}


def changes_of(reading: str) -> dict[str, Any]:
    """The settings that a reading changes; "a+b" makes the changes of both.

    >>> changes_of("left-padding+hidden-256")
    {'padding': 'left', 'hidden_dimension': 256}
    """
    changes: dict[str, Any] = {}
    for name in reading.split("+"):
        if name not in READINGS:
            raise SaffuError(f"unknown reading {name!r}; choose from {', '.join(READINGS)}")
        changes |= READINGS[name]
    return changes


def in_first_half(key: CellKey) -> bool:
    """Whether a cell belongs to the half that selects a reading: a fixed but arbitrary choice."""
    return zlib.crc32(repr(key).encode()) % 2 == 0


def compare(ours: dict[CellKey, tuple[float, float]]) -> dict[str, Agreement | None]:
    """Agreement with the printed tables on all cells, on the half that selects, and on the half that checks."""
    keys = [key for key in printed_perplexities() if not key[1]]
    return {
        "all": agreement(ours, keys),
        "selection": agreement(ours, [key for key in keys if in_first_half(key)]),
        "check": agreement(ours, [key for key in keys if not in_first_half(key)]),
    }


def run_readings(
    out: Path,
    corpus: GridCorpus,
    names: Iterable[str] = tuple(READINGS),
    blocks: Sequence[int] = SIZES,
    radii: Sequence[int] = SIZES,
    modes: Sequence[str] = MODES,
    device: torch.device | str = "cpu",
) -> list[dict[str, Any]]:
    """Run the grid under each reading and append one line per reading to out/readings.jsonl.

    Readings that are in the file already, for the same text and cells, are not run again. Fitted units are deleted
    when their reading is finished.
    """
    path = out / "readings.jsonl"
    shape = {"blocks": list(blocks), "radii": list(radii), "modes": list(modes)}
    done = {
        row["reading"]: row for row in read_rows(path) if row["text"] == corpus.fingerprint and row["shape"] == shape
    }
    rows = []
    settings = {name: changes_of(name) for name in names}
    for name, changes in settings.items():
        if name not in done:
            done[name] = run_reading(out, corpus, name, changes, shape, device)
            content = "".join(json.dumps(row) + "\n" for row in [*read_rows(path), done[name]])
            files.write_file(path, content.encode())
        rows.append(done[name])
        print(summary(done[name]), flush=True)
    files.write_file(out / "readings.md", markdown(rows).encode())
    return rows


def run_reading(
    out: Path,
    corpus: GridCorpus,
    name: str,
    changes: dict[str, Any],
    shape: dict[str, Any],
    device: torch.device | str,
) -> dict[str, Any]:
    cells = grid(**shape, document_shards=0, settings={setting: [value] for setting, value in changes.items()})
    finished = run_grid(out / name, cells, corpus, device, usual_memory(device), baselines=False)
    shutil.rmtree(out / name / "units", ignore_errors=True)
    ours = perplexities_of(finished)
    return {
        "reading": name,
        "changes": changes,
        "text": corpus.fingerprint,
        "tokens": corpus.train.targets,
        "vocabulary": corpus.vocabulary,
        "shape": shape,
        "cells": len(ours),
        "failures": sum(cell.failure is not None for cell in finished),
        "best_dev_perplexity": min((dev for _, dev in ours.values()), default=None),
        "agreement": {part: asdict(found) if found else None for part, found in compare(ours).items()},
        "by_table": {title: found.spearman for title, found in agreement_by_table(ours).items()},
    }


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file."""
    if not path.is_file():
        return []
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except ValueError:
        raise SaffuError(f"{path} is damaged; delete it and run the readings again") from None


def number(row: dict[str, Any], part: str, name: str) -> float:
    found = row["agreement"][part]
    return float(found[name]) if found else float("nan")


def summary(row: dict[str, Any]) -> str:
    return (
        f"{row['reading']:<30} rank correlation {number(row, 'selection', 'spearman'):6.3f} / "
        f"{number(row, 'check', 'spearman'):6.3f}, dev/train {number(row, 'all', 'ours_dev_train'):.3f}, "
        f"best dev {row['best_dev_perplexity'] or float('nan'):.1f}"
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """All readings as a table, the best on the selection half first."""
    titles = list(MODES)
    head = [
        "reading",
        "changes",
        "selection half",
        "check half",
        "log correlation",
        "spread",
        "dev/train",
        *titles,
        "best",
    ]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]

    def rank(row: dict[str, Any]) -> float:
        value = number(row, "selection", "spearman")
        return -value if value == value else 2.0

    for row in sorted(rows, key=rank):
        changes = ", ".join(f"{name} {value}" for name, value in row["changes"].items()) or "none"
        by_table = [f"{row['by_table'][title]:.3f}" if title in row["by_table"] else "–" for title in titles]
        values = [
            f"{number(row, 'selection', 'spearman'):.3f}",
            f"{number(row, 'check', 'spearman'):.3f}",
            f"{number(row, 'all', 'pearson_log'):.3f}",
            f"{number(row, 'all', 'spread_ratio'):.2f}",
            f"{number(row, 'all', 'ours_dev_train'):.3f}",
            *by_table,
            f"{row['best_dev_perplexity'] or float('nan'):.1f}",
        ]
        lines.append(f"| {row['reading']} | {changes} | " + " | ".join(values) + " |")
    if rows:
        printed = number(rows[0], "all", "printed_dev_train")
        lines += [
            "",
            "Rank correlations of dev perplexities with the paper's tables, by half of the cells and by table. "
            f"{rows[0]['tokens']:,} tokens counted, vocabulary {rows[0]['vocabulary']:,}. "
            f"The paper's dev/train is {printed:.3f}.",
        ]
    return "\n".join(lines) + "\n"


def build_corpus(train: Sequence[Path], dev: Sequence[Path], tokens: int, eval_tokens: int = EVAL_TOKENS) -> GridCorpus:
    """The first `tokens` of the training files in the order given, one document per line, and a sample of the rest.

    The tokenizer is learned from all of the training files, as in the paper.
    """
    lines = Lines(lambda: read_lines(train, "line"))
    tokenizer = Tokenizer.train((text for _, text in lines), TokenizerConfig(bpe_count="types"))
    counted = TokenCorpus.build(lines, tokenizer, max_tokens=tokens, progress="tokenize")
    held_out = TokenCorpus.build(read_lines(dev, "line"), tokenizer, progress="tokenize")
    return GridCorpus.build(counted, held_out, tokenizer, eval_tokens)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m saffu.experiments.readings", description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="training text, in order")
    parser.add_argument("--dev", nargs="+", required=True, metavar="FILE", help="held-out text")
    parser.add_argument("--tokens", type=float, default=1e6, help="number of tokens to count (default: 1e6)")
    parser.add_argument("--eval-tokens", type=float, default=EVAL_TOKENS, help="targets per sample (default: 100000)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")
    parser.add_argument(
        "--readings", default=",".join(READINGS), help="names separated by commas, a+b for both changes (default: all)"
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="values of b and r (default: 2,4,…,128)")
    options = parser.parse_args(arguments)
    try:
        train, dev = ([path for name in names for path in find_files([name])] for names in (options.train, options.dev))
        device = usable_device(options.device)
        corpus = build_corpus(train, dev, int(options.tokens), int(options.eval_tokens))
        sizes = [int(size) for size in options.sizes.split(",")]
        run_readings(options.out, corpus, options.readings.split(","), sizes, sizes, device=device)
    except SaffuError as error:
        sys.exit(f"error: {error}")
    print((options.out / "readings.md").read_text("utf-8"))


if __name__ == "__main__":
    main()
