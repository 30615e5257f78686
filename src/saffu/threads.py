"""Work in threads that stop together."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use; the environment variable SAFFU_THREADS lowers it."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("SAFFU_THREADS", "")
    return max(1, min(allowed, int(limit))) if limit.isdigit() else allowed


def run_in_threads(work: Callable[[int, Callable[[], bool]], Result], workers: int) -> list[Result]:
    """What `work(number, stopped)` gives for each worker; it must end early once `stopped()` is true.

    If one of them fails, or the user interrupts, the others stop and the error reaches the caller.

    >>> run_in_threads(lambda number, stopped: number * 10, 3)
    [0, 10, 20]
    """
    stop = threading.Event()
    if workers == 1:
        return [work(0, stop.is_set)]
    with ThreadPoolExecutor(workers) as pool:
        tasks = [pool.submit(work, number, stop.is_set) for number in range(workers)]
        for task in tasks:
            task.add_done_callback(lambda task: stop.set() if task.exception() else None)
        try:
            return [task.result() for task in tasks]
        finally:
            stop.set()


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What `work` gives for each item, several at a time.

    >>> in_parallel(len, ["a", "bcd"])
    [1, 3]
    """
    with ThreadPoolExecutor(min(cores(), max(1, len(items)))) as pool:
        return list(pool.map(work, items))
