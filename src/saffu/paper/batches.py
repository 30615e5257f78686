"""The order of training: every pass over a corpus shuffles its documents, every fold its targets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saffu.paper.document_model import preceding_means
from saffu.paper.network import Network
from saffu.paper.windows import Targets
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import PAD
from saffu.training.run import seed_of


def folds_per_epoch(corpus: TokenCorpus, fold_tokens: int) -> int:
    """The number of folds of about `fold_tokens` targets in a pass over the corpus; each has at least one document."""
    return min(corpus.documents, max(1, round(corpus.targets / fold_tokens)))


class ShuffledFold:
    """Fold `number` (from 1) of a run that passes over the corpus again and again, `folds` folds per epoch.

    Its targets come in random order. With a document model they stay in the order of their (shuffled) documents,
    because that model accumulates its input from target to target.
    """

    def __init__(self, corpus: TokenCorpus, folds: int, number: int, network: Network, seed: int):
        epoch, part = divmod(number - 1, folds)
        permutation = np.random.default_rng(seed_of(seed, "documents", epoch)).permutation(corpus.documents)
        lengths = np.diff(corpus.starts)
        cuts = _cuts(lengths[permutation], folds)
        documents = permutation[cuts[part] : cuts[part + 1]]
        starts = np.concatenate([[0], lengths[documents].cumsum()])
        self.targets = int(starts[-1])
        document = np.repeat(np.arange(len(documents)), lengths[documents])  # (targets,) its place in `documents`
        positions = np.arange(self.targets) - starts[document]
        ids = corpus.ids[corpus.starts[documents][document] + positions].astype(np.int32)
        order = np.arange(self.targets)
        if not network.config.document_shards:
            order = np.random.default_rng(seed_of(seed, "targets", number)).permutation(self.targets)
        length = corpus.targets // folds + 2 * int(lengths.max())  # equally long in every fold, as a CUDA graph needs
        padding = (network.lookback, max(0, length - self.targets))
        self.network = network
        self.tokens = _on(network, np.pad(ids, padding, constant_values=PAD))
        self.order = _on(network, order)
        self.positions = _on(network, positions)
        self.documents = _on(network, corpus.first_document + documents[document])

    def batch(self, first: int, size: int) -> Targets:
        """The targets from place `first` on, at most `size`."""
        targets = self.order[first : first + size]
        offsets = targets + self.network.lookback
        ids = self.tokens[offsets].long()
        positions = self.positions[targets]
        means = self._means(ids, positions, first) if self.network.config.document_shards and len(ids) else None
        return Targets(ids, positions, self.documents[targets], self.tokens, offsets, means)

    def _means(self, ids: Tensor, positions: Tensor, first: int) -> Tensor:
        """The document model's inputs, (n, D)."""
        end = first + self.network.lookback
        history = self.tokens[end - int(positions[0]) : end].long()
        return preceding_means(self.network.document_embeddings, ids, positions, history)


def _cuts(lengths: np.ndarray[tuple[int], np.dtype[np.int64]], folds: int) -> list[int]:
    """Where to cut documents of these lengths into folds of about equal size, with at least one document in each.

    >>> _cuts(np.array([3, 3, 3, 3, 3, 3]), 3), _cuts(np.array([9, 1, 1]), 3)
    ([0, 2, 4, 6], [0, 1, 2, 3])
    """
    ends = lengths.cumsum()
    even = np.searchsorted(ends, np.arange(1, folds) * (ends[-1] / folds), side="right")
    cuts = [0, *even.tolist(), len(lengths)]
    for fold in range(1, folds):  # a long document may reach over several cuts
        cuts[fold] = min(max(cuts[fold], cuts[fold - 1] + 1), len(lengths) - folds + fold)
    return cuts


def _on(network: Network, array: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Tensor:
    return torch.from_numpy(array).to(network.device)
