"""What counting must cost at the least: operations and bytes by stage, and how fast this machine does such things."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from saffu.config import SaffuConfig
from saffu.corpus import TokenCorpus
from saffu.devices import settle

EXPONENTIAL = 10  # operations that one is taken for
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Work:
    """What has to be done, however clever the code."""

    operations: float = 0  # additions and multiplications
    bytes: float = 0  # read or written in a row
    gathered: float = 0  # bytes of rows of tables, read here and there

    def __add__(self, other: "Work") -> "Work":
        return Work(self.operations + other.operations, self.bytes + other.bytes, self.gathered + other.gathered)

    def __mul__(self, times: float) -> "Work":
        return Work(self.operations * times, self.bytes * times, self.gathered * times)


@dataclass(frozen=True)
class Machine:
    """A machine by what it does in a second, measured with float32 on the threads that torch has."""

    name: str
    threads: int
    operations_per_second: float  # of a matrix product
    bytes_per_second: float  # read and written by a copy
    gathered_per_second: float  # bytes of rows of 2 KB added up from a table of 64 MB

    @classmethod
    def measured(cls, device: torch.device) -> "Machine":
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

    def floor(self, work: Work) -> float:
        """Seconds, if arithmetic and memory work at the same time and nothing else takes any."""
        return max(
            work.operations / self.operations_per_second,
            work.bytes / self.bytes_per_second,
            work.gathered / self.gathered_per_second,
        )


def quickest(task: Callable[[], object], device: torch.device, times: int = 5) -> float:
    """Seconds of the quickest of several runs."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        task()
        settle(device)
        taken.append(time.perf_counter() - began)
    return min(taken)


def processor() -> str:
    """The CPU's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def slots_seen(config: SaffuConfig, corpus: TokenCorpus, name: str) -> Tensor:
    """How many slots of a unit hold more than `<pad>`, for each target, and one more that stands for the others."""
    lengths = torch.diff(corpus.starts).cpu()
    positions = torch.arange(corpus.targets) - corpus.starts.cpu()[:-1].repeat_interleave(lengths)
    slots = getattr(config, name)
    real = 1 + positions % (slots - 1) if name == "block" else positions
    return (real + 1).clamp(max=slots).double()


def explicit_work(config: SaffuConfig, corpus: TokenCorpus, vocabulary: int, machine: Machine) -> dict[str, Work]:
    """What each pass of `ExplicitFit.initialise` has to do, by its name, in the way that is quicker on this machine."""
    work = {"attention": Work(), "decoders": Work(), "final decoder": Work()}
    outputs = config.hidden_dimension or vocabulary
    for name in ("block", "radius"):
        slots = getattr(config, name)
        if not slots:
            continue
        D, mode = getattr(config, f"{name}_dimension"), getattr(config, f"{name}_mode")
        seen = slots_seen(config, corpus, name)
        J, J2, M = float(seen.sum()), float((seen * seen).sum()), corpus.targets
        # Ids, a similarity for each slot; for V̂ another; F(Q, V̂) is the products of both.
        work["attention"] += Work(2 * J2, 3 * FLOAT * J)
        # QW and its softmax; rows of E weighted, and added up by target.
        weights = Work(2 * J * slots + EXPONENTIAL * M * slots, 2 * FLOAT * J)
        work["decoders"] += weights + Work(2 * J * D, 2 * FLOAT * (J if mode == "cat" else M) * D, FLOAT * J * D)
        # The same weights; rows of E·U weighted, or weighted rows of E decoded; softmax; added up by target.
        table = Work(2 * J * outputs, gathered=FLOAT * J * outputs)
        product = Work(2 * J * D + 2 * (J if mode == "cat" else M) * D * outputs, gathered=FLOAT * J * D)
        decoded = min(table, product, key=machine.floor)
        work["final decoder"] += weights + decoded
        work["final decoder"] += Work(EXPONENTIAL * M * outputs, 2 * FLOAT * M * outputs)
    if not config.hidden_dimension:
        del work["final decoder"]
    return work if config.attention == "explicit" else {k: v for k, v in work.items() if k != "attention"}


def decoding_work(weights: int, targets: int, together: int) -> Work:
    """Reading a final decoder's weights once for each so many targets, and multiplying with all of them each time."""
    return Work(2 * weights * targets, FLOAT * weights * targets / together)
