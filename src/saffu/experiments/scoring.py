"""Scores every cell of a grid on the same targets, from units that are fitted once.

A cell's logits are the sum of its units' logits (see `units`), so no model has to be assembled. Nor does each of 245
cells need its own sum of exponentials per target: e^{a+b} = e^a·e^b, so with e^a of every block side and e^b of every
radius, the normalizers of all cells are one small matrix product, Z[i, j] = Σ_n e^{a_i,n} e^{b_j,n}.

Many targets have the same context, above all in small units. So targets are scored in the order of what precedes them,
and the logits of a unit are computed once for neighbors between which its output does not change.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.grid import SWEPT, UnitKey, block_unit, document_unit, radius_unit, through_blocks, units_of
from saffu.experiments.results import SAMPLES, Cell, Losses, Results
from saffu.experiments.units import Decoder, FittedUnits, fit_memory, outputs, parameter_count
from saffu.format import progress_bar
from saffu.interface import Score
from saffu.paper.config import PaperConfig
from saffu.paper.devices import run_workers, workers_for
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, PAD, Tokenizer
from saffu.tools.evaluate import count_references, evaluate_references

EVAL_TOKENS = 100_000  # approximate number of training and of held-out targets that cells are scored on
BATCH = {"cpu": 1 << 10, "cuda": 1 << 14}  # targets passed through a unit at a time
CHUNK = 96  # targets scored at a time on a CPU: their exponentials stay near the cache
NEAREST = 8  # tokens before a target that decide its place in the order of scoring
MEMORY_LIMIT = 6 * 10**9
PROGRAM = 700 * 10**6  # bytes that Python, torch, and the corpus take
Left = tuple[UnitKey, ...]
"""The left side of a cell: its block unit, and its document model if it has one. On the right is its radial unit."""


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

    def facts(self) -> dict[str, Any]:
        """The text in numbers, with n-gram baselines for scale."""
        counts = count_references(self.train, self.vocabulary)
        facts: dict[str, Any] = {"text": self.fingerprint, "vocabulary": self.vocabulary}
        facts |= {"tokens": self.train.targets, "documents": self.train.documents, "bytes": self.train.bytes}
        for name, corpus in self.samples.items():
            facts |= {f"{name}_targets": corpus.targets, f"{name}_bytes": corpus.bytes}
            scores = evaluate_references(counts, corpus)
            facts[f"{name}_references"] = {baseline: score.perplexity for baseline, score in scores.items()}
        return facts


def fingerprint(*contents: str) -> str:
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()[:24]


class Family:
    """Cells that differ in their units only, so that any left side can be combined with any radius."""

    def __init__(self, cells: Sequence[PaperConfig], decoders: Mapping[UnitKey, Decoder]):
        lefts = [left_side(cell) for cell in cells]
        self.blocks = list(dict.fromkeys(block for block, *_ in lefts))
        self.documents = list(dict.fromkeys(document for _, *documents in lefts for document in documents))
        self.radii = list(dict.fromkeys(radius_unit(cell) for cell in cells))
        self.lefts: list[Left] = sorted(dict.fromkeys([*((block,) for block in self.blocks), *lefts]), key=len)
        self.place = {
            cell: (self.lefts.index(left), self.radii.index(radius_unit(cell)))
            for cell, left in zip(cells, lefts, strict=True)
        }
        self.rows = self._rows(decoders)

    @staticmethod
    def divide(cells: Sequence[PaperConfig], decoders: Mapping[UnitKey, Decoder]) -> list[Family]:
        shared = [name for name in SWEPT if name not in ("block_dimension", "radius_dimension")]
        families: dict[tuple[Any, ...], list[PaperConfig]] = {}
        for cell in cells:
            block = cell.block if through_blocks(cell) else 0
            families.setdefault((block, *(getattr(cell, name) for name in shared)), []).append(cell)
        return [Family(members, decoders) for members in families.values()]

    def _rows(self, decoders: Mapping[UnitKey, Decoder]) -> dict[UnitKey, Tensor]:
        """The decoders, with −(K−1)·log Σ_p Σ_d F_p,d, the term of a cell of K parts that is not one of its parts'.

        A part's outputs sum to one, so a term that is added to all its rows is added to the logits once: blocks carry
        it for K = 2, and document models what it is more for K = 3. All units saw the same targets, so the column sums
        of blocks differ only by rounding, as those of radii do, and their mean stands for each of them.
        """
        block, radius = (
            torch.stack([decoders[unit].column_sum for unit in units]).mean(0) for units in (self.blocks, self.radii)
        )
        term = -torch.log(block + radius)
        rows = {unit: decoders[unit].rows + term.float() for unit in self.blocks}
        rows |= {unit: decoders[unit].rows for unit in self.radii}
        for document in self.documents:
            sums = block + radius + decoders[document].column_sum
            rows[document] = decoders[document].rows + (-2 * torch.log(sums) - term).float()
        return rows

    def nll(self, hidden: Mapping[UnitKey, Tensor], ids: Tensor) -> Tensor:
        """−Σ_m log p of the targets under every left side and every radius, (lefts, radii), from the units' outputs.

        Logits are means of log F, so their exponentials are of the size of counts: float32 holds them as they are.
        """
        changes = {unit: changed(hidden[unit]) for unit in self.rows}
        runs = torch.stack([*changes.values()]).any(0).nonzero().squeeze(1)  # (n,) where any unit's output changes
        lengths = runs.diff(append=runs.new_tensor([len(ids)]))
        sides = [*((unit,) for unit in self.documents), *self.lefts, *((unit,) for unit in self.radii)]
        some = self.rows[self.radii[0]]
        factors = some.new_empty(len(sides), len(runs), some.shape[1])  # e^logits of every side
        of_unit = {}
        for unit, change in changes.items():
            logits = hidden[unit][change] @ self.rows[unit]  # (≤ n, N)
            row = change.cumsum(0) - 1  # (m,) of each target
            of_unit[unit] = logits[row, ids].sum(dtype=torch.float64)
            torch.index_select(logits.exp_(), 0, row[runs], out=factors[sides.index((unit,))])
        for pair in [side for side in self.lefts if len(side) > 1]:
            block, document = (factors[sides.index((unit,))] for unit in pair)
            torch.mul(block, document, out=factors[sides.index(pair)])
        likely = slice(EOD, None)  # ids below EOD are never predicted
        left, right = factors[len(self.documents) :, :, likely].tensor_split([len(self.lefts)])
        Z = torch.bmm(left.transpose(0, 1), right.permute(1, 2, 0))  # (n, lefts, radii)
        normalizers = lengths.double() @ torch.log(Z.double()).flatten(1)
        of_left = torch.stack([torch.stack([of_unit[unit] for unit in side]).sum() for side in self.lefts])
        of_right = torch.stack([of_unit[unit] for unit in self.radii])
        nll: Tensor = normalizers.view(Z.shape[1:]) - of_left[:, None] - of_right
        return nll


def changed(rows: Tensor) -> Tensor:
    """Whether each row differs from the one before it, (n,); the first one does.

    >>> changed(torch.tensor([[1, 2], [1, 2], [1, 3]])).tolist()
    [True, False, True]
    """
    changes = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    torch.any(rows[1:] != rows[:-1], 1, out=changes[1:])
    return changes


def order_by_context(corpus: TokenCorpus, lo: int, hi: int) -> npt.NDArray[np.int64]:
    """The targets from `lo` to `hi`, counted from `lo`, sorted so that those with similar contexts are neighbors.

    The two tokens before a target decide first, then its position in its document, then the tokens before these.

    >>> corpus = TokenCorpus(np.array([5, 4, 3, 5, 4, 3]), np.array([0, 3, 6]), np.array([5, 5]))
    >>> order_by_context(corpus, 0, 6).tolist()
    [0, 3, 2, 5, 1, 4]
    """
    targets = np.arange(lo, hi)
    positions = targets - corpus.starts[np.searchsorted(corpus.starts, targets, side="right") - 1]
    before = [np.where(positions >= n, corpus.ids[np.maximum(targets - n, 0)], PAD) for n in range(1, NEAREST + 1)]
    return np.lexsort([*before[:1:-1], positions, *before[1::-1]])


def left_side(cell: PaperConfig) -> Left:
    document = document_unit(cell)
    return (block_unit(cell), document) if document else (block_unit(cell),)


def run_grid(
    folder: Path,
    cells: Sequence[PaperConfig],
    corpus: GridCorpus,
    device: torch.device | str = "cpu",
    memory_limit: int = MEMORY_LIMIT,
) -> list[Cell]:
    """Fit and score these cells, and n-gram models of the text for scale; cells in the folder are taken from there.

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
        results.require_text(corpus.fingerprint)
        if not results.run:
            results.save_run(corpus.facts())
        return Ablation(results, corpus, torch.device(device), memory_limit).run(cells)


class Ablation:
    """Fits the missing units of a grid and scores the missing cells. Use `run_grid`, which locks the folder."""

    def __init__(self, results: Results, corpus: GridCorpus, device: torch.device, memory_limit: int):
        self.results = results
        self.corpus = corpus
        self.device = device
        self.memory = memory_limit
        self.units = FittedUnits(results.folder / "units", corpus.counted, corpus.train, corpus.vocabulary, device)

    def run(self, cells: Sequence[PaperConfig]) -> list[Cell]:
        if pending := [cell for cell in cells if cell not in self.results.cells]:
            began = time.perf_counter()
            failures = self._fit(units_of(pending))
            fitted = time.perf_counter()
            reasons = {cell: failures[unit] for cell in pending for unit in units_of([cell]) if unit in failures}
            if reasons:
                self.results.append([Cell(cell, self._parameters(cell), failure=why) for cell, why in reasons.items()])
            if scorable := [cell for cell in pending if cell not in reasons]:
                self.results.append(self._score(scorable))
            self.results.unfinished.unlink(missing_ok=True)
            seconds = {"fit_seconds": fitted - began, "score_seconds": time.perf_counter() - fitted}
            facts = {"cells": len(pending), "device": str(self.device)}
            facts |= {name: round(value, 1) for name, value in seconds.items()}
            self.results.save_run({**self.results.run, "runs": [*self.results.run["runs"], facts]})
        return [self.results.cells[cell] for cell in cells]

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

    def _score(self, cells: Sequence[PaperConfig]) -> list[Cell]:
        """Stream the samples through all units, one stretch of targets at a time."""
        networks = {}
        decoders: dict[UnitKey, Decoder] = {}
        for unit in units_of(cells):
            networks[unit], decoders[unit] = self.units.load(unit)
        families = Family.divide(cells, decoders)
        batch = BATCH[self.device.type]
        stretch, chunk = batch_sizes(list(networks), self.corpus.vocabulary, self.memory, batch)
        if self.device.type == "cpu":
            chunk = min(chunk, CHUNK)
        losses: Losses = {name: dict.fromkeys(cells, 0.0) for name in SAMPLES}
        done = self.results.load_unfinished(stretch, losses)
        number = 0
        total = sum(corpus.targets for corpus in self.corpus.samples.values())
        with torch.no_grad(), progress_bar(f"score {len(cells)} cells", total=total, unit=" targets") as bar:
            for name, corpus in self.corpus.samples.items():
                streams = {unit: network.batches(corpus, batch) for unit, network in networks.items()}
                for lo in range(0, corpus.targets, stretch):
                    batches = {unit: list(islice(stream, stretch // batch)) for unit, stream in streams.items()}
                    number += 1
                    if number > done:
                        order = order_by_context(corpus, lo, min(lo + stretch, corpus.targets))
                        self._add_losses(losses[name], families, networks, batches, torch.from_numpy(order), chunk)
                        self.results.save_unfinished(number, stretch, losses)
                    bar.update(min(stretch, corpus.targets - lo))
        return [self._scored(cell, losses, decoders) for cell in cells]

    def _scored(self, cell: PaperConfig, losses: Losses, decoders: Mapping[UnitKey, Decoder]) -> Cell:
        train, dev = (Score(losses[name][cell], c.targets, c.bytes) for name, c in self.corpus.samples.items())
        least = [x for unit in units_of([cell]) if (x := decoders[unit].least_attention) is not None]
        return Cell(cell, self._parameters(cell), train, dev, min(least, default=None))

    def _add_losses(
        self,
        losses: dict[PaperConfig, float],
        families: Sequence[Family],
        networks: dict[UnitKey, Any],
        batches: dict[UnitKey, list[Any]],
        order: Tensor,
        chunk: int,
    ) -> None:
        """Add the loss of every cell on one stretch of targets, which are scored in this order."""
        units = list(networks)
        ids = torch.cat([targets.ids for targets in batches[units[0]]])
        order = order.to(ids.device)
        hidden: dict[UnitKey, Tensor] = {}
        workers = workers_for(self.device, len(ids) // chunk)

        def decode(number: int, stopped: Callable[[], bool]) -> None:
            for unit in units[number::workers]:
                if not stopped():
                    hidden[unit] = outputs(unit, networks[unit], batches[unit])

        @torch.no_grad()
        def score(number: int, stopped: Callable[[], bool]) -> list[Tensor]:
            sums = [torch.zeros(len(family.lefts), len(family.radii)).to(order.device).double() for family in families]
            for rows in order.split(chunk)[number::workers]:
                some = {unit: h[rows] for unit, h in hidden.items()}
                for family, total in zip(families, sums, strict=True):
                    total += family.nll(some, ids[rows])
                if stopped():
                    break
            return sums

        run_workers(decode, workers)
        for family, *parts in zip(families, *run_workers(score, workers), strict=True):
            nll = torch.stack(parts).sum(0).tolist()
            for cell, (row, column) in family.place.items():
                losses[cell] += nll[row][column]

    def _parameters(self, cell: PaperConfig) -> int:
        return parameter_count(units_of([cell]), self.corpus.vocabulary)


def batch_sizes(units: Sequence[UnitKey], vocabulary: int, memory: int, batch: int) -> tuple[int, int]:
    """Number of targets whose unit outputs are held at a time, and of those, number scored at a time."""
    stretch = memory // 6 // (4 * sum(unit.outputs for unit in units))
    chunk = memory // 12 // (20 * vocabulary * len(units))
    return max(1, min(2**17, stretch) // batch) * batch, max(16, min(2**12, chunk))


def usual_memory(device: torch.device | str) -> int:
    """A memory limit in bytes: most of the free memory of a GPU, or 6 GB on a CPU."""
    device = torch.device(device)
    return int(0.9 * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else MEMORY_LIMIT


def require_memory(cells: Sequence[PaperConfig], vocabulary: int, memory_limit: int) -> None:
    """Fail if a grid needs more memory than allowed: to fit its largest unit, or to score in small batches."""
    units = units_of(cells)
    stretch, chunk = batch_sizes(units, vocabulary, 0, BATCH["cpu"])
    widths = sum(unit.outputs for unit in units)
    scoring = 4 * (vocabulary + stretch) * widths + 20 * chunk * vocabulary * len(units)
    fitting, largest = max((fit_memory(unit, vocabulary), str(unit)) for unit in units)
    needed = PROGRAM + max(scoring, fitting)
    if needed > memory_limit:
        raise SaffuError(
            f"the grid needs about {needed / 1e9:.1f} GB for its {largest}, but `memory_limit` is "
            f"{memory_limit / 1e9:.1f} GB; omit the largest sizes or raise `memory_limit`"
        )
