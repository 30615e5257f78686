"""The explicit solution of a whole network: count, then solve, stage by stage, from the bottom up.

Counting is the only thing that sees data: it streams over a corpus and its sums add over shards. Solving sees only
counts. Both are done in float64; the weights are float32.
"""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from tqdm import tqdm

from saffu import cipher, explicit
from saffu.config import SaffuConfig
from saffu.corpus import Targets, TokenCorpus
from saffu.errors import SaffuError
from saffu.explicit import Counts, InitialVariation
from saffu.network import Network
from saffu.tokenizer import FRG, PAD, SOD
from saffu.unit import AttentionCounter, DecoderCounter, HiddenTargets, Unit

BATCH = 16384  # targets counted at a time; results do not depend on it


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
        batch: int = BATCH,
    ):
        """`frequencies` (N,) of the targets, in `documents` documents with so many `<frg>` blocks."""
        vocabulary = len(frequencies)
        self.config, self.batch, self.documents = config, batch, documents
        self.frequencies = frequencies.double().to(device)
        self.counts: dict[str, Counts] = {}
        seen = frequencies.double().clone()  # the markers are never targets, but they are seen as inputs
        seen[PAD], seen[SOD], seen[FRG] = documents, documents, max(1, fragments)
        bits = ciphered(vocabulary, config.hidden_dimension, frequencies) if config.hidden_dimension else None
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
                by_unit[name] = cipher.noised_embeddings(ciphered(vocabulary, dimension, seen), seen)
        self.network = Network(config, {k: v.float().to(device) for k, v in by_unit.items()}, vocabulary)
        self.exact = copy.deepcopy(self.network).double().requires_grad_(False)  # the same weights, to count with

    def initialise(self, corpus: TokenCorpus) -> None:
        """Solve attention from V̂ (or leave it uniform), then the decoders from the bottom up."""
        if self.config.attention == "explicit":
            counters = {
                name: AttentionCounter(
                    unit, self.hidden, self.config.variation_sign, InitialVariation(unit.E, self.frequencies)
                )
                for name, unit in self._units()
            }
            self._count_units("attention", counters, corpus)
            self._solve_attention({name: counter.counts for name, counter in counters.items()})
        self._count_and_solve_decoders(corpus)

    def tune(self, corpus: TokenCorpus, first: bool) -> None:
        """Solve attention again, from V of the current decoders, then the decoders."""
        counters = {
            name: AttentionCounter(unit, self.hidden, self.config.variation_sign, None) for name, unit in self._units()
        }
        self._count_units("attention", counters, corpus)
        restart = first and self.config.restart_attention
        self._solve_attention({name: counter.counts for name, counter in counters.items()}, restart)
        self._count_and_solve_decoders(corpus)

    def _units(self) -> Iterator[tuple[str, Unit]]:
        yield from self.exact.units.items()  # type: ignore[misc]

    def _passes(self, what: str, corpus: TokenCorpus) -> Iterator[Targets]:
        with tqdm(total=corpus.targets, desc=what, unit=" tokens", unit_scale=True, disable=None, leave=False) as bar:
            for targets in corpus.batches(self.batch, self.exact.lookback):
                yield targets
                bar.update(len(targets.ids))

    def _count_units(
        self,
        what: str,
        counters: dict[str, AttentionCounter] | dict[str, DecoderCounter],
        corpus: TokenCorpus,
    ) -> None:
        for targets in self._passes(what, corpus):
            for name, counter in counters.items():
                for window in self.exact.windows(name, targets):
                    counter.add(window, targets.ids[window.rows])

    def _add(self, layer: str, counts: Counts, restart: bool) -> Counts:
        if layer in self.counts and not restart:
            counts = self.counts[layer] + counts
        self.counts[layer] = counts
        return counts

    def _set(self, get: Callable[[Network], Tensor], weight: Tensor) -> None:
        """Store a solved weight in float32, and count on with exactly what was stored."""
        with torch.no_grad():
            get(self.network).copy_(weight)
            get(self.exact).copy_(get(self.network))

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
        counters = {name: DecoderCounter(unit, self.hidden) for name, unit in self._units()}
        self._count_units("decoders", counters, corpus)
        for name, counter in counters.items():
            counts = self._add(f"{name}.decoder", counter.counts, restart)
            paper = explicit.decoder_priming_number(getattr(self.config, name))
            priming = paper if self.config.decoder_priming == "paper" else counts.mean_norm
            smoothing = self.config.smoothing
            F = explicit.fill_unseen(counts.F, smoothing) if self.config.hidden_dimension else counts.F + smoothing
            U = explicit.explicit_solution(F, priming)
            self._set(lambda network, name=name: network.units[name].U, U)  # type: ignore[misc]
        if not self.config.hidden_dimension:
            prior = self.frequencies + self.config.smoothing
            self._set(lambda network: network.log_prior, torch.log(prior / prior.sum()))
            return
        if self.config.documents:
            counts = self._add("document", self._count_documents(corpus), restart)
            F = explicit.fill_unseen(counts.F, self.config.smoothing)
            self._set(lambda network: network.D, explicit.explicit_solution(F, priming=1))
        counts = self._add("final", self._count_final(corpus), restart)
        priming = len(self.exact.units) + bool(self.config.documents)  # each part's output sums to one
        self._set(lambda network: network.M, explicit.explicit_solution(counts.F + self.config.smoothing, priming))

    def _count_documents(self, corpus: TokenCorpus) -> Counts:
        """F(x, δ): mean embeddings with the shard of the corpus they come from."""
        by_shard = torch.zeros(self.config.documents, self.exact.document_embeddings.shape[1], dtype=torch.float64)
        by_shard = by_shard.to(self.exact.device)
        for targets in self._passes("document model", corpus):
            numbers = corpus.first_document + targets.documents
            shards = (numbers * self.config.documents).div(self.documents, rounding_mode="floor")
            explicit.add_co_occurrence(by_shard, self.exact.document_inputs(targets), shards)
        return Counts(by_shard.T, by_shard.sum(), by_shard.new_tensor(float(corpus.targets)))

    def _count_final(self, corpus: TokenCorpus) -> Counts:
        """F(h, Y): the parts' outputs side by side, with the targets. The parts never meet, so each adds alone."""
        inputs, outputs = self.exact.M.shape
        by_target = torch.zeros(outputs, inputs, dtype=torch.float64, device=self.exact.device)
        width = self.config.hidden_dimension
        for targets in self._passes("final decoder", corpus):
            for part, (name, unit) in enumerate(self._units()):
                columns = by_target[:, part * width : (part + 1) * width]
                for window in self.exact.windows(name, targets):
                    explicit.add_co_occurrence(columns, explicit.distribution(unit(window)), targets.ids[window.rows])
            if self.config.documents:
                document = explicit.distribution(self.exact.document_inputs(targets) @ self.exact.D)
                explicit.add_co_occurrence(by_target[:, -self.config.documents :], document, targets.ids)
        return Counts(by_target.T, by_target.sum(), by_target.new_tensor(float(corpus.targets)))


def ciphered(vocabulary: int, dimension: int, frequencies: Tensor) -> Tensor:
    """Bit-vectors of all tokens by id."""
    return cipher.assign_by_frequency(cipher.bit_cipher(vocabulary, dimension), frequencies)


def stages(fit: ExplicitFit, corpus: TokenCorpus) -> Iterator[str]:
    """Run the whole fit, naming each stage when it is done: "init", then "tune 1", "tune 2", …"""
    if not fit.config.tune:
        fit.initialise(corpus)
        yield "init"
        return
    folds = corpus.folds(fit.config.fold)
    fit.initialise(folds[0])
    yield "init"
    for number in range(1, fit.config.tune + 1):
        fit.tune(folds[number % len(folds)], first=number == 1)
        yield f"tune {number}"
