"""SIGINT and SIGTERM, held back until a run can stop cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list; the first one takes effect at the end of the context.

    A second signal of a kind takes effect at once. Signals that are ignored stay ignored.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield received
        return

    def defer(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, usual[number])

    heard = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    usual = {int(number): signal.signal(number, defer) for number in heard}
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])
