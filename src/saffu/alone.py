"""One document, written on a CPU token by token.

A single row gives torch little to compute and much to launch, so here Eq. 1 is plain numpy. What would take longest is
to read all of the final decoder M for each token. But most of the distributions h that it decodes is next to nothing,
so the logits are two sums, of which only the first is computed for every token n:

    l_n = Σ_{i large} h_i M_in + Σ_{i small} h_i M_in,      the second at most B = Σ_{i small} h_i max_n M_in

A token drawn by the first sum alone is kept with probability exp(Σ_{i small} h_i M_in − B), else drawn again. What is
kept is distributed as softmax(l): not nearly but exactly, as far as float32 can tell.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, embedding_bag

from saffu.network import Network
from saffu.tokenizer import EOD, FRG, PAD, SOD
from saffu.unit import Unit

Array = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

LARGE = 4e-3  # a large probability, at temperature 1: some 30 are, and a third of the draws is thrown away
NOTHING = 1e-8  # one that changes no logit by more than rounding does
TRIES = 8  # until all of M is read after all
BEGIN = torch.zeros(1, dtype=torch.int64)


def softmax(logits: Array) -> Array:
    shares = np.exp(logits - logits.max())
    return np.asarray(shares / shares.sum())


class UnitAlone:
    """Eq. 1 for one context, as it is written."""

    def __init__(self, unit: Unit):
        self.mode = unit.mode
        self.E, self.W, self.U = (weight.detach().numpy() for weight in (unit.E, unit.W, unit.U))
        self.b = 0 if unit.b is None else unit.b.detach().numpy()

    def __call__(self, slots: Ints, head: int) -> Array:
        """Logits (outputs,) of all slots (K,) and the head's token."""
        X = self.E.take(slots, axis=0)
        scores = X @ self.E[head] @ self.W + self.b
        scores -= scores.max()
        A = np.log(np.exp(scores).sum()) - scores
        return np.asarray((A @ X if self.mode == "sum" else (A[:, None] * X).ravel()) @ self.U)


class Slots:
    """A document's last tokens as the network's units see them: (K,) tokens and which of them is the head."""

    def __init__(self, network: Network, prompt: Sequence[int]):
        config = network.config
        self.first_is_head = config.head == "first"
        self.length = len(prompt)
        self.block, self.radius = np.full(config.block, PAD), np.full(config.radius, PAD)
        if config.block:
            inside = self.length % (config.block - 1)  # tokens of this block, after its marker
            self.block[0] = SOD if inside == self.length else FRG
            self.block[1 : inside + 1] = prompt[self.length - inside :]
        if config.radius:
            tail = prompt[-config.radius :]
            self.radius[config.radius - len(tail) :] = tail

    def __call__(self, name: str) -> tuple[Ints, int]:
        slots = self.block if name == "block" else self.radius
        last = self.length % (slots.size - 1) if name == "block" else -1
        return slots, slots[0 if self.first_is_head else last]

    def add(self, token: int) -> None:
        self.length += 1
        if self.radius.size:
            self.radius[:-1] = self.radius[1:]
            self.radius[-1] = token
        if self.block.size:
            inside = self.length % (self.block.size - 1)
            if not inside:  # the block is full
                self.block[:] = PAD
            self.block[inside] = token if inside else FRG


class Decoder:
    """Draws from softmax(h·M/temperature), reading little of M."""

    def __init__(self, M: Tensor, highest: Tensor):
        self.M, self.highest = M.detach(), highest.numpy()  # (rows,) the largest entry of each row of M
        self.columns = self.M.numpy()

    def draw(self, hidden: Array, temperature: float, generator: torch.Generator) -> int | None:
        """A token that can be a target; None if too many were thrown away."""
        is_large = hidden > min(LARGE * temperature, LARGE)
        large, small = np.flatnonzero(is_large), np.flatnonzero((hidden > NOTHING) & ~is_large)
        weights, rest = torch.from_numpy(hidden[large]), hidden[small]
        first = embedding_bag(self.M, torch.from_numpy(large), BEGIN, per_sample_weights=weights)[0].numpy()[0, EOD:]
        bound = rest @ self.highest[small]
        shares = np.exp((first - first.max()) / temperature)
        below = shares.cumsum(dtype=np.float64)
        for _ in range(TRIES):
            place, chance = torch.rand(2, dtype=torch.float64, generator=generator).tolist()
            token = EOD + int(below.searchsorted(place * below[-1], side="right"))
            if chance < np.exp((rest @ self.columns[small, token] - bound) / temperature):
                return token
        return None
