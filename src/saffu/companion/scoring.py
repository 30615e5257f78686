"""Scoring text in torch, while a network is trained or on a GPU: log-probabilities of targets, and the gate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from saffu.companion.gate import Gate, mixed
from saffu.companion.network import Network
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
        self.counted, self.certainty = put(counted, torch.float32), put(certainty, torch.float32)

    def forward(self, network: Network, gate: Gate, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gate's logit, trained and counted log-probabilities (n,) of targets at positions (rows, T)."""
        hidden = network.hidden(self.inputs[positions], self.documents[positions])
        chosen, hidden = positions.flatten(), hidden.flatten(0, 1)
        trained = network.target_log_probabilities(hidden, self.targets[chosen])
        return gate(hidden, self.certainty[chosen]), trained, self.counted[chosen]


class TrainedScores(NamedTuple):
    """One entry per target, (targets,) each."""

    mixture: Floats  # ln p
    trained: Floats  # ln p by the network alone
    logit: Floats  # of the gate


@torch.no_grad()
def score(
    network: Network,
    gate: Gate,
    corpus: TokenCorpus,
    flat: Flat,
    progress: str | None = None,
    group: ProcessGroup = SINGLE,
) -> TrainedScores:
    """Score a corpus with both sides together. Each target sees at least half a window, or everything before it."""
    was_training = network.training
    network.eval()
    positions, scored = scoring_rows(corpus, network.context)
    out = np.zeros((3, corpus.targets))
    at_once = max(1, TOKENS // network.context)
    with progress_bar(progress, total=corpus.targets) as bar:
        for row in range(group.rank * at_once, len(positions), group.size * at_once):
            part, wanted = positions[row : row + at_once], scored[row : row + at_once]
            rows = torch.from_numpy(part).to(flat.inputs.device)
            logit, trained, counted = flat.forward(network, gate, rows.clamp(min=0))
            values = torch.stack([mixed(logit, trained, counted), trained, logit]).cpu().numpy()
            out[:, part[wanted]] = values[:, wanted.ravel()]
            bar.update(int(wanted.sum()))
    network.train(was_training)
    return TrainedScores(*group.sum(out))
