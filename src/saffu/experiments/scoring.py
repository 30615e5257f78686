"""The ablation: every cell of a grid scored on the same targets, from parts that are fitted once.

A cell's logits are a sum of its parts' (see `parts`), so its probabilities need no model of their own. Nor do 245 cells
need 245 sums of exponentials a target: e^{a+b} = e^a·e^b, so with e^a of every block side and e^b of every radius, the
normalisers of all cells are one small matrix product, Z[i, j] = Σ_n e^{a_i,n} e^{b_j,n}.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from saffu.cells import SAMPLES, Cell, Results, Sums, cell_key
from saffu.config import SaffuConfig
from saffu.corpus import Targets, TokenCorpus
from saffu.errors import SaffuError
from saffu.evaluate import Score, count_references, evaluate_references
from saffu.grid import SWEPT, Part, block_part, document_part, parts_of, radius_part
from saffu.parts import Decoder, Parts, fit_memory, outputs, parameter_count
from saffu.tokenizer import Tokenizer

SAMPLE = 100_000  # targets each of training and held-out text that cells are scored on, about
BATCH = 1024  # targets a unit looks at at a time
CHUNK = 64  # targets scored at a time on a CPU: their exponentials stay near the cache
MEMORY = 6 * 10**9
PROGRAM = 700 * 10**6  # bytes that Python, torch and the text's bookkeeping take
Side = tuple[Part, ...]  # of a cell: its block unit, or that and its document model, on the left; its radius


@dataclass(frozen=True)
class Text:
    """What a grid is fitted to and scored on."""

    train: TokenCorpus
    samples: dict[str, TokenCorpus]  # about SAMPLE targets each, of the very "train" and of "dev"
    vocabulary: int
    fingerprint: str  # of all of it: cells with the same one can be compared
    counted: str  # of what is counted alone: parts with the same one are the same

    @classmethod
    def of(cls, train: TokenCorpus, dev: TokenCorpus, tokenizer: Tokenizer, sample: int = SAMPLE) -> "Text":
        if not train.targets or not dev.targets:
            raise SaffuError("an ablation needs text to count and text held out; give files with non-empty lines")
        require_apart(train, dev)
        samples = {"train": train.thinned(sample), "dev": dev.thinned(sample)}
        counted = fingerprint(tokenizer.to_json(), *digests(train))
        whole = fingerprint(counted, *(x for corpus in samples.values() for x in digests(corpus)))
        return cls(train, samples, len(tokenizer), whole, counted)

    def facts(self) -> dict[str, Any]:
        """What it is, in numbers, with n-gram references for scale."""
        counts = count_references(self.train, self.vocabulary)
        facts: dict[str, Any] = {"text": self.fingerprint, "vocabulary": self.vocabulary}
        facts |= {"tokens": self.train.targets, "documents": self.train.documents, "bytes": self.train.bytes}
        for name, corpus in self.samples.items():
            facts |= {f"{name}_targets": corpus.targets, f"{name}_bytes": corpus.bytes}
            scores = evaluate_references(counts, corpus)
            facts[f"{name}_references"] = {reference: score.perplexity for reference, score in scores.items()}
        return facts


def require_apart(train: TokenCorpus, dev: TokenCorpus) -> None:
    if digests(train) == digests(dev):
        raise SaffuError("the held-out text is the training text; hold out other text")


def digests(corpus: TokenCorpus) -> list[str]:
    tensors = (corpus.ids, corpus.starts, corpus.sizes)
    return [hashlib.sha256(tensor.contiguous().numpy().data).hexdigest() for tensor in tensors]


def fingerprint(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


class Family:
    """Cells that differ in their parts only, so that any left side can stand beside any radius."""

    def __init__(self, cells: Sequence[SaffuConfig]):
        self.lefts = list(dict.fromkeys(left_side(cell) for cell in cells))
        self.rights: list[Side] = list(dict.fromkeys((radius_part(cell),) for cell in cells))
        self.place = {
            cell_key(cell): (self.lefts.index(left_side(cell)), self.rights.index((radius_part(cell),)))
            for cell in cells
        }

    @staticmethod
    def divide(cells: Sequence[SaffuConfig]) -> list["Family"]:
        shared = ["documents", *(name for name in SWEPT if name not in ("block_dimension", "radius_dimension"))]
        families: dict[tuple[Any, ...], list[SaffuConfig]] = {}
        for cell in cells:
            families.setdefault(tuple(getattr(cell, name) for name in shared), []).append(cell)
        return [Family(members) for members in families.values()]

    def solve(self, decoders: dict[Part, Decoder]) -> None:
        """Each side's share (N,) of −(K−1)·log Σ_p Σ_d F_p,d, the column sums of a cell's final decoder.

        All parts saw the same targets, so their column sums differ by rounding only. Hence the left sides carry the
        logarithm, taken beside the average radius, and each radius its small distance from that average.
        """
        left, right = (
            torch.stack([torch.stack([decoders[part].column_sum for part in side]).sum(0) for side in sides])
            for sides in (self.lefts, self.rights)
        )
        if float((right / right.mean(0) - 1).abs().max()) > 1e-3:
            raise RuntimeError("parts of one family were counted on different targets")
        others = len(self.lefts[0])  # K − 1
        average = torch.log(left.mean(0) + right.mean(0))
        shares = [-others * torch.log(left + right.mean(0)), others * (average - torch.log(left.mean(0) + right))]
        self.shares = dict(zip((*self.lefts, *self.rights), torch.cat(shares), strict=True))

    def nll(self, logits: dict[Part, Tensor], ids: Tensor) -> Tensor:
        """−Σ_m log p of the targets under every left side and every radius, (lefts, radii)."""
        exponentials, surprises = [], []
        for sides in (self.lefts, self.rights):
            some = logits[sides[0][0]]
            sums = some.new_empty((len(sides), *some.shape), dtype=torch.float64)  # (sides, n, N)
            for row, side in zip(sums, sides, strict=True):
                torch.add(self.shares[side], logits[side[0]], out=row)
                for part in side[1:]:
                    row += logits[part]
            of_target = sums.gather(2, ids.expand(len(sides), -1)[:, :, None]).squeeze(2)
            greatest = sums.amax(2)  # (sides, n)
            surprises.append((greatest - of_target).sum(1))
            exponentials.append(sums.sub_(greatest[:, :, None]).exp_())
        left, right = exponentials
        Z = torch.bmm(left.transpose(0, 1), right.permute(1, 2, 0))  # (n, lefts, radii)
        nll: Tensor = torch.log(Z).sum(0) + surprises[0][:, None] + surprises[1]
        return nll


def left_side(cell: SaffuConfig) -> Side:
    document = document_part(cell)
    return (block_part(cell), document) if document else (block_part(cell),)


class Ablation:
    """Fits what is missing of a grid and scores the cells that are not in the folder yet."""

    def __init__(self, results: Results, text: Text, device: torch.device | str = "cpu", memory: int = MEMORY):
        self.results, self.text, self.device, self.memory = results, text, torch.device(device), memory
        if results.run.get("text") != text.fingerprint:
            results.begin(text.facts())
        self.parts = Parts(results.folder / "parts", text.counted, text.train, text.vocabulary, device)

    def run(self, cells: Sequence[SaffuConfig]) -> list[Cell]:
        """All these cells, scored; those in the folder already are taken from there."""
        began = time.perf_counter()
        require_memory(cells, self.text.vocabulary, self.memory)
        self.results.drop_damaged()
        pending = [cell for cell in cells if cell_key(cell) not in self.results.cells]
        failures = self._fit(parts_of(pending))
        fitted = time.perf_counter()
        if failed := [Cell(c, self._parameters(c), failure=why) for c in pending if (why := failure_of(c, failures))]:
            self.results.append(failed)
        scored = [cell for cell in pending if not failure_of(cell, failures)]
        if scored:
            self.results.append(list(self._score(scored)))
            self.results.drop_partial()
        if pending:
            seconds = {"fit_seconds": fitted - began, "score_seconds": time.perf_counter() - fitted}
            seconds = {name: round(value, 1) for name, value in seconds.items()}
            self.results.run["runs"].append({"cells": len(pending), "device": str(self.device), **seconds})
            self.results.save_run()
        return [self.results.cells[cell_key(cell)] for cell in cells]

    def _fit(self, parts: Sequence[Part]) -> dict[Part, str]:
        """Fit the parts that are missing; those that cannot be solved, with the reason."""
        failures: dict[Part, str] = {}
        with tqdm(total=len(parts), desc="fit parts", unit=" parts", disable=None, leave=False) as bar:
            for part in parts:
                if not self.parts.has(part):
                    try:
                        self.parts.fit(part)
                    except SaffuError as error:
                        failures[part] = str(error)
                bar.update()
        return failures

    def _score(self, cells: Sequence[SaffuConfig]) -> Iterator[Cell]:
        """Stream the samples through all parts, a stretch of targets at a time."""
        families, parts = Family.divide(cells), parts_of(cells)
        decoders = {part: self.parts.decoder(part) for part in parts}
        for family in families:
            family.solve(decoders)
        stretch, chunk = batch_sizes(parts, self.text.vocabulary, self.memory)
        if self.device.type == "cpu":
            chunk = min(chunk, CHUNK)
        lookback = max(max(cell.block, cell.radius) for cell in cells)
        keys = [cell_key(cell) for cell in cells]
        nothing: Sums = {name: dict.fromkeys(keys, 0.0) for name in SAMPLES}
        done, sums = self.results.partial(keys, stretch) or (0, nothing)
        total = sum(corpus.targets for corpus in self.text.samples.values())
        with (
            torch.no_grad(),
            tqdm(total=total, desc=f"score {len(cells)} cells", unit=" targets", disable=None, leave=False) as bar,
        ):
            for number, (name, batches) in enumerate(self._stretches(stretch, lookback)):
                ids = torch.cat([targets.ids for targets in batches])
                if number < done:
                    bar.update(len(ids))
                    continue
                told = {part: outputs(part, self.parts.network(part), batches) for part in parts}
                for rows in torch.arange(len(ids)).split(chunk):
                    some = slice(int(rows[0]), int(rows[-1]) + 1)
                    logits = {part: part_logits(told[part][some], decoders[part]) for part in parts}
                    for family in families:
                        nll = family.nll(logits, ids[some]).tolist()
                        for key, (row, column) in family.place.items():
                            sums[name][key] += nll[row][column]
                    bar.update(len(rows))
                self.results.save_partial(number + 1, stretch, sums)
        for cell, key in zip(cells, keys, strict=True):
            train, dev = (Score(sums[name][key], c.targets, c.bytes) for name, c in self.text.samples.items())
            least = [x for part in parts_of([cell]) if (x := decoders[part].least_attention) is not None]
            yield Cell(cell, self._parameters(cell), train, dev, min(least, default=None))

    def _stretches(self, stretch: int, lookback: int) -> Iterator[tuple[str, list[Targets]]]:
        """The targets of both samples, in order."""
        for name, corpus in self.text.samples.items():
            batches = corpus.to(self.device).batches(BATCH, lookback)
            while some := list(islice(batches, stretch // BATCH)):
                yield name, some

    def _parameters(self, cell: SaffuConfig) -> int:
        return parameter_count([*left_side(cell), radius_part(cell)], self.text.vocabulary)


def part_logits(told: Tensor, decoder: Decoder) -> Tensor:
    return told if decoder.rows is None else told @ decoder.rows


def failure_of(cell: SaffuConfig, failures: dict[Part, str]) -> str | None:
    return next((failures[part] for part in parts_of([cell]) if part in failures), None)


def batch_sizes(parts: Sequence[Part], vocabulary: int, memory: int) -> tuple[int, int]:
    """Targets whose parts' outputs are kept at a time, and of these, targets scored at a time."""
    stretch = memory // 6 // (4 * sum(part.outputs or vocabulary for part in parts))
    chunk = memory // 12 // (20 * vocabulary * len(parts))
    return max(1, min(2**17, stretch) // BATCH) * BATCH, max(16, min(2**12, chunk))


def usual_memory(device: torch.device) -> int:
    return int(0.9 * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else MEMORY


def memory_needed(cells: Sequence[SaffuConfig], vocabulary: int) -> int:
    """About how many bytes a grid takes at its peak: fitting its largest part, or scoring in small batches."""
    parts = parts_of(cells)
    stretch, chunk = batch_sizes(parts, vocabulary, 0)
    widths = sum(part.outputs or vocabulary for part in parts)
    decoders = 4 * vocabulary * sum(part.outputs for part in parts)
    scoring = decoders + 4 * stretch * widths + 20 * chunk * vocabulary * len(parts)
    return PROGRAM + max(scoring, *(fit_memory(part, vocabulary) for part in parts))


def require_memory(cells: Sequence[SaffuConfig], vocabulary: int, memory: int) -> None:
    needed = memory_needed(cells, vocabulary)
    if needed > memory:
        largest = max(parts_of(cells), key=lambda part: fit_memory(part, vocabulary))
        raise SaffuError(
            f"the grid needs about {needed / 1e9:.1f} GB, for its {describe(largest)}, and `memory` allows "
            f"{memory / 1e9:.1f} GB; leave out its largest sizes, or give more `memory`"
        )


def describe(part: Part) -> str:
    unit = "block" if part.config.block else "radius"
    told = f"{getattr(part.config, f'{unit}_mode')} {unit} of {getattr(part.config, unit)}"
    return f"document model beside the {told}" if part.name == "document" else told
