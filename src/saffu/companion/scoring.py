"""Scoring text in torch, while networks are trained or on a GPU: log-probabilities of targets, and the gates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from saffu.companion.gate import Gates, averaged, mixed
from saffu.companion.network import NetworkStack
from saffu.companion.rows import documents_of, inputs_of, scoring_rows
from saffu.interface import Array, Floats
from saffu.processes import SINGLE, ProcessGroup
from saffu.progress import progress_bar
from saffu.text.corpus import TokenCorpus

TOKENS = 1 << 14  # scored at a time


class Flat:
    """A corpus and its counted log-probabilities on a device: one entry per target."""

    def __init__(self, corpus: TokenCorpus, counted: Floats, certainty: Array, device: torch.device) -> None:
        def put(array: Array, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        self.targets = put(corpus.ids.astype(np.int32), torch.int64)
        self.inputs = put(inputs_of(corpus), torch.int64)
        self.documents = put(documents_of(corpus), torch.int32)
        self.counted = put(counted, torch.float32)
        self.certainty = put(certainty, torch.float32)

    def forward(self, networks: NetworkStack, gates: Gates, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gates' logits, trained and counted log-probabilities (K, n) of targets at positions (K, rows, T).

        Positions (rows, T) are those of all networks.
        """
        hidden = networks.hidden(self.inputs[positions], self.documents[positions])
        places = positions.flatten(-2)  # ([K,] n)
        trained = networks.target_log_probabilities(hidden, self.targets[places])
        return gates(hidden, self.certainty[places]), trained, self.counted[places].expand_as(trained)


class TrainedScores(NamedTuple):
    """One entry per target."""

    mixture: Floats  # ln p (targets,)
    network: Floats  # ln p by the networks alone (targets,)
    trained: Floats  # ln p by each network (K, targets)
    logit: Floats  # of its gate (K, targets)


@torch.no_grad()
def score(
    networks: NetworkStack,
    gates: Gates,
    corpus: TokenCorpus,
    flat: Flat,
    progress: str | None = None,
    group: ProcessGroup = SINGLE,
) -> TrainedScores:
    """Score a corpus with both sides together. Each target sees at least half a window, or everything before it."""
    was_training = networks.training
    networks.eval()
    positions, scored = scoring_rows(corpus, networks.context)
    number = networks.number
    out = np.zeros((2 + 2 * number, corpus.targets))
    at_once = max(1, TOKENS // networks.context // number)
    with progress_bar(progress, total=corpus.targets) as bar:
        for row in range(group.rank * at_once, len(positions), group.size * at_once):
            part = positions[row : row + at_once]
            wanted = scored[row : row + at_once]
            rows = torch.from_numpy(part).to(flat.inputs.device)
            logit, trained, counted = flat.forward(networks, gates, rows.clamp(min=0))
            mixture = averaged(mixed(logit, trained, counted))
            values = torch.cat([mixture[None], averaged(trained)[None], trained, logit]).cpu().numpy()
            out[:, part[wanted]] = values[:, wanted.ravel()]
            bar.update(int(wanted.sum()))
    networks.train(was_training)
    out = group.sum(out)
    return TrainedScores(out[0], out[1], out[2 : 2 + number], out[2 + number :])
