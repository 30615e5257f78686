"""A training step as one CUDA graph: its hundreds of small kernels are launched at once, without waiting for Python."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from saffu.corpus import Targets

USUAL_STEPS = 3  # before the capture, so that all that is made on first use exists


class CapturedStep:
    """Calls `step` a few times, then records it on buffers of its own and replays the recording.

    All targets must come in batches of one size, with a `past` of one length.
    """

    inputs: Targets
    loss: Tensor

    def __init__(self, step: Callable[[Targets], Tensor]):
        self.step, self.called = step, 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, targets: Targets) -> Tensor:
        self.called += 1
        if self.called <= USUAL_STEPS:
            return self.step(targets)
        if self.graph is None:
            self._capture(targets)
        assert self.graph is not None
        if targets.corpus is not self.inputs.corpus:  # another fold
            self.inputs.past.copy_(targets.past)
            self.inputs = self.inputs._replace(corpus=targets.corpus)
        self.inputs.ids.copy_(targets.ids)
        self.inputs.positions.copy_(targets.positions)
        self.inputs.documents.copy_(targets.documents)
        self.inputs.at.copy_(targets.at)
        self.graph.replay()
        return self.loss.clone()

    def _capture(self, targets: Targets) -> None:
        ids, positions, documents, past, at, corpus = targets
        self.inputs = Targets(ids.clone(), positions.clone(), documents.clone(), past.clone(), at.clone(), corpus)
        self.graph = torch.cuda.CUDAGraph()
        with no_garbage(), torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            self.loss = self.step(self.inputs)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Collect garbage now and not inside: freeing an earlier run's graph would break the capture of this one."""
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """On a GPU, work on a stream of its own, since the usual one cannot be captured."""
    if device.type != "cuda":
        yield
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream(device).wait_stream(stream)
