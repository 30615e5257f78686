"""A GPT-2 as a baseline: about as many parameters as a saffu model, the same tokens, a given time to train.

    python benchmarks/gpt2_baseline.py MODEL --train FILES --dev FILES [--seconds 60] [--device cuda]

MODEL is a folder made by `saffu train`; its tokenizer is used. Needs transformers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

import saffu
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import EOD, PAD, SOD
from saffu.tools.evaluate import Score

CONTEXT = 128
LAYERS = 4
BATCH = 16  # sequences per step
LEARNING_RATE = 1e-3
WARMUP = 20  # steps


def width_for(parameters: int, vocabulary: int) -> int:
    """The embedding dimension, a multiple of 8, for which GPT-2 comes closest to this number of parameters."""

    def size(d: int) -> int:
        return (vocabulary + CONTEXT) * d + LAYERS * (12 * d * d + 13 * d) + 2 * d

    return min(range(8, 4096, 8), key=lambda d: abs(size(d) - parameters))


def sequence(corpus: TokenCorpus) -> Tensor:
    """All documents one after the other, each after a `<sod>`."""
    ids = np.insert(np.asarray(corpus.ids, dtype=np.int64), corpus.starts[:-1], SOD)
    return torch.from_numpy(ids)


def train_gpt2(
    corpus: TokenCorpus,
    dev: TokenCorpus,
    vocabulary: int,
    parameters: int,
    seconds: float,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> dict[str, Any]:
    """Train for this many seconds, then score the held-out text."""
    model, facts = trained(corpus, vocabulary, parameters, seconds, device, seed)
    score = evaluate(model, dev, torch.device(device))
    return {"name": "gpt2", **facts, "dev_perplexity": score.perplexity, "dev_bits_per_byte": score.bits_per_byte}


def trained(
    corpus: TokenCorpus,
    vocabulary: int,
    parameters: int,
    seconds: float,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> tuple[Any, dict[str, Any]]:
    """A model trained for this many seconds, ready to predict, and its parameters, steps, and seconds."""
    import transformers

    device = torch.device(device)
    torch.manual_seed(seed)
    width = width_for(parameters, vocabulary)
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
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    began, steps = time.perf_counter(), 0
    for batch in shuffled(sequence(corpus), torch.Generator().manual_seed(seed)):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (steps + 1) / WARMUP)
        loss = losses(model(batch.to(device)).logits, batch.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if time.perf_counter() - began > seconds:
            break
    size = sum(weight.numel() for weight in model.parameters())
    return model.eval(), {"parameters": size, "steps": steps, "seconds": time.perf_counter() - began}


def shuffled(ids: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
    """Batches of pieces of the sequence, one pass after another, without end."""
    pieces = ids[: len(ids) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    if not len(pieces):
        raise SaffuError(f"the baseline needs at least {CONTEXT} tokens; pass more text")
    while True:
        yield from pieces[torch.randperm(len(pieces), generator=generator)].split(BATCH)


def losses(logits: Tensor, ids: Tensor) -> Tensor:
    """Loss of each token except the first; `<sod>` is not a target."""
    targets = ids[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")
    return loss[(targets != SOD) & (targets != PAD)]


@torch.inference_mode()
def evaluate(model: Any, dev: TokenCorpus, device: torch.device) -> Score:
    """Score every target once, given at least half of the longest context, or all of its document."""
    ids, half, nll, scored = sequence(dev), CONTEXT // 2, 0.0, 0
    for begin in range(0, max(1, len(ids) - half), half):
        piece = ids[None, begin : begin + CONTEXT].to(device)
        logits = model(piece).logits[0].double()
        first = 1 if begin == 0 else half
        targets = piece[0, first:]
        loss = torch.nn.functional.cross_entropy(logits[first - 1 : -1], targets, reduction="none")[targets != SOD]
        nll, scored = nll + float(loss.sum()), scored + len(loss)
    if scored != dev.targets:
        raise AssertionError(f"scored {scored} targets of {dev.targets}")
    return Score(nll, scored, dev.bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a GPT-2 of about the size of a saffu model.")
    parser.add_argument("model", help="folder made by saffu train")
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--dev", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    lm = saffu.load(options.model)
    corpus, dev = (
        TokenCorpus.build(read_lines(find_files(names), "line"), lm.tokenizer_)
        for names in (options.train, options.dev)
    )
    row = train_gpt2(corpus, dev, len(lm.tokenizer_), lm.parameters_, options.seconds, options.device)
    own = lm.score(dev)
    print(json.dumps({"saffu_bits_per_byte": own.bits_per_byte, "saffu_parameters": lm.parameters_} | row, indent=2))


if __name__ == "__main__":
    main()
