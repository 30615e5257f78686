"""Embeddings from counts: vectors for tokens such that what follows at each distance is linear in them.

The bit-cipher gives tokens arbitrary vectors. Here the table log p_k(n | x)/f_n of each slot k, a Kneser–Ney bigram
model of the tokens k places apart, is approximated by E·R_k with one E for all slots: a singular value decomposition
of the tables side by side, rows weighed by the root of how often x is met, columns by the root of the prior.
"""

import torch
from torch import Tensor

from saffu.corpus import TokenCorpus
from saffu.ngram import KneserNey, NgramCounts
from saffu.tokenizer import EOD, PAD, SOD


def slot_pairs(corpus: TokenCorpus, slots: int, vocabulary: int) -> list[NgramCounts]:
    """For each slot of a radius, the farthest first: counts of its token with the target.

    Just before a document begins stands `<sod>`, before that `<pad>`, which tells nothing.
    """
    ids, starts = corpus.ids.cpu(), corpus.starts.cpu()
    return [NgramCounts.count(ids, starts, 2, vocabulary, (distance,)) for distance in range(slots, 0, -1)]


def log_ratios(pairs: list[NgramCounts], log_f: Tensor) -> list[Tensor]:
    """log p_k(n | x)/f_n for every token x, (N, N) for each slot k.

    A radial unit has `<pad>` in all slots before the document's beginning. The nearest of them speaks of the
    beginning; so that it is said once, each slot's `<pad>` leaves out what the next one says.
    """
    tables = []
    farther = torch.zeros_like(log_f)
    for counts in pairs:
        p = KneserNey(counts).distribution(torch.arange(counts.vocabulary)[:, None]).float()
        ratios = torch.log(p.clamp(min=1e-30)) - log_f
        ratios[:, :EOD] = 0  # the markers are never predicted
        ratios[PAD] = ratios[SOD] - farther
        farther = ratios[SOD]
        tables.append(ratios)
    return tables


def counted_layer(pairs: list[NgramCounts], log_f: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """Embeddings E (N, D), rows non-negative of unit sum, and a decoder R (K·D, N): E·R_k ≈ log p_k(n | x)/f_n."""
    tokens = len(log_f)
    met = torch.ones(tokens)
    for counts in pairs:
        met.index_add_(0, counts.columns()[0], counts.counts.float())
    met[PAD] += met[SOD]
    rows, columns = torch.sqrt(met / met.sum()), torch.exp(log_f / 2)
    tables = torch.cat([rows[:, None] * ratios * columns for ratios in log_ratios(pairs, log_f)], dim=1)  # (N, K·N)
    free = min(dimension - 1, tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        left, scale, right = torch.svd_lowrank(tables, q=free, niter=2)
    vectors = left * scale / rows[:, None]  # (N, free)
    decoder = right.T.unflatten(1, (len(pairs), tokens)) / columns  # (free, K, N)
    return on_simplex(vectors, decoder, dimension)


def on_simplex(vectors: Tensor, decoder: Tensor, dimension: int) -> tuple[Tensor, Tensor]:
    """The same products with rows of E that a SAFFU can take: shifted and scaled to be non-negative and of unit sum.

    The last dimensions take what is missing to one. Since rows of E sum to one, the shift goes into R exactly.
    """
    lowest = vectors.min(0).values
    shifted = vectors - lowest
    spread = shifted.sum(1).max()
    shares = shifted / spread
    slack = (1 - shares.sum(1, keepdim=True)).clamp(min=0) / (dimension - vectors.shape[1])
    E = torch.cat([shares, slack.expand(-1, dimension - vectors.shape[1])], dim=1)
    constant = torch.einsum("d,dkn->kn", lowest, decoder)
    R = torch.zeros(dimension, *decoder.shape[1:])
    R[: len(decoder)] = decoder * spread
    R += constant
    return E, R.transpose(0, 1).flatten(0, 1)
