"""Several processes that train one network."""

import numpy as np
import pytest

from companion_data import counted_model, dev_corpus, training
from saffu.companion import train
from saffu.training.checkpoint import read_checkpoint
from test_processes import run_processes

TOGETHER = """
import signal, sys
from pathlib import Path
from companion_data import counted_model, dev_corpus, training
from saffu import load
from saffu.companion import train
from saffu.training.checkpoint import read_checkpoint
from saffu.workers import together

def gloo_threads():
    tasks = Path("/proc/self/task")
    names = [(task / "comm").read_text() for task in tasks.iterdir()] if tasks.is_dir() else []
    return sum("gloo" in name for name in names)

train.MIN_STEPS = 1  # between two checks, so that one comes after seven steps

def take(lm, checkpoint, interrupt):
    with together("cpu") as group:
        run = training(lm, dev_corpus(lm), group, network_dropout=0.0, epochs=2)
        if checkpoint:
            run.restore(checkpoint)

        def save(files):
            lm.model_, lm.config = run.best, run.config
            lm.save(folder, files)

        def on_fold(row, model):
            if interrupt and row["step"] == 7 and group.rank == 1:  # in one process only
                signal.raise_signal(signal.SIGINT)
        try:
            run.run(save, on_fold)
        except KeyboardInterrupt:
            print("interrupted", end=" ")
        print(run.progress.steps, repr(run.progress.best))

folder, kind = Path(sys.argv[1]), sys.argv[2]
lm = load(folder) if kind == "resume" else counted_model()
checkpoint = read_checkpoint(folder) if kind == "resume" else None
take(lm, checkpoint, kind == "interrupt")
print("threads left:", gloo_threads())
"""


@pytest.mark.slow
def test_several_processes_take_the_steps_of_one(tmp_path, monkeypatch):
    """The rows of a step are divided among the processes; without dropout the weights agree with those of one.

    The run is interrupted in between, by a signal to one of the processes, and resumed.
    """
    monkeypatch.setattr(train, "MIN_STEPS", 1)
    lm = counted_model()
    alone = training(lm, dev_corpus(lm), network_dropout=0.0, epochs=2)
    alone.run()
    for kind, begin in (("interrupt", "interrupted 8 "), ("resume", "14 ")):
        for status, out, err in run_processes(TOGETHER, tmp_path / "model", kind):
            assert status == 0, err
            facts, threads = out.splitlines()
            assert facts.startswith(begin)
            assert threads == "threads left: 0"
    assert float(facts.split()[1]) == pytest.approx(alone.progress.best, abs=1e-5)
    arrays = read_checkpoint(tmp_path / "model").arrays
    for name, array in alone.networks.arrays().items():
        np.testing.assert_allclose(arrays[name], array, atol=1e-5, err_msg=name)
