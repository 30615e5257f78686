"""Scores every cell of a grid on the same targets, from units that are fitted once and stored."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saffu import files
from saffu.commit import changing
from saffu.errors import SaffuError
from saffu.experiments.grid import cell_settings
from saffu.experiments.results import SAMPLES, Cell, Losses, Results
from saffu.format import progress_bar
from saffu.interface import Score
from saffu.paper.config import PaperConfig
from saffu.paper.devices import run_workers, workers_for
from saffu.paper.fit import fit
from saffu.paper.network import Network
from saffu.paper.parts import (
    Decoder,
    Family,
    UnitKey,
    final_co_occurrences,
    fit_memory,
    order_by_context,
    outputs,
    parameter_count,
    units_of,
)
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import Tokenizer
from saffu.tools.evaluate import count_references, evaluate_references

EVAL_TOKENS = 100_000  # approximate number of training and of held-out targets that cells are scored on
BATCH = {"cpu": 1 << 10, "cuda": 1 << 14}  # targets passed through a unit at a time
CHUNK = 96  # targets scored at a time on a CPU: their exponentials stay near the cache
MEMORY_LIMIT = 6 * 10**9
WEIGHTS = ("units.", "document.")  # begin the names of the weights that are stored
PROGRAM = 700 * 10**6  # bytes that Python, torch, and the corpus take


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


class FittedUnits:
    """The fitted units of one text, in a folder."""

    def __init__(self, folder: Path, corpus: GridCorpus, device: torch.device):
        self.folder = folder
        self.corpus = corpus
        self.device = device

    def path(self, unit: UnitKey) -> Path:
        key = json.dumps([unit.name, cell_settings(unit.config)])
        digest = hashlib.sha256(f"{self.corpus.counted} {key}".encode()).hexdigest()
        return self.folder / f"{unit.name}-{digest[:20]}.safetensors"

    def has(self, unit: UnitKey) -> bool:
        """Whether it is stored and intact."""
        with suppress(SaffuError):
            return bool(files.load_arrays(self.path(unit)))
        return False

    def fit(self, unit: UnitKey) -> None:
        """Fit a unit and store it. A document model is fitted together with its block unit, which is stored too."""
        *_, stage = fit(self.corpus.train, self.corpus.vocabulary, unit.config, device=self.device)
        model: Any = stage.model
        network: Network = model.network
        least = stage.facts.get("least_attention", {})
        log_F = final_co_occurrences(network.M.detach().double(), len(network.parts))
        weights = {name: w for name, w in network.state_dict().items() if name.startswith(WEIGHTS)}
        stored = [unit]
        if unit.name == "document":
            stored.append(UnitKey("block", replace(unit.config, document_shards=0)))
        for key in stored:
            own = {name: w for name, w in weights.items() if key.name == "document" or "document." not in name}
            own["rows"] = log_F[network.parts[key.name]].float()
            if key.name in least:
                own["least_attention"] = torch.tensor(float(least[key.name]), dtype=torch.float64)
            files.write_file(self.path(key), {name: w.cpu().contiguous().numpy() for name, w in own.items()})

    def load(self, unit: UnitKey) -> tuple[Network, Decoder]:
        """The network that computes the unit's output (its own final decoder is empty), and the unit's decoder."""
        arrays = files.load_arrays(self.path(unit))
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in arrays.items() if array.ndim}
        weights = {name: w for name, w in tensors.items() if name.startswith(WEIGHTS)}
        embeddings = {name.split(".")[1]: w for name, w in weights.items() if name.endswith(".E")}
        network = Network(unit.config, embeddings, self.corpus.vocabulary).requires_grad_(False)
        network.load_state_dict(weights, strict=False)
        rows = tensors["rows"]
        least = float(arrays["least_attention"]) if "least_attention" in arrays else None
        return network, Decoder(rows, rows.double().exp().sum(0), least)


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
    with changing(folder, wait=False):
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
        self.units = FittedUnits(results.folder / "units", corpus, device)

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
