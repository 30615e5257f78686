"""Work shared by threads of this process that stop together."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
