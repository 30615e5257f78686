"""A SAFFU network with measured exponents: counts as in the paper, but each slot votes with what its word is worth.

The paper's solution lets each of K slots vote with full weight. Here slot k has an exponent a_k ≥ 0 and the prior has
one, γ, all found by `calibrate` on documents that the counts have not seen:

    logits = γ log f + Σ_k a_k X_k·R_k        R_k = log(F_k / f), what an input says of an output beyond the prior f

The result is a network like any other: attention with a bias (W = 0), A_k = −log softmax(b)_k = a_k/τ where τ makes
Σ_k e^{−A_k} = 1, and U_k = τ R_k + γ/ΣA · log f, since the inputs X_k sum to one. The final decoder, whose inputs sum
to one too, takes its exponents in the same way.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from saffu import explicit
from saffu.calibrate import calibrated_exponents, moments
from saffu.corpus import TokenCorpus
from saffu.counted_embeddings import counted_layer, slot_pairs
from saffu.explicit import Counts
from saffu.fit import ExplicitFit
from saffu.ngram import NgramCounts
from saffu.slot_features import OwnShare, SlotFeatures, log_prior, relative_decoder, slot_groups
from saffu.unit import Unit

HELD_OUT = 20  # every so-many-th training document calibrates; it is counted too, afterwards
TARGETS = 6000  # to calibrate on
PSEUDO_COUNTS = (1.0, 10.0, 100.0)  # of the prior, added to the counts of an input: the best is taken
TEMPERATURES = (1.0, 2.0, 4.0, 8.0)  # what a unit's exponents may be multiplied by for the final decoder
COUNTED = 200_000  # targets counted to choose among them
FEATURES = 1 << 24  # numbers computed at a time


def saffu_form(exponents: Tensor) -> tuple[Tensor, Tensor]:
    """(K,) exponents a ≥ 0 as attention A, with Σ e^{−A} = 1, and a factor for each slot's decoder: a = A · factor.

    Attention is never zero, and training would be hard if it were very uneven: a slot gets at least a quarter of the
    largest, and a smaller factor instead, zero if its exponent is.
    """
    exponents = exponents.double()
    largest = exponents.max()
    raised = (exponents / largest).clamp(min=0.25) if largest > 1e-9 else torch.ones_like(exponents)
    low, high = 1e-2, 10.0  # the sum is about 0 and above 1 at these τ, whatever the slots
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if torch.exp(-raised / middle).sum() > 1 else (middle, high)
    attention = raised / high
    return attention, exponents / attention


def weigh_slots(unit: Unit, decoder: Tensor, exponents: Tensor, log_f: Tensor, prior_exponent: float) -> None:
    """Make the unit's logits γ log f + Σ_k a_k X_k·R_k."""
    attention, factor = (tensor.to(decoder) for tensor in saffu_form(exponents))
    if unit.mode == "sum":
        scaled = decoder * factor[0]  # one decoder for all slots, so they share one exponent
    else:
        scaled = (decoder.unflatten(0, (unit.slots, -1)) * factor[:, None, None]).flatten(0, 1)
    with torch.no_grad():
        unit.W.zero_()
        unit.b.copy_(-attention)  # type: ignore[union-attr]
        unit.U.copy_(scaled + prior_exponent / attention.sum() * log_f)


Sample = Callable[[TokenCorpus], Iterable[tuple[Tensor, Tensor]]]
"""Gives batches of features and targets of a corpus."""


def best_calibration(
    choices: Sequence[Callable[[], Sample]], held_out: TokenCorpus, start: Tensor, device: torch.device
) -> tuple[int, Tensor]:
    """The number of the choice that predicts held-out text best, and its exponents."""
    if not held_out.targets:
        return 0, start
    few, many = (held_out.thinned(targets).to(device) for targets in (TARGETS // 4, TARGETS))
    found = []
    for choice in choices:
        features = choice()
        exponents = calibrated_exponents(partial(features, few), start, 1e-3)
        found.append((float(moments(features(few), exponents).log_likelihood), exponents))
    best = max(range(len(found)), key=lambda number: found[number][0])
    return best, calibrated_exponents(partial(choices[best](), many), found[best][1], 1e-4)


def once_a_slot(counts: Counts, unit: Unit) -> Tensor:
    """F of a unit that counted with uniform attention, divided by it: each slot counts once."""
    return counts.F / (counts.mean_norm / unit.slots)


Layers = dict[str, tuple[Tensor, Tensor]]
"""Of some units before their slots are weighed: embeddings E (N, D), and decoder R (D or K·D, outputs)."""


class CalibratedFit(ExplicitFit):
    """Fits a network as its parent does, from the bottom up, and calibrates each layer before the next is counted.

    After `initialise`, `exponents` tells what was found: {"prior": 0.9, "radius 1": 0.93, …}.
    """

    exponents: dict[str, float]

    def initialise(self, corpus: TokenCorpus) -> None:
        self.exponents = {}
        corpus = corpus.to("cpu")
        parts = corpus.divided(1 / (HELD_OUT if corpus.documents >= 20 * HELD_OUT else 5))
        held_out, rest = parts if parts[1].targets else (parts[1], parts[0])
        if self.config.held_out == "leave-one-out":
            self._fit_leaving_one_out(corpus)
            return
        if self.config.embedding == "counted":
            self._fit_counted(held_out, rest)
            return
        self._fit_bits(held_out, rest)
        if self.config.documents:
            self.counts["document"] = self._count_documents(corpus.to(self.frozen.device))
            filled = explicit.fill_unseen(self.counts["document"].F, self.config.smoothing)
            self._set(lambda network: network.D, explicit.explicit_solution(filled, priming=1))
        if self.config.hidden_dimension:
            self._fit_final(held_out, rest)

    def _fit_counted(self, held_out: TokenCorpus, rest: TokenCorpus) -> None:
        """Embeddings and decoder of the radial unit, both from counts of pairs, straight to the vocabulary."""
        log_f = log_prior(self.frequencies)
        known, new = (slot_pairs(part, self.config.radius, len(log_f)) for part in (rest, held_out))

        def layers(pairs: list[NgramCounts]) -> Layers:
            E, R = counted_layer(pairs, log_f.float().cpu(), self.config.radius_dimension)
            return {"radius": (E.to(log_f), R.to(log_f))}

        _, exponents = self._calibrated([lambda: layers(known)], held_out, log_f)
        self._weigh(layers([old + more for old, more in zip(known, new, strict=True)]), exponents, log_f)

    def _fit_bits(self, held_out: TokenCorpus, rest: TokenCorpus) -> None:
        """Decoders from co-occurrences with bit-vectors; units that meet in one softmax are calibrated together."""
        known, new = (self._count_decoders(part.to(self.frozen.device)) for part in (rest, held_out))
        everything = {name: known[name] + new[name] for name in known}
        self.counts |= {f"{name}.decoder": counts for name, counts in everything.items()}
        bits = self.hidden.bits
        log_f = log_prior(self.frequencies if bits is None else self.frequencies @ bits)

        def layers(names: list[str], counted: dict[str, Counts], pseudo_counts: float) -> Layers:
            return {
                name: (unit.E, relative_decoder(once_a_slot(counted[name], unit), log_f, pseudo_counts))
                for name, unit in self._units()
                if name in names
            }

        for names in [list(known)] if bits is None else [[name] for name in known]:
            choices = [partial(layers, names, known, pseudo_counts) for pseudo_counts in PSEUDO_COUNTS]
            best, exponents = self._calibrated(choices, held_out, log_f)
            if bits is not None:
                exponents = exponents * self._temperature(choices[best](), exponents, log_f, held_out, rest)
            self._weigh(layers(names, everything, PSEUDO_COUNTS[best]), exponents, log_f)

    def _fit_leaving_one_out(self, corpus: TokenCorpus) -> None:
        """As `_fit_bits`, straight to the vocabulary, but calibrated on counted targets, each without its own count."""
        counted, log_f = self._count_decoders(corpus.to(self.frozen.device)), log_prior(self.frequencies)
        self.counts |= {f"{name}.decoder": counts for name, counts in counted.items()}
        F = {name: once_a_slot(counted[name], unit) for name, unit in self._units()}

        def layers(pseudo_counts: float) -> Layers:
            return {n: (unit.E, relative_decoder(F[n], log_f, pseudo_counts)) for n, unit in self._units()}

        def choice(pseudo_counts: float) -> Sample:
            own = {n: OwnShare(F[n].float(), self.frequencies.float(), pseudo_counts) for n in F}
            return partial(self._slot_batches, layers(pseudo_counts), log_f, own=own)

        choices = [partial(choice, pseudo_counts) for pseudo_counts in PSEUDO_COUNTS]
        best, exponents = best_calibration(choices, corpus, self._start(list(F)), self.frozen.device)
        self._weigh(layers(PSEUDO_COUNTS[best]), exponents, log_f)

    def _start(self, names: list[str]) -> Tensor:
        """Exponents to begin with: of the prior, then of each unit's groups."""
        sizes = [int(self._groups(name).max()) + 1 for name in names]
        return torch.cat([torch.ones(1), *(torch.full((size,), 0.5 / size) for size in sizes)])

    def _calibrated(
        self, choices: Sequence[Callable[[], Layers]], held_out: TokenCorpus, log_f: Tensor
    ) -> tuple[int, Tensor]:
        """The number of the best layers, and their exponents: of the prior, then of each unit's groups."""
        samples = [lambda choice=choice: partial(self._slot_batches, choice(), log_f) for choice in choices]
        return best_calibration(samples, held_out, self._start(list(choices[0]())), self.frozen.device)

    def _temperature(
        self, layers: Layers, exponents: Tensor, log_f: Tensor, held_out: TokenCorpus, rest: TokenCorpus
    ) -> float:
        """What to multiply a unit's exponents by, so that a final decoder predicts best from its output alone.

        The exponents that predict the unit's bits best leave its outputs too much alike for the layer above.
        """
        (name,) = layers
        counted, log_tokens = rest.thinned(COUNTED).to(self.frozen.device), log_prior(self.frequencies)

        def weighed(temperature: float) -> Sample:
            self._weigh(layers, temperature * exponents, log_f)
            by_target = self.frozen.M.new_zeros(len(log_tokens), self.config.hidden_dimension)
            for targets in self._passes(f"{name} temperature", counted):
                output = explicit.distribution(self.frozen.unit_logits(name, targets))
                by_target.index_add_(0, targets.ids, output)
            R = relative_decoder(by_target.T, log_tokens, PSEUDO_COUNTS[0])
            return partial(self._output_batches, {name: R}, log_tokens)

        choices = [partial(weighed, temperature) for temperature in TEMPERATURES]
        best, _ = best_calibration(choices, held_out, torch.ones(2), self.frozen.device)
        return TEMPERATURES[best]

    def _groups(self, name: str) -> Tensor:
        return slot_groups(name, getattr(self.config, name), getattr(self.config, f"{name}_mode"))

    def _slot_batches(
        self, layers: Layers, log_f: Tensor, sample: TokenCorpus, own: dict[str, OwnShare] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The prior and what each group of slots says; and the targets' ids, or their bits as shares."""
        speakers = {
            name: SlotFeatures(E.float(), R.float(), getattr(self.config, f"{name}_mode"), self._groups(name))
            for name, (E, R) in layers.items()
        }
        bits, log_f = self.hidden.bits, log_f.float()
        width = len(log_f) * (1 + sum(speaker.members.shape[1] for speaker in speakers.values()))
        for targets in self._passes("calibrate", sample, max(16, FEATURES // width)):
            prior = log_f.repeat(len(targets.ids), 1, 1)
            if own is not None:
                change = next(iter(own.values())).of_prior(targets.ids)
                prior.scatter_add_(2, targets.ids[:, None, None], change[:, None, None])
            said = [
                speaker(self.frozen.windows(name, targets), targets.ids, own[name] if own else None)
                for name, speaker in speakers.items()
            ]
            wanted = targets.ids if bits is None else nn.functional.normalize(bits[targets.ids].float(), p=1)
            yield torch.cat([prior, *said], dim=1), wanted

    def _weigh(self, layers: Layers, exponents: Tensor, log_f: Tensor) -> None:
        """Give some units their layers and exponents."""
        prior, rest = float(exponents[0]), exponents[1:]
        self.exponents["prior" if self.hidden.bits is None else f"{next(iter(layers))} prior"] = prior
        # Without a final decoder the network multiplies its units and divides by the prior for each but one.
        share = (prior + len(layers) - 1) / len(layers)
        for name, (E, R) in layers.items():
            groups = self._groups(name)
            found, rest = rest[: groups.max() + 1], rest[groups.max() + 1 :]
            self.exponents |= {f"{name} {number}": float(a) for number, a in enumerate(found, 1)}
            unit: Unit = self.network.units[name]  # type: ignore[assignment]
            unit.E.copy_(E)
            weigh_slots(unit, R, found[groups], log_f, share)
            self.frozen.units[name].load_state_dict(unit.state_dict())  # to count on with exactly what is stored
        if self.hidden.bits is None:
            self._set(lambda network: network.log_prior, log_f)

    def _fit_final(self, held_out: TokenCorpus, rest: TokenCorpus) -> None:
        """logits = γ log f + Σ_p β_p h_p·R_p over the parts p: their outputs h_p sum to one, so all of it fits in M."""
        known, new = (self._count_final(part.to(self.frozen.device)) for part in (rest, held_out))
        self.counts["final"] = known + new
        log_f = log_prior(self.frequencies)
        sizes = dict.fromkeys(self.frozen.units, self.config.hidden_dimension)
        if self.config.documents:
            sizes["document"] = self.config.documents

        def choice(pseudo_counts: float) -> Sample:
            R = relative_decoder(known.F, log_f, pseudo_counts).split(list(sizes.values()))
            return partial(self._output_batches, dict(zip(sizes, R, strict=True)), log_f)

        choices = [partial(choice, pseudo_counts) for pseudo_counts in PSEUDO_COUNTS]
        best, exponents = best_calibration(choices, held_out, torch.ones(1 + len(sizes)), self.frozen.device)
        self.exponents |= dict(zip([f"final {part}" for part in ("prior", *sizes)], exponents.tolist(), strict=True))
        R = relative_decoder(self.counts["final"].F, log_f, PSEUDO_COUNTS[best])
        by_row = exponents[1:].repeat_interleave(torch.tensor(list(sizes.values()))).to(R)
        self._set(lambda network: network.M, by_row[:, None] * R + exponents[0].to(R) / len(sizes) * log_f)

    def _output_batches(
        self, decoders: dict[str, Tensor], log_f: Tensor, sample: TokenCorpus
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The prior and what the outputs of some parts say, each through its decoder; and the targets."""
        prior, network = log_f.float(), self.network
        for targets in self._passes("calibrate", sample, max(16, FEATURES // len(prior) // (1 + len(decoders)))):
            said = []
            for name, R in decoders.items():
                document = name == "document"
                logits = (
                    network.document_inputs(targets) @ network.D if document else network.unit_logits(name, targets)
                )
                said.append((explicit.distribution(logits.detach()) @ R.float())[:, None])
            yield torch.cat([prior.expand(len(targets.ids), 1, -1), *said], dim=1), targets.ids
