"""Several processes: what they exchange, what one of them sees when another dies, and how they end."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from torch.distributed import TCPStore

from saffu.workers import SINGLE, ProcessGroup, together


@contextmanager
def started(command: Sequence[object], size: int = 2) -> Iterator[list[subprocess.Popen[str]]]:
    """Start a Python command line as `size` processes that can find each other, as torchrun does."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # here, as in torchrun, not in a worker
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    shared["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    yield [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def run_processes(script: str, *arguments: object) -> list[tuple[int, str, str]]:
    """Run a script as two processes; return the exit status, output, and errors of each."""
    with started(["-c", script, *arguments]) as processes:
        ends = [process.communicate(timeout=300) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, ends, strict=True)]


def test_a_single_process_gets_back_what_it_passes():
    numbers = np.arange(3)
    with together("cpu") as group:
        assert group is SINGLE
        assert group.sum(numbers) is numbers
        assert (group.any(True), group.any(False), group.is_first) == (True, False, True)


def test_a_single_process_does_not_import_torch():
    script = "import sys, numpy, saffu.workers as p; p.SINGLE.sum(numpy.ones(1)); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


TOGETHER = """
import sys, numpy, torch
from pathlib import Path
from saffu.errors import SaffuError
from saffu.workers import together

def threads():
    tasks = Path("/proc/self/task")
    return sorted((task / "comm").read_text().strip() for task in tasks.iterdir()) if tasks.is_dir() else []

def step():
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))(torch.ones(2, 3)).sum().backward()

def fail():
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    raise SaffuError("one line")

torch.nn.Linear(3, 1)(torch.ones(2, 3)).sum().backward()  # starts the threads that any training has
before = threads()
try:
    with together("cpu") as group:
        mine = numpy.array([[1.5, group.rank]])
        integers = group.sum(torch.tensor([2**53 + 1, group.rank]))
        print(group.sum(mine).tolist(), mine.tolist(), integers.tolist(), integers.dtype)
        print(group.any(group.rank == 1), group.any(False), group.is_first, group.size)
        step()
        during = threads()
        if sys.argv[1] == "error":
            fail()
except SaffuError as error:
    kept = error  # and with it the local variables of `fail`
assert not before or len(during) > len(before), (before, during)
print(before == threads(), before, during, threads())
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["normal", "error"])
def test_sums_are_the_same_everywhere_and_no_thread_outlives_the_group(ending):
    """A thread of gloo that is still there at exit aborts the process: "terminate called without …"."""
    for rank, (status, out, err) in enumerate(run_processes(TOGETHER, ending)):
        assert status == 0, err
        sums, facts, threads = out.splitlines()
        assert sums == f"[[3.0, 1.0]] [[1.5, {float(rank)}]] [{2**54 + 2}, 1] torch.int64"
        assert facts == f"True False {rank == 0} 2"
        assert threads.startswith("True"), threads


LOST = """
import os, sys, numpy
from saffu.errors import SaffuError
from saffu.workers import together
try:
    with together("cpu") as group:
        for number in range(100):
            if group.rank == 1 and number == 7:
                os._exit(9)
            print(int(group.sum(numpy.array([number]))[0]), flush=True)
except SaffuError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@pytest.mark.slow
def test_the_loss_of_a_process_is_one_clear_line():
    (status, out, err), (lost, _, _) = run_processes(LOST)
    assert (status, lost) == (2, 9)
    assert out.split() == ["0", "2", "4", "6", "8", "10", "12"]
    (message,) = [line for line in err.splitlines() if line.startswith("another process")]
    assert message.startswith("another process of this run exited")


def test_groups_are_values():
    assert ProcessGroup(0, 1) == SINGLE
    assert not ProcessGroup(1, 2).is_first
