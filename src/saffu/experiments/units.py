"""Units fitted on their own: what the models of a grid are assembled from. Each is fitted once and stored.

The final decoder of a model with one part is log F, because its priming number is 1 (Eq. 3). Next to other parts it
keeps those rows: with K parts, whose outputs h_p each sum to one,

    logits = Σ_p h_p·log F_p − (K−1)·log Σ_p Σ_d F_p,d
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saffu import files
from saffu.errors import SaffuError
from saffu.experiments.grid import UnitKey
from saffu.interface import Arrays
from saffu.paper.equations import distribution
from saffu.paper.fit import fit
from saffu.paper.network import Network
from saffu.paper.windows import Targets
from saffu.text.corpus import TokenCorpus


@dataclass(frozen=True)
class Decoder:
    """The contribution of a unit to the final decoder of a model."""

    rows: Tensor  # (outputs, N) log F, float32
    column_sum: Tensor  # (N,) Σ_d F, float64
    least_attention: float | None  # smallest entry of F(Q, V), per target


class FittedUnits:
    """The fitted units of one text, in a folder."""

    def __init__(self, folder: Path, text: str, corpus: TokenCorpus, vocabulary: int, device: torch.device | str):
        """`text` is a fingerprint of the corpus and its tokenizer."""
        self.folder = folder
        self.text = text
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.device = torch.device(device)

    def path(self, unit: UnitKey) -> Path:
        digest = hashlib.sha256(f"{self.text} {unit.key}".encode()).hexdigest()
        return self.folder / f"{unit.name}-{digest[:20]}.safetensors"

    def has(self, unit: UnitKey) -> bool:
        """Whether it is stored; a damaged file is deleted."""
        path = self.path(unit)
        if not path.exists():
            return False
        try:
            files.load_arrays(path)
        except SaffuError:
            path.unlink()
            return False
        return True

    def fit(self, unit: UnitKey) -> None:
        """Fit a unit and store it. A document model is fitted together with its block unit, which is stored too."""
        *_, stage = fit(self.corpus, self.vocabulary, unit.config, device=self.device)
        model: Any = stage.model
        network: Network = model.network
        least = stage.facts.get("least_attention", {})
        log_F = final_co_occurrences(network.M.detach().double(), len(network.parts))
        weights = {name: w for name, w in network.state_dict().items() if name.startswith(("units.", "document."))}
        stored = [unit]
        if unit.name == "document":
            stored.append(UnitKey("block", replace(unit.config, document_shards=0)))
        for key in stored:
            own = {name: w for name, w in weights.items() if key.name == "document" or "document." not in name}
            own["rows"] = log_F[network.parts[key.name]].float()
            if key.name in least:
                own["least_attention"] = torch.tensor(float(least[key.name]), dtype=torch.float64)
            files.write_file(self.path(key), {name: w.cpu().contiguous().numpy() for name, w in own.items()})

    def load(self, unit: UnitKey) -> tuple[Network, Decoder]:
        """The network that computes the unit's output (its own final decoder is empty), and the unit's decoder."""
        arrays = files.load_arrays(self.path(unit))
        return self._network(unit, arrays), self._decoder(arrays)

    def _network(self, unit: UnitKey, arrays: Arrays) -> Network:
        weights = {
            name: torch.from_numpy(array).to(self.device)
            for name, array in arrays.items()
            if name.startswith(("units.", "document."))
        }
        embeddings = {name.split(".")[1]: w for name, w in weights.items() if name.endswith(".E")}
        network = Network(unit.config, embeddings, self.vocabulary).requires_grad_(False)
        network.load_state_dict(weights, strict=False)
        return network

    def _decoder(self, arrays: Arrays) -> Decoder:
        rows = torch.from_numpy(arrays["rows"]).to(self.device)
        least = arrays.get("least_attention")
        return Decoder(rows, rows.double().exp().sum(0), None if least is None else float(least))


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
            inputs = shape.dimension * (shape.slots if shape.mode == "cat" else 1)
            total += vocabulary * shape.dimension + shape.slots**2 + inputs * unit.outputs
    return total


def fit_memory(unit: UnitKey, vocabulary: int) -> int:
    """Approximate bytes for fitting a unit: inputs summed by target, tables of inner products, counts behind M."""
    total = 0
    config = unit.config
    for shape in config.units().values():
        inputs = shape.dimension * (shape.slots if shape.mode == "cat" else 1)
        total += vocabulary * inputs + min(vocabulary**2, 2**25) + inputs * config.hidden_dimension
        total += config.hidden_dimension * vocabulary
    return 8 * 3 * (total + config.document_shards * vocabulary)
