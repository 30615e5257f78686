"""The training text, divided into a part for the network and a small part to which only the gate is fitted."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saffu.companion.cross_fit import CrossFit, with_context
from saffu.companion.rows import held_out, training_rows
from saffu.companion.scoring import Flat, score
from saffu.companion.side import TrainedSide
from saffu.processes import SINGLE, ProcessGroup
from saffu.text.corpus import TokenCorpus

GATE_TARGETS = {"cpu": 10_000, "cuda": 20_000}  # of the training text that only the gate is fitted to


class Division:
    """`flat` holds all targets; the network is trained on those at the positions `kept`."""

    def __init__(self, cross_fit: CrossFit, context: int, device: torch.device) -> None:
        corpus, counted, certainty = cross_fit
        ranges = held_out(corpus.targets, GATE_TARGETS[device.type])
        held = np.zeros(corpus.targets, dtype=bool)
        for begin, end in ranges:
            held[begin:end] = True
        self.flat = Flat(corpus, counted, certainty, device)
        self.kept = torch.from_numpy(np.flatnonzero(~held))
        gaps = np.searchsorted(ranges[:, 0], np.arange(corpus.targets), side="right")
        self.flat.documents += torch.from_numpy(gaps).to(device, torch.int32)  # no row attends across a gap
        self.length = min(context, len(self.kept))  # of a row
        self.gate_text: TokenCorpus | None = None
        if len(ranges):
            self.gate_text, where = with_context(corpus, ranges, context)
            positions = np.where(where < 0, -1 - where, where)
            self.gate_targets = where >= 0
            self.gate_flat = Flat(self.gate_text, counted[positions], certainty[positions], device)

    def rows(self, rng: np.random.Generator, number: int = 1) -> Tensor:
        """The positions of an epoch, (K, rows, length), in a different order for each of `number` networks."""
        orders = np.stack([training_rows(len(self.kept), self.length, rng) for _ in range(number)])
        return self.kept[torch.from_numpy(orders)].to(self.flat.inputs.device)

    def calibrated(self, side: TrainedSide, group: ProcessGroup = SINGLE) -> TrainedSide:
        """A copy whose gate is calibrated on text that the network has not been trained on."""
        side = side.copy()
        if self.gate_text is not None:
            found = score(side.network, side.gate, self.gate_text, self.gate_flat, group=group)
            logit, trained = (torch.from_numpy(values[:, self.gate_targets]) for values in (found.logit, found.trained))
            side.gate.calibrate(logit, trained, self.gate_flat.counted.cpu()[self.gate_targets])
        return side
