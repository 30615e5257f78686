"""Devices: whether this machine has one, when it is done, how much memory it took."""

import sys

import torch

from saffu.errors import SaffuError


def usable_device(name: str) -> torch.device:
    """The device, if this machine has it."""
    reason = ""
    if name.partition(":")[0] in ("cpu", "cuda"):
        try:
            device = torch.device(name)
            torch.zeros(1, device=device)
            return device
        except (RuntimeError, AssertionError) as error:
            reason = f" ({str(error).splitlines()[0]})"
    remedy = "use cpu, or cuda, cuda:1, … where there is such a GPU"
    raise SaffuError(f"device {name!r} cannot be used{reason}; {remedy}")


def settle(device: torch.device) -> None:
    """Wait for what a GPU has been asked to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget_peak(device: torch.device) -> None:
    """From now on `peak_memory` speaks of what comes, on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Most bytes held so far: on a GPU by tensors, else by the process; 0 where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
