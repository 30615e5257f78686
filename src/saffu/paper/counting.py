"""Counting: a corpus, seen through a network, becomes sums. Nothing else sees text.

Every layer's closed form needs the co-occurrences F of its inputs with its targets, summed over the targets of the
corpus, so the counts of parts of a corpus add up to those of the whole. Counting is split over threads: worker i of n
takes batches i, i + n, i + 2n, … and has its own sums.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from saffu.format import progress_bar
from saffu.paper import equations
from saffu.paper.devices import run_workers, workers_for
from saffu.paper.document_model import shard_of
from saffu.paper.equations import InitialVariation
from saffu.paper.network import Network
from saffu.paper.sums import Counts, SumsByTarget
from saffu.paper.unit import Unit, UnitTables
from saffu.paper.windows import Targets, Window, unit_windows
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import PAD

SUMS = 1 << 27  # largest number of values that the sums of all workers may have
BATCH = {"cpu": 1 << 15, "cuda": 1 << 24}  # targets counted at a time; results do not depend on it


class Counter(Protocol):
    """Adds up one layer's counts, batch by batch."""

    def add(self, targets: Targets) -> None: ...

    @property
    def counts(self) -> Counts: ...


class UnitCounter:
    """A unit with its look-ups and windows; the base of the three counters of units."""

    def __init__(self, network: Network, name: str, tables: UnitTables):
        self.config = network.config
        self.name = name
        self.tables = tables
        self.unit: Unit = network.units[name]

    def add(self, targets: Targets) -> None:
        for window in unit_windows(self.name, targets, self.config):
            self.add_window(window, targets.ids[window.rows])

    def add_window(self, window: Window, target_ids: Tensor) -> None:
        raise NotImplementedError


class AttentionCounter(UnitCounter):
    """F(Q, V) of Eq. 6: with V̂ (`initial`) while the unit has no decoder, otherwise with V.

    `bits` are the hidden targets Z (N, D_H).
    """

    def __init__(
        self, network: Network, name: str, tables: UnitTables, bits: Tensor, initial: InitialVariation | None = None
    ):
        super().__init__(network, name, tables)
        self.initial = initial
        self.wanted = (bits / bits.sum(1, keepdim=True)).to(self.unit.E)  # z̃ (N, D_H)
        self.bound = equations.variation_bound(self.unit.slots, network.vocabulary)
        self.F = torch.zeros(self.unit.slots, self.unit.slots, dtype=torch.float64, device=network.device)
        self.norm = self.F.new_zeros(())
        self.seen = 0

    def add_window(self, window: Window, target_ids: Tensor) -> None:
        features = self.unit.quadratic_features(window, self.tables)  # Q (m, J), and a column for all other slots
        column = torch.full((self.unit.slots,), window.width, device=features.device)
        column[window.slots] = torch.arange(window.width, device=features.device)
        if self.initial is not None:
            F = equations.co_occurrence(features, self.initial(target_ids, window.seen))[:, column]
        else:
            residual = self.wanted[target_ids] - equations.distribution(self.unit(window, self.tables))
            variation = self.unit.variation(window, self.config.variation_sign * residual, self.bound)  # V (m, K)
            F = equations.co_occurrence(features, variation)
        self.F += F[column]
        self.norm += features.sum(0)[column].sum()
        self.seen += len(target_ids)

    @property
    def counts(self) -> Counts:
        return Counts(self.F, float(self.norm), self.seen)


class DecoderCounter(UnitCounter):
    """F(H, Z) of Eq. 5: sums the inputs H by target token, then multiplies by the hidden targets Z (N, D_H)."""

    def __init__(self, network: Network, name: str, tables: UnitTables, bits: Tensor):
        super().__init__(network, name, tables)
        self.bits = bits / bits.sum(1, keepdim=True) if self.config.hidden_targets == "normalized" else bits
        E = self.unit.E
        by_slot = self.unit.mode == "cat"
        self.inputs = SumsByTarget(len(E), len(self.unit.U), E)
        # In mode "cat", attention to the `<pad>` outside of windows is summed separately.
        self.padding = SumsByTarget(len(E), self.unit.slots, E) if by_slot else None
        self.seen = 0

    def add_window(self, window: Window, target_ids: Tensor) -> None:
        if self.padding is None:
            self.inputs.add(self.unit.weighted_sum(window, self.tables), target_ids)
        else:
            weights, padding = self.unit.weighted_slots(window, self.tables)
            inputs = weights[:, :, None] * embedding(window.ids, self.unit.E)  # (m, J, D)
            self.inputs.add(inputs.flatten(1), target_ids, first=window.first * inputs.shape[2])
            if window.width < self.unit.slots:
                self.padding.add(padding, target_ids)
        self.seen += len(target_ids)

    @property
    def counts(self) -> Counts:
        inputs = self.inputs.total
        if self.padding is not None:
            inputs = inputs + (self.padding.total[:, :, None] * self.unit.E[PAD].double()).flatten(1)
        return Counts(equations.co_occurrence(inputs, self.bits), float(inputs.sum()), self.seen)


class OutputCounter(UnitCounter):
    """F(h, Y) of a unit's outputs with the targets, from which Eq. 3 solves its rows of the final decoder."""

    def __init__(self, network: Network, name: str, tables: UnitTables):
        super().__init__(network, name, tables)
        self.sums = SumsByTarget(network.vocabulary, self.unit.U.shape[1], self.unit.E)

    def add_window(self, window: Window, target_ids: Tensor) -> None:
        self.sums.add(equations.distribution(self.unit(window, self.tables)), target_ids)

    @property
    def counts(self) -> Counts:
        return self.sums.counts


class PairCounter:
    """F of any inputs with any one-hot targets: `pair` returns both, for a batch."""

    def __init__(self, pair: Callable[[Targets], tuple[Tensor, Tensor]], outputs: int, inputs: int, like: Tensor):
        self.pair = pair
        self.sums = SumsByTarget(outputs, inputs, like)

    def add(self, targets: Targets) -> None:
        self.sums.add(*self.pair(targets))

    @property
    def counts(self) -> Counts:
        return self.sums.counts


def count_attention(
    network: Network, corpus: TokenCorpus, bits: Tensor, frequencies: Tensor | None = None
) -> dict[str, Counts]:
    """F(Q, V) of each unit. With the `frequencies` of targets (N,), F(Q, V̂), which needs no decoder."""
    tables = network.tables(decode=frequencies is None)
    initial = {}
    if frequencies is not None:
        for name, unit in network.units.items():
            bound = equations.variation_bound(unit.slots, network.vocabulary)
            initial[name] = InitialVariation(unit.E, frequencies, bound, network.config.variation_sign)
    return _count(
        network,
        corpus,
        "count attention",
        lambda: {n: AttentionCounter(network, n, tables[n], bits, initial.get(n)) for n in network.units},
    )


def count_decoders(network: Network, corpus: TokenCorpus, bits: Tensor) -> dict[str, Counts]:
    """F(H, Z) of each unit."""
    tables = network.tables(decode=False)
    return _count(
        network,
        corpus,
        "count unit decoders",
        lambda: {name: DecoderCounter(network, name, tables[name], bits) for name in network.units},
    )


def count_documents(network: Network, corpus: TokenCorpus) -> Counts:
    """F(x, δ): mean embeddings with the shard they come from; they divide the corpus."""
    E = network.document_embeddings
    shards = network.config.document_shards

    def pair(targets: Targets) -> tuple[Tensor, Tensor]:
        assert targets.means is not None
        return targets.means, shard_of(targets.documents - corpus.first_document, shards, corpus.documents)

    counted = _count(network, corpus, "count documents", lambda: {"document": PairCounter(pair, shards, E.shape[1], E)})
    return counted["document"]


def count_final(network: Network, corpus: TokenCorpus) -> Tensor:
    """F(h, Y) (rows of M, N): the outputs of the parts with the targets."""
    tables = network.tables()

    def pair(targets: Targets) -> tuple[Tensor, Tensor]:
        assert network.document is not None and targets.means is not None
        return network.document(targets.means), targets.ids

    def begin() -> dict[str, Counter]:
        counters: dict[str, Counter] = {name: OutputCounter(network, name, tables[name]) for name in network.units}
        if network.document is not None:
            counters["document"] = PairCounter(pair, network.vocabulary, network.config.document_shards, network.M)
        return counters

    counted = _count(network, corpus, "count final decoder", begin)
    return torch.cat([counts.F for counts in counted.values()])


def _count(
    network: Network, corpus: TokenCorpus, title: str, begin: Callable[[], Mapping[str, Counter]]
) -> dict[str, Counts]:
    """Count all of a corpus with the counters that `begin` makes, one set of them per worker."""
    size = BATCH[network.device.type]
    numbers = sum(weight.numel() for weight in network.parameters())  # about what each worker's sums hold
    workers = min(workers_for(network.device, corpus.targets // size), max(1, SUMS // numbers))

    def work(number: int, stopped: Callable[[], bool]) -> Mapping[str, Counter]:
        with torch.no_grad():
            counters = begin()
            for targets in network.batches(corpus, size, number, workers, with_means="document" in counters):
                for counter in counters.values():
                    counter.add(targets)
                bar.update(len(targets.ids))
                if stopped():
                    break
        return counters

    with progress_bar(title, total=corpus.targets) as bar:
        shares = run_workers(work, workers)
    with torch.no_grad():
        counted = [{name: counter.counts for name, counter in share.items()} for share in shares]
        return {name: functools.reduce(operator.add, (share[name] for share in counted)) for name in counted[0]}
