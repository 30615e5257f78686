"""SIGINT and SIGTERM, held back until a run can stop cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list instead of acting on them; a second one of a kind acts as usual."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield received
        return

    def defer(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, usual[number])

    usual = {int(number): signal.signal(number, defer) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
