"""The models that an ablation compares. A cell is a `PaperConfig`; a grid is a list of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from saffu.errors import SaffuError
from saffu.paper.config import PaperConfig

SIZES = (2, 4, 8, 16, 32, 64, 128)
MODES = ("sum/sum", "cat/sum", "sum/cat", "cat/cat")  # block/radius, in the order of the paper's tables
DOCUMENT_MODES = "sum/cat"  # where the paper adds its document model
DOCUMENT_SHARDS = 256
SHAPE = ("block", "radius", "block_mode", "radius_mode", "document_shards")  # varied within a grid
UNRELATED = {"seed"}  # changes no perplexity of a grid
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
    """The settings that differ from those of `printed`, in words.

    >>> reading_of(PaperConfig(smoothing=0.5, block=2))
    'smoothing 0.5'
    """
    changed = {name: getattr(config, name) for name in SWEPT if getattr(config, name) != DEFAULTS[name]}
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "printed"
