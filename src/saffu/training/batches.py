"""The order of training: every pass over a corpus shuffles its documents, every fold its targets."""

import numpy as np
import torch

from saffu.corpus import Targets, TokenCorpus
from saffu.network import Network
from saffu.tokenizer import PAD


def seed_of(*place: int | str) -> int:
    """A seed for one use at one place of a run: seed_of(seed, "documents", 3)."""
    words = [part if isinstance(part, int) else int.from_bytes(part.encode(), "big") for part in place]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0])


class ShuffledFold:
    """Fold `number` (from 1) of a run that goes over the corpus again and again, `folds` folds a pass.

    Its targets come in random order; with a document model they stay in the order of their (shuffled) documents,
    because that model reads on from target to target.
    """

    def __init__(self, corpus: TokenCorpus, folds: int, number: int, network: Network, seed: int):
        epoch, part = divmod(number - 1, folds)
        generator = torch.Generator().manual_seed(seed_of(seed, "documents", epoch))
        documents = torch.randperm(corpus.documents, generator=generator)
        ends = torch.diff(corpus.starts)[documents].cumsum(0)
        cuts = torch.searchsorted(ends, torch.arange(1, folds) * (corpus.targets / folds)).tolist()
        bounds = [0, *cuts, corpus.documents]
        for fold in range(1, folds):  # a long document may reach over several cuts; each fold gets one at least
            bounds[fold] = min(max(bounds[fold], bounds[fold - 1] + 1), corpus.documents - folds + fold)
        fold_corpus = corpus.take(documents[bounds[part] : bounds[part + 1]])
        self.targets = fold_corpus.targets
        order = torch.arange(self.targets)
        if not network.config.documents:
            generator.manual_seed(seed_of(seed, "targets", number))
            order = torch.randperm(self.targets, generator=generator)
        self.corpus, self.order, self.lookback = (
            fold_corpus.to(network.device),
            order.to(network.device),
            network.lookback,
        )
        lengths = torch.diff(corpus.starts)
        room = corpus.targets // folds + 2 * int(lengths.max())  # as long in every fold, for a captured step
        after = max(0, room - self.targets)
        self.past = torch.nn.functional.pad(self.corpus.ids.int(), (self.lookback, after), value=PAD)
        lengths = torch.diff(self.corpus.starts)
        self.documents = torch.arange(len(lengths), device=network.device).repeat_interleave(lengths)

    def batch(self, first: int, size: int) -> Targets:
        """The next `size` targets from `first` on, fewer at the fold's end."""
        chosen = self.order[first : first + size]
        at, documents = chosen + self.lookback, self.documents[chosen]
        positions = chosen - self.corpus.starts[documents]
        return Targets(self.past[at].long(), positions, documents, self.past, at, self.corpus)
