"""The models that an ablation compares. A cell is a `PaperConfig`; a grid is a list of cells.

Also lists the units that the cells are assembled from. The units of a model only meet in its final decoder, so the
models of a grid share them: 245 cells are made of 28 units and a document model. Radial units that pass through blocks
depend on them: with `radius_span` blocks, there are 98 of them instead of 14.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from saffu.errors import SaffuError
from saffu.paper.config import COUNTED_MARKERS, PaperConfig

SIZES = (2, 4, 8, 16, 32, 64, 128)
MODES = ("sum/sum", "cat/sum", "sum/cat", "cat/cat")  # block/radius, in the order of the paper's tables
DOCUMENT_MODES = "sum/cat"  # where the paper adds its document model
DOCUMENT_SHARDS = 256
SHAPE = ("block", "radius", "block_mode", "radius_mode", "document_shards")  # varied within a grid
UNRELATED = {"seed", "save_dtype"}  # settings that change no perplexity of a grid
SWEPT = tuple(entry.name for entry in fields(PaperConfig) if entry.name not in {*SHAPE, *UNRELATED})
DEFAULTS: dict[str, Any] = {entry.name: entry.default for entry in fields(PaperConfig)}

CellKey = tuple[str, bool, int, int]
"""Modes ("block/radius"), whether there is a document model, b, r: enough to find a cell in the paper's tables."""


def grid(
    blocks: Sequence[int] = SIZES,
    radii: Sequence[int] = SIZES,
    modes: Sequence[str] = MODES,
    document_shards: int = DOCUMENT_SHARDS,
    settings: Mapping[str, Sequence[Any]] | None = None,
) -> list[PaperConfig]:
    """All cells: every b with every r in every pair of modes, under every combination of `settings`.

    With `document_shards`, the pair sum/cat also appears with a document model (all pairs do if sum/cat is not
    among them).

    >>> [(cell.block, cell.radius) for cell in grid([2, 4], [8], ["sum/cat"], document_shards=0)]
    [(2, 8), (4, 8)]
    """
    for name, values in {"blocks": blocks, "radii": radii, "modes": modes, **(settings or {})}.items():
        if not values:
            raise SaffuError(f"`{name}` is empty; pass at least one value")
    if unknown := [name for name in settings or {} if name not in SWEPT]:
        raise SaffuError(f"cannot sweep `{unknown[0]}`; choose from {', '.join(SWEPT)}")
    for name, size in [("blocks", b) for b in blocks] + [("radii", r) for r in radii]:
        if size < 2:
            raise SaffuError(f"`{name}` must be at least 2, got {size}: attention needs two slots")
    for pair in modes:
        if pair not in MODES:
            raise SaffuError(f"unknown `modes` {pair!r}; choose block/radius modes from {', '.join(MODES)}")
    variants = [(pair, 0) for pair in modes]
    if document_shards:
        variants += [(pair, document_shards) for pair in modes if pair == DOCUMENT_MODES or DOCUMENT_MODES not in modes]
    cells = []
    for values in product(*(settings or {}).values()):
        changes = dict(zip(settings or {}, values, strict=True))
        for (pair, shards), radius, block in product(variants, radii, blocks):
            block_mode, radius_mode = pair.split("/")
            shape: dict[str, Any] = {"block_mode": block_mode, "radius_mode": radius_mode, "document_shards": shards}
            cells.append(PaperConfig(**changes, **shape, block=block, radius=radius))
    return list(dict.fromkeys(cells))


def cell_settings(config: PaperConfig) -> dict[str, Any]:
    """Everything that distinguishes a cell from the other cells of the same text."""
    return {name: getattr(config, name) for name in (*SHAPE, *SWEPT)}


def modes_of(config: PaperConfig) -> str:
    return f"{config.block_mode}/{config.radius_mode}"


def key_of(config: PaperConfig) -> CellKey:
    return modes_of(config), bool(config.document_shards), config.block, config.radius


def title_of(modes: str, documents: bool) -> str:
    """The name of a table of cells."""
    return modes + (" + documents" if documents else "")


def reading_of(config: PaperConfig) -> str:
    """The settings that differ from the defaults, in words.

    >>> reading_of(PaperConfig(smoothing=0.5, block=2))
    'smoothing 0.5'
    """
    changed = {name: getattr(config, name) for name in SWEPT if getattr(config, name) != DEFAULTS[name]}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "default settings"


@dataclass(frozen=True)
class UnitKey:
    """A unit fitted on its own, or a document model: one input of a cell's final decoder."""

    name: str  # "block", "radius", or "document"
    config: PaperConfig  # of the model with this unit alone; for "document", of the block unit together with it

    @property
    def key(self) -> str:
        return json.dumps([self.name, cell_settings(self.config)])

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


def through_blocks(cell: PaperConfig) -> bool:
    """Whether the cell's radial unit depends on b."""
    return cell.radius_span in ("blocks", "block")


@cache
def block_unit(cell: PaperConfig) -> UnitKey:
    alone: dict[str, Any] = {"radius": 0, "document_shards": 0, "radius_span": "document"}
    alone["gap"] = "block" if cell.skips("block") else "none"
    return UnitKey("block", replace(cell, **alone, **_defaults("radius_mode", "radius_dimension", "radius_padding")))


@cache
def radius_unit(cell: PaperConfig) -> UnitKey:
    """The cell's radial unit. If its span depends on b, it is fitted with that block."""
    alone: dict[str, Any] = {"document_shards": 0, **_defaults("block_mode", "block_dimension", "padding")}
    alone["gap"] = "radius" if cell.skips("radius") else "none"
    if not through_blocks(cell):
        alone |= {"block": 0, **_defaults("block_advance")}
    return UnitKey("radius", replace(cell, **alone))


@cache
def document_unit(cell: PaperConfig) -> UnitKey | None:
    """The cell's document model, next to the smallest block unit that has the same embeddings, which are all it reads.

    Where markers are counted, these depend on the blocks; otherwise, a grid has a single document model.
    """
    if not cell.document_shards:
        return None
    config = block_unit(cell).config
    if config.special_noise not in COUNTED_MARKERS:
        config = replace(config, block=2, gap="none", **_defaults("block_mode", "block_advance", "padding"))
    return UnitKey("document", replace(config, document_shards=cell.document_shards))


def units_of(cells: Sequence[PaperConfig]) -> list[UnitKey]:
    """All units of some cells, each once. Document models come first: fitting one also fits its block unit."""
    units = [unit(cell) for unit in (document_unit, block_unit, radius_unit) for cell in cells]
    return list(dict.fromkeys(unit for unit in units if unit))


def _defaults(*names: str) -> dict[str, Any]:
    return {name: DEFAULTS[name] for name in names}
