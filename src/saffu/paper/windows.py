"""The contexts of targets, as token ids: blocks and radii (Sec. 3).

A *block* is a marker (`<sod>` in the first block of a document, `<frg>` in later ones) and b − 1 tokens. A target sees
the part of its block that precedes it. A *radius* is the r places before the target. Empty slots hold `<pad>`:

    document  7 8 9 <eod>      target   block, b = 3          radius, r = 2
                               7        <sod> <pad> <pad>     <pad> <pad>
                               8        <sod> 7     <pad>     <pad> 7
                               9        <frg> <pad> <pad>     7     8
                               <eod>    <frg> 9     <pad>     8     9

Most slots of short contexts are `<pad>`, so a `Window` holds only a range of slots that covers the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from saffu.paper.config import PaperConfig
from saffu.paper.document_model import preceding_means
from saffu.paper.equations import gather
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import FRG, PAD, SOD

WINDOW_ROWS = {"cpu": 1 << 12, "cuda": 1 << 18}  # targets per window: enough to keep each operation efficient
WINDOW_SLOTS = {"cpu": 1 << 17, "cuda": 1 << 23}  # and slots of all of them
WIDTHS = (4, 8, 16, 32, 64)  # slots computed for a window whose unit has many more
FEW = {"cpu": 16, "cuda": 1 << 16}  # targets not worth grouping by width: on a GPU, asking for group sizes stalls it


class Targets(NamedTuple):
    """Targets of prediction and the tokens before them. The token d places before target m is tokens[offsets[m] − d].

    `tokens` has at least a model's `lookback` entries before each target.
    """

    ids: Tensor  # (n,) int64
    positions: Tensor  # (n,) place in the document, from 0
    documents: Tensor  # (n,) number of the document
    tokens: Tensor  # int32
    offsets: Tensor  # (n,)
    means: Tensor | None = None  # (n, D) mean embedding of the preceding tokens, if there is a document model


class Window(NamedTuple):
    """Contexts of some targets for a unit of K slots: J slots from `first` on; all other slots hold `<pad>`."""

    rows: Tensor  # (m,) which of the targets
    seen: Tensor  # (m, J) token ids, int32; if J < K, a last column holds `<pad>`, standing for all other slots
    query: Tensor  # (m,) token of the slot that queries attention
    first: int
    width: int  # J

    @property
    def ids(self) -> Tensor:
        """(m, J) token ids without the column for all other slots."""
        return self.seen[:, : self.width]

    @property
    def slots(self) -> slice:
        return slice(self.first, self.first + self.width)


def batches(
    corpus: TokenCorpus,
    size: int,
    lookback: int,
    device: torch.device | str = "cpu",
    *,
    first: int = 0,
    step: int = 1,
    embeddings: Tensor | None = None,
) -> Iterator[Targets]:
    """Runs of `size` consecutive targets: the batches first, first + step, first + 2·step, …

    With `embeddings`, targets come with the means that a document model reads.
    """
    starts = torch.tensor(corpus.starts, device=device)
    for lo in range(first * size, corpus.targets, step * size):
        hi = min(lo + size, corpus.targets)
        begin = max(0, lo - lookback)
        padded = np.full(hi - lo + lookback, PAD, dtype=np.int32)
        padded[begin - hi :] = corpus.ids[begin:hi]
        tokens = torch.from_numpy(padded).to(device)
        numbers = torch.arange(lo, hi, device=device)
        documents = torch.searchsorted(starts, numbers, right=True) - 1
        ids = tokens[lookback:].long()
        positions = numbers - starts[documents]
        means = None
        if embeddings is not None:
            history = corpus.ids[lo - int(positions[0]) : lo].astype(np.int64)
            means = preceding_means(embeddings, ids, positions, torch.from_numpy(history).to(device))
        offsets = torch.arange(lookback, len(tokens), device=device)
        yield Targets(ids, positions, documents + corpus.first_document, tokens, offsets, means)


def unit_windows(unit: str, targets: Targets, config: PaperConfig) -> Iterator[Window]:
    """The contexts of the "block" or the "radius" unit; every target appears in exactly one window."""
    if unit == "block":
        marker, reach = block_start(targets.positions, config)
        return _windows(targets, config.block, reach, marker)
    return _windows(targets, config.radius, targets.positions.int(), at_end=config.pad_side == "left")


def block_start(positions: Tensor, config: PaperConfig) -> tuple[Tensor, Tensor]:
    """The marker of each target's block (n,), and how many places before the target it stands (n,)."""
    content = config.block - 1  # tokens per block
    shift = 1 if config.block_advance == "shifted" else 0
    block = (positions - shift).clamp(min=0) // content  # i − 1
    return torch.where(block == 0, SOD, FRG).int(), (1 + positions - block * content).int()


def _windows(
    targets: Targets, slots: int, reach: Tensor, marker: Tensor | None = None, at_end: bool = False
) -> Iterator[Window]:
    """Windows of targets that see the `reach` (n,) places before them, the farthest of which holds the marker.

    If they are more than there are slots, the nearest ones. The slot before the target is the last one (`at_end`), or
    the first one holds the farthest place.
    """
    for rows, width in _by_width(reach.clamp(max=slots), slots):
        context = _Context(targets.tokens, targets.offsets.int(), reach, marker)
        if len(rows) < len(reach):
            context = context.of(rows)
        first = slots - width if at_end else 0
        slot = torch.arange(first, first + width + (width < slots), device=rows.device, dtype=torch.int32)
        farthest = slots if at_end else context.reach.clamp(max=slots)[:, None]
        yield Window(rows, context.at(farthest - slot), context.at(slot.new_ones(1)).squeeze(1), first, width)


class _Context(NamedTuple):
    """The places that some targets can see."""

    tokens: Tensor
    offsets: Tensor  # (m,) int32
    reach: Tensor  # (m,) int32
    marker: Tensor | None  # (m,) int32

    def of(self, rows: Tensor) -> _Context:
        marker = None if self.marker is None else gather(self.marker, rows)
        return _Context(self.tokens, gather(self.offsets, rows), gather(self.reach, rows), marker)

    def at(self, distance: Tensor) -> Tensor:
        """The tokens at a distance (m, J) or (J,) before each target, (m, J): `<pad>` where there is nothing to see."""
        seen = gather(self.tokens, self.offsets[:, None] - distance.clamp(min=0))
        seen.masked_fill_((distance < 1) | (distance > self.reach[:, None]), PAD)
        if self.marker is None:
            return seen
        return torch.where(distance == self.reach[:, None], self.marker[:, None], seen)


def _by_width(filled: Tensor, slots: int) -> Iterator[tuple[Tensor, int]]:
    """Group targets that fill about as many slots (n,), so that short contexts do not cost as much as long ones."""
    device = "cuda" if filled.is_cuda else "cpu"
    widths = [width for width in WIDTHS if width < slots] + [slots]
    if slots <= 8 or len(filled) <= FEW[device]:
        width = slots if slots <= 8 or device == "cuda" else next(w for w in widths if w >= int(filled.max()))
        groups = [(torch.arange(len(filled), device=filled.device), width)]
    else:
        groups = [
            (((filled > narrower) & (filled <= width)).nonzero().squeeze(1), width)
            for narrower, width in zip([-1, *widths], widths, strict=False)
        ]
    for rows, width in groups:
        for part in rows.split(min(WINDOW_ROWS[device], WINDOW_SLOTS[device] // width)):
            if len(part):
                yield part, width
