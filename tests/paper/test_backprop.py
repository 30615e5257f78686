"""Training runs: stopping, logging, divergence, and runs that are interrupted, killed, and resumed."""

import json
import math
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import part
from saffu import files
from saffu.commit import commit
from saffu.errors import SaffuError
from saffu.interface import Score
from saffu.paper.backprop import Backprop
from saffu.paper.batches import ShuffledFold
from saffu.paper.config import TrainingConfig
from saffu.paper.model import PaperModel
from saffu.tools.evaluate import evaluate
from saffu.training.checkpoint import read_checkpoint
from training_data import CONFIG, DEV, QUICK, TRAIN, VOCABULARY, started

COLD = replace(QUICK, init="random")
TIMING = ("seconds", "tokens_per_second")


def assert_same_arrays(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert np.array_equal(array, other[name]), name


class Folder:
    """A model folder: the best model, the log, and the checkpoint."""

    def __init__(self, path, config=CONFIG):
        self.path, self.config, self.log, self.saves = path, config, [], 0

    def attach(self, run):
        self.run = run
        return run

    def on_fold(self, row, model):
        self.log.append(row)

    def save(self, extra):
        self.saves += 1
        content = {"model.safetensors": self.run.best.arrays(), "log.json": json.dumps(self.log).encode(), **extra}
        commit(self.path, {}, content)

    def resume(self, **changed):
        """A run that continues from the files, with nothing left in memory."""
        manifest = files.read_manifest(self.path)
        checkpoint = read_checkpoint(self.path)
        arrays = files.read_arrays(self.path, "model.safetensors", manifest)
        model = PaperModel.from_arrays(self.config, VOCABULARY, arrays, None)
        self.log = json.loads(files.read_file(self.path, "log.json", manifest))
        settings = replace(TrainingConfig.from_dict(checkpoint.settings), **changed)
        run = self.attach(Backprop(model, TRAIN, DEV, settings, source=checkpoint.source))
        run.restore(checkpoint)
        return run


def without_timing(log):
    return [{key: value for key, value in row.items() if key not in TIMING} for row in log]


def scripted(monkeypatch, perplexities):
    """Let the held-out text have these perplexities, one after another."""
    coming = iter(perplexities)
    monkeypatch.setattr(Backprop, "_score", lambda *_: Score(math.log(next(coming)) * 100, 100, 300))


def test_stops_at_the_total_number_of_increases_and_keeps_the_best(monkeypatch):
    scripted(monkeypatch, [50, 40, 45, 30, 35, 33, 34, 20])  # increases at folds 2, 4, and 6
    run, rows, models = Backprop(started(), TRAIN, DEV, TrainingConfig(batch_size=512, patience=3)), [], []
    best = run.run(on_check=lambda row, model: (rows.append(row), models.append(model)))
    assert run.progress.ended == "held-out perplexity increased 3 times"
    assert [row["rises"] for row in rows] == [0, 0, 1, 1, 2, 2, 3]
    assert [row["best"] for row in rows] == [True, True, False, True, False, False, False]
    assert (run.progress.best, run.progress.best_fold) == (pytest.approx(30), 3)
    assert best is run.best is models[3]
    assert len({model.network.M.data_ptr() for model in models}) == 7  # none of them changes with later steps


def test_a_run_that_never_improves_returns_the_model_it_started_from(monkeypatch):
    scripted(monkeypatch, [50, 60, 61])
    run = Backprop(started(), TRAIN, DEV, replace(QUICK, patience=2))
    assert run.run() is started()


def test_the_log():
    rows = []
    best = Backprop(started(), TRAIN, DEV, QUICK, seconds=5.0).run(on_check=lambda row, _: rows.append(row))
    row = rows[-1]
    sizes = [ShuffledFold(TRAIN, 3, number, started().network, 0).targets for number in (1, 2, 3)]
    assert row["stage"] == "train 3"
    assert row["step"] == sum(math.ceil(size / 64) for size in sizes)
    assert row["tokens"] == sum(sizes) == TRAIN.targets
    assert 1 < row["train_perplexity"] < VOCABULARY
    assert row["learning_rate"] == 0.01
    assert row["tokens_per_second"] > 0
    assert 5.0 < rows[0]["seconds"] < row["seconds"]
    assert row["dev_perplexity"] < rows[0]["dev_perplexity"]
    assert evaluate(best, DEV).perplexity == min(row["dev_perplexity"] for row in rows)
    json.dumps(rows)


def test_training_leaves_the_start_and_the_random_state_alone():
    before = {name: array.copy() for name, array in started().arrays().items()}
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    Backprop(started(), TRAIN, DEV, replace(QUICK, max_folds=1)).run()
    assert torch.equal(torch.rand(3), expected)
    assert_same_arrays(started().arrays(), before)


def test_divergence_is_one_line_and_keeps_the_best_weights(tmp_path):
    folder = Folder(tmp_path / "model")
    run = folder.attach(Backprop(started(), TRAIN, DEV, replace(QUICK, learning_rate=1e30, max_grad_norm=0.0)))
    with pytest.raises(SaffuError, match=r"diverged: the loss is nan at step 2; restart with a lower `learning_rate`"):
        run.run(folder.save, folder.on_fold)
    arrays = files.read_arrays(folder.path, "model.safetensors", files.read_manifest(folder.path))
    assert_same_arrays(arrays, dict(started().arrays()))
    assert [row["stage"] for row in folder.log] == ["explicit start"]
    with pytest.raises(SaffuError, match="has nothing to resume: its training is complete or never began"):
        read_checkpoint(folder.path)


@pytest.mark.parametrize("perplexity", [math.inf, math.nan])
def test_held_out_text_can_show_divergence_too(monkeypatch, perplexity):
    scripted(monkeypatch, [50, perplexity])
    with pytest.raises(SaffuError, match="diverged: the perplexity of the held-out text is"):
        Backprop(started(), TRAIN, DEV, QUICK).run()


def test_held_out_text_is_needed():
    with pytest.raises(SaffuError, match="held-out text"):
        Backprop(started(), TRAIN, DEV.slice(0, 0), QUICK)


@pytest.mark.parametrize("training", [QUICK, COLD], ids=["warm", "cold"])
def test_interrupted_anywhere_ends_like_one_never_interrupted(tmp_path, training):
    """Bit for bit: the weights being trained, Adam's moments, the best model, and the log."""
    whole, log = Backprop(started(CONFIG, training), TRAIN, DEV, training), []
    best = whole.run(on_check=lambda row, _: log.append(row))
    folder, sittings, draw = Folder(tmp_path / "model"), 0, random.Random(1)
    run = folder.attach(Backprop(started(CONFIG, training), TRAIN, DEV, training, source={"name": "text"}))
    while True:
        left, take_step = draw.randrange(1, 14), run.take_step

        def interrupted(*targets, take_step=take_step):
            nonlocal left
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)  # takes effect after this step
            return take_step(*targets)

        run.take_step = interrupted
        try:
            run.run(folder.save, folder.on_fold)
            break
        except KeyboardInterrupt:
            sittings += 1
        run = folder.resume()
    assert sittings > 2
    assert run.source == {"name": "text"}
    assert_same_arrays(whole.step.arrays(), run.step.arrays())
    assert_same_arrays(dict(best.arrays()), dict(run.best.arrays()))
    assert without_timing(folder.log) == without_timing(log)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_during_an_evaluation_is_not_lost(tmp_path):
    """It takes effect after the next step, or at the end of the run, always after a checkpoint."""

    class Terminated(Exception):
        pass

    def terminate(number, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        for last, fold in ((1, 1), (3, 2)):
            folder = Folder(tmp_path / f"model {last}")
            run = folder.attach(Backprop(started(), TRAIN, DEV, replace(QUICK, max_folds=last)))

            def on_fold(row, model, folder=folder, fold=fold):
                folder.on_fold(row, model)
                if row["fold"] == fold:
                    signal.raise_signal(signal.SIGTERM)

            with pytest.raises(Terminated):
                run.run(folder.save, on_fold)
            assert len(folder.log) == fold + 1
            assert read_checkpoint(folder.path).progress["steps"] == run.progress.steps
            assert bool(run.progress.ended) == (last == 1)
    finally:
        signal.signal(signal.SIGTERM, before)


class Killed(Exception):
    pass


def test_killed_at_any_checkpoint_and_resumed(tmp_path):
    """The process ends while the nth checkpoint is written, before or after it is in place."""
    settings = replace(QUICK, checkpoint_seconds=0.0, max_folds=2)  # a checkpoint after every step
    whole = Backprop(started(), TRAIN, DEV, settings)
    whole.run()
    folder = Folder(tmp_path / "model")
    run, kills = folder.attach(Backprop(started(), TRAIN, DEV, settings)), iter([1, 4, 11, 3, 1, 5])
    while True:
        left, in_place = next(kills, 1000), len(folder.log) % 2 == 0

        def save(extra, in_place=in_place):
            nonlocal left
            left -= 1
            if left or in_place:
                folder.save(extra)
            if not left:
                raise Killed

        try:
            run.run(save, folder.on_fold)
            break
        except Killed:
            run = folder.resume() if folder.path.exists() else folder.attach(Backprop(started(), TRAIN, DEV, settings))
    assert next(kills, None) is None
    assert_same_arrays(whole.step.arrays(), run.step.arrays())
    assert_same_arrays(dict(whole.best.arrays()), dict(run.best.arrays()))
    assert [row["fold"] for row in folder.log] == [0, 1, 2]


def test_a_finished_run_can_be_prolonged(tmp_path):
    whole = Backprop(started(), TRAIN, DEV, QUICK)
    whole.run()
    folder = Folder(tmp_path / "model")
    folder.attach(Backprop(started(), TRAIN, DEV, replace(QUICK, max_folds=2))).run(folder.save, folder.on_fold)
    assert len(folder.log) == 3
    run = folder.resume(max_folds=3)
    run.run(folder.save, folder.on_fold)
    assert_same_arrays(whole.step.arrays(), run.step.arrays())
    assert run.progress.ended == "reached the limit of 3 folds"
    folder.resume().run(folder.save, folder.on_fold)  # nothing is left to do
    assert len(folder.log) == 4


def test_different_text_is_rejected(tmp_path):
    folder = Folder(tmp_path / "model")
    folder.attach(Backprop(started(), TRAIN, DEV, replace(QUICK, max_folds=1))).run(folder.save)
    checkpoint = read_checkpoint(folder.path)
    for corpus, dev in [(TRAIN.slice(0, 200), DEV), (TRAIN, DEV.slice(0, 20))]:
        with pytest.raises(SaffuError, match="different text"):
            Backprop(started(), corpus, dev, QUICK).restore(checkpoint)


def test_damaged_checkpoints_are_rejected(tmp_path):
    folder = Folder(tmp_path / "model")
    folder.attach(Backprop(started(), TRAIN, DEV, replace(QUICK, max_folds=1))).run(folder.save)
    checkpoint = read_checkpoint(folder.path)
    name = next(name for name in checkpoint.arrays if name.startswith("network."))
    missing = {key: array for key, array in checkpoint.arrays.items() if key != name}
    for damaged in ({"arrays": missing}, {"progress": {"fold": 1, "speed": 2}}, {"progress": {"fold": -1}}):
        with pytest.raises(SaffuError, match="checkpoint is damaged"):
            Backprop(started(), TRAIN, DEV, QUICK).restore(replace(checkpoint, **damaged))
    for name in ("checkpoint.safetensors", "checkpoint.json"):
        path = part(folder.path, name)
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(SaffuError, match="is damaged"):
            read_checkpoint(folder.path)
