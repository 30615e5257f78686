"""Sampling: a network writes on from prompts, one token at a time."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saffu.corpus import Targets, TokenCorpus
from saffu.errors import SaffuError
from saffu.network import Network
from saffu.product import Product
from saffu.tokenizer import EOD, PAD, Tokenizer
from saffu.workers import cores_an_operation

FEW = 8  # documents written at the same time


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the model's distribution."""

    max_tokens: int = 100
    temperature: float = 1.0  # 0 takes the likeliest token
    top_k: int = 0  # draw from so many likeliest tokens; 0 from all
    top_p: float = 1.0  # draw from the fewest tokens that hold this probability
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise SaffuError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise SaffuError(f"temperature is {self.temperature}; it must be 0 or more")
        if self.top_k < 0:
            raise SaffuError(f"top_k is {self.top_k}; it must be 0 (all tokens) or more")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SaffuError(f"seed is {self.seed}; it must be 0 or more and below 2**63")
        if not 0 < self.top_p <= 1:
            raise SaffuError(f"top_p is {self.top_p}; it must be above 0 and at most 1")


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One token id for each row of logits (n, N). Only what can be a target is ever drawn: no `<pad>`, no marker."""
    candidates = logits[:, EOD:].float()
    if sampling.temperature == 0:
        return candidates.argmax(1) + EOD
    candidates = candidates / sampling.temperature
    if 0 < sampling.top_k < candidates.shape[1]:
        least = candidates.topk(sampling.top_k, dim=1).values[:, -1:]
        candidates = candidates.masked_fill(candidates < least, -torch.inf)
    probabilities = torch.softmax(candidates, dim=1)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(dim=1, descending=True)
        beyond = ordered.cumsum(1) - ordered >= sampling.top_p  # what comes before already holds top_p
        beyond[:, 0] = False
        probabilities = probabilities.scatter(1, order, ordered.masked_fill(beyond, 0))
    below = probabilities.double().cumsum(1)
    total = below[:, -1:]
    chance = torch.rand(len(below), 1, dtype=torch.float64, device=below.device, generator=generator)
    drawn = torch.minimum(chance * total, torch.nextafter(total, torch.zeros_like(total)))  # always under the total
    return torch.searchsorted(below, drawn, right=True).squeeze(1) + EOD  # a token of no probability has no share


class PrecedingMeans:
    """The document model's inputs while documents grow: the mean embedding of what each holds so far."""

    def __init__(self, network: Network, prompts: Sequence[Sequence[int]]):
        self.E = network.document_embeddings
        ids = [torch.tensor(list(prompt), dtype=torch.int64, device=self.E.device) for prompt in prompts]
        self.sums = torch.stack([self.E[PAD] + self.E[prompt].sum(0) for prompt in ids])
        self.counts = torch.tensor([[1 + len(prompt)] for prompt in prompts], device=self.E.device)

    def __call__(self) -> Tensor:
        return self.sums / self.counts

    def add(self, tokens: Tensor) -> None:
        self.sums, self.counts = self.sums + self.E[tokens], self.counts + 1

    def keep(self, rows: list[int]) -> None:
        """Only these documents go on."""
        self.sums, self.counts = self.sums[rows], self.counts[rows]


@torch.inference_mode()
def continue_prompts(
    network: Network | Product, prompts: Sequence[Sequence[int]], sampling: Sampling
) -> Iterator[list[int | None]]:
    """Yield the next token of every prompt's document, again and again; None once a document has ended."""
    device, lookback, rows = network.device, network.lookback, len(prompts)
    generator = torch.Generator(device=device)
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)
    past = torch.full((rows, lookback + 1), PAD, dtype=torch.int32)  # the last column stands for the token to come
    for row, prompt in enumerate(prompts):
        tail = torch.tensor(prompt[-lookback:], dtype=torch.int32)
        past[row, lookback - len(tail) : lookback] = tail
    past = past.to(device)
    positions = torch.tensor([len(prompt) for prompt in prompts], device=device)
    at = torch.arange(rows, device=device) * (lookback + 1) + lookback
    means = PrecedingMeans(network, prompts) if isinstance(network, Network) and network.config.documents else None
    nowhere = TokenCorpus(past[:0, 0], positions[:1], positions[:0])  # the contexts are all in `past`
    few = isinstance(network, Product) and rows <= FEW  # then a second core only waits
    writing = list(range(rows))  # documents that have not ended; only these are computed
    for _ in range(sampling.max_tokens):
        targets = Targets(past[:, -1].long(), positions, positions, past.flatten(), at[: len(writing)], nowhere)
        with cores_an_operation(1 if few else torch.get_num_threads()):
            drawn = draw(network(targets, means() if means else None), sampling, generator)
        past[:, -1] = drawn
        past = past.roll(-1, dims=1)
        positions = positions + 1
        if means:
            means.add(drawn)
        tokens: list[int | None] = [None] * rows
        for row, token in zip(writing, drawn.tolist(), strict=True):
            tokens[row] = token
        yield tokens
        going = [place for place, row in enumerate(writing) if tokens[row] != EOD]
        if not going:
            return
        if len(going) < len(writing):
            writing = [writing[place] for place in going]
            past, positions = past[going], positions[going]
            if means:
                means.keep(going)


def stream_text(network: Network | Product, tokenizer: Tokenizer, prompt: str, sampling: Sampling) -> Iterator[str]:
    """Text that follows the prompt, in pieces as they are drawn, up to the document's end."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for (token,) in continue_prompts(network, [tokenizer.encode(prompt)], sampling):
        if token is not None:
            yield decoder.decode(tokenizer.decode_bytes([token]))
    yield decoder.decode(b"", final=True)


def complete(network: Network | Product, tokenizer: Tokenizer, prompts: Sequence[str], sampling: Sampling) -> list[str]:
    """What follows each prompt, up to its document's end; all are written at the same time."""
    if not prompts:
        return []
    steps = continue_prompts(network, [tokenizer.encode(prompt) for prompt in prompts], sampling)
    by_prompt = zip(*steps, strict=True)
    return [tokenizer.decode(token for token in tokens if token is not None) for tokens in by_prompt]
