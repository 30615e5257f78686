"""The explicit solution of a whole network: count, then solve, stage by stage, from the bottom up.

Counting is the only thing that sees data: it streams over a corpus and its sums add over shards. Solving sees only
counts. Sums and solutions are float64; the weights, and by default what is summed, are float32.
"""

import copy
import functools
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from torch import Tensor
from tqdm import tqdm

from saffu import cipher, explicit
from saffu.config import SaffuConfig
from saffu.corpus import Targets, TokenCorpus
from saffu.counters import AttentionCounter, DecoderCounter, DocumentCounter, HiddenTargets, OutputCounter
from saffu.devices import settle
from saffu.errors import SaffuError
from saffu.explicit import Counts, InitialVariation
from saffu.network import Network
from saffu.tokenizer import FRG, PAD, SOD
from saffu.unit import Unit
from saffu.workers import side_by_side

Counters = Mapping[str, AttentionCounter | DecoderCounter | OutputCounter | DocumentCounter]
SUMS = 1 << 27  # most numbers that all workers keep
BATCH = {"cpu": 1 << 15, "cuda": 1 << 24}  # targets counted at a time; results do not depend on it


class ExplicitFit:
    """Fits a network on a corpus: `initialise` once, then `tune` fold after fold.

    Its `counts` are the sums that every weight follows from, by layer: "block.attention", "block.decoder" and the
    same for "radius", "document", "final".
    """

    def __init__(
        self,
        config: SaffuConfig,
        frequencies: Tensor,
        documents: int,
        fragments: int,
        *,
        embeddings: Tensor | None = None,
        device: torch.device | str = "cpu",
        batch: int | None = None,
        reduce: Callable[[Counts], Counts] = lambda counts: counts,
    ):
        """`frequencies` (N,) of the targets, in `documents` documents with so many `<frg>` blocks.

        Every layer's counts of a corpus pass through `reduce` once: where each of several processes counts a share of
        the documents, it adds up what all of them counted.
        """
        vocabulary, frequencies = len(frequencies), frequencies.double().cpu()
        self.config, self.documents, self.reduce = config, documents, reduce
        self.batch = batch or batch_on(device)
        self.frequencies = frequencies.to(device)
        self.counts: dict[str, Counts] = {}
        self.seconds: dict[str, float] = {}  # of counting, by what was counted
        seen = frequencies.clone()  # the markers are never targets, but they are seen as inputs
        seen[PAD], seen[SOD], seen[FRG] = documents, documents, max(1, fragments)
        width, bits = config.hidden_dimension, None
        if width:
            bits = ciphered(vocabulary, width, frequencies, "hidden_dimension")
        self.hidden = HiddenTargets(None if bits is None else bits.double().to(device), vocabulary)
        if embeddings is not None and embeddings.shape[0] != vocabulary:
            raise SaffuError(f"embeddings have {embeddings.shape[0]} rows for {vocabulary} tokens; give one a token id")
        by_unit = {}
        for name, dimension in (("block", config.block_dimension), ("radius", config.radius_dimension)):
            if name == "radius":
                seen[FRG] = 1  # it never sees that marker: how often it occurs, and so b, must not tell on this unit
            if embeddings is not None:
                by_unit[name] = cipher.coerced_embeddings(embeddings)
            elif getattr(config, name):
                by_unit[name] = cipher.noised_embeddings(
                    ciphered(vocabulary, dimension, seen, f"{name}_dimension"), seen
                )
        self.network = Network(config, {k: v.float().to(device) for k, v in by_unit.items()}, vocabulary)
        self.frozen = frozen(self.network)

    @classmethod
    def of(cls, network: Network) -> "ExplicitFit":
        """For `count_last` and `solve_last` with a network's encoder as it stands; its weights are changed in place."""
        fit = cls.__new__(cls)
        fit.config, fit.network, fit.batch, fit.seconds = network.config, network, batch_on(network.device), {}
        fit.hidden = HiddenTargets(None, network.vocabulary)  # of units that decode straight to the vocabulary
        fit.frozen = frozen(network)
        return fit

    def count_last(self, corpus: TokenCorpus) -> dict[str, Counts]:
        """The counts behind what decodes to the vocabulary: M, or each unit's U where there is no M."""
        if self.config.hidden_dimension:
            return {"final": self._count_final(corpus)}
        return {f"{name}.decoder": counts for name, counts in self._count_decoders(corpus).items()}

    def solve_last(self, counts: dict[str, Counts], frequencies: Tensor) -> None:
        """The weights that follow from such counts."""
        if self.config.hidden_dimension:
            self._solve_final(counts["final"])
            return
        for name, _ in self._units():
            self._solve_decoder(name, counts[f"{name}.decoder"])
        self._solve_prior(frequencies)

    def initialise(self, corpus: TokenCorpus) -> None:
        """Solve attention from V̂ (or leave it uniform), then the decoders from the bottom up."""
        if self.config.attention == "explicit":
            initial = {name: InitialVariation(unit.E, self.frequencies) for name, unit in self._units()}
            self._solve_attention(self._count_attention(corpus, initial))
        self._count_and_solve_decoders(corpus)

    def tune(self, corpus: TokenCorpus, first: bool) -> None:
        """Solve attention again, from V of the current decoders, then the decoders."""
        restart = first and self.config.restart_attention
        self._solve_attention(self._count_attention(corpus, {}), restart)
        self._count_and_solve_decoders(corpus)

    def _units(self) -> Iterator[tuple[str, Unit]]:
        yield from self.frozen.units.items()  # type: ignore[misc]

    def _passes(self, what: str, corpus: TokenCorpus, batch: int = 0) -> Iterator[Targets]:
        with tqdm(total=corpus.targets, desc=what, unit=" tokens", unit_scale=True, disable=None, leave=False) as bar:
            for targets in corpus.batches(batch or self.batch, self.frozen.lookback):
                yield targets
                bar.update(len(targets.ids))

    def _count(self, what: str, corpus: TokenCorpus, begin: Callable[[], Counters]) -> dict[str, Counts]:
        """Count all of a corpus with the counters that `begin` makes, a set of them for each worker."""

        def work(number: int, stopped: Callable[[], bool]) -> Counters:
            counters = begin()
            for targets in corpus.batches(self.batch, self.frozen.lookback, number, workers):
                for name, counter in counters.items():
                    if isinstance(counter, DocumentCounter):
                        counter.add(targets)
                    else:
                        for window in self.frozen.windows(name, targets):
                            counter.add(window, targets.ids[window.rows])
                bar.update(len(targets.ids))
                if stopped():
                    break
            return counters

        workers = 1  # more would only wait for the same GPU
        if self.frozen.device.type == "cpu":
            sums = sum(weight.numel() for weight in self.frozen.parameters())  # about what each worker keeps
            workers = max(1, min(torch.get_num_threads(), corpus.targets // self.batch, SUMS // sums))
        began = time.perf_counter()
        with tqdm(total=corpus.targets, desc=what, unit=" tokens", unit_scale=True, disable=None, leave=False) as bar:
            shares = side_by_side(work, workers)
        settle(self.frozen.device)
        self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began
        counted = [{name: counter.counts for name, counter in share.items()} for share in shares]
        return {name: functools.reduce(operator.add, (share[name] for share in counted)) for name in counted[0]}

    def _count_attention(self, corpus: TokenCorpus, initial: dict[str, InitialVariation]) -> dict[str, Counts]:
        sign = self.config.variation_sign
        return self._count(
            "attention",
            corpus,
            lambda: {n: AttentionCounter(unit, self.hidden, sign, initial.get(n)) for n, unit in self._units()},
        )

    def _add(self, layer: str, counts: Counts, restart: bool) -> Counts:
        counts = self.reduce(counts)
        if layer in self.counts and not restart:
            counts = self.counts[layer] + counts
        self.counts[layer] = counts
        return counts

    def _set(self, get: Callable[[Network], Tensor], weight: Tensor) -> None:
        """Store a solved weight in float32, and count on with what was stored."""
        with torch.no_grad():
            get(self.network).copy_(weight)
            get(self.frozen).copy_(get(self.network))

    def _solve_attention(self, counted: dict[str, Counts], restart: bool = False) -> None:
        """Eq. 6, W from F(Q, V)."""
        for name, new in counted.items():
            counts = self._add(f"{name}.attention", new, restart)
            slots = getattr(self.config, name)
            paper = explicit.attention_priming_number(slots)
            priming = {"paper": paper, "slots": slots, "measured": counts.mean_norm}[self.config.attention_priming]
            has_decoder = f"{name}.decoder" in self.counts
            remedy = "tune over fewer folds" if has_decoder else "use uniform attention"
            W = explicit.explicit_solution(counts.F, priming, f"V outgrew its bound c in the {name} unit: {remedy}")
            self._set(lambda network, name=name: network.units[name].W, W)  # type: ignore[misc]

    def _count_and_solve_decoders(self, corpus: TokenCorpus) -> None:
        """Eq. 5, U from F(H, Z); the document model from F(x, δ); M from F of the units' outputs with the targets."""
        restart = not self.config.accumulate
        for name, new in self._count_decoders(corpus).items():
            self._solve_decoder(name, self._add(f"{name}.decoder", new, restart))
        if not self.config.hidden_dimension:
            self._solve_prior(self.frequencies)
            return
        if self.config.documents:
            counts = self._add("document", self._count_documents(corpus), restart)
            F = explicit.fill_unseen(counts.F, self.config.smoothing)
            self._set(lambda network: network.D, explicit.explicit_solution(F, priming=1))
        self._solve_final(self._add("final", self._count_final(corpus), restart))

    def _count_decoders(self, corpus: TokenCorpus) -> dict[str, Counts]:
        """F(H, Z) of each unit."""
        counted = self._count(
            "decoders", corpus, lambda: {name: DecoderCounter(unit, self.hidden) for name, unit in self._units()}
        )
        if not self.config.hidden_dimension:
            for counts in counted.values():
                counts.norm = explicit.on_grid(counts.F).sum()
        return counted

    def _solve_decoder(self, name: str, counts: Counts) -> None:
        """Eq. 5, U from F(H, Z)."""
        paper = explicit.decoder_priming_number(getattr(self.config, name))
        priming = paper if self.config.decoder_priming == "paper" else counts.mean_norm
        smoothing = self.config.smoothing
        F = explicit.fill_unseen(counts.F, smoothing) if self.config.hidden_dimension else counts.F + smoothing
        U = explicit.explicit_solution(F, priming)
        self._set(lambda network: cast(Unit, network.units[name]).U, U)

    def _solve_prior(self, frequencies: Tensor) -> None:
        prior = frequencies + self.config.smoothing
        self._set(lambda network: network.log_prior, torch.log(prior / prior.sum()))

    def _solve_final(self, counts: Counts) -> None:
        """Eq. 3, M from F(h, Y)."""
        priming = len(self.frozen.units) + bool(self.config.documents)  # each part's output sums to one
        self._set(lambda network: network.M, explicit.explicit_solution(counts.F + self.config.smoothing, priming))

    def _count_documents(self, corpus: TokenCorpus) -> Counts:
        """F(x, δ): mean embeddings with the shard of the corpus they come from."""
        network, shards = self.frozen, self.config.documents

        def pair(targets: Targets) -> tuple[Tensor, Tensor]:
            numbers = corpus.first_document + targets.documents
            return network.document_inputs(targets), (numbers * shards).div(self.documents, rounding_mode="floor")

        E = network.document_embeddings
        counted = self._count("document model", corpus, lambda: {"document": DocumentCounter(pair, shards, E)})
        return counted["document"]

    def _count_final(self, corpus: TokenCorpus) -> Counts:
        """F(h, Y): the parts' outputs side by side, with the targets. The parts never meet, so each adds alone."""
        network = self.frozen

        def pair(targets: Targets) -> tuple[Tensor, Tensor]:
            return explicit.grid_distribution(network.document_inputs(targets) @ network.D), targets.ids

        def begin() -> Counters:
            document = (
                {"document": DocumentCounter(pair, network.vocabulary, network.D)} if self.config.documents else {}
            )
            return {name: OutputCounter(unit) for name, unit in self._units()} | document

        counted = list(self._count("final decoder", corpus, begin).values())
        F = explicit.on_grid(torch.cat([counts.F for counts in counted]))
        return Counts(F, F.sum(), counted[0].targets)


def frozen(network: Network) -> Network:
    """The same weights, to count with."""
    precision = torch.float64 if network.config.calibrate else getattr(torch, network.config.counting)
    return copy.deepcopy(network).to(precision).requires_grad_(False)


def batch_on(device: torch.device | str) -> int:
    return BATCH["cuda" if torch.device(device).type == "cuda" else "cpu"]


def ciphered(vocabulary: int, dimension: int, frequencies: Tensor, setting: str = "dimension") -> Tensor:
    """Bit-vectors of all tokens by id."""
    return cipher.assign_by_frequency(cipher.bit_cipher(vocabulary, dimension, setting), frequencies)


def stages(
    fit: ExplicitFit, corpus: TokenCorpus, share: Callable[[TokenCorpus], TokenCorpus] = lambda part: part
) -> Iterator[str]:
    """Run the whole fit, naming each stage when it is done: "init", then "tune 1", "tune 2", …

    Of several processes, each counts its `share` of a part of the corpus.
    """
    if not fit.config.tune:
        fit.initialise(share(corpus))
        yield "init"
        return
    folds = corpus.folds(fit.config.fold)
    fit.initialise(share(folds[0]))
    yield "init"
    for number in range(1, fit.config.tune + 1):
        fit.tune(share(folds[number % len(folds)]), first=number == 1)
        yield f"tune {number}"
