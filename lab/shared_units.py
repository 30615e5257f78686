"""Units of many readings of the paper at once, with uniform attention, from sums that the readings share.

Explicit attention is almost uniform (claim 5), and under uniform attention every slot of a unit weighs log K. Then a
unit's decoder follows from how often each token stands in each slot next to each target, whatever the base of the
logarithm, the embedding of `<pad>`, and D_H are. With w the weight of a slot, F = wF', and f the column sums of F',

    H·U = w·Σ_k E[x_k]·(log F'_k − log f) + m/K·log f + a constant,    m = Σ_k ‖E[x_k]‖₁

so a text's windows are built once, its inputs are summed once per embedding, and both bases share the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding, embedding_bag

from saffu.experiments.scoring import GridCorpus
from saffu.paper import cipher, equations
from saffu.paper.config import COUNTED_MARKERS, PaperConfig
from saffu.paper.fit import unit_embeddings
from saffu.paper.parts import Decoder, Family, UnitKey, units_of
from saffu.paper.windows import batches, unit_windows
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import PAD

TARGETS = 1 << 18  # whose windows are built at a time
ENTRIES = 1 << 22  # slots whose embeddings are added at a time
SCORED = {"cpu": 1 << 6, "cuda": 1 << 11}  # targets scored at a time
BASES: tuple[Literal["decimal", "natural"], ...] = ("decimal", "natural")


class Layout(NamedTuple):
    """The slots of a unit that hold tokens, target by target; all other slots hold `<pad>`."""

    tokens: Tensor  # (entries,) int32
    slots: Tensor  # (entries,) int32
    lengths: Tensor  # (n,) number of entries of each target
    begins: Tensor  # (n,) the first of them, int32
    order: Tensor  # (n,) the place of each target in its text
    ids: Tensor  # (n,) the targets


class Solved(NamedTuple):
    """A unit under one base: what it adds to the final decoder, and its outputs on the held-out sample."""

    decoder: Decoder
    hidden: Tensor  # (n, D_H)


def layout_of(unit: UnitKey, corpus: TokenCorpus, device: torch.device) -> Layout:
    config = unit.config
    parts = []
    seen = 0
    for targets in batches(corpus, TARGETS, config.lookback, device):
        for window in unit_windows(unit.name, targets, config):
            filled = window.ids != PAD  # (m, J)
            slots = torch.arange(window.first, window.first + window.width, device=device, dtype=torch.int32)
            tokens = window.ids[filled]
            places = slots.expand_as(filled)[filled]
            parts.append((tokens, places, filled.sum(1), window.rows + seen, targets.ids[window.rows]))
        seen += len(targets.ids)
    tokens, slots, lengths, order, ids = (torch.cat(column) for column in zip(*parts, strict=True))
    return Layout(tokens, slots, lengths, (lengths.cumsum(0) - lengths).int(), order, ids)


class SharedUnits:
    """The units of one text, solved as they are asked for; everything that further units can use is kept."""

    def __init__(self, corpus: GridCorpus, device: torch.device | str):
        self.corpus = corpus
        self.device = torch.device(device)
        self.frequencies = torch.from_numpy(corpus.train.frequencies(corpus.vocabulary)).to(self.device)
        self.layouts: dict[tuple[UnitKey, str], Layout] = {}
        self.sums: dict[UnitKey, tuple[Tensor, Tensor]] = {}
        self.solved: dict[UnitKey, Solved] = {}
        self.embedded: dict[tuple[Any, ...], Tensor] = {}
        self.bits: dict[int, Tensor] = {}

    def embeddings(self, unit: UnitKey) -> Tensor:
        """E (N, D) of a unit, float32."""
        config = unit.config
        markers = unit.config.special_noise in COUNTED_MARKERS
        counted = (config.block, config.block_advance, config.radius_span) if markers else ()
        key = unit.name, config.units()[unit.name].dimension, config.special_noise, counted
        if key not in self.embedded:
            E = unit_embeddings(unit.name, self.corpus.train, self.corpus.vocabulary, config)
            self.embedded[key] = E.float().to(self.device)
        return self.embedded[key]

    def hidden_bits(self, width: int) -> Tensor:
        """Z (N, D_H), float32."""
        if width not in self.bits:
            self.bits[width] = cipher.bit_vectors(self.frequencies.cpu(), width).float().to(self.device)
        return self.bits[width]

    def layout(self, unit: UnitKey, sample: str) -> Layout:
        """The layout of the "train" text, or of the "dev" sample."""
        shape = UnitKey(unit.name, plain(unit.config, "special_noise", "slot_weight", "hidden_dimension", "smoothing"))
        shape = UnitKey(shape.name, plain(shape.config, f"{unit.name}_mode", "hidden_targets", "attention"))
        key = shape, sample
        if key not in self.layouts:
            corpus = self.corpus.train if sample == "train" else self.corpus.samples["dev"]
            self.layouts[key] = layout_of(unit, corpus, self.device)
        return self.layouts[key]

    def inputs(self, unit: UnitKey) -> tuple[Tensor, Tensor]:
        """The tokens' embeddings summed by target (N, K or 1, D), and the number of tokens (N, K or 1).

        `<pad>` is left out, so these are the same whatever its embedding is.
        """
        noise: dict[str, Any] = {"zero": "pure", "zero-padding": "padding"}
        config = replace(unit.config, special_noise=noise.get(unit.config.special_noise, unit.config.special_noise))
        config = plain(config, "slot_weight", "hidden_dimension", "smoothing")
        key = UnitKey(unit.name, plain(config, "hidden_targets", "attention"))
        if key not in self.sums:
            layout = self.layout(unit, "train")
            shape = unit.config.units()[unit.name]
            slots = shape.slots if shape.mode == "cat" else 1
            E = self.embeddings(key)
            row = torch.repeat_interleave(layout.ids, layout.lengths) * slots
            if slots > 1:
                row += layout.slots
            sums = E.new_zeros(self.corpus.vocabulary * slots, shape.dimension)
            for lo in range(0, len(row), ENTRIES):
                sums.index_add_(0, row[lo : lo + ENTRIES], embedding(layout.tokens[lo : lo + ENTRIES], E))
            numbers = torch.bincount(row, minlength=len(sums)).view(-1, slots)
            self.sums[key] = sums.view(-1, slots, shape.dimension), numbers
        return self.sums[key]

    def solve(self, unit: UnitKey) -> Solved:
        """A unit with the base of its `slot_weight`. The other base is solved along with it."""
        if unit not in self.solved:
            self._solve_bases(unit)
        return self.solved[unit]

    @torch.no_grad()
    def _solve_bases(self, unit: UnitKey) -> None:
        config, (slots, mode, _) = unit.config, unit.config.units()[unit.name]
        sums, numbers = self.inputs(unit)
        E = self.embeddings(unit)
        per_slot = 1 if mode == "cat" else slots
        empty = self.frequencies[:, None] * per_slot - numbers  # (N, K or 1)
        S = torch.addcmul(sums, empty[:, :, None].float(), E[PAD])  # (N, K or 1, D)
        bits = self.hidden_bits(config.hidden_dimension)
        if config.hidden_targets == "normalized":
            bits = bits / bits.sum(1, keepdim=True)
        F = S.flatten(1).T @ bits  # F' (K·D or D, D_H)
        unseen = F.sum(0) == 0
        F = equations.fill_unseen(F, config.smoothing)
        log_f = F.sum(0).log()
        L = (F.log() - log_f).view(-1, E.shape[1], config.hidden_dimension)  # (K or 1, D, D_H)
        layouts = {sample: self.layout(unit, sample) for sample in ("train", "dev")}
        logits = {sample: unit_logits(mode, slots, layout, E, L) for sample, layout in layouts.items()}
        for base in BASES:
            weight = equations.uniform_weight(slots, base)
            solved_log_f = log_f - unseen * math.log(weight)  # F = wF', but unseen columns are filled alike
            outputs = {}
            for sample, layout in layouts.items():
                norm = layout.lengths + (slots - layout.lengths) * E[PAD].sum()  # m
                outputs[sample] = torch.softmax(weight * logits[sample] + (norm / slots)[:, None] * solved_log_f, dim=1)
            F = E.new_zeros(self.corpus.vocabulary, config.hidden_dimension)
            F.index_add_(0, layouts["train"].ids, outputs["train"])
            F += config.smoothing
            hidden = torch.empty_like(outputs["dev"])
            hidden[layouts["dev"].order] = outputs["dev"]
            decoder = Decoder(F.T.log(), F.double().sum(1), None)
            self.solved[UnitKey(unit.name, replace(config, slot_weight=base))] = Solved(decoder, hidden)

    def nats(self, cells: Iterable[PaperConfig]) -> dict[PaperConfig, float]:
        """The dev log-perplexity of each cell."""
        cells = list(cells)
        solved = {unit: self.solve(unit) for unit in units_of(cells)}
        ids = torch.from_numpy(self.corpus.samples["dev"].ids.astype("int64")).to(self.device)
        families = Family.divide(cells, {unit: part.decoder for unit, part in solved.items()})
        losses = [torch.zeros(len(f.lefts), len(f.radii), dtype=torch.float64, device=self.device) for f in families]
        size = SCORED[self.device.type]
        for lo in range(0, len(ids), size):
            for family, loss in zip(families, losses, strict=True):
                hidden = {unit: part.hidden[lo : lo + size] for unit, part in solved.items()}
                loss += family.nll(hidden, ids[lo : lo + size])
        means = [(loss / len(ids)).tolist() for loss in losses]
        return {cell: cell_value(cell, families, means) for cell in cells}


def unit_logits(mode: str, slots: int, layout: Layout, E: Tensor, L: Tensor) -> Tensor:
    """Σ_k E[x_k]·L_k (n, D_H), in the order of the layout."""
    if mode == "sum":
        H = embedding_bag(layout.tokens, E, layout.begins, mode="sum")
        empty = slots - layout.lengths
        return torch.addcmul(H, empty[:, None].float(), E[PAD]) @ L[0]
    decoded = E @ L  # (K, N, D_H): what each token adds in each slot
    everywhere = decoded[:, PAD].sum(0)
    decoded = (decoded - decoded[:, PAD, None]).flatten(0, 1)
    row = layout.tokens + len(E) * layout.slots
    return embedding_bag(row, decoded, layout.begins, mode="sum") + everywhere


def cell_value(cell: PaperConfig, families: list[Family], tables: list[list[list[float]]]) -> float:
    """The entry of a cell in the table of its family."""
    for family, table in zip(families, tables, strict=True):
        if place := family.place.get(cell):
            return table[place[0]][place[1]]
    raise KeyError(cell)


def plain(config: PaperConfig, *names: str) -> PaperConfig:
    """The configuration with the defaults of some settings: of those that do not matter here."""
    default = PaperConfig()
    return replace(config, **{name: getattr(default, name) for name in names})
