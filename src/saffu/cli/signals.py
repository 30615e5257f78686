"""The signals that end a command. What they raise may end up as another error, or vanish inside a library."""

from __future__ import annotations

import sys

received: list[int] = []


def exit_if_received() -> None:
    """End a command that would not end by itself, if it has been asked to."""
    if received:
        sys.exit(128 + received[-1])
