"""The tokens of a document that the networks see, each with its keys and values from when it was read.

A window grows token by token, and every token is read once: what follows it finds its keys and values in memory. When a
window moves (see `rows.window_start`), the tokens that stay in it lose their past and have to be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from saffu.calibrated.kernels import TOKEN
from saffu.companion.networks import Networks
from saffu.companion.rows import window_start
from saffu.interface import Array
from saffu.text.tokenizer import EOD
from saffu.workers import in_parallel

MANY = 8  # tokens from which on reading a whole window takes less time than reading them one by one


class Memory:
    """What networks keep of a token they have read; it holds the memory of those before it."""

    __slots__ = ("addresses", "networks", "numbers", "previous")

    def __init__(self, networks: Networks, numbers: Array, addresses: Array, previous: Memory | None) -> None:
        self.networks = networks
        self.numbers = numbers
        self.previous = previous
        self.addresses = addresses  # (tokens,) uint64, of the numbers of all tokens of the window so far

    @property
    def states(self) -> list[Array]:
        """The state (d,) of each network after the token."""
        return [self.numbers[place] for place in self.networks.states]

    @property
    def logits(self) -> Array:
        """(K,) what these add to the gates' logits."""
        return self.numbers[self.networks.logits]


class Entry:
    """A token of a window. Equal to any other entry of the same token; what it remembers follows from the window."""

    __slots__ = ("memory", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.memory: Memory | None = None

    def is_read_by(self, networks: Networks) -> bool:
        return self.memory is not None and self.memory.networks is networks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __reduce__(self) -> tuple[Any, ...]:
        return Entry, (self.token,)


Window = tuple[Entry, ...]


def window_of(tokens: Sequence[int], context: int) -> Window:
    """The window of the token that follows these."""
    inputs = [EOD, *tokens]
    return tuple(Entry(int(token)) for token in inputs[window_start(len(tokens), context) :])


def moved(window: Window, age: int, token: int, context: int) -> Window:
    """The window after one more token of a document that had `age` tokens before."""
    dropped = window_start(age + 1, context) - window_start(age, context)
    kept = tuple(Entry(entry.token) for entry in window[dropped:]) if dropped else window
    return *kept, Entry(token)


def read(networks: Networks, windows: Iterable[Window]) -> list[Memory]:
    """What is known after each window; only tokens that the networks have not read yet are computed."""
    windows = list(windows)
    unread = {id(window[-1]): window for window in windows if not window[-1].is_read_by(networks)}
    inner = {id(entry) for window in unread.values() for entry in window[:-1]} if len(unread) > 1 else set()
    longest = [window for last, window in unread.items() if last not in inner]  # the others are parts of these
    several = [window for window in longest if len(window) > 1 and not window[-2].is_read_by(networks)]
    if len(several) > 1:  # documents that begin; a token more of each is not worth threads
        in_parallel(lambda window: _read(networks, window), longest)
    else:
        for window in longest:
            _read(networks, window)
    return [window[-1].memory for window in windows if window[-1].memory is not None]


def _read(networks: Networks, window: Window) -> None:
    """Read the new entries of a window: one by one, or if there are many, all at once."""
    past = len(window)
    while past and not window[past - 1].is_read_by(networks):
        past -= 1
    previous = window[past - 1].memory if past else None
    numbers = np.empty((len(window) - past, networks.memory), dtype=np.float32)
    first = numbers.ctypes.data
    addresses = np.arange(first, first + numbers.nbytes, numbers.strides[0], dtype=np.uint64)
    if previous is not None:
        addresses = np.concatenate([previous.addresses, addresses])
    tokens = [entry.token for entry in window[past if len(numbers) < MANY else 0 :]]
    for native, offset in zip(networks.natives, networks.offsets, strict=True):
        if len(numbers) < MANY:
            for place, token in enumerate(tokens, start=past):
                native.step(token, addresses[: place + 1], offset)
        else:
            native.read(np.array(tokens, dtype=TOKEN), past, addresses, offset)
    for place, row in enumerate(numbers, start=past):
        previous = Memory(networks, row, addresses[: place + 1], previous)
        window[place].memory = previous
