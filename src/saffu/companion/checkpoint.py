"""The state of a training run; see `saffu.training.checkpoint`."""

from saffu.training.checkpoint import Checkpoint, read_checkpoint

__all__ = ["Checkpoint", "read_checkpoint"]
