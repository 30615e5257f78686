"""Explanations: the prediction of the next token as a sum of evidence, in nats.

    ln p(n) = log f_n + Σ_parts evidence_n + normalizer

A part is a unit or the document model. Its evidence is its share of the logits h·M, minus its share of the log-prior
log f, minus the mean of that under the prior: positive for a token, negative against it, and zero for a part that is
uninformative. Everything subtracted is in the prior's term and in the normalizer, which is the same for all tokens.

In the same way, each unit's own prediction, the mean log-probability of the hidden bits of a token, is a sum over its
slots. Both sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from saffu.interface import Explanation, Term
from saffu.paper import cipher
from saffu.paper.network import Network
from saffu.paper.unit import Unit
from saffu.paper.windows import Targets, Window, unit_windows
from saffu.text.tokenizer import EOD, PAD

PRIOR, NORMALIZER = "prior", "normalizer"


def explain(
    network: Network, frequencies: npt.NDArray[np.int64], target: Targets, context: Sequence[int]
) -> Explanation:
    """Explain the prediction of one target by a network in float64 on the CPU."""
    f = torch.from_numpy(frequencies).double() + 0.5
    log_prior = torch.log(f / f.sum())
    log_p = torch.log_softmax(network(target), dim=1)[0]
    hidden = network.hidden(target)[0]
    terms = [Term(PRIOR, log_prior.numpy(), weight=1.0)]
    for name, rows in network.parts.items():
        evidence = hidden[rows] @ network.M[rows] - log_prior / len(network.parts)
        title = "document model" if name == "document" else f"{name} unit"
        values = (evidence - torch.exp(log_prior) @ evidence).numpy()
        terms.append(Term(title, values, reason=f"the {title}"))
    summed = sum(term.values for term in terms)
    difference = float((log_p - torch.from_numpy(np.asarray(summed)))[EOD])  # the same for all tokens
    terms.append(Term(NORMALIZER, np.full(network.vocabulary, difference)))
    bits = cipher.bit_vectors(torch.from_numpy(frequencies), network.config.hidden_dimension).double()
    wanted = bits / bits.sum(1, keepdim=True)  # z̃ (N, D_H)
    details = {}
    for name, unit in network.units.items():
        (window,) = unit_windows(name, target, network.config)
        details[f"{name} unit"] = unit_terms(slots_of(unit, window, name), torch.exp(log_prior) @ wanted, wanted)
    return Explanation(tuple(context), terms, log_p.numpy(), details)


@dataclass(frozen=True)
class Slot:
    """One slot of a unit, or all of its slots that hold `<pad>`."""

    name: str
    token: int
    weight: float  # attention A
    logits: Tensor  # (D_H,) its contribution to the unit's logits
    slots: int = 1


def slots_of(unit: Unit, window: Window, name: str) -> list[Slot]:
    """The contribution of each slot, for a window of one target: the oldest first, all `<pad>` together last."""
    A = unit.attention(window)[0]  # (K,)
    tokens = torch.full((unit.slots,), PAD)
    tokens[window.slots] = window.ids[0].long()
    inputs = A[:, None] * unit.E[tokens]  # (K, D)
    by_slot = unit.U.unflatten(0, (-1, unit.E.shape[1])).expand(unit.slots, -1, -1)  # (K, D, D_H)
    filled = (tokens != PAD).nonzero().squeeze(1).tolist()
    slots = [Slot(f"{name} {filled[-1] - k + 1}", int(tokens[k]), float(A[k]), inputs[k] @ by_slot[k]) for k in filled]
    empty = (tokens == PAD).nonzero().squeeze(1)
    if len(empty):
        logits = torch.einsum("kd,kdn->n", inputs[empty], by_slot[empty])
        slots.append(Slot(f"{name} <pad>", PAD, float(A[empty].sum()), logits, len(empty)))
    return slots


def unit_terms(slots: Sequence[Slot], bit_prior: Tensor, wanted: Tensor) -> list[Term]:
    """A unit's mean log-probability of each token's bits `wanted` (N, D_H): prior, evidence per slot, normalizer."""
    bit_prior = bit_prior.clamp(min=1e-30)  # a small vocabulary leaves some bits unused
    bit_prior = bit_prior / bit_prior.sum()
    log_prior = torch.log(bit_prior)
    attention = sum(slot.weight for slot in slots)
    terms = [Term(PRIOR, (wanted @ log_prior).numpy(), weight=1.0)]
    subtracted = 0.0
    for slot in slots:
        evidence = slot.logits - slot.weight / attention * log_prior
        mean = float(bit_prior @ evidence)
        subtracted += mean
        values = (wanted @ (evidence - mean)).numpy()
        terms.append(Term(slot.name, values, (slot.token,), slot.weight, slot.slots))
    total = torch.stack([slot.logits for slot in slots]).sum(0)
    normalizer = subtracted - float(torch.logsumexp(total, 0))
    return [*terms, Term(NORMALIZER, np.full(len(wanted), normalizer))]
