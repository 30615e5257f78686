"""Several processes: what they exchange, what one of them sees when another dies, and how they end."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from saffu.processes import SINGLE, ProcessGroup, together


def run_processes(script: str, *arguments: object, size: int = 2) -> list[tuple[int, str, str]]:
    """Run a script as `size` processes, as torchrun does; return the exit status, output, and errors of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "PYTHONPATH": path}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    ends = [process.communicate(timeout=120) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, ends, strict=True)]


def test_a_single_process_gets_back_what_it_passes():
    numbers = np.arange(3)
    with together("cpu") as group:
        assert group is SINGLE
        assert group.sum(numbers) is numbers
        assert (group.any(True), group.any(False), group.is_first) == (True, False, True)


def test_a_single_process_does_not_import_torch():
    script = "import sys, numpy, saffu.processes as p; p.SINGLE.sum(numpy.ones(1)); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


SUMS = """
import numpy, sys, torch
from saffu.processes import together
with together("cpu") as group:
    mine = numpy.array([[1.5, group.rank]])
    assert not sys.stderr.isatty()
    total = group.sum(mine)
    integers = group.sum(torch.tensor([2**53 + 1, group.rank]).T)
    print(total.tolist(), mine.tolist(), integers.tolist(), integers.dtype)
    print(group.any(group.rank == 1), group.any(False), group.is_first, group.size)
"""


def test_sums_are_the_same_everywhere():
    for rank, (status, out, err) in enumerate(run_processes(SUMS)):
        assert status == 0, err
        first, second = out.splitlines()
        assert first == f"[[3.0, 1.0]] [[1.5, {float(rank)}]] [{2**54 + 2}, 1] torch.int64"
        assert second == f"True False {rank == 0} 2"


LOST = """
import os, sys, numpy
from saffu.errors import SaffuError
from saffu.processes import together
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


def test_the_loss_of_a_process_is_one_clear_line():
    (status, out, err), (lost, _, _) = run_processes(LOST)
    assert (status, lost) == (2, 9)
    assert out.split() == ["0", "2", "4", "6", "8", "10", "12"]
    (message,) = [line for line in err.splitlines() if line.startswith("another process")]
    assert message.startswith("another process of this run exited")


THREADS = """
import sys, torch
from pathlib import Path
from saffu.errors import SaffuError
from saffu.processes import peer_errors, together

def threads():
    return sorted((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())

def step(module):
    module(torch.ones(2, 3)).sum().backward()

step(torch.nn.Linear(3, 1))  # starts the threads that any training has
before = threads()
try:
    with together("cpu") as group:
        parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
        step(parallel)
        during = threads()
        del parallel
        if sys.argv[1] == "error":
            def fail():
                inside = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
                step(inside)
                raise SaffuError("one line")
            fail()
except SaffuError as error:
    kept = error
assert len(during) > len(before), (before, during)
print(threads() == before, before, during, threads())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to see native threads")
@pytest.mark.parametrize("ending", ["normal", "error"])
def test_no_thread_outlives_the_group(ending):
    """A thread of gloo that is still there at exit aborts the process: "terminate called without …"."""
    for status, out, err in run_processes(THREADS, ending):
        assert status == 0, err
        assert out.startswith("True"), out


def test_groups_are_values():
    assert ProcessGroup(0, 1) == SINGLE
    assert not ProcessGroup(1, 2).is_first
