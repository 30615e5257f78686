"""Signals that ask a long run to stop, held back until a good moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM add themselves to while inside; a second one of a kind acts as it always does."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # signals only ever reach the main thread
        yield received
        return

    def note(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, usual[number])

    usual = {int(number): signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
