"""Work shared by threads of this process that stop together, or by several processes.

Processes that fit or train one model together are started by torchrun:

    torchrun --nproc-per-node 4 -m saffu train books/*.txt.gz --out model --preset paper

Every process reads and tokenizes all text and works on its share of the targets. Only dense arrays are exchanged: the
sums of counts and of gradients.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from saffu.errors import SaffuError

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Numbers = TypeVar("Numbers", "np.ndarray[Any, Any]", "Tensor")

PEER_LOST = (
    "another process of this run exited, so the run was aborted; no partial output was left; "
    "see that process's error message"
)


def cores() -> int:
    """The number of cores this process may use: all it is allowed to, but one if it is a worker of `multiprocessing`.

    The others are for the other workers. The environment variable SAFFU_THREADS sets another number.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("SAFFU_THREADS", "")
    if limit.isdecimal():
        return max(1, min(allowed, int(limit[:9])))  # Python refuses thousands of digits
    processes = sys.modules.get("multiprocessing.process")  # imported by every worker
    return 1 if processes and processes.parent_process() else allowed


def run_in_threads(work: Callable[[int, Callable[[], bool]], Result], workers: int) -> list[Result]:
    """Return `work(number, stopped)` of each worker; it must return early once `stopped()` is true.

    If one of them fails, or the user interrupts, the others stop and the error reaches the caller. All work has ended
    by then, so that its arrays may be freed; a pool alone does not wait for a thread that it is just starting.

    >>> run_in_threads(lambda number, stopped: number * 10, 3)
    [0, 10, 20]
    """
    stop = threading.Event()
    if workers == 1:
        return [work(0, stop.is_set)]
    change = threading.Condition()
    running = 0

    def guarded(number: int) -> Result:
        nonlocal running
        with change:
            if stop.is_set():
                raise CancelledError
            running += 1
        try:
            return work(number, stop.is_set)
        except BaseException:
            stop.set()
            raise
        finally:
            with change:
                running -= 1
                change.notify_all()

    try:
        with ThreadPoolExecutor(workers) as pool:
            try:
                tasks = [pool.submit(guarded, number) for number in range(workers)]
                wait(tasks)
            finally:
                stop.set()
    finally:
        _wait(change, lambda: not running)
    for task in tasks:
        if not isinstance(task.exception(), CancelledError | None):
            task.result()  # raises the error that stopped the others
    return [task.result() for task in tasks]


def _wait(change: threading.Condition, done: Callable[[], bool]) -> None:
    """Wait until something is done, even if the user interrupts again in the meantime."""
    interrupt = None
    while True:
        try:
            with change:
                change.wait_for(done)
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt:
        raise interrupt


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item], at_once: int | None = None) -> list[Result]:
    """Return `work(item)` for each item, several at a time: as many as there are cores, or `at_once`.

    >>> in_parallel(len, ["a", "bcd"])
    [1, 3]
    """
    results: dict[int, Result] = {}
    waiting = iter(range(len(items)))  # shared: a free worker takes the next

    def some(_: int, stopped: Callable[[], bool]) -> None:
        for place in waiting:
            results[place] = work(items[place])
            if stopped():
                return

    run_in_threads(some, min(at_once or cores(), max(1, len(items))))
    return [results[place] for place in range(len(items))]


@dataclass(frozen=True)
class ProcessGroup:
    """This process as number `rank` of `size`. A single process gets back what it passes.

    >>> SINGLE.sum(np.array([1, 2])), SINGLE.any(False), SINGLE.is_first
    (array([1, 2]), False, True)
    """

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sum(self, numbers: Numbers) -> Numbers:
        """Sum over all processes. The result has the same kind, shape, dtype, and device everywhere."""
        if self.size == 1:
            return numbers
        import torch
        import torch.distributed as dist

        if isinstance(numbers, np.ndarray):
            return self.sum(torch.from_numpy(numbers)).numpy()
        total = numbers.clone().contiguous()
        with peer_errors():
            dist.all_reduce(total)
        return total

    def any(self, here: bool) -> bool:
        """Whether it holds in at least one process."""
        return here if self.size == 1 else bool(self.sum(np.array([int(here)]))[0])


SINGLE = ProcessGroup(0, 1)


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def together(device: str) -> Iterator[ProcessGroup]:
    """Connect the processes that torchrun started; yield SINGLE if there is only this one.

    When the group ends, so do gloo's threads, which would otherwise abort the process at exit. That needs the last
    reference to the group to be gone by then.
    """
    if not launched():
        yield SINGLE
        return
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional  # DDP imports it; imported within a group, its default arguments keep that

    usual_stderr = sys.stderr
    if int(os.environ["RANK"]):
        sys.stderr = QuietStream(os.fdopen(os.dup(2), "wb"), "utf-8", write_through=True)
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        with peer_errors(), _terminable():
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
        yield ProcessGroup(dist.get_rank(), dist.get_world_size())
    except BaseException as error:
        _clear_frames(error)
        raise
    finally:
        sys.stderr = usual_stderr
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end the process at once: while it waits for the others, Python would not handle the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


class QuietStream(io.TextIOWrapper):
    """An error stream without progress bars, for all processes but the first."""

    def isatty(self) -> bool:
        return False


@contextmanager
def peer_errors() -> Iterator[None]:
    """Report a failure of communication as the loss of another process."""
    import torch.distributed as dist

    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise SaffuError(PEER_LOST) from error
        raise


def _clear_frames(error: BaseException | None) -> None:
    """Drop the local variables of the functions that an error passed through; some refer to the group."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
