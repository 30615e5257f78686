"""The trained part: small transformers over token ids, K of them side by side, whose predictions are averaged.

    x   = E[input]                                   E is the (N, d) embedding, shared with the output
    x  += attention(norm(x));  x += mlp(norm(x))     in every layer; norm is RMSNorm without parameters
    h   = norm(x)
    log p(n | c) = log softmax(h M Eᵀ + b)           M is (d, d); b starts at log f, the prior

Queries and keys are normalized and rotated by their position. Each head adds a learned bias per distance to its
scores, may attend to nothing (the sink, a key without a value), and has a gate: its output is multiplied by
2σ(norm(x) · g). The matrices of all layers and networks are stored in three stacked parameters, as the optimizer needs
them (see optimizer.py). The networks share nothing and may read different rows.

With `classes`, the output predicts the class first and then the token, log p(k(n) | c) + log p(n | k(n), c). A target
then needs only the logits of its own class, which makes training on a CPU fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import ParamSpec

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saffu.companion.spelling import Spellings
from saffu.interface import Array
from saffu.text.tokenizer import EOD

P = ParamSpec("P")
HEAD = 64  # dimensions of a head; a network of `depth` layers has `depth` heads of this width
EMBEDDING_NORM = 1.5  # length of an embedding at the start
ROTARY_BASE = 10_000.0
FRONT = 8  # keys before those of the text: the sink, and others with no weight that keep rows aligned for a GPU
ALIGNED = 8  # the number of output logits is a multiple of this


class NetworkStack(nn.Module):
    """`number` transformers of `depth` layers, `depth` heads, and width 64·depth, for contexts of `context` tokens."""

    order: Tensor  # tables of classes, if there are any
    rank: Tensor
    class_of: Tensor
    first: list[int]
    grams: Tensor  # tables of spellings, if there are any
    offsets: Tensor
    gram_weights: Tensor

    def __init__(
        self,
        log_prior: Array,
        depth: int,
        context: int,
        dropout: float = 0.0,
        classes: Array | None = None,
        number: int = 1,
        spellings: Spellings | None = None,
    ) -> None:
        """`log_prior` (N,): log f of each token. `classes` (N,): class of each token, numbered without gaps.

        With `spellings`, what tokens have in common by their spelling is learned once.
        """
        super().__init__()
        self.number = number
        self.heads = depth
        self.context = context
        self.dropout = dropout
        self.width = width = HEAD * depth
        self.training_dtype = self.scoring_dtype = torch.float32  # of the computation; weights are float32
        self.is_compiled = False  # while it is trained
        prior = torch.from_numpy(np.asarray(log_prior, dtype=np.float32))

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(number, *shape) / width**0.5)

        def zeros(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(number, *shape))

        self.embedding = nn.Parameter(normal(len(prior), width).data * EMBEDDING_NORM)
        self.attention = normal(depth, 4, width, width)  # query, key, value, output
        self.mlp = normal(depth, 2, 4 * width, width)  # up, and down transposed
        self.head_gate = zeros(depth, width, depth)  # (K, layers, d, heads)
        self.distance = zeros(depth, depth, context)  # (K, layers, heads, distance)
        self.sink = zeros(depth, depth)  # (K, layers, heads)
        self.output_map = zeros(width, width)
        self.output_bias = nn.Parameter(prior[EOD:].repeat(number, 1))
        with torch.no_grad():  # every layer starts as the identity
            self.attention[:, :, 3].zero_()
            self.mlp[:, :, 1].zero_()
        self._set_classes(classes, prior)
        self.spelling: nn.Parameter | None = None  # (K, n-grams, d)
        if spellings is not None and spellings.number:
            for name, values in zip(("grams", "offsets", "gram_weights"), spellings, strict=False):
                self.register_buffer(name, torch.from_numpy(values), persistent=False)
            self.spelling = zeros(spellings.number, width)

    def embeddings(self) -> Tensor:
        """The embedding of every token (K, N, d), with what it owes to its spelling."""
        if self.spelling is None:
            return self.embedding
        shared = [
            F.embedding_bag(self.grams, own, self.offsets, mode="sum", per_sample_weights=self.gram_weights)
            for own in self.spelling
        ]
        return self.embedding + torch.stack(shared)

    @torch.no_grad()
    def soften(self, temperature: float) -> None:
        """Divide all logits by a temperature."""
        for weight in (self.output_map, self.output_bias, self.class_map, self.class_bias):
            if weight is not None:
                weight.div_(temperature)

    def _set_classes(self, classes: Array | None, prior: Tensor) -> None:
        """Parameters and tables of the output's first level, if it has two."""
        self.class_map: nn.Parameter | None = None
        self.class_bias: nn.Parameter | None = None
        if classes is None:
            return
        of_token = torch.from_numpy(np.asarray(classes, dtype=np.int64))[EOD:]
        number = int(of_token.max()) + 1
        order = torch.argsort(of_token, stable=True)  # tokens from EOD on, class by class
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("rank", torch.argsort(order), persistent=False)
        self.register_buffer("class_of", of_token, persistent=False)
        self.first = [0, *torch.bincount(of_token, minlength=number).cumsum(0).tolist()]
        share = torch.zeros(number).index_add_(0, of_token, prior[EOD:].exp())
        self.class_map = nn.Parameter(torch.zeros(self.number, number, self.width))
        self.class_bias = nn.Parameter(share.log().repeat(self.number, 1))

    @property
    def dtype(self) -> torch.dtype:
        return self.training_dtype if self.training else self.scoring_dtype

    def hidden(self, inputs: Tensor, documents: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """h (K, rows · T, d) after each input token; tokens of other `documents` are not seen.

        Both are (K, rows, T), or (rows, T) if all networks read the same rows. `embeddings` are what the method of that
        name returns, if it was called before.
        """
        embeddings = self.embeddings() if embeddings is None else embeddings
        inputs = inputs.expand(self.number, *inputs.shape[-2:])
        length = inputs.shape[-1]
        turn = rotation(length, inputs.device, self.dtype)
        apart = documents[..., None, :, None] != documents[..., None, None, :]
        apart = F.pad(apart, (FRONT, 0))  # ([K,] rows, 1, T, FRONT + T)
        unseen = torch.zeros_like(apart, dtype=self.dtype).masked_fill_(apart, -torch.inf)
        biases = torch.cat([front_bias(self.sink, length), causal_bias(self.distance[..., :length])], -1)
        biases = biases.to(self.dtype)
        attention = self.attention.to(self.dtype)
        mlp = self.mlp.to(self.dtype)
        head_gate = self.head_gate.to(self.dtype)
        first = torch.arange(self.number, device=inputs.device) * embeddings.shape[1]
        places = (inputs + first[:, None, None]).flatten(1)
        x = F.embedding(places, embeddings.flatten(0, 1)).to(self.dtype)  # (K, rows · T, d)
        x = F.dropout(x, self.dropout, self.training)
        layer = self._maybe_compiled(transformer_layer)
        dropout = self.dropout if self.training else 0.0
        for n in range(self.heads):
            bias = (biases[:, n, None] + unseen).flatten(0, 1)  # (K · rows, heads, T, FRONT + T)
            x = layer(x, attention[:, n], head_gate[:, n], mlp[:, n], bias, turn, dropout)
        return norm(x)

    def _maybe_compiled(self, function: Callable[P, Tensor]) -> Callable[P, Tensor]:
        return compiled(function) if self.is_compiled and self.training else function

    def target_log_probabilities(self, hidden: Tensor, targets: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """log p of targets (K, n), or (n,) for all networks, after states h (K, n, d): (K, n) float32."""
        embeddings = (self.embeddings() if embeddings is None else embeddings)[:, EOD:]
        targets = (targets - EOD).expand(hidden.shape[:2])
        mapped = product(hidden, self.output_map.to(hidden.dtype).mT)
        if self.class_map is not None:
            parts = zip(range(self.number), hidden, mapped, targets, embeddings, strict=True)
            return torch.stack([self._within_classes(*part) for part in parts])
        log_p = self._maybe_compiled(log_softmax_at)
        return log_p(mapped, embeddings, self.output_bias, targets)

    def _within_classes(
        self, member: int, hidden: Tensor, mapped: Tensor, targets: Tensor, embeddings: Tensor
    ) -> Tensor:
        """log p of targets (n,) by one network whose output predicts the class first."""
        assert self.class_map is not None and self.class_bias is not None
        classes = self.class_of[targets]
        by_class = F.linear(hidden.float(), self.class_map[member], self.class_bias[member])
        log_p = -F.cross_entropy(by_class, classes, reduction="none")
        places = torch.argsort(classes, stable=True)
        sizes = torch.bincount(classes, minlength=len(self.first) - 1).tolist()
        widths = np.diff(self.first).tolist()
        weights = embeddings[self.order].split(widths)
        biases = self.output_bias[member][self.order].split(widths)
        parts = []
        ranks = self.rank[targets[places]].split(sizes)
        for k, (states, own) in enumerate(zip(mapped[places].split(sizes), ranks, strict=True)):
            if len(own):
                logits = F.linear(states.float(), weights[k], biases[k])
                parts.append(-F.cross_entropy(logits, own - self.first[k], reduction="none"))
        return log_p + torch.cat(parts)[torch.argsort(places)]


def transformer_layer(
    x: Tensor,
    attention: Tensor,
    head_gate: Tensor,
    mlp: Tensor,
    bias: Tensor,
    turn: tuple[Tensor, Tensor],
    dropout: float,
) -> Tensor:
    """States (K, rows · T, d) after one layer, from its weights and the biases (K · rows, heads, T, FRONT + T)."""
    normed = norm(x)
    heads = attend(normed, attention[:, :3], bias, turn)
    open_ = 2 * torch.sigmoid(product(normed, head_gate.mT))  # (K, rows · T, heads)
    heads = (heads * open_.unsqueeze(-1)).flatten(2)
    x = x + F.dropout(product(heads, attention[:, 3]), dropout)
    up, down = mlp.unbind(1)
    return x + F.dropout(product(F.relu(product(norm(x), up)).square(), down.mT), dropout)


@cache
def compiled(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The same function as fewer, larger kernels. A layer at a time is compiled in seconds, a whole network is not."""
    return torch.compile(function, dynamic=False)


def attend(x: Tensor, maps: Tensor, bias: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """What each head reads, (K, rows · T, heads, 64), from inputs (K, rows · T, d)."""
    rows, heads, length = bias.shape[:3]  # rows of all networks
    mapped = product(x, maps.flatten(1, 2)).view(rows, length, 3, heads, HEAD)
    both, value = mapped.split([2, 1], 2)
    query, key = rotated(norm(both), turn).transpose(1, 3).unbind(2)  # (K · rows, heads, T, 64)
    value = value[:, :, 0].transpose(1, 2)
    key = F.pad(key, (0, 0, FRONT, 0))
    value = F.pad(value, (0, 0, FRONT, 0))  # those of the sink are zeros
    read = F.scaled_dot_product_attention(query, key, value, bias, scale=HEAD**-0.5)
    return read.transpose(1, 2).reshape(len(x), -1, heads, HEAD)


def log_softmax_at(states: Tensor, embeddings: Tensor, biases: Tensor, targets: Tensor) -> Tensor:
    """log p (K, n) of targets, from states (K, n, d), embeddings (K, N, d), and biases (K, N)."""
    unused = -biases.shape[1] % ALIGNED
    weight = F.pad(embeddings.to(states.dtype), (0, 0, 0, unused))
    bias = F.pad(biases, (0, unused), value=-math.inf)
    logits = product(states, weight).float() + bias[:, None]
    return -F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


def product(x: Tensor, weights: Tensor) -> Tensor:
    """States (K, n, a) by the matrices (K, b, a) of their networks: (K, n, b)."""
    if len(weights) == 1:  # faster than a batch of one
        return F.linear(x[0], weights[0])[None]
    return torch.bmm(x, weights.mT)


def norm(x: Tensor) -> Tensor:
    """RMSNorm without parameters."""
    return F.rms_norm(x, (x.shape[-1],))


def causal_bias(distance: Tensor) -> Tensor:
    """(…, T) biases by distance to matrices (…, T, T) with bias[i, j] = distance[i − j], and −inf where j > i.

    One row of length 2T, read again and again with a period of 2T − 1, gives all of them without a gather.

    >>> causal_bias(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., -inf, -inf],
            [2., 1., -inf],
            [3., 2., 1.]])
    """
    *outer, length = distance.shape
    future = distance.new_full((*outer, length), -torch.inf)
    row = torch.cat([distance[..., :1], future, distance[..., 1:].flip(-1)], -1)  # (…, 2T)
    tiled = row.unsqueeze(-2).expand(*outer, length, 2 * length).reshape(*outer, -1)
    return tiled[..., : length * (2 * length - 1)].view(*outer, length, 2 * length - 1)[..., :length]


def front_bias(sink: Tensor, length: int) -> Tensor:
    """The biases (…, heads, T, FRONT) of keys before those of the text: those of the sinks (…, heads) last.

    >>> front_bias(torch.tensor([[0.5]]), 1)
    tensor([[[[  -inf,   -inf,   -inf,   -inf,   -inf,   -inf,   -inf, 0.5000]]]])
    """
    last = F.pad(sink[..., None, None], (FRONT - 1, 0), value=-torch.inf)
    return last.expand(*sink.shape, length, -1)


def rotation(length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (T, 1, 1, 32) of rotary positions."""
    speeds = ROTARY_BASE ** -(torch.arange(0, HEAD, 2, device=device) / HEAD)
    angles = torch.arange(length, device=device)[:, None, None, None] * speeds
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021): the halves of each head are turned by an angle that grows with position."""
    cos, sin = turn
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)
