"""How well a model predicts text: perplexity and bits per byte, beside n-gram references on the same targets."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tqdm import tqdm

from saffu.corpus import TokenCorpus
from saffu.errors import SaffuError
from saffu.network import Network
from saffu.ngram import KneserNey, NgramCounts, context_windows
from saffu.product import Product
from saffu.workers import side_by_side

REFERENCES = {"unigram": 1, "bigram": 2, "trigram": 3}


@dataclass(frozen=True)
class Score:
    """Total surprise over some text. Every token and each `<eod>` is a target; `<pad>` and the markers never are."""

    nll: float  # −Σ ln p, in nats
    targets: int
    bytes: int  # of the text in UTF-8, one newline a document included

    @property
    def perplexity(self) -> float:
        """exp of the mean surprise a target. Not comparable between vocabularies."""
        return math.exp(self.nll / self.targets)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between any models of the same text."""
        return self.nll / math.log(2) / self.bytes


def evaluate(network: Network | Product, corpus: TokenCorpus, progress: str | None = "evaluate") -> Score:
    """The network's score on a corpus."""
    if corpus.targets == 0:
        raise SaffuError("there is no text to evaluate on; give files with at least one non-empty line")
    corpus, size = corpus.to(network.device), network.batch_size()
    with tqdm(total=corpus.targets, desc=progress, unit=" tokens", unit_scale=True, leave=False, disable=None) as bar:

        def work(number: int, stopped: Callable[[], bool]) -> torch.Tensor:
            nll = torch.zeros((), dtype=torch.float64, device=network.device)
            with torch.inference_mode():
                for targets in corpus.batches(size, network.lookback, number, workers):
                    nll -= network.log_probabilities(targets).double().sum()
                    bar.update(len(targets.ids))
                    if stopped():
                        break
            return nll

        workers = max(1, min(torch.get_num_threads(), corpus.targets // size)) if network.device.type == "cpu" else 1
        shares = side_by_side(work, workers) if network.device.type == "cpu" else [work(0, lambda: False)]
    return Score(float(sum(shares)), corpus.targets, corpus.bytes)


def count_references(corpus: TokenCorpus, vocabulary: int) -> NgramCounts:
    """What the references need to know of the training text."""
    return NgramCounts.count(corpus.ids, corpus.starts, max(REFERENCES.values()), vocabulary)


def evaluate_references(counts: NgramCounts, corpus: TokenCorpus) -> dict[str, Score]:
    """Scores of unigram and interpolated Kneser–Ney models on the same targets."""
    ids, starts = corpus.ids, corpus.starts
    models = {name: KneserNey(counts, order) for name, order in REFERENCES.items()}
    nll = dict.fromkeys(models, 0.0)
    for lo in range(0, corpus.targets, 1 << 16):
        hi = min(lo + (1 << 16), corpus.targets)
        contexts = context_windows(ids, starts, lo, hi, counts.order - 1)
        for name, model in models.items():
            nll[name] -= float(model.log_probabilities(contexts, ids[lo:hi]).sum())
    return {name: Score(total, corpus.targets, corpus.bytes) for name, total in nll.items()}
