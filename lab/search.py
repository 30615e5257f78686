"""A search over readings of the paper by the structure of its tables: successive halving, with uniform attention.

    python -m lab text --train FILES --tokens 1e6 --out small.safetensors
    python -m lab search --texts small.safetensors spoken.safetensors --out search.jsonl --seconds 300 --device cuda

All combinations of `FACTORS` are tried on part of the text and of the sizes. The best ones go on to all sizes and all
of the text, then to other D_H, then to single changes (`TRIALS`). Readings are ranked by the tables with a sum radius
and by those with a cat radius, each half for itself: what one half selects, the other one validates. Every finished
grid is a line of the output, and the same command continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from lab.rows import Row, append_row, read_rows
from lab.shared_units import SharedUnits
from lab.structure import HALVES, Structure, described, structure
from lab.texts import Text, load_text
from saffu.experiments.grid import MODES, SIZES, CellKey, grid, key_of
from saffu.paper.devices import usable_device

Changes = dict[str, Any]
FACTORS: dict[str, tuple[Any, ...]] = {
    "radius_span": ("document", "blocks"),
    "radius_padding": ("right", "left"),
    "block_advance": ("shifted", "whole"),
    "special_noise": ("pure", "zero", "padding", "zero-padding"),  # <pad> pure or zero × markers noise or counted
    "slot_weight": ("decimal", "natural"),
}
HIDDEN = (64, 256, 512)
TRIALS: list[Changes] = [
    {"radius_span": "start"},
    {"radius_span": "start", "radius_padding": "left"},
    {"hidden_targets": "normalized"},
    {"smoothing": 0.1},
    {"smoothing": 1.0},
    {"special_noise": "counted"},
    {"block_advance": "sliding"},
    {"padding": "left"},
    {"radius_dimension": 64},
    {"block_dimension": 64},
    {"block_dimension": 256},
]
LOW_MEMORY = 30 * 10**9  # of a GPU: sums and layouts are dropped below this


@dataclass(frozen=True)
class Rung:
    """One round of the search: the best readings of the round before, on a share of the text."""

    name: str
    tokens: int
    sizes: tuple[int, ...]
    keep: int  # readings that each half, and both together, select for it


RUNGS = (
    Rung("all", 1 << 18, (2, 8, 16, 128), 0),
    Rung("sizes", 1 << 30, SIZES, 8),
    Rung("hidden", 1 << 30, SIZES, 3),
    Rung("trials", 1 << 30, SIZES, 1),
    Rung("texts", 1 << 30, SIZES, 1),
)
SINGLE = Rung("single", 1 << 30, SIZES, 0)


class OutOfTime(Exception):
    pass


def combinations(factors: Mapping[str, Sequence[Any]]) -> list[Changes]:
    """
    >>> combinations({"a": (1, 2), "b": (3,)})
    [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    return [dict(zip(factors, values, strict=True)) for values in product(*factors.values())]


def candidates(rung: Rung, rows: Sequence[Row], texts: Sequence[str]) -> list[Changes]:
    """The readings of a rung, from the results of the one before."""
    if rung.name == "all":
        return [{"hidden_dimension": 128, **changes} for changes in combinations(FACTORS)]
    before = {"sizes": ("all",), "hidden": ("sizes",), "trials": ("sizes", "hidden")}
    tried = [row for row in rows if row["rung"] in before.get(rung.name, ("sizes", "hidden", "trials"))]
    best = selected(tried, texts, rung.keep)
    if rung.name == "hidden":
        return [{**reading, "hidden_dimension": width} for reading in best for width in HIDDEN]
    if rung.name == "trials":
        return unique({**reading, **trial} for reading in best for trial in TRIALS)
    return best


def selected(rows: Sequence[Row], texts: Sequence[str], keep: int) -> list[Changes]:
    """The best `keep` readings by each half of the tables and by all of them, of those that every text has."""
    scores: dict[str, dict[str, Structure]] = {}
    for row in rows:
        scores.setdefault(json.dumps(row["reading"], sort_keys=True), {})[row["text"]] = structure_of(row)
    complete = {reading: list(found.values()) for reading, found in scores.items() if set(texts) <= found.keys()}
    orders = [{name: mean(s.rms for s in found) for name, found in complete.items()}]
    orders += [{name: mean(s.rms_by_half[half] for s in found) for name, found in complete.items()} for half in HALVES]
    best = [name for order in orders for name in sorted(order, key=order.__getitem__)[:keep]]
    return unique(json.loads(reading) for reading in best)


def unique(readings: Iterable[Changes]) -> list[Changes]:
    """Each reading once; neighbors share most of their units."""
    found = {json.dumps(reading, sort_keys=True): reading for reading in readings}
    return [found[key] for key in sorted(found)]


def structure_of(row: Row) -> Structure:
    return structure({(m, False, b, r): nats for m, b, r, nats in row["nats"]})


def run_search(
    out: Path,
    texts: Sequence[Text],
    more: Sequence[Text],
    device: torch.device,
    deadline: float,
    rungs: Sequence[Rung] = RUNGS,
) -> None:
    """Append a row for every reading, text, and rung that is not in `out`, until the deadline (`time.monotonic`).

    The last rung tries the best readings on `more` texts, which select nothing.
    """
    names = [text.name for text in texts]
    for rung in rungs:
        readings = candidates(rung, read_rows(out), names)
        run_rows(out, rung, more if rung.name == "texts" else texts, readings, device, deadline)


def run_rows(
    out: Path,
    rung: Rung,
    texts: Sequence[Text],
    readings: Sequence[Changes],
    device: torch.device,
    deadline: float,
) -> None:
    """Append the rows of a rung that are not in `out`."""
    for text in texts:
        done = {row_key(row) for row in read_rows(out)}
        pending = [r for r in readings if row_key({"rung": rung.name, "text": text.name, "reading": r}) not in done]
        for row in run_rung(rung, text, pending, device, deadline):
            append_row(out, row)


def row_key(row: Mapping[str, Any]) -> str:
    return json.dumps([row["rung"], row["text"], row["reading"]], sort_keys=True)


def run_rung(
    rung: Rung, text: Text, readings: Sequence[Changes], device: torch.device, deadline: float
) -> Iterator[Row]:
    """The rows of these readings on one text."""
    if not readings:
        return
    corpus = text.part(rung.tokens)
    shared = SharedUnits(corpus, device)
    for reading in readings:
        if time.monotonic() > deadline:
            raise OutOfTime
        began = time.monotonic()
        try:
            nats = reading_nats(shared, reading, rung.sizes)
        except torch.OutOfMemoryError:  # with what the readings before it left behind
            shared = SharedUnits(corpus, device)
            torch.cuda.empty_cache()
            nats = reading_nats(shared, reading, rung.sizes)
        seconds = round(time.monotonic() - began, 2)
        row: Row = {"rung": rung.name, "text": text.name, "reading": reading, "tokens": corpus.train.targets}
        row |= {"fingerprint": corpus.fingerprint, "dev_targets": corpus.samples["dev"].targets, "seconds": seconds}
        row |= {"nats": [[key[0], key[2], key[3], float(f"{value:.6g}")] for key, value in nats.items()]}
        print(summary(row), flush=True)
        yield row
        if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < LOW_MEMORY:
            shared = SharedUnits(corpus, device)
            torch.cuda.empty_cache()


def reading_nats(shared: SharedUnits, reading: Changes, sizes: Sequence[int]) -> dict[CellKey, float]:
    """Dev log-perplexities of the grid under a reading, with uniform attention."""
    settings = {name: [value] for name, value in ({"attention": "uniform"} | reading).items()}
    cells = grid(sizes, sizes, MODES, 0, settings)
    return {key_of(cell): nats for cell, nats in shared.nats(cells).items()}


def summary(row: Row) -> str:
    found = structure_of(row)
    words = " ".join(str(value) for value in row["reading"].values())
    return (
        f"{row['rung']:<7} {row['text']:<14} {described(found)}, signs {found.signs:.2f}, bump "
        f"{found.bump_cat:+.3f} / {found.bump_sum:+.3f}, b = 2 {found.least_block_gap:+.3f} … "
        f"{found.greatest_block_gap:+.3f}, interaction {found.interaction:.3f}, best gap {found.best_gap:+.2f}, rank "
        f"{found.rank_correlation:.2f}, {row['seconds']:.1f} s: {words}"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--texts", nargs="+", type=Path, required=True, metavar="FILE", help="from `python -m lab text`"
    )
    parser.add_argument("--more", nargs="+", type=Path, default=[], metavar="FILE", help="texts for the best readings")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, one line of JSON per grid")
    parser.add_argument("--reading", action="append", default=[], metavar="JSON", help="settings to try, and no others")
    parser.add_argument("--cross", metavar="JSON", help="lists of settings whose combinations to try, and no others")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time (default: never)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")


def run_command(options: argparse.Namespace) -> None:
    deadline = time.monotonic() + options.seconds
    device = usable_device(options.device)
    texts, more = ([load_text(path) for path in paths] for paths in (options.texts, options.more))
    try:
        if options.reading or options.cross:
            readings = [{"hidden_dimension": 128} | json.loads(reading) for reading in options.reading]
            readings += combinations(json.loads(options.cross)) if options.cross else []
            run_rows(options.out, SINGLE, texts, readings, device, deadline)
        else:
            run_search(options.out, texts, more, device, deadline)
    except OutOfTime:
        print(f"out of time; the same command continues {options.out}")
