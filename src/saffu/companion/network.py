"""The trained side: a small transformer over token ids.

    x   = E[input]                                   E is the (N, d) embedding, shared with the output
    x  += attention(norm(x));  x += mlp(norm(x))     in every layer; norm is RMSNorm without parameters
    h   = norm(x)
    log p(n | c) = log softmax(h M Eᵀ + b)           M is (d, d); b starts at log f, the prior

Queries and keys are normalized and rotated by their position. Each head adds a learned bias per distance to its
scores, and may attend to nothing: the sink, a key without a value. The matrices of all layers are stored in three
stacked parameters, as the optimizer needs them (see optimizer.py).

With `classes`, the output predicts the class first and then the token, log p(k(n) | c) + log p(n | k(n), c). A target
then needs only the logits of its own class, which makes training on a CPU fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saffu.interface import Array
from saffu.text.tokenizer import EOD

HEAD = 64  # dimensions of a head; a network of `depth` layers has `depth` heads of this width
EMBEDDING_NORM = 1.5  # length of an embedding at the start
ROTARY_BASE = 10_000.0
FRONT = 8  # keys before those of the text: the sink, and others with no weight that keep rows aligned for a GPU
ALIGNED = 8  # the number of output logits is a multiple of this


class Network(nn.Module):
    """A transformer of `depth` layers, `depth` heads, and width 64·depth, for contexts of up to `context` tokens."""

    order: Tensor  # tables of classes, if there are any
    rank: Tensor
    class_of: Tensor
    first: list[int]

    def __init__(
        self, log_prior: Array, depth: int, context: int, dropout: float = 0.0, classes: Array | None = None
    ) -> None:
        """`log_prior` (N,): log f of each token. `classes` (N,): class of each token, numbered without gaps."""
        super().__init__()
        vocabulary, self.heads, self.context, self.dropout = len(log_prior), depth, context, dropout
        self.width = width = HEAD * depth
        self.training_dtype = self.scoring_dtype = torch.float32  # of the computation; weights are float32
        prior = torch.from_numpy(np.asarray(log_prior, dtype=np.float32))
        self.embedding = nn.Parameter(torch.randn(vocabulary, width) * EMBEDDING_NORM / width**0.5)
        self.attention = nn.Parameter(torch.randn(depth, 4, width, width) / width**0.5)  # query, key, value, output
        self.mlp = nn.Parameter(torch.randn(depth, 2, 4 * width, width) / width**0.5)  # up, and down transposed
        self.distance = nn.Parameter(torch.zeros(depth, depth, context))  # (layers, heads, distance)
        self.sink = nn.Parameter(torch.zeros(depth, depth))  # (layers, heads)
        self.output_map = nn.Parameter(torch.zeros(width, width))
        self.output_bias = nn.Parameter(prior[EOD:].clone())
        with torch.no_grad():  # every layer starts as the identity
            self.attention[:, 3].zero_()
            self.mlp[:, 1].zero_()
        self._set_classes(classes, prior)

    def _set_classes(self, classes: Array | None, prior: Tensor) -> None:
        """Parameters and tables of the output's first level, if it has two."""
        self.class_map: nn.Parameter | None = None
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
        self.class_map = nn.Parameter(torch.zeros(number, self.width))
        self.class_bias = nn.Parameter(share.log())

    @property
    def dtype(self) -> torch.dtype:
        return self.training_dtype if self.training else self.scoring_dtype

    def hidden(self, inputs: Tensor, documents: Tensor) -> Tensor:
        """h (rows, T, d) after each input token (rows, T); tokens of other `documents` (rows, T) are not seen."""
        length = inputs.shape[1]
        turn = rotation(torch.arange(length, device=inputs.device), self.dtype)
        apart = F.pad(documents[:, None, :, None] != documents[:, None, None, :], (FRONT, 0))  # (rows, 1, T, FRONT + T)
        unseen = torch.zeros_like(apart, dtype=self.dtype).masked_fill_(apart, -torch.inf)
        biases = torch.cat([front_bias(self.sink, length), causal_bias(self.distance[:, :, :length])], 3)
        return self._layers(inputs, (bias + unseen for bias in biases.to(self.dtype)), turn)[0]

    def extended(self, inputs: Tensor, past: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """As `hidden`, for inputs (rows, T) that continue one document each, of which `past` was read before.

        `past` (layers, 2, rows, heads, P, 64) holds the keys and values of the `lengths` (rows,) tokens before, padded
        at their end. Returns h (rows, T, d), and the keys and values of the inputs (layers, 2, rows, heads, T, 64).
        """
        places = lengths[:, None] + torch.arange(inputs.shape[1], device=inputs.device)  # (rows, T)
        before = torch.arange(past.shape[4], device=inputs.device).expand(len(inputs), -1)
        padding = before >= lengths[:, None]
        distance = places[:, :, None] - torch.cat([before.masked_fill(padding, 1 << 30), places], 1)[:, None]
        unseen = (distance < 0)[:, None]  # (rows, 1, T, P + T)
        distance = distance.clamp(0, self.context - 1)
        front = front_bias(self.sink, inputs.shape[1])

        def bias(layer: int) -> Tensor:
            scores = self.distance[layer][:, distance].transpose(0, 1).masked_fill(unseen, -torch.inf)
            return torch.cat([front[layer].expand(len(inputs), -1, -1, -1), scores], 3).to(self.dtype)

        turn = rotation(places, self.dtype)
        hidden, kept = self._layers(inputs, (bias(layer) for layer in range(len(past))), turn, past)
        return hidden, torch.stack([torch.stack(own) for own in kept])

    def _layers(
        self, inputs: Tensor, biases: Iterable[Tensor], turn: tuple[Tensor, Tensor], past: Tensor | None = None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """h (rows, T, d), and each layer's keys and values (rows, heads, T, 64).

        `biases`, by layer, are added to the scores of the sink and of all keys: (rows, heads, T, FRONT + keys).
        """
        attention, mlp = self.attention.to(self.dtype).unbind(), self.mlp.to(self.dtype).unbind()
        x = self._drop(F.embedding(inputs, self.embedding).to(self.dtype))
        kept = []
        for layer, bias in enumerate(biases):
            maps, joined = attention[layer].split([3, 1])
            query, key, value = self._mapped(norm(x), maps, turn)
            kept.append((key, value))
            if past is not None:
                key, value = torch.cat([past[layer, 0], key], 2), torch.cat([past[layer, 1], value], 2)
            key, value = F.pad(key, (0, 0, FRONT, 0)), F.pad(value, (0, 0, FRONT, 0))  # those of the sink are zeros
            heads = F.scaled_dot_product_attention(query, key, value, bias, scale=HEAD**-0.5)
            x = x + self._drop(heads.transpose(1, 2).flatten(2) @ joined[0].T)
            up, down = mlp[layer].unbind()
            x = x + self._drop(F.relu(norm(x) @ up.T).square() @ down)
        return norm(x), kept

    def _mapped(self, x: Tensor, maps: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, and values (rows, heads, T, 64) of inputs (rows, T, d)."""
        both, value = (x @ maps.flatten(0, 1).T).unflatten(2, (3, self.heads, HEAD)).split([2, 1], 2)
        query, key = rotated(norm(both), turn).transpose(1, 3).unbind(2)
        return query, key, value[:, :, 0].transpose(1, 2)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def target_log_probabilities(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """log p of targets (n,) after states h (n, d): (n,) float32."""
        mapped = hidden @ self.output_map.to(hidden.dtype)
        targets = targets - EOD
        if self.class_map is None:
            unused = -len(self.output_bias) % ALIGNED
            weight = F.pad(self.embedding[EOD:].to(mapped.dtype), (0, 0, 0, unused))
            logits = F.linear(mapped, weight).float() + F.pad(self.output_bias, (0, unused), value=-math.inf)
            return -F.cross_entropy(logits, targets, reduction="none")
        classes = self.class_of[targets]
        by_class = F.linear(hidden.float(), self.class_map, self.class_bias)
        log_p = -F.cross_entropy(by_class, classes, reduction="none")
        places = torch.argsort(classes, stable=True)
        sizes = torch.bincount(classes, minlength=len(self.first) - 1).tolist()
        widths = np.diff(self.first).tolist()
        by_rank = self.embedding[EOD:][self.order].split(widths), self.output_bias[self.order].split(widths)
        parts, ranks = [], self.rank[targets[places]].split(sizes)
        for k, (states, own) in enumerate(zip(mapped[places].split(sizes), ranks, strict=True)):
            if len(own):
                logits = F.linear(states.float(), by_rank[0][k], by_rank[1][k])
                parts.append(-F.cross_entropy(logits, own - self.first[k], reduction="none"))
        return log_p + torch.cat(parts)[torch.argsort(places)]

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """log p of every token after states h (n, d): (n, N) float32; −inf for what is never predicted."""
        mapped = hidden @ self.output_map.to(hidden.dtype)
        logits = F.linear(mapped, self.embedding[EOD:].to(mapped.dtype)).float() + self.output_bias
        if self.class_map is None:
            log_p = F.log_softmax(logits, 1)
        else:
            of_classes = F.log_softmax(F.linear(hidden.float(), self.class_map, self.class_bias), 1)
            own = self.class_of.expand_as(logits)
            highest = torch.full_like(of_classes, -math.inf).scatter_reduce(1, own, logits, "amax")
            logits = logits - highest[:, self.class_of]
            totals = torch.zeros_like(of_classes).scatter_add(1, own, logits.exp())
            log_p = logits + (of_classes - totals.log())[:, self.class_of]
        return F.pad(log_p, (EOD, 0), value=-math.inf)


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
    """The biases (layers, heads, T, FRONT) of keys before those of the text: those of the sinks (layers, heads) last.

    >>> front_bias(torch.tensor([[0.5]]), 1)
    tensor([[[[  -inf,   -inf,   -inf,   -inf,   -inf,   -inf,   -inf, 0.5000]]]])
    """
    last = F.pad(sink[:, :, None, None], (FRONT - 1, 0), value=-torch.inf)
    return last.expand(-1, -1, length, -1)


def rotation(places: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines (…, 1, 1, 32) of rotary positions (…)."""
    speeds = ROTARY_BASE ** -(torch.arange(0, HEAD, 2, device=places.device) / HEAD)
    angles = places[..., None, None, None] * speeds
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions (Su et al. 2021): the halves of each head are turned by an angle that grows with position."""
    cos, sin = turn
    one, other = x.chunk(2, -1)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1)
