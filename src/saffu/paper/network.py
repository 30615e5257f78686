"""The network: a block unit, a radial unit, an optional document model, and the decoder over their outputs."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from saffu import explicit
from saffu.config import SaffuConfig
from saffu.corpus import Targets, Window, block_windows, radius_windows
from saffu.kept import Kept
from saffu.tokenizer import PAD
from saffu.unit import Unit


class Network(Kept):
    """softmax([block unit, radial unit, document model]·M): each part gives a distribution, M decodes all of them.

    With `hidden_dimension` 0 the units decode straight to the vocabulary and there is no M: their distributions are
    multiplied, and the prior that each of them holds is divided out again so that it counts once.
    """

    M: nn.Parameter  # (Σ outputs of the parts, N) the final decoder
    D: nn.Parameter  # (D, Δ) the document model
    log_prior: Tensor  # (N,) log of the targets' relative frequencies, smoothed

    def __init__(self, config: SaffuConfig, embeddings: dict[str, Tensor], vocabulary: int):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        outputs = config.hidden_dimension or vocabulary
        self.units = nn.ModuleDict()
        if config.block:
            self.units["block"] = Unit(embeddings["block"], config.block, config.block_mode, outputs, config.calibrate)
        if config.radius:
            self.units["radius"] = Unit(
                embeddings["radius"], config.radius, config.radius_mode, outputs, config.calibrate
            )
        zeros = next(iter(embeddings.values())).new_zeros
        if config.documents:
            self.D = nn.Parameter(zeros(self.document_embeddings.shape[1], config.documents))
        if config.hidden_dimension:
            self.M = nn.Parameter(zeros(len(self.units) * outputs + config.documents, vocabulary))
        else:
            self.register_buffer("log_prior", zeros(vocabulary))

    @property
    def lookback(self) -> int:
        """How many tokens before a target its windows reach."""
        return max(self.config.block, self.config.radius)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def document_embeddings(self) -> Tensor:
        return next(iter(self.units.values())).E  # type: ignore[return-value]

    def every_unit(self) -> Iterator[Unit]:
        yield from self.units.values()  # type: ignore[misc]

    def windows(self, name: str, targets: Targets) -> Iterator[Window]:
        """The contexts of one of the units."""
        if name == "block":
            return block_windows(targets, self.config.block, self.config.head)
        return radius_windows(targets, self.config.radius, self.config.head)

    def unit_logits(self, name: str, targets: Targets) -> Tensor:
        """A unit's logits in the order of the targets, (n, outputs)."""
        windows = list(self.windows(name, targets))
        logits = torch.cat([self.units[name](window) for window in windows])
        if len(windows) == 1:
            return logits
        order = torch.cat([window.rows for window in windows])
        return logits[torch.argsort(order)]

    def document_inputs(self, targets: Targets) -> Tensor:
        """x_m = (E_<pad> + Σ_{j<m} E_{i_j})/m, (n, D): the mean embedding of all that precedes in the document."""
        E = self.document_embeddings.double()
        before = E[targets.ids].cumsum(0) - E[targets.ids]  # sums over this run of targets, the target left out
        history = targets.history().long()  # what came of the first document before this run
        before += torch.bincount(history, minlength=len(E)).double() @ E
        rows = torch.arange(len(targets.ids), device=before.device)
        opening = (rows - targets.positions).clamp(min=0)  # row of the document's first target, if it is here
        elsewhere = torch.where((targets.positions > rows)[:, None], 0, before[opening])
        inputs = (E[PAD] + before - elsewhere) / (targets.positions + 1)[:, None]
        return inputs.to(self.document_embeddings.dtype)

    def part_logits(self, targets: Targets, document_inputs: Tensor | None = None) -> list[Tensor]:
        """The logits of each part, (n, its outputs)."""
        parts = [self.unit_logits(name, targets) for name in self.units]
        if self.config.documents:
            inputs = self.document_inputs(targets) if document_inputs is None else document_inputs
            parts.append(inputs @ self.D)
        return parts

    def hidden(self, targets: Targets) -> Tensor:
        """What the final decoder reads: the parts' distributions side by side, (n, rows of M)."""
        return torch.cat([explicit.distribution(part) for part in self.part_logits(targets)], dim=1)

    def forward(self, targets: Targets, document_inputs: Tensor | None = None) -> Tensor:
        """Logits over the vocabulary, (n, N). Targets that do not follow each other bring their document inputs."""
        return self.joined(self.part_logits(targets, document_inputs))

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Logits over the vocabulary (n, N) from those of each part."""
        if self.config.hidden_dimension:
            return torch.cat([explicit.distribution(part) for part in parts], dim=1) @ self.M
        alone = [torch.log_softmax(part, dim=1) for part in parts]
        return sum(alone, start=-(len(alone) - 1) * self.log_prior)

    def highest(self) -> Tensor:
        """The largest entry of each row of M."""
        return self.kept("highest", lambda: self.M.detach().amax(1), self.M)

    def log_probabilities(self, targets: Targets) -> Tensor:
        """log p of each target, (n,)."""
        return torch.log_softmax(self(targets), dim=1).gather(1, targets.ids[:, None]).squeeze(1)

    def parameter_count(self) -> int:
        """All stored numbers that shape a prediction, the embeddings included."""
        return sum(p.numel() for p in self.parameters()) + sum(b.numel() for b in self.buffers())

    def batch_size(self) -> int:
        """Targets to predict at a time: some 16 MB of logits, which the allocator reuses instead of returning."""
        return max(64, 2**22 // self.vocabulary)
