"""Devices and threads of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from saffu.errors import SaffuError
from saffu.workers import cores, run_in_threads

Result = TypeVar("Result")


def usable_device(name: str) -> torch.device:
    """Return the device of this name, after checking that this machine has it.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    reason = ""
    if str(name).partition(":")[0] in ("cpu", "cuda"):
        try:
            device = torch.device(name)
            torch.zeros(1, device=device)
            return device
        except (RuntimeError, AssertionError) as error:
            reason = f" ({str(error).splitlines()[0]})"
    raise SaffuError(
        f"device {name!r} is not available{reason}; use cpu, or cuda / cuda:N if this machine has that GPU"
    )


def workers_for(device: torch.device, tasks: int) -> int:
    """Number of threads to use: one on a GPU, where more would only queue up, otherwise up to one per core."""
    return max(1, min(cores(), torch.get_num_threads(), tasks)) if device.type == "cpu" else 1


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let threads that start within this context split each torch operation over this many cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_workers(work: Callable[[int, Callable[[], bool]], Result], workers: int) -> list[Result]:
    """`run_in_threads` for work made of torch operations.

    By default torch splits every small operation over all cores; splitting the work into whole batches is faster.
    Denormal numbers count as zero: a softmax yields many of them, and each is as slow as a hundred others.
    """

    def flushed(number: int, stopped: Callable[[], bool]) -> Result:
        torch.set_flush_denormal(True)
        try:
            return work(number, stopped)
        finally:
            torch.set_flush_denormal(False)

    with torch_threads(torch.get_num_threads() if workers == 1 else 1):
        return run_in_threads(flushed, workers)
