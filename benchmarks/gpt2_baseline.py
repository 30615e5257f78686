"""A GPT-2 trained beside a model: as many parameters, the same tokens, as long as the explicit solution took."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from saffu.corpus import TokenCorpus
from saffu.devices import settle
from saffu.errors import SaffuError
from saffu.evaluate import Score
from saffu.tokenizer import EOD, PAD, SOD

if TYPE_CHECKING:
    from saffu.bench import Bench

CONTEXT = 128
LAYERS = 4
BATCH = 16  # sequences in a step
RATE = 1e-3


def require() -> Any:
    """The library that has it."""
    try:
        import transformers
    except ImportError:
        raise SaffuError("the peer needs transformers; install it with: pip install 'saffu[bench]'") from None
    return transformers


def width_for(parameters: int, vocabulary: int) -> int:
    """The embedding dimension, a multiple of 8, with which GPT-2 comes nearest to so many parameters."""

    def size(d: int) -> int:
        return (vocabulary + CONTEXT) * d + LAYERS * (12 * d * d + 13 * d) + 2 * d

    return min(range(8, 4096, 8), key=lambda d: abs(size(d) - parameters))


def sequence(corpus: TokenCorpus) -> Tensor:
    """All documents one after the other, each after a `<sod>`."""
    lengths = torch.diff(corpus.starts)
    places = torch.arange(corpus.targets) + torch.arange(1, corpus.documents + 1).repeat_interleave(lengths)
    ids = torch.full((corpus.targets + corpus.documents,), SOD)
    ids[places] = corpus.ids.long()
    return ids


def trained(bench: "Bench") -> dict[str, Any]:
    """Train for as long as the explicit solution took, then score the same held-out text."""
    transformers = require()
    device, vocabulary = bench.lm.device, len(bench.lm.tokenizer_)
    torch.manual_seed(bench.config.seed)
    width = width_for(bench.lm.parameters_, vocabulary)
    config = transformers.GPT2Config(
        vocab_size=vocabulary,
        n_positions=CONTEXT,
        n_embd=width,
        n_layer=LAYERS,
        n_head=8 if width >= 128 else 4,
        bos_token_id=SOD,
        eos_token_id=EOD,
    )
    model = transformers.GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    generator = torch.Generator().manual_seed(bench.config.seed)
    began, steps, allowed = time.perf_counter(), 0, bench.stages["explicit"].seconds
    for batch in shuffled(sequence(bench.corpus), generator):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (steps + 1) / 20)
        logits = model(batch.to(device)).logits
        loss = losses(logits, batch.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        settle(device)
        if time.perf_counter() - began > allowed:
            break
    seconds = time.perf_counter() - began
    score = scored(model.eval(), bench.dev, device)
    return {
        "name": "gpt2",
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "steps": steps,
        "seconds": seconds,
        "dev_perplexity": score.perplexity,
        "dev_bits_per_byte": score.bits_per_byte,
    }


def shuffled(ids: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of pieces of the sequence, pass after pass, for ever."""
    pieces = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    if not len(pieces):
        raise SaffuError(f"the peer needs at least {CONTEXT} tokens; give more text")
    while True:
        yield from pieces[torch.randperm(len(pieces), generator=generator)].split(BATCH)


def losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Surprise at each token but the first; a document's beginning is no target."""
    wanted = ids[:, 1:]
    surprise = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), wanted, reduction="none")
    return surprise[(wanted != SOD) & (wanted != PAD)]


@torch.inference_mode()
def scored(model: Any, dev: TokenCorpus, device: torch.device) -> Score:
    """Every target once, with at least half of the longest context before it, or all of its document."""
    ids, half, nll, targets = sequence(dev), CONTEXT // 2, 0.0, 0
    for begin in range(0, max(1, len(ids) - half), half):
        piece = ids[None, begin : begin + CONTEXT].to(device)
        logits = model(piece).logits[0].double()
        first = 1 if begin == 0 else half
        wanted = piece[0, first:]
        surprise = torch.nn.functional.cross_entropy(logits[first - 1 : -1], wanted, reduction="none")[wanted != SOD]
        nll, targets = nll + float(surprise.sum()), targets + len(surprise)
    if targets != dev.targets:
        raise AssertionError(f"scored {targets} targets of {dev.targets}")
    return Score(nll, targets, dev.bytes)
