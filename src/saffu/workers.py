"""Threads that count side by side: each takes every so-many-th batch and has sums of its own.

Torch would split each small operation over all cores. Whole batches split better: no thread waits for another.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import set_flush_denormal

Result = TypeVar("Result")


@contextmanager
def cores_an_operation(cores: int) -> Iterator[None]:
    """Threads begun within this context run each torch operation on so many cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(work: Callable[[int, Callable[[], bool]], Result], workers: int) -> list[Result]:
    """What `work(number, stopped)` gives for each worker's number; it must end early when `stopped()` is true.

    If one of them fails, or the user interrupts, the others stop and the error goes on to the caller. Within these
    threads denormal numbers are taken as zero: a softmax has many of them, and each costs as much as a hundred others.
    """
    stop = threading.Event()
    cores = torch.get_num_threads() if workers == 1 else 1
    with (
        cores_an_operation(cores),
        ThreadPoolExecutor(workers, initializer=set_flush_denormal, initargs=(True,)) as pool,
    ):
        tasks = [pool.submit(work, number, stop.is_set) for number in range(workers)]
        for task in tasks:
            task.add_done_callback(lambda task: stop.set() if task.exception() else None)
        try:
            return [task.result() for task in tasks]
        finally:
            stop.set()
