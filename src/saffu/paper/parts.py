"""Parts of models, fitted on their own, and the scores of all models that can be assembled from them.

The units of a model only meet in its final decoder, so models share them: the 245 models of the paper's grid are made
of 28 units and a document model.

The final decoder of a model with one part is log F, because its priming number is 1 (Eq. 3). Next to other parts it
keeps those rows: with K parts, whose outputs h_p each sum to one,

    logits = Σ_p h_p·log F_p − (K−1)·log Σ_p Σ_d F_p,d

so no model has to be assembled. Nor does each model need its own sum of exponentials per target: e^{a+b} = e^a·e^b, so
with e^a of every block side and e^b of every radius, the normalizers of all models are one small matrix product,
Z[i, j] = Σ_n e^{a_i,n} e^{b_j,n}.

Many targets have the same context, above all in small units. So targets are scored in the order of what precedes them,
and the logits of a part are computed once for neighbors between which its output does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saffu.paper.config import PaperConfig
from saffu.paper.equations import distribution
from saffu.paper.network import Network
from saffu.paper.windows import Targets
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, PAD

NEAREST = 8  # tokens before a target that decide its place in the order of scoring
DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in fields(PaperConfig)}
OF_ONE_PART = (
    *("block", "radius", "block_mode", "radius_mode", "document_shards", "block_dimension", "radius_dimension"),
    *("block_advance", "pad_side"),
)


@dataclass(frozen=True)
class UnitKey:
    """A unit fitted on its own, or a document model: one input of a cell's final decoder."""

    name: str  # "block", "radius", or "document"
    config: PaperConfig  # of the model with this unit alone; for "document", of the block unit together with it

    @property
    def outputs(self) -> int:
        """Width of its output: D_H, or Δ for a document model."""
        return self.config.document_shards if self.name == "document" else self.config.hidden_dimension

    def __str__(self) -> str:
        """
        >>> str(block_unit(PaperConfig(block=64)))
        'sum block of 64'
        """
        kind = "radius" if self.name == "radius" else "block"
        shape = self.config.units()[kind]
        unit = f"{shape.mode} {kind} of {shape.slots}"
        return f"document model next to the {unit}" if self.name == "document" else unit


@cache
def block_unit(cell: PaperConfig) -> UnitKey:
    alone: dict[str, Any] = {"radius": 0, "document_shards": 0}
    return UnitKey("block", replace(cell, **alone, **_defaults("radius_mode", "radius_dimension", "pad_side")))


@cache
def radius_unit(cell: PaperConfig) -> UnitKey:
    alone: dict[str, Any] = {"block": 0, "document_shards": 0}
    return UnitKey("radius", replace(cell, **alone, **_defaults("block_mode", "block_dimension", "block_advance")))


@cache
def document_unit(cell: PaperConfig) -> UnitKey | None:
    """The cell's document model, next to the smallest block unit that has the same embeddings, which are all it reads.

    So a grid has a single document model.
    """
    if not cell.document_shards:
        return None
    block = replace(block_unit(cell).config, block=2, **_defaults("block_mode", "block_advance"))
    return UnitKey("document", replace(block, document_shards=cell.document_shards))


def units_of(cells: Sequence[PaperConfig]) -> list[UnitKey]:
    """All units of some cells, each once. Document models come first: fitting one also fits its block unit."""
    units = [unit(cell) for unit in (document_unit, block_unit, radius_unit) for cell in cells]
    return list(dict.fromkeys(unit for unit in units if unit))


def _defaults(*names: str) -> dict[str, Any]:
    return {name: DEFAULTS[name] for name in names}


@dataclass(frozen=True)
class Decoder:
    """The contribution of a unit to the final decoder of a model."""

    rows: Tensor  # (outputs, N) log F, float32
    column_sum: Tensor  # (N,) Σ_d F, float64
    least_attention: float | None  # smallest entry of F(Q, V), per target


def final_co_occurrences(M: Tensor, parts: int) -> Tensor:
    """log F (rows, N) from the final decoder M = log F − (K−1)/K·log Σ_d F (Eq. 3) of a model with K parts.

    Since Σ_d e^M = (Σ_d F)^(1/K), log F = M + (K−1)·log Σ_d e^M.

    >>> F = torch.tensor([[2.0], [6.0]])
    >>> final_co_occurrences(F.log() - 0.5 * F.sum(0).log(), parts=2).exp().T
    tensor([[2., 6.]])
    """
    return M + (parts - 1) * torch.logsumexp(M, 0)


@torch.no_grad()
def outputs(unit: UnitKey, network: Network, batches: Iterable[Targets]) -> Tensor:
    """The unit's input to the final decoder: distributions (n, outputs)."""
    if network.document is not None:
        return torch.cat([network.document(targets.means) for targets in batches])
    tables = network.tables()
    return torch.cat([distribution(network.unit_logits(unit.name, targets, tables)) for targets in batches])


def parameter_count(units: Iterable[UnitKey], vocabulary: int) -> int:
    """All stored numbers of the model that these units make up, including the embeddings."""
    total = 0
    for unit in units:
        total += unit.outputs * vocabulary  # its rows of M
        if unit.name == "document":
            total += unit.config.block_dimension * unit.outputs
        else:
            shape = unit.config.units()[unit.name]
            total += vocabulary * shape.dimension + shape.slots**2 + shape.inputs * unit.outputs
    return total


def fit_memory(unit: UnitKey, vocabulary: int) -> int:
    """Approximate bytes for fitting a unit: inputs summed by target, tables of inner products, counts behind M."""
    total = 0
    config = unit.config
    for shape in config.units().values():
        total += vocabulary * shape.inputs + min(vocabulary**2, 2**25) + shape.inputs * config.hidden_dimension
        total += config.hidden_dimension * vocabulary
    return 8 * 3 * (total + config.document_shards * vocabulary)


class Family:
    """Models that differ in their parts only, so that any left side can be combined with any radius.

    The left side of a model is its block unit, and its document model if it has one.
    """

    def __init__(self, cells: Sequence[PaperConfig], decoders: Mapping[UnitKey, Decoder]):
        lefts = [tuple(part for part in (block_unit(cell), document_unit(cell)) if part) for cell in cells]
        self.blocks = list(dict.fromkeys(block for block, *_ in lefts))
        self.documents = list(dict.fromkeys(document for _, *documents in lefts for document in documents))
        self.radii = list(dict.fromkeys(radius_unit(cell) for cell in cells))
        self.lefts: list[tuple[UnitKey, ...]] = sorted(
            dict.fromkeys([*((block,) for block in self.blocks), *lefts]), key=len
        )
        self.place = {
            cell: (self.lefts.index(left), self.radii.index(radius_unit(cell)))
            for cell, left in zip(cells, lefts, strict=True)
        }
        self.rows = self._rows(decoders)

    @staticmethod
    def divide(cells: Sequence[PaperConfig], decoders: Mapping[UnitKey, Decoder]) -> list[Family]:
        families: dict[PaperConfig, list[PaperConfig]] = {}
        for cell in cells:
            families.setdefault(replace(cell, **_defaults(*OF_ONE_PART)), []).append(cell)
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
