"""A roofline model of the paper's explicit solution: lower bounds on its time on this machine.

    python benchmarks/roofline.py FILES [--device cuda]

Counts the operations and bytes that each pass needs, however clever the code, and measures how fast this machine
multiplies, copies, and gathers.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import embedding_bag

from saffu.interface import Floats
from saffu.paper.config import PaperConfig
from saffu.paper.devices import usable_device
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import Lines, read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

EXPONENTIAL = 10  # operations that one exponential is taken for
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Work:
    """Operations and memory traffic that cannot be avoided."""

    operations: float = 0  # additions and multiplications
    bytes: float = 0  # read or written sequentially
    gathered: float = 0  # bytes of table rows, read at random

    def __add__(self, other: Work) -> Work:
        return Work(self.operations + other.operations, self.bytes + other.bytes, self.gathered + other.gathered)

    def __mul__(self, times: float) -> Work:
        return Work(self.operations * times, self.bytes * times, self.gathered * times)


@dataclass(frozen=True)
class Machine:
    """Peak rates of a machine, measured with float32 on the threads that torch uses."""

    name: str
    threads: int
    operations_per_second: float  # of a matrix product
    bytes_per_second: float  # read and written by a copy
    gathered_per_second: float  # bytes of rows of 2 KB added up from a table of 64 MB

    @classmethod
    def measured(cls, device: torch.device) -> Machine:
        on_gpu = device.type == "cuda"
        size, long, bags = (8192, 1 << 28, 1 << 17) if on_gpu else (1536, 1 << 25, 1 << 12)
        square, line = torch.rand(size, size, device=device), torch.rand(long, device=device)
        product, copied = torch.empty_like(square), torch.empty_like(line)
        table = torch.rand(1 << 15, 512, device=device)
        rows = torch.randint(len(table), (bags, 8), device=device, dtype=torch.int32)
        return cls(
            torch.cuda.get_device_name(device) if on_gpu else processor(),
            torch.get_num_threads(),
            2 * size**3 / quickest(lambda: torch.mm(square, square, out=product), device),
            2 * FLOAT * long / quickest(lambda: copied.copy_(line), device),
            FLOAT * rows.numel() * 512 / quickest(lambda: embedding_bag(rows, table, mode="sum"), device),
        )

    def lower_bound_seconds(self, work: Work) -> float:
        """Seconds if arithmetic and memory overlap perfectly."""
        return max(
            work.operations / self.operations_per_second,
            work.bytes / self.bytes_per_second,
            work.gathered / self.gathered_per_second,
        )


def quickest(task: Callable[[], object], device: torch.device, times: int = 5) -> float:
    """Seconds of the quickest of several runs."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        task()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def processor() -> str:
    """The name of the CPU, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def slots_seen(config: PaperConfig, corpus: TokenCorpus, unit: str) -> Floats:
    """How many slots of a unit hold more than `<pad>`, for each target, and one more that stands for the others."""
    positions = np.arange(corpus.targets) - np.repeat(corpus.starts[:-1], np.diff(corpus.starts))
    slots = config.units()[unit].slots
    real = 1 + positions % (slots - 1) if unit == "block" else positions
    return np.minimum(real + 1, slots).astype(np.float64)


def explicit_work(config: PaperConfig, corpus: TokenCorpus, machine: Machine) -> dict[str, Work]:
    """The work of each pass of the initialization, in the way that is faster on this machine."""
    work = {"attention": Work(), "decoders": Work(), "final decoder": Work()}
    outputs = config.hidden_dimension
    for name, (slots, mode, D) in config.units().items():
        seen = slots_seen(config, corpus, name)
        J, J2, M = float(seen.sum()), float((seen * seen).sum()), corpus.targets
        # Ids, one similarity per slot, another for V̂; F(Q, V̂) is the products of both.
        work["attention"] += Work(2 * J2, 3 * FLOAT * J)
        # QW and its softmax; rows of E weighted, and added up by target.
        weights = Work(2 * J * slots + EXPONENTIAL * M * slots, 2 * FLOAT * J)
        work["decoders"] += weights + Work(2 * J * D, 2 * FLOAT * (J if mode == "cat" else M) * D, FLOAT * J * D)
        # The same weights; rows of E·U weighted, or weighted rows of E decoded; softmax; added up by target.
        table = Work(2 * J * outputs, gathered=FLOAT * J * outputs)
        product = Work(2 * J * D + 2 * (J if mode == "cat" else M) * D * outputs, gathered=FLOAT * J * D)
        work["final decoder"] += weights + min(table, product, key=machine.lower_bound_seconds)
        work["final decoder"] += Work(EXPONENTIAL * M * outputs, 2 * FLOAT * M * outputs)
    return work if config.attention == "explicit" else {k: v for k, v in work.items() if k != "attention"}


def decoding_work(weights: int, targets: int, batch: int) -> Work:
    """Reading the final decoder's weights once per batch of targets, and multiplying each target by all of them."""
    return Work(2 * weights * targets, FLOAT * weights * targets / batch)


def main() -> None:
    parser = argparse.ArgumentParser(description="Lower bounds on the time of the paper's explicit solution.")
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    lines = Lines(lambda: read_lines(find_files(options.files), "line"))
    tokenizer = Tokenizer.train((text for _, text in lines), TokenizerConfig(bpe_count="types"))
    corpus, machine = TokenCorpus.build(lines, tokenizer), Machine.measured(usable_device(options.device))
    print(f"{machine.name}, {machine.threads} threads: {machine.operations_per_second / 1e9:,.0f} GFLOP/s")
    print(f"copy {machine.bytes_per_second / 1e9:,.0f} GB/s, gather {machine.gathered_per_second / 1e9:,.0f} GB/s")
    for name, work in explicit_work(PaperConfig(), corpus, machine).items():
        print(f"{name:<15} at least {machine.lower_bound_seconds(work):8.3f} s for {corpus.targets:,} tokens")


if __name__ == "__main__":
    main()
