"""Sampling: a network writes on from prompts, one token at a time."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saffu.alone import Array, Decoder, Slots, UnitAlone, softmax
from saffu.corpus import Targets, TokenCorpus
from saffu.errors import SaffuError
from saffu.network import Network
from saffu.product import Product
from saffu.tokenizer import EOD, PAD, Tokenizer
from saffu.workers import cores_an_operation

FEW = 8  # documents written at the same time
COLDEST = 1e-5  # a temperature below which float32 knows no tokens but the likeliest


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
            raise SaffuError(f"`max_tokens` is {self.max_tokens}; it must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise SaffuError(f"`temperature` is {self.temperature}; it must be 0 or more")
        if self.top_k < 0:
            raise SaffuError(f"`top_k` is {self.top_k}; it must be 0 (all tokens) or more")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise SaffuError(f"`seed` is {self.seed}; it must be 0 or more and below 2**63")
        if not 0 < self.top_p <= 1:
            raise SaffuError(f"`top_p` is {self.top_p}; it must be above 0 and at most 1")

    @property
    def from_all(self) -> bool:
        """Whether any token may be drawn, by the model's distribution at this temperature."""
        return self.temperature >= COLDEST and not self.top_k and self.top_p == 1


def draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One token id for each row of logits (n, N). Only what can be a target is ever drawn: no `<pad>`, no marker."""
    candidates = logits[:, EOD:].float()
    if sampling.temperature < COLDEST:
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
    below = probabilities.cumsum(1, dtype=torch.float64)
    chance = torch.rand(len(below), 1, dtype=torch.float64, device=below.device, generator=generator)
    drawn = chance * below[:, -1:]  # under the total, since chance is at most 1 − 2⁻⁵³
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


def preceding_means(network: Network | Product, prompts: Sequence[Sequence[int]]) -> PrecedingMeans | None:
    """Of a network that has a document model."""
    return PrecedingMeans(network, prompts) if isinstance(network, Network) and network.config.documents else None


class Together:
    """Documents that grow at the same time, a row each."""

    def __init__(self, network: Network | Product, prompts: Sequence[Sequence[int]]):
        self.network, lookback, rows = network, network.lookback, len(prompts)
        past = torch.full((rows, lookback + 1), PAD, dtype=torch.int32)  # the last column stands for the token to come
        for row, prompt in enumerate(prompts):
            tail = torch.tensor(prompt[-lookback:], dtype=torch.int32)
            past[row, lookback - len(tail) : lookback] = tail
        self.past = past.to(network.device)
        self.positions = torch.tensor([len(prompt) for prompt in prompts], device=network.device)
        self.at = torch.arange(rows, device=network.device) * (lookback + 1) + lookback
        self.nowhere = TokenCorpus(self.past[:0, 0], self.positions[:1], self.positions[:0])  # all is in `past`
        few = isinstance(network, Product) and rows <= FEW  # then a second core only waits
        self.cores = 1 if few else torch.get_num_threads()
        self.means = preceding_means(network, prompts)

    def draw(self, sampling: Sampling, generator: torch.Generator) -> Tensor:
        """The next token of each, (rows,)."""
        past, positions = self.past, self.positions
        targets = Targets(past[:, -1].long(), positions, positions, past.flatten(), self.at[: len(past)], self.nowhere)
        with cores_an_operation(self.cores):
            return draw(self.network(targets, self.means() if self.means else None), sampling, generator)

    def add(self, tokens: Tensor) -> None:
        self.past[:, -1] = tokens
        self.past = self.past.roll(-1, dims=1)
        self.positions = self.positions + 1
        if self.means:
            self.means.add(tokens)

    def keep(self, rows: list[int]) -> None:
        """Only these documents go on."""
        self.past, self.positions = self.past[rows], self.positions[rows]
        if self.means:
            self.means.keep(rows)


class Alone:
    """One document of a network, on a CPU."""

    def __init__(self, network: Network, prompt: Sequence[int]):
        self.network = network
        self.units = {name: UnitAlone(unit) for name, unit in zip(network.units, network.every_unit(), strict=True)}
        self.slots = Slots(network, prompt)
        self.means = preceding_means(network, [prompt])
        self.decoder = Decoder(network.M, network.highest()) if network.config.hidden_dimension else None

    def parts(self) -> list[Array]:
        """The logits of each part of the network, (its outputs,)."""
        parts = [unit(*self.slots(name)) for name, unit in self.units.items()]
        if self.means:
            parts.append((self.means() @ self.network.D).squeeze(0).numpy())
        return parts

    def logits(self) -> Tensor:
        """Of the next token, (1, N)."""
        return self.network.joined([torch.from_numpy(part)[None] for part in self.parts()])

    def draw(self, sampling: Sampling, generator: torch.Generator) -> Tensor:
        """The next token, (1,)."""
        if self.decoder and sampling.from_all:
            hidden = np.concatenate([softmax(part) for part in self.parts()])
            token = self.decoder.draw(hidden, sampling.temperature, generator)
            if token is not None:
                return torch.tensor([token])
        return draw(self.logits(), sampling, generator)

    def add(self, token: Tensor) -> None:
        self.slots.add(int(token))
        if self.means:
            self.means.add(token)


@torch.inference_mode()
def continue_prompts(
    network: Network | Product, prompts: Sequence[Sequence[int]], sampling: Sampling
) -> Iterator[list[int | None]]:
    """Yield the next token of every prompt's document, again and again; None once a document has ended."""
    generator = torch.Generator(device=network.device)
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)
    documents: Together | Alone
    if len(prompts) == 1 and isinstance(network, Network) and network.device.type == "cpu":
        documents = Alone(network, prompts[0])
    else:
        documents = Together(network, prompts)
    writing = list(range(len(prompts)))  # documents that have not ended; only these are computed
    for _ in range(sampling.max_tokens):
        drawn = documents.draw(sampling, generator)
        tokens: list[int | None] = [None] * len(prompts)
        for row, token in zip(writing, drawn.tolist(), strict=True):
            tokens[row] = token
        yield tokens
        documents.add(drawn)
        going = [place for place, row in enumerate(writing) if tokens[row] != EOD]
        if not going:
            return
        if len(going) < len(writing) and isinstance(documents, Together):
            writing = [writing[place] for place in going]
            documents.keep(going)


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
