"""Views: the parts of a context that a calibrated model counts, and the classes that make them coarser."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from saffu.config import SaffuConfig
from saffu.corpus import TokenCorpus
from saffu.ngram import NgramCounts
from saffu.tokenizer import EOD


@dataclass(frozen=True)
class View:
    """What one part of the product sees: the tokens at some distances, exactly or by their class."""

    name: str
    distances: tuple[int, ...]  # nearest first
    classes: int = 0  # how many; 0 for the tokens themselves

    @property
    def is_slot(self) -> bool:
        return len(self.distances) == 1 and not self.classes


def views_of(config: SaffuConfig) -> list[View]:
    """The views of a configuration: slots, memory, and the memory's coarser copies."""
    slots = [View(f"slot {k}", (k,)) for k in range(1, config.radius + 1)]
    if config.memory < 2:
        return slots
    nearest = tuple(range(1, config.memory))
    sizes = [number for number in (config.classes, config.classes // 3, config.classes // 10) if number > 1]
    return [*slots, View("memory", nearest), *(View(f"memory of {n} classes", nearest, n) for n in sizes)]


@dataclass
class ViewCounts:
    """Raw counts, additive: of the memory, and of the slots that lie beyond it. All views follow from these."""

    stored: dict[str, NgramCounts] = field(default_factory=dict)

    @classmethod
    def count(cls, corpus: TokenCorpus, config: SaffuConfig, vocabulary: int) -> "ViewCounts":
        stored = {}
        for view in tqdm(views_of(config), desc="count views", disable=None, leave=False):
            within = view.name != "memory" and max(view.distances) < config.memory
            if not view.classes and not within:
                order = len(view.distances) + 1
                stored[view.name] = NgramCounts.count(corpus.ids, corpus.starts, order, vocabulary, view.distances)
        return cls(stored)

    def of(self, view: View, classes: Tensor | None = None) -> NgramCounts:
        """What the view saw."""
        if view.name in self.stored:
            return self.stored[view.name]
        return self.stored["memory"].seen_at(view.distances, classes)

    def to(self, device: torch.device | str) -> "ViewCounts":
        return ViewCounts({name: counts.to(device) for name, counts in self.stored.items()})

    def __sub__(self, other: "ViewCounts") -> "ViewCounts":
        return ViewCounts({name: counts - other.stored[name] for name, counts in self.stored.items()})

    def __add__(self, other: "ViewCounts") -> "ViewCounts":
        return ViewCounts({name: counts + other.stored[name] for name, counts in self.stored.items()})


def token_vectors(memory: NgramCounts, dimensions: int = 100) -> Tensor:
    """A unit vector for each token, by the company it keeps: (N, dimensions).

    Tokens are described by the square roots of their neighbours' shares (one and two places before and after), and
    the descriptions compressed to the subspace that holds most of them; how near two tokens are is what matters.
    """
    N, described = memory.vocabulary, []
    with torch.sparse.check_sparse_tensor_invariants():
        for distance in range(1, min(3, memory.order)):
            pairs = memory.seen_at((distance,))
            (before, after), counts = pairs.columns(), pairs.counts.float()
            for token, neighbour in ((before, after), (after, before)):
                total = counts.new_zeros(N).index_add_(0, token, counts)
                share = torch.sqrt(counts / (total[token] + 1))
                described.append(torch.sparse_coo_tensor(torch.stack([token, neighbour]), share, (N, N)))
        return torch.nn.functional.normalize(compressed(torch.cat(described, dim=1).coalesce(), dimensions), dim=1)


def compressed(rows: Tensor, dimensions: int, rounds: int = 2) -> Tensor:
    """Short rows (m, dimensions) with about the inner products of long, sparse ones (m, n), by subspace iteration.

    It begins at random, but is the same on any device, except for rounding.
    """
    across = rows.T.coalesce()
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(rows.shape[1], min(dimensions, *rows.shape), generator=generator)
    basis = torch.linalg.qr(rows @ start.to(rows.device)).Q  # (m, dimensions)
    for _ in range(rounds):
        basis = torch.linalg.qr(rows @ torch.linalg.qr(across @ basis).Q).Q
    within = (across @ basis).double()  # (n, dimensions): the rows' parts in the subspace are basis · withinᵀ
    squares, axes = torch.linalg.eigh(within.T @ within)
    lengths = squares.where(squares > 1e-10 * squares.max(), 0).sqrt()  # what is less is rounding
    vectors: Tensor = basis @ (axes * lengths).float()
    return vectors


def token_classes(vectors: Tensor, frequencies: Tensor, number: int, rounds: int = 15) -> Tensor:
    """A class for each token, (N,): spherical k-means around the most frequent ones; special tokens stay alone."""
    centres = vectors[torch.argsort(frequencies, descending=True, stable=True)[:number]]
    weight = torch.sqrt(frequencies.float())[:, None]
    for _ in range(rounds):
        nearest = (vectors @ centres.T * 1e5).round_().argmax(1)  # the first of those that rounding alone tells apart
        sums = torch.zeros_like(centres).index_add_(0, nearest, vectors * weight)
        centres = torch.nn.functional.normalize(sums, dim=1)
    classes = nearest + EOD + 1
    classes[: EOD + 1] = torch.arange(EOD + 1, device=classes.device)
    return classes
