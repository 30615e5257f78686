"""The bit-cipher and its noise model: bit-vectors Z and embeddings E of a vocabulary, without training.

Tokens get bit-vectors in order of frequency: the most frequent ones get those of the smallest norm, which are the
easiest to distinguish. Rows of E are positive and sum to one, as the inputs of a SAFFU must.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from saffu.errors import SaffuError

LEAST = 1e-12  # smallest embedding before rows are normalized: its logarithm exists in float32


def bit_cipher(tokens: int, bits: int, setting: str = "bits") -> Tensor:
    """The first `tokens` bit-vectors of width `bits`, in order of decreasing discernability (Fig. 2).

    First the unit vectors in natural order; then, for each norm d = 2, 3, …, every basis vector from the last to the
    first is added to the vectors of norm d − 1 in reverse order, keeping the new ones. A set of bits is new exactly
    when the added bit i exceeds all others. In the reversed list those C(i, d − 1) smaller sets are contiguous: at
    its front, except that the reversed unit vectors have them at their end. So no search is needed.

    `setting` names the setting to raise if there are too few bits.

    >>> ["".join(map(str, row)) for row in bit_cipher(7, 3).tolist()]
    ['100', '010', '001', '011', '101', '110', '111']
    """
    if tokens > 2**bits - 1:
        fitting = max(2, math.ceil(math.log2(tokens + 1)))
        raise SaffuError(
            f"{bits} bits can encode at most {2**bits - 1} tokens, but the vocabulary has {tokens}; "
            f"set `{setting}` to at least {fitting}"
        )
    cipher = torch.zeros(tokens, bits, dtype=torch.uint8)
    members = torch.arange(bits)[:, None]  # (vectors of norm d, d) the positions of their ones
    row = 0
    for norm in range(1, bits + 1):
        if norm > 1:
            added = torch.arange(bits - 1, -1, -1)  # i
            sizes = torch.tensor([math.comb(i, norm - 1) for i in added.tolist()]).clamp(max=tokens)
            needed = sizes.cumsum(0) - sizes < tokens - row  # basis vectors still reached
            added = added[needed]
            sizes = sizes[needed]
            begins = bits - added if norm == 2 else torch.zeros_like(added)
            base = torch.cat([torch.arange(b, b + n) for b, n in zip(begins.tolist(), sizes.tolist(), strict=True)])
            members = torch.cat([members.flip(0)[base], added.repeat_interleave(sizes)[:, None]], dim=1)
        members = members[: tokens - row]
        cipher[row : row + len(members)].scatter_(1, members, 1)
        row += len(members)
        if row == tokens:
            break
    return cipher


def bit_vectors(frequencies: Tensor, bits: int, setting: str = "bits") -> Tensor:
    """Z (N, bits): the most frequent token gets the first bit-vector; ties are broken by id.

    >>> bit_vectors(torch.tensor([0, 2, 9]), 2).tolist()
    [[1, 1], [0, 1], [1, 0]]
    """
    cipher = bit_cipher(len(frequencies), bits, setting)
    assigned = torch.empty_like(cipher)
    assigned[torch.argsort(frequencies, descending=True, stable=True)] = cipher
    return assigned


def noised_embeddings(bits: Tensor, frequencies: Tensor) -> Tensor:
    """E_n = q_n Z_n/‖Z_n‖₁ + (1 − q_n) p (Sec. 2.5): one observation of each token is taken to be an error.

    q_n = f_n/(f_n + 1) is the share of correct observations, p = (1 − ē)/‖1 − ē‖₁ the noise, and ē the average
    embedding. A token with f = 0 is all noise.

    >>> noised_embeddings(torch.tensor([[1, 0], [0, 1], [1, 1]]), torch.tensor([3, 1, 0]))
    tensor([[0.8125, 0.1875],
            [0.1250, 0.8750],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    f = frequencies.double()
    clean = bits.double() / bits.double().sum(1, keepdim=True)  # (N, D)
    average = f @ clean / f.sum()  # ē (D,)
    noise = (1 - average).clamp(min=LEAST)  # zero only if the whole text is a single token, repeated
    noise = noise / noise.sum()  # p (D,)
    q = (f / (f + 1))[:, None]
    return q * clean + (1 - q) * noise


def coerced_embeddings(vectors: Tensor) -> Tensor:
    """Embeddings from any word vectors (N, D): a softmax makes their rows positive, with unit sum (Sec. 2.4).

    >>> coerced_embeddings(torch.zeros(1, 2))
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """
    positive = torch.softmax(vectors.double(), dim=1).clamp(min=LEAST)
    return positive / positive.sum(1, keepdim=True)
