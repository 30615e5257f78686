"""The network: a block unit, a radial unit, an optional document model, and the decoder of their outputs (Sec. 3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from saffu.paper.config import PaperConfig
from saffu.paper.document_model import DocumentModel
from saffu.paper.equations import distribution
from saffu.paper.unit import Unit, UnitTables
from saffu.paper.windows import Targets, batches, unit_windows
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

Tables = Mapping[str, UnitTables]
LOGITS = {"cpu": 1 << 22, "cuda": 1 << 27}  # logits computed at a time


class Network(nn.Module):
    """softmax([block unit, radial unit, document model]·M): each part yields a distribution, M decodes all of them."""

    M: nn.Parameter  # (Σ outputs of the parts, N) the final decoder

    def __init__(self, config: PaperConfig, embeddings: Mapping[str, Tensor], vocabulary: int):
        """`embeddings` (N, D) by the names of the units. Attention is uniform and all decoders are zero."""
        super().__init__()
        self.config = config
        self.vocabulary = vocabulary
        self.units: Mapping[str, Unit] = nn.ModuleDict()  # type: ignore[assignment]
        for name, shape in config.units().items():
            unit = Unit(embeddings[name], shape, config.hidden_dimension)
            self.units[name] = unit  # type: ignore[index]
        self.document: DocumentModel | None = None
        if config.document_shards:
            self.document = DocumentModel(self.document_embeddings.shape[1], config.document_shards)
        sizes = [config.hidden_dimension] * len(self.units) + [config.document_shards] * bool(config.document_shards)
        ends = accumulate(sizes, initial=0)
        names = [*self.units, "document"][: len(sizes)]
        self.parts = {name: slice(a, b) for name, (a, b) in zip(names, pairwise(ends), strict=True)}  # rows of M
        self.M = nn.Parameter(torch.zeros(sum(sizes), vocabulary))
        self.to(self.document_embeddings)  # its device and dtype

    @property
    def lookback(self) -> int:
        """How many tokens before a target its windows reach."""
        return self.config.lookback

    @property
    def device(self) -> torch.device:
        return self.M.device

    @property
    def document_embeddings(self) -> Tensor:
        """E (N, D) of the document model: the first unit's."""
        return next(iter(self.units.values())).E

    def set_dropout(self, probability: float) -> None:
        """Drop inputs of the units' decoders with this probability while training."""
        for unit in self.units.values():
            unit.dropout.p = probability

    def tables(self, decode: bool = True) -> Tables:
        """Look-ups for the weights as they are now; without `decode`, only those that depend on E alone."""
        return {name: unit.tables(decode) for name, unit in self.units.items()}

    def batches(
        self, corpus: TokenCorpus, size: int, first: int = 0, step: int = 1, with_means: bool = True
    ) -> Iterator[Targets]:
        """Runs of `size` targets on the network's device: the batches first, first + step, …

        They come with what a document model reads, if there is one, unless that is not needed.
        """
        embeddings = self.document_embeddings if self.document and with_means else None
        return batches(corpus, size, self.lookback, self.device, first=first, step=step, embeddings=embeddings)

    def batch_size(self) -> int:
        """Targets to predict at a time; on a CPU about 16 MB of logits, which the allocator reuses."""
        return max(64, LOGITS[self.device.type] // self.vocabulary)

    def unit_logits(self, name: str, targets: Targets, tables: Tables | None = None) -> Tensor:
        """The logits of a unit in the order of the targets, (n, D_H)."""
        windows = list(unit_windows(name, targets, self.config))
        unit_tables = tables[name] if tables else None
        logits = torch.cat([self.units[name](window, unit_tables) for window in windows])
        if len(windows) == 1:
            return logits
        order = torch.cat([window.rows for window in windows])
        return logits[torch.argsort(order)]

    def hidden(self, targets: Targets, tables: Tables | None = None) -> Tensor:
        """The input of the final decoder: the parts' distributions side by side, (n, rows of M)."""
        parts = [distribution(self.unit_logits(name, targets, tables)) for name in self.units]
        if self.document is not None:
            parts.append(self.document(targets.means))
        return torch.cat(parts, dim=1)

    def decode(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary (n, N); −inf for `<pad>`, `<sod>`, and `<frg>`, which are never predicted."""
        logits = hidden @ self.M
        logits[:, :EOD] = -torch.inf
        return logits

    def forward(self, targets: Targets, tables: Tables | None = None) -> Tensor:
        """Logits over the vocabulary, (n, N)."""
        return self.decode(self.hidden(targets, tables))

    def log_probabilities(self, targets: Targets, tables: Tables | None = None) -> Tensor:
        """ln p of each target, (n,)."""
        logits = self(targets, tables)
        return torch.log_softmax(logits, dim=1).gather(1, targets.ids[:, None]).squeeze(1)
