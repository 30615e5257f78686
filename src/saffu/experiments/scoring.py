"""Scores every cell of a grid on the same targets, from units that are fitted once.

A cell's logits are the sum of its units' logits (see `units`), so no model has to be assembled. Nor does each of 245
cells need its own sum of exponentials per target: e^{a+b} = e^a·e^b, so with e^a of every block side and e^b of every
radius, the normalizers of all cells are one small matrix product, Z[i, j] = Σ_n e^{a_i,n} e^{b_j,n}.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.grid import SWEPT, UnitKey, block_unit, document_unit, radius_unit, through_blocks, units_of
from saffu.experiments.results import SAMPLES, Cell, Losses, Results, cell_key
from saffu.experiments.units import Decoder, FittedUnits, fit_memory, outputs, parameter_count
from saffu.format import progress_bar
from saffu.interface import Score
from saffu.paper.config import PaperConfig
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, Tokenizer
from saffu.tools.evaluate import count_references, evaluate_references

EVAL_TOKENS = 100_000  # approximate number of training and of held-out targets that cells are scored on
BATCH = {"cpu": 1 << 10, "cuda": 1 << 14}  # targets passed through a unit at a time
CHUNK = 64  # targets scored at a time on a CPU: their exponentials stay near the cache
MEMORY_LIMIT = 6 * 10**9
PROGRAM = 700 * 10**6  # bytes that Python, torch, and the corpus take
Side = tuple[UnitKey, ...]
"""One factor of a cell: its block unit (and its document model) on the left, its radial unit on the right."""


@dataclass(frozen=True)
class GridCorpus:
    """The text that a grid is fitted to and scored on."""

    train: TokenCorpus
    samples: dict[str, TokenCorpus]  # of the "train" and the "dev" text
    vocabulary: int
    fingerprint: str  # of everything: cells with equal fingerprints can be compared
    counted: str  # of the counted text alone: units with equal fingerprints are equal

    @classmethod
    def build(
        cls, train: TokenCorpus, dev: TokenCorpus, tokenizer: Tokenizer, eval_tokens: int = EVAL_TOKENS
    ) -> GridCorpus:
        """Raises SaffuError if either text is empty, or if both are the same."""
        if not train.targets or not dev.targets:
            raise SaffuError("an ablation needs training text and held-out text; pass files with non-blank lines")
        if train.fingerprint() == dev.fingerprint():
            raise SaffuError("the held-out text is the training text; pass different text")
        samples = {"train": train.sample(eval_tokens), "dev": dev.sample(eval_tokens)}
        counted = fingerprint(tokenizer.to_json(), train.fingerprint())
        whole = fingerprint(counted, *(corpus.fingerprint() for corpus in samples.values()))
        return cls(train, samples, len(tokenizer), whole, counted)

    def facts(self, baselines: bool) -> dict[str, Any]:
        """The text in numbers, optionally with n-gram baselines for scale."""
        counts = count_references(self.train, self.vocabulary) if baselines else None
        facts: dict[str, Any] = {"text": self.fingerprint, "vocabulary": self.vocabulary}
        facts |= {"tokens": self.train.targets, "documents": self.train.documents, "bytes": self.train.bytes}
        for name, corpus in self.samples.items():
            facts |= {f"{name}_targets": corpus.targets, f"{name}_bytes": corpus.bytes}
            if counts is not None:
                scores = evaluate_references(counts, corpus)
                facts[f"{name}_references"] = {baseline: score.perplexity for baseline, score in scores.items()}
        return facts


def fingerprint(*contents: str) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:24]


class Family:
    """Cells that differ in their units only, so that any left side can be combined with any radius."""

    def __init__(self, cells: Sequence[PaperConfig]):
        self.lefts = list(dict.fromkeys(left_side(cell) for cell in cells))
        self.rights: list[Side] = list(dict.fromkeys((radius_unit(cell),) for cell in cells))
        self.place = {
            cell_key(cell): (self.lefts.index(left_side(cell)), self.rights.index((radius_unit(cell),)))
            for cell in cells
        }

    @staticmethod
    def divide(cells: Sequence[PaperConfig]) -> list[Family]:
        shared = [name for name in SWEPT if name not in ("block_dimension", "radius_dimension")]
        families: dict[tuple[Any, ...], list[PaperConfig]] = {}
        for cell in cells:
            block = cell.block if through_blocks(cell) else 0
            key = (block, cell.document_shards, *(getattr(cell, name) for name in shared))
            families.setdefault(key, []).append(cell)
        return [Family(members) for members in families.values()]

    def solve(self, decoders: dict[UnitKey, Decoder]) -> None:
        """Each side's share (N,) of −(K−1)·log Σ_p Σ_d F_p,d, the term that a cell's final decoder adds to its units.

        All units saw the same targets, so their column sums differ only by rounding. Hence the left sides carry the
        logarithm, taken with the average radius, and each radius its small distance from that average.
        """
        left, right = (
            torch.stack([torch.stack([decoders[unit].column_sum for unit in side]).sum(0) for side in sides])
            for sides in (self.lefts, self.rights)
        )
        if float((right / right.mean(0) - 1).abs().max()) > 1e-3:
            raise RuntimeError("units of one family were counted on different targets")
        others = len(self.lefts[0])  # K − 1
        average = torch.log(left.mean(0) + right.mean(0))
        shares = [-others * torch.log(left + right.mean(0)), others * (average - torch.log(left.mean(0) + right))]
        self.shares = dict(zip((*self.lefts, *self.rights), torch.cat(shares), strict=True))

    def nll(self, logits: dict[UnitKey, Tensor], ids: Tensor) -> Tensor:
        """−Σ_m log p of the targets under every left side and every radius, (lefts, radii)."""
        exponentials = []
        losses = []
        for sides in (self.lefts, self.rights):
            some = logits[sides[0][0]]
            sums = some.new_empty((len(sides), *some.shape), dtype=torch.float64)  # (sides, n, N)
            for row, side in zip(sums, sides, strict=True):
                torch.add(self.shares[side], logits[side[0]], out=row)
                for unit in side[1:]:
                    row += logits[unit]
            of_target = sums.gather(2, ids.expand(len(sides), -1)[:, :, None]).squeeze(2)
            greatest = sums[:, :, EOD:].amax(2)  # (sides, n); ids below EOD are never predicted
            losses.append((greatest - of_target).sum(1))
            exponentials.append(sums.sub_(greatest[:, :, None]).exp_()[:, :, EOD:])
        left, right = exponentials
        Z = torch.bmm(left.transpose(0, 1), right.permute(1, 2, 0))  # (n, lefts, radii)
        nll: Tensor = torch.log(Z).sum(0) + losses[0][:, None] + losses[1]
        return nll


def left_side(cell: PaperConfig) -> Side:
    document = document_unit(cell)
    return (block_unit(cell), document) if document else (block_unit(cell),)


def run_grid(
    folder: Path,
    cells: Sequence[PaperConfig],
    corpus: GridCorpus,
    device: torch.device | str = "cpu",
    memory_limit: int = MEMORY_LIMIT,
    baselines: bool = True,
) -> list[Cell]:
    """Fit and score these cells; those in the folder already are taken from there.

    With `baselines`, n-gram models of the text are scored too, for scale.

    The folder is locked meanwhile; an interrupted run continues where it stopped when it is called again.
    Raises SaffuError if another process is writing to the folder, or if it holds results of different text.
    """
    if folder.exists() and not folder.is_dir():
        raise SaffuError(f"{folder} is a file; an ablation needs a folder")
    require_memory(cells, corpus.vocabulary, memory_limit)
    folder.mkdir(parents=True, exist_ok=True)
    with files.changing(folder, wait=False):
        results = Results(folder)
        results.clean_up()
        return Ablation(results, corpus, device, memory_limit, baselines).run(cells)


class Ablation:
    """Fits the missing units of a grid and scores the missing cells. Use `run_grid`, which locks the folder."""

    def __init__(
        self, results: Results, corpus: GridCorpus, device: torch.device | str, memory_limit: int, baselines: bool
    ):
        self.results = results
        self.corpus = corpus
        self.device = torch.device(device)
        self.memory = memory_limit
        if results.run.get("text") != corpus.fingerprint:
            results.begin({"text": corpus.fingerprint} if results.run else corpus.facts(baselines))
        self.units = FittedUnits(results.folder / "units", corpus.counted, corpus.train, corpus.vocabulary, device)

    def run(self, cells: Sequence[PaperConfig]) -> list[Cell]:
        began = time.perf_counter()
        self.results.drop_damaged()
        pending = [cell for cell in cells if cell_key(cell) not in self.results.cells]
        failures = self._fit(units_of(pending))
        fitted = time.perf_counter()
        if failed := [Cell(c, self._parameters(c), failure=why) for c in pending if (why := failure_of(c, failures))]:
            self.results.append(failed)
        if scored := [cell for cell in pending if not failure_of(cell, failures)]:
            self.results.append(list(self._score(scored)))
            self.results.drop_unfinished()
        if pending:
            seconds = {"fit_seconds": fitted - began, "score_seconds": time.perf_counter() - fitted}
            seconds = {name: round(value, 1) for name, value in seconds.items()}
            self.results.run["runs"].append({"cells": len(pending), "device": str(self.device), **seconds})
            self.results.save_run()
        return [self.results.cells[cell_key(cell)] for cell in cells]

    def _fit(self, units: Sequence[UnitKey]) -> dict[UnitKey, str]:
        """Fit the missing units. Returns those that cannot be solved, with the reason."""
        failures: dict[UnitKey, str] = {}
        with progress_bar("fit units", total=len(units), unit=" units") as bar:
            for unit in units:
                if not self.units.has(unit):
                    try:
                        self.units.fit(unit)
                    except SaffuError as error:
                        failures[unit] = str(error)
                bar.update()
        return failures

    def _score(self, cells: Sequence[PaperConfig]) -> Iterator[Cell]:
        """Stream the samples through all units, one stretch of targets at a time."""
        families = Family.divide(cells)
        units = units_of(cells)
        networks = {}
        decoders = {}
        for unit in units:
            networks[unit], decoders[unit] = self.units.load(unit)
        for family in families:
            family.solve(decoders)
        batch = BATCH[self.device.type]
        stretch, chunk = batch_sizes(units, self.corpus.vocabulary, self.memory, batch)
        if self.device.type == "cpu":
            chunk = min(chunk, CHUNK)
        keys = [cell_key(cell) for cell in cells]
        nothing: Losses = {name: dict.fromkeys(keys, 0.0) for name in SAMPLES}
        done, losses = self.results.unfinished(keys, stretch) or (0, nothing)
        number = 0
        total = sum(corpus.targets for corpus in self.corpus.samples.values())
        with torch.no_grad(), progress_bar(f"score {len(cells)} cells", total=total, unit=" targets") as bar:
            for name, corpus in self.corpus.samples.items():
                streams = {unit: network.batches(corpus, batch) for unit, network in networks.items()}
                for lo in range(0, corpus.targets, stretch):
                    batches = {unit: list(islice(stream, stretch // batch)) for unit, stream in streams.items()}
                    number += 1
                    if number > done:
                        self._add_losses(losses[name], families, networks, decoders, batches, chunk)
                        self.results.save_unfinished(number, stretch, losses)
                    bar.update(min(stretch, corpus.targets - lo))
        for cell, key in zip(cells, keys, strict=True):
            train, dev = (Score(losses[name][key], c.targets, c.bytes) for name, c in self.corpus.samples.items())
            least = [x for unit in units_of([cell]) if (x := decoders[unit].least_attention) is not None]
            yield Cell(cell, self._parameters(cell), train, dev, min(least, default=None))

    def _add_losses(
        self,
        losses: dict[str, float],
        families: Sequence[Family],
        networks: dict[UnitKey, Any],
        decoders: dict[UnitKey, Decoder],
        batches: dict[UnitKey, list[Any]],
        chunk: int,
    ) -> None:
        """Add the loss of every cell on one stretch of targets."""
        hidden = {unit: outputs(unit, networks[unit], batches[unit]) for unit in networks}
        ids = torch.cat([targets.ids for targets in next(iter(batches.values()))])
        for lo in range(0, len(ids), chunk):
            logits = {unit: h[lo : lo + chunk] @ decoders[unit].rows for unit, h in hidden.items()}
            for family in families:
                nll = family.nll(logits, ids[lo : lo + chunk]).tolist()
                for key, (row, column) in family.place.items():
                    losses[key] += nll[row][column]

    def _parameters(self, cell: PaperConfig) -> int:
        return parameter_count([*left_side(cell), radius_unit(cell)], self.corpus.vocabulary)


def failure_of(cell: PaperConfig, failures: dict[UnitKey, str]) -> str | None:
    return next((failures[unit] for unit in units_of([cell]) if unit in failures), None)


def batch_sizes(units: Sequence[UnitKey], vocabulary: int, memory: int, batch: int) -> tuple[int, int]:
    """Number of targets whose unit outputs are held at a time, and of those, number scored at a time."""
    stretch = memory // 6 // (4 * sum(unit.outputs for unit in units))
    chunk = memory // 12 // (20 * vocabulary * len(units))
    return max(1, min(2**17, stretch) // batch) * batch, max(16, min(2**12, chunk))


def usual_memory(device: torch.device | str) -> int:
    """A memory limit in bytes: most of the free memory of a GPU, or 6 GB on a CPU."""
    device = torch.device(device)
    return int(0.9 * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else MEMORY_LIMIT


def memory_needed(cells: Sequence[PaperConfig], vocabulary: int) -> int:
    """Approximate peak in bytes: fitting the largest unit, or scoring in small batches."""
    units = units_of(cells)
    stretch, chunk = batch_sizes(units, vocabulary, 0, BATCH["cpu"])
    widths = sum(unit.outputs for unit in units)
    scoring = 4 * (vocabulary + stretch) * widths + 20 * chunk * vocabulary * len(units)
    return PROGRAM + max(scoring, *(fit_memory(unit, vocabulary) for unit in units))


def require_memory(cells: Sequence[PaperConfig], vocabulary: int, memory_limit: int) -> None:
    """Raises SaffuError if a grid needs more memory than allowed."""
    needed = memory_needed(cells, vocabulary)
    if needed > memory_limit:
        largest = max(units_of(cells), key=lambda unit: fit_memory(unit, vocabulary))
        raise SaffuError(
            f"the grid needs about {needed / 1e9:.1f} GB for its {largest}, but `memory_limit` is "
            f"{memory_limit / 1e9:.1f} GB; omit the largest sizes or raise `memory_limit`"
        )
