"""Units fitted alone: the parts that the models of a grid are put together from. Each is fitted once and kept.

A unit alone is a model with one part, whose priming number is 1, so its final decoder is log F itself (Eq. 3). Put
beside others it keeps those rows: with K parts, whose outputs h_p each sum to one,

    logits = Σ_p h_p·log F_p − (K−1)·log Σ_p Σ_d F_p,d
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from saffu import explicit, store
from saffu.corpus import Targets, TokenCorpus
from saffu.errors import SaffuError
from saffu.fit import ExplicitFit, stages
from saffu.grid import Part
from saffu.network import Network


@dataclass(frozen=True)
class Decoder:
    """What a part adds to the final decoder of a model."""

    rows: Tensor | None  # (outputs, N) log F, float32; None where the unit speaks to the vocabulary itself
    column_sum: Tensor  # (N,) Σ_d F, float64
    least_attention: float | None  # smallest entry of F(Q, V), per target


class Parts:
    """The fitted parts of one text, in a folder."""

    def __init__(self, folder: Path, text: str, corpus: TokenCorpus, vocabulary: int, device: torch.device | str):
        """`text` is the fingerprint of the corpus and its tokenizer."""
        self.folder, self.text, self.vocabulary, self.device = folder, text, vocabulary, device
        self.frequencies = corpus.frequencies(vocabulary).cpu()
        self.corpus = corpus.to(device)

    def path(self, part: Part) -> Path:
        digest = hashlib.sha256(f"{self.text} {part.key}".encode()).hexdigest()
        return self.folder / f"{part.name}-{digest[:20]}.safetensors"

    def has(self, part: Part) -> bool:
        """Whether it is there, whole; what is damaged is thrown away."""
        try:
            self._tensors(part)
        except SaffuError:
            self.path(part).unlink(missing_ok=True)
            return False
        except FileNotFoundError:
            return False
        return True

    def fit(self, part: Part) -> None:
        """Fit a part and keep it; fitting a document model keeps its block unit too."""
        config, corpus = part.config, self.corpus
        fragments = corpus.fragments(config.block) if config.block else 0
        fit = ExplicitFit(config, self.frequencies, corpus.documents, fragments, device=self.device)
        for _ in stages(fit, corpus):
            pass
        weights = {name: w for name, w in fit.network.state_dict().items() if name.startswith("units.")}
        unit = "block" if config.block else "radius"
        attention = fit.counts.get(f"{unit}.attention")
        if attention is not None:
            weights["least_attention"] = attention.F.min() / attention.targets
        if not config.hidden_dimension:
            # The units' product divides one prior out: half of it a part makes the column sums of two the prior.
            self._keep(part, weights | {"column_sum": torch.exp(fit.network.log_prior.double()) / 2})
            return
        F = fit.counts["final"].F + config.smoothing
        of_unit, of_documents = F[: config.hidden_dimension], F[config.hidden_dimension :]
        self._keep(Part(unit, replace(config, documents=0)), weights | decoder_tensors(of_unit))
        if config.documents:
            own = {f"units.{unit}.E": weights[f"units.{unit}.E"], "D": fit.network.D.detach()}
            self._keep(part, own | decoder_tensors(of_documents))

    def decoder(self, part: Part) -> Decoder:
        tensors = self._tensors(part)
        rows, least = tensors.get("rows"), tensors.get("least_attention")
        return Decoder(
            None if rows is None else rows.to(self.device),
            tensors["column_sum"].to(self.device),
            None if least is None else float(least),
        )

    def network(self, part: Part) -> Network:
        """The model of this part alone, its final decoder aside."""
        weights = {name: w for name, w in self._tensors(part).items() if name == "D" or name.startswith("units.")}
        embeddings = {name.split(".")[1]: w for name, w in weights.items() if name.endswith(".E")}
        network = Network(part.config, embeddings, self.vocabulary).requires_grad_(False)
        network.load_state_dict(weights, strict=False)
        return network.to(self.device)

    def _keep(self, part: Part, tensors: Mapping[str, Tensor]) -> None:
        store.write_file(self.path(part), store.to_safetensors(tensors))

    def _tensors(self, part: Part) -> dict[str, Tensor]:
        path = self.path(part)
        return store.from_safetensors(path.read_bytes(), str(path))


def decoder_tensors(F: Tensor) -> dict[str, Tensor]:
    return {"rows": torch.log(F).float(), "column_sum": F.sum(0)}


def outputs(part: Part, network: Network, batches: Iterable[Targets]) -> Tensor:
    """What a part tells the final decoder: distributions (n, outputs), or log-probabilities of the vocabulary."""
    told = []
    for targets in batches:
        if part.name == "document":
            told.append(explicit.distribution(network.document_inputs(targets) @ network.D))
        else:
            logits = network.unit_logits(part.name, targets)
            told.append(explicit.distribution(logits) if part.outputs else torch.log_softmax(logits, dim=1))
    return torch.cat(told)


def parameter_count(parts: list[Part], vocabulary: int) -> int:
    """All stored numbers of the model that these parts make up, the embeddings included."""
    total = 0 if parts[0].outputs else vocabulary  # the prior
    for part in parts:
        config, width = part.config, part.outputs or vocabulary
        if part.name == "document":
            total += config.block_dimension * width
        else:
            slots: int = getattr(config, part.name)
            dimension: int = getattr(config, f"{part.name}_dimension")
            joined = slots if getattr(config, f"{part.name}_mode") == "cat" else 1
            total += vocabulary * dimension + slots**2 + joined * dimension * width
        total += part.outputs * vocabulary
    return total


def fit_memory(part: Part, vocabulary: int) -> int:
    """About how many bytes fitting a part takes: inputs summed by target, tables of inner products, counts of M."""
    config = part.config
    unit = "block" if config.block else "radius"
    slots, dimension = int(getattr(config, unit)), int(getattr(config, f"{unit}_dimension"))
    inputs = dimension * (slots if getattr(config, f"{unit}_mode") == "cat" else 1)
    width = config.hidden_dimension or vocabulary
    tables = min(vocabulary**2, 2**25)
    decoders = inputs * width + (config.hidden_dimension + config.documents) * vocabulary
    return 8 * 3 * (vocabulary * inputs + tables + decoders)
