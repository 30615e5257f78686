"""A training step as one CUDA graph: its hundreds of small kernels are launched at once, without waiting for Python."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ENABLED = True  # tests compare the captured step with the plain one
PLAIN_STEPS = 3  # before the capture, so that everything created on first use exists


class GraphedStep:
    """Call `step` a few times, then record it on buffers of its own and replay the recording.

    `step` takes tensors, or None, of the same shapes every time; calls with other shapes are not recorded. A tensor
    that is the very one of the call before is not copied again.
    """

    def __init__(self, step: Callable[..., Tensor]):
        self.step = step
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.shapes: list[Any] = []
        self.buffers: list[Tensor | None] = []
        self.values: tuple[Tensor | None, ...] = ()
        self.loss: Tensor

    def __call__(self, *values: Tensor | None) -> Tensor:
        self.calls += 1
        shapes = [None if value is None else value.shape for value in values]
        if self.calls <= PLAIN_STEPS or shapes != self.shapes:
            if self.graph is None:  # the shapes that come twice are those to record
                self.shapes = shapes
            return self.step(*values)
        if self.graph is None:
            self._capture(values)
        assert self.graph is not None
        for buffer, value, before in zip(self.buffers, values, self.values, strict=True):
            if buffer is not None and value is not None and value is not before:
                buffer.copy_(value)
        self.values = values
        self.graph.replay()
        return self.loss.clone()

    def _capture(self, values: tuple[Tensor | None, ...]) -> None:
        self.buffers = [None if value is None else value.clone() for value in values]
        self.values = values
        self.graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.loss = self.step(*self.buffers)


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
