"""A training step as one CUDA graph: its hundreds of small kernels are launched at once, without waiting for Python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from saffu.paper.windows import Targets

ENABLED = True  # tests compare the captured step with the plain one
PLAIN_STEPS = 3  # before the capture, so that everything created on first use exists


class GraphedStep:
    """Call `step` a few times, then record it on buffers of its own and replay the recording.

    The `tokens` of all targets must have one length. Batches of another size than `batch_size` take the plain step.
    """

    inputs: Targets
    tokens: Tensor  # of the fold whose tokens the buffers hold
    loss: Tensor

    def __init__(self, step: Callable[[Targets], Tensor], batch_size: int):
        self.step, self.batch_size, self.calls = step, batch_size, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, targets: Targets) -> Tensor:
        self.calls += 1
        if self.calls <= PLAIN_STEPS or len(targets.ids) != self.batch_size:
            return self.step(targets)
        if self.graph is None:
            self._capture(targets)
        assert self.graph is not None
        for buffer, values in zip(self.inputs, targets, strict=True):
            if buffer is not None and values is not None and values is not self.tokens:
                buffer.copy_(values)
        self.tokens = targets.tokens
        self.graph.replay()
        return self.loss.clone()

    def _capture(self, targets: Targets) -> None:
        self.inputs = Targets(*(values.clone() for values in targets if values is not None))  # `means` comes last
        self.tokens = targets.tokens
        self.graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.loss = self.step(self.inputs)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage now and not inside, because freeing an earlier run's graph would break this capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Make a GPU the current device and work on a separate stream, because the default one cannot be captured."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
