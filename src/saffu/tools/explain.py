"""Why a model predicts what it predicts: the logits of the next token, split into what each part of the context adds.

Explicit parameters are log-probabilities, so their sums can be read. Every part is told relative to the prior f: what
it adds to a token is its evidence for it, above zero for, below zero against, and a part that tells nothing adds
nothing. The parts of each kind of model, in nats:

    calibrated            γ' log f + Σ_v a_v log(p_v/f)       exact; γ' is γ and the exponents of views not divided by f
    no hidden bits        log f + Σ_units Σ_slots evidence + normalisers                                       exact
    hidden bits           log f + Σ_units evidence + a constant             exact; and, in the unit's own terms,
                          each unit's log-probability of a token's bits, split over its slots                  exact

A slot's evidence is A_k E[x_k]·U_k, less its share A_k/ΣA of the log-prior, less its mean under the prior; what is
taken off is in the prior's term and in a constant that is the same for all tokens, so that nothing is lost.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saffu.corpus import Targets, TokenCorpus, Window
from saffu.errors import SaffuError
from saffu.explicit import distribution
from saffu.fit import ciphered
from saffu.network import Network
from saffu.product import PRIOR, Part, Product
from saffu.tokenizer import EOD, PAD, SPECIAL_TOKENS, Tokenizer
from saffu.unit import Unit
from saffu.wording import number_of

Floats = npt.NDArray[np.float64]
CONSTANT = "the same for all"


@dataclass(frozen=True, eq=False)
class Term:
    """What one part of the model adds to the logit of every token, in nats."""

    name: str
    values: Floats  # (N,)
    seen: tuple[int, ...] = ()  # the tokens it saw, oldest first
    weight: float | None = None  # its exponent, or the attention it gets
    slots: int = 1  # how many slots it stands for: `<pad>` fills many


@dataclass(frozen=True, eq=False)
class Explanation:
    """The prediction of one next token, in nats over the vocabulary; ids below `<eod>` are never predicted."""

    context: list[int]
    terms: list[Term]  # they add up to `logits`
    logits: Floats  # (N,) the model's, in float64
    # With hidden bits, by unit: terms that add up to the unit's own (mean) log-probability of each token's bits.
    units: dict[str, list[Term]] = field(default_factory=dict)
    # Of a calibrated model's memory: shares of its probability by length of context; they add up to 1.
    memory: list[Term] = field(default_factory=list)
    # Of a calibrated model: the prior's own part of its weight γ'; the rest is the memories'.
    prior_exponent: float | None = None

    @property
    def log_probabilities(self) -> Floats:
        """ln p of every token, (N,); −∞ for the markers."""
        logits = self.logits.copy()
        logits[:EOD] = -np.inf
        top = logits.max()
        return np.asarray(logits - top - np.log(np.exp(logits - top).sum()))

    def likeliest(self, number: int) -> list[int]:
        """The ids of the likeliest tokens, likeliest first."""
        order = np.argsort(-self.log_probabilities, kind="stable")
        return [int(token) for token in order[: min(number, len(order) - EOD)]]

    def to_dict(self, tokenizer: Tokenizer, candidates: Sequence[int]) -> dict[str, Any]:
        """For some candidates, in bits: what JSON and tables are made from."""
        chosen, log_p = list(candidates), self.log_probabilities

        def bits(values: Floats) -> list[float]:
            return [float(value) / math.log(2) for value in values[chosen]]

        def told(terms: list[Term], values: Any) -> list[dict[str, Any]]:
            return [
                {
                    "name": term.name,
                    "seen": [tokenizer.token(token) for token in term.seen],
                    "slots": term.slots,
                    "weight": term.weight,
                    "values": values(term.values),
                }
                for term in terms
            ]

        facts: dict[str, Any] = {
            "context": [tokenizer.token(token) for token in self.context],
            "unit": "bits",
            "candidates": [{"id": token, "token": tokenizer.token(token)} for token in chosen],
            "probabilities": [math.exp(log_p[token]) for token in chosen],
            "log_probabilities": bits(log_p),
            "logits": bits(self.logits),
            "contributions": told(self.terms, bits),  # they add up to the logits
        }
        if self.prior_exponent is not None:
            facts["prior_exponent"] = self.prior_exponent
        if self.units:  # each unit's add up to its own mean log-probability of a candidate's bits
            facts["units"] = {name: told(terms, bits) for name, terms in self.units.items()}
        if self.memory:  # shares of the memory's probability, by length of context
            facts["memory"] = told(self.memory, lambda values: [float(v) for v in values[chosen]])
        return facts


def candidate(tokenizer: Tokenizer, prompt: str, text: str) -> int:
    """The token by which a text goes on after a prompt; a word follows a word after a space.

    candidate(tokenizer, "Once upon a", "time") → the token " time", or its beginning if that is several tokens
    """
    if text in SPECIAL_TOKENS[EOD:]:
        return SPECIAL_TOKENS.index(text)
    spaced = text[:1].isalnum() and prompt != "" and not prompt[-1].isspace()
    ids = tokenizer.encode(" " + text if spaced else text)
    if not ids:
        raise SaffuError("a target is empty; name a word")
    return ids[0]


@torch.no_grad()
def explain(network: Network | Product, frequencies: Tensor, context: Sequence[int]) -> Explanation:
    """The prediction of the token after a context, which begins its document."""
    targets = next_target(context, network.lookback)
    if isinstance(network, Product):
        return explain_product(network.to("cpu"), targets, list(context))
    exact = copy.deepcopy(network).cpu().double()
    return explain_network(exact, frequencies.cpu().double(), targets, list(context))


def next_target(context: Sequence[int], lookback: int) -> Targets:
    """The target that follows a context. What it is does not matter to its prediction; here it is `<eod>`."""
    ids = torch.tensor([*context, EOD])
    at = len(context)
    past = torch.nn.functional.pad(ids, (lookback, 0), value=PAD)[-lookback - 1 :]
    corpus = TokenCorpus(ids, torch.tensor([0, at + 1]), torch.tensor([1]))
    return Targets(ids[at:], torch.tensor([at]), torch.tensor([0]), past, torch.tensor([lookback]), corpus)


def explain_product(product: Product, targets: Targets, context: list[int]) -> Explanation:
    window = product.windows(targets)
    prior = product.prior.double().numpy()
    exponents = dict(zip(product.names, product.exponents.tolist(), strict=True))
    plain = sum(exponents[part.view.name] for part in product.parts if not part.view.is_slot)
    terms = [Term(PRIOR, (exponents[PRIOR] + plain) * prior, weight=exponents[PRIOR] + plain)]
    shares: list[Term] = []
    for part in product.parts:
        name, exponent = part.view.name, exponents[part.view.name]
        seen = tuple(int(window[0, -distance]) for distance in sorted(part.view.distances, reverse=True))
        evidence = part.log_distribution(window)[0].double().numpy() - prior
        terms.append(Term(name, exponent * evidence, seen, exponent))
        if name == "memory":
            shares = memory_shares(part, seen)
    return Explanation(context, terms, sum_of(terms), memory=shares, prior_exponent=exponents[PRIOR])


def memory_shares(part: Part, seen: tuple[int, ...]) -> list[Term]:
    """How much of the memory's probability of each token comes from contexts of each length, longest first."""
    model, lengths = part.model, range(len(seen), 0, -1)
    masses, weight = [], 1.0
    matches = model.matches([torch.tensor([token]) for token in reversed(seen)])
    for table, (_, number) in zip(part.tables, matches, strict=True):
        row = int(table.row[number])
        mass = weight * part.rows[row : row + 1] if row else torch.zeros_like(part.rows[:1])
        table.add_lists(mass, number, mass.new_full((1,), weight))
        masses.append(mass[0].double().numpy())
        weight *= float(table.backoff[number[0]])
    masses.append(weight * model.unigram.numpy())
    total = np.maximum(np.sum(masses, axis=0), 1e-300)
    contexts = [seen[-length:] for length in lengths] + [()]
    named = [number_of(length, "token") for length in lengths] + ["none"]
    return [Term(n, mass / total, context) for n, mass, context in zip(named, masses, contexts, strict=True)]


def explain_network(network: Network, frequencies: Tensor, targets: Targets, context: list[int]) -> Explanation:
    vocabulary = network.vocabulary
    if network.config.hidden_dimension:
        log_prior = torch.log((frequencies + 0.5) / (frequencies + 0.5).sum())
    else:
        log_prior = network.log_prior
    own = {}
    for name, unit in network.units.items():
        (window,) = network.windows(name, targets)
        own[name] = slot_logits(unit, window, name)  # type: ignore[arg-type]
    if not network.config.hidden_dimension:
        terms = [Term(PRIOR, log_prior.numpy(), weight=1.0)]
        for name, slots in own.items():
            terms += unit_terms(slots, log_prior, None, name)[1:]
        return Explanation(context, terms, sum_of(terms))
    bits = ciphered(vocabulary, network.config.hidden_dimension, frequencies).double()
    bits /= bits.sum(1, keepdim=True)  # z̃ (N, D_H)
    bit_prior = torch.exp(log_prior) @ bits
    log_bit_prior = torch.log((bit_prior / bit_prior.sum()).clamp(min=1e-30))  # a small vocabulary leaves bits unused
    units = {name: unit_terms(slots, log_bit_prior, bits, name) for name, slots in own.items()}
    hidden = [distribution(network.unit_logits(name, targets)) for name in network.units]
    names = [f"{name} unit" for name in network.units]
    if network.config.documents:
        hidden.append(distribution(network.document_inputs(targets) @ network.D))
        names.append("document model")
    rows = torch.split(network.M, [part.shape[1] for part in hidden])
    terms, constant = [Term(PRIOR, log_prior.numpy(), weight=1.0)], 0.0
    for name, part, decoder in zip(names, hidden, rows, strict=True):
        evidence = (part @ decoder)[0] - log_prior / len(hidden)
        mean = float(torch.exp(log_prior) @ evidence)
        terms.append(Term(name, (evidence - mean).numpy()))
        constant += mean
    terms.append(Term(CONSTANT, np.full(vocabulary, constant)))
    return Explanation(context, terms, sum_of(terms), units)


@dataclass(frozen=True)
class Slot:
    """One slot of a unit, or all of its slots that hold `<pad>`."""

    name: str
    token: int
    weight: float  # attention, A
    logits: Tensor  # (outputs,) what it adds to the unit's logits
    slots: int = 1


def slot_logits(unit: Unit, window: Window, name: str) -> list[Slot]:
    """What each slot adds to a unit's logits, for a window of one target; oldest first, then all `<pad>` together."""
    weights, padding = unit.weighted_slots(window)
    attention = padding[0].clone()
    attention[window.slots] = weights[0]  # A (K,)
    tokens = torch.full((unit.slots,), PAD)
    tokens[window.slots] = window.ids[0]
    inputs = attention[:, None] * unit.E[tokens]  # (K, D)
    by_slot = unit.U.unflatten(0, (unit.slots, -1)) if unit.mode == "cat" else unit.U.expand(unit.slots, -1, -1)
    real = [slot for slot in range(unit.slots) if int(tokens[slot]) != PAD]
    last = real[-1] if real else -1
    slots = [Slot(f"{name} {last - k + 1}", int(tokens[k]), float(attention[k]), inputs[k] @ by_slot[k]) for k in real]
    pads = torch.tensor([slot for slot in range(unit.slots) if int(tokens[slot]) == PAD], dtype=torch.int64)
    if len(pads):
        if unit.mode == "cat":
            added = torch.einsum("kd,kdn->n", inputs[pads], by_slot[pads])
        else:
            added = inputs[pads].sum(0) @ unit.U
        slots.append(Slot(f"{name} <pad>", PAD, float(attention[pads].sum()), added, len(pads)))
    return slots


def unit_terms(slots: list[Slot], log_prior: Tensor, read: Tensor | None, name: str) -> list[Term]:
    """A unit's log-softmax, read by `read` (N, outputs) if given: prior, evidence of each slot, normaliser."""
    prior, attention = torch.exp(log_prior), sum(slot.weight for slot in slots)
    terms, constant = [], 0.0
    for slot in slots:
        evidence = slot.logits - slot.weight / attention * log_prior
        mean = float(prior @ evidence)
        values = evidence - mean
        constant += mean
        seen = (slot.token,)
        terms.append(
            Term(slot.name, (values if read is None else read @ values).numpy(), seen, slot.weight, slot.slots)
        )
    total = torch.stack([slot.logits for slot in slots]).sum(0)
    constant -= float(torch.logsumexp(total, 0))
    first = Term(PRIOR, (log_prior if read is None else read @ log_prior).numpy(), weight=1.0)
    return [first, *terms, Term(f"{name} normaliser", np.full(len(terms[0].values), constant))]


def sum_of(terms: Sequence[Term]) -> Floats:
    return np.asarray(np.sum([term.values for term in terms], axis=0))
