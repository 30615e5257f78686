"""Which models an ablation compares: a cell is a `SaffuConfig`, a grid is a list of them.

And which units fitted alone they are made of. The units of a model never meet before its final decoder, so the models
of a grid share them: 245 cells come from 28 units and 7 document models.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from typing import Any

from saffu.config import PAPER, SaffuConfig
from saffu.errors import SaffuError

SIZES = (2, 4, 8, 16, 32, 64, 128)
MODES = ("sum/sum", "cat/sum", "sum/cat", "cat/cat")  # block/radius, in the order of the paper's tables
DOCUMENT_MODES = "sum/cat"  # where the paper adds its document model
DOCUMENTS = 256
SHAPE = ("block", "radius", "block_mode", "radius_mode", "documents")  # what the grid itself runs over
NOT_SWEPT = {*SHAPE, "calibrate", "held_out", "embedding", "store"}  # these are of calibrated networks
SWEPT = tuple(f.name for f in fields(SaffuConfig) if f.name in {*PAPER, "fold"} - NOT_SWEPT)
DEFAULTS: dict[str, Any] = {setting.name: setting.default for setting in fields(SaffuConfig)}


def grid(
    blocks: Sequence[int] = SIZES,
    radii: Sequence[int] = SIZES,
    modes: Sequence[str] = MODES,
    documents: int = DOCUMENTS,
    settings: Mapping[str, Sequence[Any]] | None = None,
) -> list[SaffuConfig]:
    """All cells, each once: every b with every r in every mode pair, under every combination of the settings.

    With `documents`, the pair sum/cat comes a second time, with a document model of so many shards (where it is not
    among the modes, all of them do).
    """
    for name, values in {"blocks": blocks, "radii": radii, **(settings or {})}.items():
        if not values:
            raise SaffuError(f"`{name}` has no value; give at least one")
    for name, size in [("blocks", b) for b in blocks] + [("radii", r) for r in radii]:
        if size < 2:
            raise SaffuError(f"{size} is among `{name}`, but attention needs at least 2 slots; use 2 or more")
    for pair in modes:
        if pair not in MODES:
            raise SaffuError(f"unknown modes {pair!r}; they are block/radius: {', '.join(MODES)}")
    variants = [(pair, 0) for pair in modes]
    if documents:
        variants += [(pair, documents) for pair in modes if pair == DOCUMENT_MODES or DOCUMENT_MODES not in modes]
    cells = []
    for values in product(*(settings or {}).values()):
        chosen = dict(zip(settings or {}, values, strict=True))
        for (pair, shards), radius, block in product(variants, radii, blocks):
            block_mode, radius_mode = pair.split("/")
            shape: dict[str, Any] = {"block_mode": block_mode, "radius_mode": radius_mode, "documents": shards}
            cells.append(SaffuConfig(**chosen, **shape, block=block, radius=radius))
    return list(dict.fromkeys(cells))


def cell_settings(config: SaffuConfig) -> dict[str, Any]:
    """What tells a cell from others of the same text."""
    return {name: getattr(config, name) for name in (*SHAPE, *SWEPT)}


def modes_of(config: SaffuConfig) -> str:
    return f"{config.block_mode}/{config.radius_mode}"


@dataclass(frozen=True)
class Part:
    """A unit fitted alone, or a document model: what a cell's final decoder reads on one of its sides."""

    name: str  # "block", "radius" or "document"
    config: SaffuConfig  # of a model that has this unit alone; for "document", the block unit with it

    @property
    def key(self) -> str:
        return json.dumps([self.name, cell_settings(self.config)])

    @property
    def outputs(self) -> int:
        """Width of its output; 0 stands for the vocabulary."""
        return self.config.documents if self.name == "document" else self.config.hidden_dimension


@cache
def block_part(cell: SaffuConfig) -> Part:
    return Part("block", replace(cell, radius=0, documents=0, **_defaults("radius_mode", "radius_dimension")))


@cache
def radius_part(cell: SaffuConfig) -> Part:
    return Part("radius", replace(cell, block=0, documents=0, **_defaults("block_mode", "block_dimension")))


@cache
def document_part(cell: SaffuConfig) -> Part | None:
    """It reads the block unit's embeddings, so each block size has its own."""
    if not cell.documents:
        return None
    return Part("document", replace(block_part(cell).config, documents=cell.documents))


def parts_of(cells: Sequence[SaffuConfig]) -> list[Part]:
    """All parts of some cells, each once; document models first, as fitting one fits its block unit too."""
    found = [make(cell) for make in (document_part, block_part, radius_part) for cell in cells]
    return list(dict.fromkeys(part for part in found if part))


def _defaults(*names: str) -> dict[str, Any]:
    return {name: DEFAULTS[name] for name in names}
