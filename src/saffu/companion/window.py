"""The tokens of a document that the network sees, each with its keys and values from when it was read.

A window grows token by token, and every token is read once: its keys and values are kept for those that follow. When a
window moves (see `rows.window_start`), the tokens that stay in it lose their past and have to be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from saffu.companion.network import HEAD, Network
from saffu.companion.rows import window_start
from saffu.text.tokenizer import EOD, PAD

TOKENS = 1 << 14  # read at a time


class Entry:
    """A token of a window. Equal to any other entry of the same token; computed values follow from the window."""

    __slots__ = ("hidden", "memory", "network", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.network: Network | None = None  # that read it
        self.memory: Tensor  # (layers, 2, heads, 64), keys and values
        self.hidden: Tensor  # (d,)

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


@torch.no_grad()
def read(network: Network, windows: Iterable[Window]) -> Tensor:
    """h (windows, d) after each window; only entries that the network has not read yet are computed."""
    windows = list(windows)
    unread = {id(window[-1]): window for window in windows if window[-1].network is not network}
    inner = {id(entry) for window in unread.values() for entry in window[:-1]}
    longest = [window for last, window in unread.items() if last not in inner]  # the others are parts of these
    at_once = max(1, TOKENS // network.context)
    for first in range(0, len(longest), at_once):
        _read(network, longest[first : first + at_once])
    return torch.stack([window[-1].hidden for window in windows])


def _read(network: Network, windows: Sequence[Window]) -> None:
    """Read the new entries of several windows, all at once."""
    device = network.embedding.device
    known = [sum(1 for _ in takewhile(lambda entry: entry.network is network, window)) for window in windows]
    new = [window[length:] for window, length in zip(windows, known, strict=True)]
    most = max(len(entries) for entries in new)
    inputs = torch.tensor([[e.token for e in entries] + [PAD] * (most - len(entries)) for entries in new])
    layers, heads = network.sink.shape
    past = torch.zeros(layers, 2, len(windows), heads, max(known), HEAD, dtype=network.dtype, device=device)
    for row, (window, length) in enumerate(zip(windows, known, strict=True)):
        if length:
            past[:, :, row, :, :length] = torch.stack([entry.memory for entry in window[:length]], 3)
    hidden, memory = network.extended(inputs.to(device), past, torch.tensor(known, device=device))
    memory = memory.movedim(4, 0).contiguous()  # (T, layers, 2, rows, heads, 64)
    for row, entries in enumerate(new):
        for place, entry in enumerate(entries):
            entry.memory, entry.hidden = memory[place, :, :, row], hidden[row, place]
            entry.network = network
