"""What long work reports: warnings, and progress bars, which are hidden if there is no terminal."""

from __future__ import annotations

import logging
from typing import Any

from tqdm.auto import tqdm

tqdm.monitor_interval = 0  # no monitoring thread, which would outlive the bars

_hidden = False


def hide_progress(hidden: bool = True) -> None:
    """Show no bars from now on, or show them again."""
    global _hidden
    _hidden = hidden


def warn(text: str) -> None:
    """Report what the user should know but what stops nothing; the command line prints it on standard error."""
    logging.getLogger("saffu").warning(text)


def progress_bar(title: str | None, total: int | None = None, unit: str = " tokens", **options: Any) -> tqdm[Any]:
    """A bar that disappears when it is done; none at all without a title, or unless standard error is a terminal.

    >>> with progress_bar(None, total=2) as bar:
    ...     _ = bar.update(2)
    """
    disable = True if title is None or _hidden else None
    return tqdm(desc=title, total=total, unit=unit, unit_scale=True, leave=False, disable=disable, **options)
