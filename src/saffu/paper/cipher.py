"""The bit-cipher and its noise model: bit-vectors Z and embeddings E for a vocabulary, without training.

Tokens are ciphered in order of frequency: the most frequent get the bit-vectors of least norm, which are easiest to
tell apart. Rows of E are non-negative and sum to one, as every input of a SAFFU must.
"""

import math

import torch
from torch import Tensor

from saffu.errors import SaffuError


def bit_cipher(tokens: int, bits: int, setting: str = "bits") -> Tensor:
    """The first `tokens` bit-vectors of width `bits`, in order of decreasing discernability (Fig. bit-cipher).

    First the unit vectors in natural order; then, for each norm d = 2, 3, …, every basis vector from the last to the
    first is added to the norm d−1 vectors in reverse order, keeping what is new. A set of bits is new exactly when
    the added bit i exceeds all others. In the reversed list those smaller sets stand together, C(i, d−1) of them:
    at its front, except that the reversed unit vectors have them at their end. So no search is needed.

    Too few bits are an error that names the `setting` they come from.

    >>> ["".join(map(str, row)) for row in bit_cipher(7, 3).tolist()]
    ['100', '010', '001', '011', '101', '110', '111']
    """
    if tokens > 2**bits - 1:
        fitting = max(2, math.ceil(math.log2(tokens + 1)))
        raise SaffuError(
            f"{bits} bits tell at most {2**bits - 1} tokens apart, but there are {tokens}; "
            f"use `{setting}` of at least {fitting}"
        )
    cipher = torch.zeros(tokens, bits, dtype=torch.uint8)
    members = torch.arange(bits)[:, None]  # (vectors of norm d, d) the positions of their ones
    row = 0
    for norm in range(1, bits + 1):
        if norm > 1:
            added = torch.arange(bits - 1, -1, -1)  # i
            sizes = torch.tensor([math.comb(i, norm - 1) for i in added.tolist()]).clamp(max=tokens)
            needed = sizes.cumsum(0) - sizes < tokens - row  # basis vectors still reached
            added, sizes = added[needed], sizes[needed]
            begins = bits - added if norm == 2 else torch.zeros_like(added)
            base = torch.cat([torch.arange(b, b + n) for b, n in zip(begins.tolist(), sizes.tolist(), strict=True)])
            members = torch.cat([members.flip(0)[base], added.repeat_interleave(sizes)[:, None]], dim=1)
        members = members[: tokens - row]
        cipher[row : row + len(members)].scatter_(1, members, 1)
        row += len(members)
        if row == tokens:
            break
    return cipher


def assign_by_frequency(cipher: Tensor, frequencies: Tensor) -> Tensor:
    """Rows of `cipher` in the order of token ids: the most frequent token gets the first row."""
    by_frequency = torch.argsort(frequencies, descending=True, stable=True)
    assigned = torch.empty_like(cipher)
    assigned[by_frequency] = cipher
    return assigned


def noised_embeddings(cipher: Tensor, frequencies: Tensor) -> Tensor:
    """E = q·Z/‖Z‖ + (1−q)·p: one observation of each token is held to be an error.

    q_n = f_n/(f_n + 1) is the share of sound observations, p = (1−ē)/‖1−ē‖₁ the noise, ē the average embedding.
    """
    bits = cipher.double()
    embeddings = bits / bits.sum(1, keepdim=True)  # (N, D)
    f = frequencies.double()
    average = f @ embeddings / f.sum()  # ē (D,)
    noise = (1 - average) / (1 - average).sum()  # p (D,)
    q = (f / (f + 1))[:, None]
    return q * embeddings + (1 - q) * noise


def coerced_embeddings(vectors: Tensor) -> Tensor:
    """Any word vectors, made positive with rows of unit sum by a softmax, so that a SAFFU can take them."""
    positive = torch.softmax(vectors.double(), dim=1).clamp(min=1e-12)  # its logarithm must exist in float32
    return positive / positive.sum(1, keepdim=True)
