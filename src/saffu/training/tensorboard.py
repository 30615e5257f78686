"""Training curves for TensorBoard, which is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saffu.errors import SaffuError


def open_tensorboard(folder: Path) -> Any:
    """A writer of curves into a folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SaffuError("TensorBoard is not installed; install it with: pip install 'saffu[tensorboard]'") from None
    return SummaryWriter(folder)
