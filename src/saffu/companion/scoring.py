"""Text in torch, while networks are trained or on a GPU: divided between networks and gates, and scored by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from saffu.companion.cross_fit import CrossFit, with_context
from saffu.companion.gate import Gates, averaged, is_clear, mixed
from saffu.companion.network import NetworkStack
from saffu.companion.rows import documents_of, held_out, inputs_of, scoring_rows, training_rows
from saffu.format import progress_bar
from saffu.interface import Array, Floats
from saffu.text.corpus import TokenCorpus

if TYPE_CHECKING:
    from saffu.companion.torch_networks import TorchNetworks

TOKENS = 1 << 14  # scored at a time
GATE_TARGETS = {"cpu": 10_000, "cuda": 20_000}  # of the training text that only the gate is fitted to
TEMPERATURES = (1.06, 1.12, 1.18, 1.25, 1.32, 1.4)


class DeviceCorpus:
    """A corpus and its counted log-probabilities on a device: one entry per target."""

    def __init__(self, corpus: TokenCorpus, counted: Floats, certainty: Array, device: torch.device) -> None:
        def put(array: Array, dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        self.targets = put(corpus.ids.astype(np.int32), torch.int64)
        self.inputs = put(inputs_of(corpus), torch.int64)
        self.documents = put(documents_of(corpus), torch.int32)
        self.counted = put(counted, torch.float32)
        self.certainty = put(certainty, torch.float32)
        self.youth = self.certainty[:, -1]

    def forward(self, networks: NetworkStack, gates: Gates, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The gates' logits, trained and counted log-probabilities (K, n) of targets at positions (K, rows, T).

        Positions (rows, T) are those of all networks.
        """
        embeddings = networks.embeddings()
        hidden = networks.hidden(self.inputs[positions], self.documents[positions], embeddings)
        places = positions.flatten(-2)  # ([K,] n)
        trained = networks.target_log_probabilities(hidden, self.targets[places], embeddings)
        return gates(hidden, self.certainty[places]), trained, self.counted[places].expand_as(trained)


class TrainedScores(NamedTuple):
    """One entry per target."""

    mixture: Floats  # ln p (targets,)
    network: Floats  # ln p by the networks alone (targets,)
    trained: Floats  # ln p by each network (K, targets)
    logit: Floats  # of its gate (K, targets)


@torch.no_grad()
def score(
    networks: NetworkStack, gates: Gates, corpus: TokenCorpus, flat: DeviceCorpus, progress: str | None = None
) -> TrainedScores:
    """Score a corpus with both sides together. Each target sees at least half a window, or everything before it."""
    was_training = networks.training
    networks.eval()
    positions, scored = scoring_rows(corpus, networks.context)
    number = networks.number
    out = np.zeros((2 + 2 * number, corpus.targets))
    at_once = max(1, TOKENS // networks.context // number)
    with progress_bar(progress, total=corpus.targets) as bar:
        for row in range(0, len(positions), at_once):
            part = positions[row : row + at_once]
            wanted = scored[row : row + at_once]
            rows = torch.from_numpy(part).to(flat.inputs.device)
            logit, trained, counted = flat.forward(networks, gates, rows.clamp(min=0))
            mixture = averaged(mixed(logit, trained, counted))
            values = torch.cat([mixture[None], averaged(trained)[None], trained, logit]).cpu().numpy()
            out[:, part[wanted]] = values[:, wanted.ravel()]
            bar.update(int(wanted.sum()))
    networks.train(was_training)
    return TrainedScores(out[0], out[1], out[2 : 2 + number], out[2 + number :])


class Division:
    """The training text, divided into a part for the network and a small part to which only the gate is fitted.

    `flat` holds all targets; the network is trained on those at the positions `kept`.
    """

    def __init__(self, cross_fit: CrossFit, context: int, device: torch.device) -> None:
        corpus, counted, certainty = cross_fit
        ranges = held_out(counted, GATE_TARGETS[device.type])
        is_held_out = np.zeros(corpus.targets, dtype=bool)
        for begin, end in ranges:
            is_held_out[begin:end] = True
        self.flat = DeviceCorpus(corpus, counted, certainty, device)
        self.kept = torch.from_numpy(np.flatnonzero(~is_held_out))
        gaps = np.searchsorted(ranges[:, 0], np.arange(corpus.targets), side="right")
        self.flat.documents += torch.from_numpy(gaps).to(device, torch.int32)  # no row attends across a gap
        self.length = min(context, len(self.kept))  # of a row
        self.gate_text: TokenCorpus | None = None
        if len(ranges):
            self.gate_text, where = with_context(corpus, ranges, context)
            positions = np.where(where < 0, -1 - where, where)
            self.gate_targets = where >= 0
            self.gate_flat = DeviceCorpus(self.gate_text, counted[positions], certainty[positions], device)

    def rows(self, rng: np.random.Generator, number: int = 1) -> Tensor:
        """The positions of an epoch, (K, rows, length), in a different order for each of `number` networks."""
        orders = np.stack([training_rows(len(self.kept), self.length, rng) for _ in range(number)])
        return self.kept[torch.from_numpy(orders)].to(self.flat.inputs.device)

    def calibrated(self, networks: TorchNetworks) -> TorchNetworks:
        """A copy whose gates and temperature are fitted to text that the networks have not been trained on.

        Networks that have read a text often are too sure of themselves elsewhere, so the temperature rises from 1 as
        long as the mixture gets better; it stays 1 unless the gain is clear.
        """
        if self.gate_text is None:
            return networks.copy()
        plain, plain_gains = self._with_fitted_gates(networks, 1.0)
        best = plain
        best_gains = plain_gains
        for temperature in TEMPERATURES:
            softer, gains = self._with_fitted_gates(networks, temperature)
            if gains.mean() <= best_gains.mean():
                break
            best = softer
            best_gains = gains
        return best if is_clear(best_gains - plain_gains) else plain

    def _with_fitted_gates(self, networks: TorchNetworks, temperature: float) -> tuple[TorchNetworks, Tensor]:
        """A copy at a temperature whose gates fit it best, and what it gains over the counts at each target."""
        assert self.gate_text is not None
        networks = networks.copy()
        networks.stack.soften(temperature)
        scores = score(networks.stack, networks.gates, self.gate_text, self.gate_flat)
        logit, trained = (torch.from_numpy(values[:, self.gate_targets]) for values in (scores.logit, scores.trained))
        counted, youth = (values.cpu()[self.gate_targets] for values in (self.gate_flat.counted, self.gate_flat.youth))
        logit = networks.gates.calibrate(logit, trained, counted, youth)
        return networks, averaged(mixed(logit, trained, counted)) - counted
