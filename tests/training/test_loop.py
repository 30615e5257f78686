"""Backpropagation: gradients, the order of training, stopping, and runs that are interrupted, killed and resumed."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.func import functional_call

import saffu
from conftest import SMALL, sentences
from saffu import SaffuError, SaffuLM, checkpoint, store, train
from saffu.config import SaffuConfig, TrainingConfig
from saffu.corpus import TokenCorpus, block_windows, radius_windows
from saffu.evaluate import Score
from saffu.explicit import explicit_solution
from saffu.network import Network
from saffu.shuffle import ShuffledFold

QUICK = TrainingConfig(batch=128, max_folds=3)


@pytest.fixture(autouse=True)
def one_thread():
    """The sizes here are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fitted(small_lm, train_text, dev_text, tmp_path):
    """A copy of the fitted model, which may be changed, and its corpora."""
    small_lm.save(tmp_path / "fitted")
    lm = saffu.load(tmp_path / "fitted")
    return lm, lm.tokenize(train_text), lm.tokenize(dev_text)


def weights(lm):
    return {name: weight.clone() for name, weight in lm.network_.state_dict().items()}


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    for name, weight in one.items():
        assert torch.equal(weight, other[name]), name


# Gradients


@pytest.mark.parametrize(
    "settings",
    [
        {"block_mode": "sum", "radius_mode": "cat"},
        {"block_mode": "cat", "radius_mode": "sum"},
        {"documents": 3},
        {"hidden_dimension": 0},
        {"block": 12, "radius": 0, "block_mode": "cat"},
    ],
    ids=str,
)
@pytest.mark.parametrize("free", [False, True], ids=["frozen", "free"])
def test_gradients_are_finite_differences(settings, free):
    """Through −log softmax, sum and cat, the document model and, if they are free, the embeddings."""
    torch.manual_seed(0)
    shape = {"block": 4, "radius": 3, "block_dimension": 4, "radius_dimension": 3, "hidden_dimension": 4}
    config = SaffuConfig(**(shape | settings))
    embeddings = {n: torch.softmax(torch.randn(9, d).double(), 1) for n, d in (("block", 4), ("radius", 3))}
    network = Network(config, embeddings, 9).double()
    corpus = TokenCorpus(
        torch.tensor([4, 5, 6, 7, 8, 5, 3, 6, 3, 8, 4, 3]), torch.tensor([0, 7, 9, 12]), torch.tensor([1, 1, 1])
    )
    targets = next(corpus.batches(12, network.lookback))
    names = [name for name, _ in network.named_parameters()]
    if free:
        for unit in network.every_unit():
            embedded = unit.E
            del unit.E
            unit.E = torch.nn.Parameter(embedded)
        names = [name for name, _ in network.named_parameters()]
        assert any(name.endswith("E") for name in names)
    values = [torch.randn_like(weight) * 0.5 for _, weight in network.named_parameters()]
    values = [torch.softmax(v, 1) if name.endswith("E") else v for name, v in zip(names, values, strict=True)]

    def loss(*values):
        logits = functional_call(network, dict(zip(names, values, strict=True)), (targets,))
        return torch.nn.functional.cross_entropy(logits, targets.ids)

    assert torch.autograd.gradcheck(loss, [value.requires_grad_() for value in values])


def test_embeddings_that_move_are_not_looked_up_in_an_old_table(fitted):
    lm, corpus, _ = fitted
    targets = next(corpus.batches(50, lm.network_.lookback))
    with torch.no_grad():
        before = lm.network_(targets)
        for unit in lm.network_.every_unit():
            unit.E.copy_(unit.E.flip(0))
        moved = lm.network_(targets)
        fresh = Network(lm.config, {n: u.E.clone() for n, u in lm.network_.units.items()}, lm.network_.vocabulary)
        fresh.load_state_dict(lm.network_.state_dict())
        assert torch.equal(moved, fresh(targets))
    assert not torch.allclose(before, moved)


def test_free_embeddings_stay_on_the_simplex(fitted, tmp_path):
    lm, corpus, dev = fitted
    before = weights(lm)
    lm.backprop(corpus, dev, replace(QUICK, free_embeddings=True, rate=0.05), folder=tmp_path / "free")
    for name, weight in weights(lm).items():
        assert not torch.equal(weight, before[name])
        if name.endswith(".E"):
            assert weight.min() > 0
            torch.testing.assert_close(weight.sum(1), torch.ones(len(weight)))
    assert saffu.load(tmp_path / "free").perplexity(dev) == lm.perplexity(dev) == lm.log_[-1]["dev_perplexity"]


def test_frozen_embeddings_stay(fitted):
    lm, corpus, dev = fitted
    before = weights(lm)
    lm.backprop(corpus, dev, QUICK)
    for name, weight in weights(lm).items():
        assert torch.equal(weight, before[name]) == name.endswith(".E"), name


# The order of training


def contexts(network, targets):
    """Each target with what its units see, as tuples."""
    seen = [[int(token)] for token in targets.ids]
    for windows in (block_windows(targets, 16), radius_windows(targets, 4)):
        for window in windows:
            for row, ids, head in zip(window.rows.tolist(), window.ids.tolist(), window.head.tolist(), strict=True):
                seen[row] += [head, *[token for token in ids if token]]
    return [tuple(each) for each in seen]


def test_a_pass_shows_every_target_once_with_its_own_context(fitted):
    lm, corpus, _ = fitted
    network = lm.network_
    expected = [c for targets in corpus.batches(1000, network.lookback) for c in contexts(network, targets)]
    orders = []
    for epoch in range(2):
        found = []
        for number in range(1 + 7 * epoch, 8 + 7 * epoch):
            fold = ShuffledFold(corpus, 7, number, network, seed=5)
            assert abs(fold.targets - corpus.targets / 7) < 60
            for first in range(0, fold.targets, 512):
                found += contexts(network, fold.batch(first, 512))
        assert sorted(found) == sorted(expected)
        orders.append(found)
    assert orders[0] != orders[1]


def test_the_document_model_reads_documents_in_order(fitted):
    lm, corpus, _ = fitted
    network = Network(replace(lm.config, documents=4), {n: u.E for n, u in lm.network_.units.items()}, 300)
    fold = ShuffledFold(corpus, 3, 2, network, seed=5)
    together = network.document_inputs(fold.batch(0, fold.targets))
    apart = torch.cat([network.document_inputs(fold.batch(first, 100)) for first in range(0, fold.targets, 100)])
    torch.testing.assert_close(together, apart)


@pytest.mark.parametrize("lengths", [[5000, 1, 1], [1], [1, 5000], [3] * 10])
def test_folds_of_few_and_long_documents(fitted, lengths):
    network = fitted[0].network_
    starts = torch.tensor([0, *lengths]).cumsum(0)
    corpus = TokenCorpus(torch.full((int(starts[-1]),), 5), starts, torch.ones(len(lengths), dtype=torch.int64))
    folds = min(3, len(lengths))
    sizes = [ShuffledFold(corpus, folds, number, network, 0).targets for number in range(1, folds + 1)]
    assert sum(sizes) == corpus.targets
    assert min(sizes) > 0


def test_fit_share_divides_the_documents(fitted):
    lm, corpus, dev = fitted
    fit, rest = corpus.divided(0.25)
    assert fit.documents == 150
    assert fit.targets + rest.targets == corpus.targets
    assert torch.equal(fit.ids[: fit.starts[1]], corpus.part(3, 4).ids)
    run = train.Backprop(lm, corpus, dev, replace(QUICK, fit_share=0.25))
    assert torch.equal(run.corpus.ids, rest.ids)
    half = SaffuLM(SMALL, tokenizer=lm.tokenizer_).fit(corpus, training=replace(QUICK, fit_share=0.25))
    assert half.counts_["final"].targets == fit.targets
    with pytest.raises(SaffuError, match="no documents are left"):
        train.Backprop(lm, corpus.part(0, 0), dev, QUICK)


def test_own_counts_are_what_the_closed_form_says(fitted):
    """Taking h⊗y out of F and solving M anew gives the target's logit without its own count."""
    lm, corpus, _ = fitted
    targets = next(corpus.batches(40, lm.network_.lookback))
    with torch.no_grad():
        hidden = lm.network_.hidden(targets)
        own = train.OwnCounts.of(lm)(hidden, targets.ids)
    F, smoothing = lm.counts_["final"].F, lm.config.smoothing
    for row, target in enumerate(targets.ids.tolist()):
        without = F.clone()
        without[:, target] -= hidden[row].double()
        difference = explicit_solution(F + smoothing, 2) - explicit_solution(without.clamp(min=0) + smoothing, 2)
        assert float(own[row]) == pytest.approx(float(hidden[row].double() @ difference[:, target]), rel=1e-3, abs=1e-4)
    assert own.min() > -1e-3


# Steps


def test_rates(fitted):
    lm, corpus, dev = fitted
    constant = train.Backprop(lm, corpus, dev, TrainingConfig(rate=0.5, warmup=4))
    rates = []
    for constant.progress.steps in range(7):
        rates.append(constant.rate())
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5])
    cosine = train.Backprop(lm, corpus, dev, TrainingConfig(rate=0.5, schedule="cosine", max_folds=4))
    found = []
    for cosine.progress.fold in range(1, 6):
        found.append(cosine.rate())
    assert found == pytest.approx([0.5, 0.25 * (1 + math.sqrt(0.5)), 0.25, 0.25 * (1 - math.sqrt(0.5)), 0])


def test_a_step_is_adam(fitted):
    """The first step of Adam moves each weight by the rate, against the sign of its gradient."""
    lm, corpus, dev = fitted
    run = train.Backprop(lm, corpus, dev, TrainingConfig(rate=1e-3, dropout=0.0, clip=0.0))
    targets = next(corpus.batches(256, lm.network_.lookback))
    loss = -lm.network_.log_probabilities(targets).sum()
    gradients = torch.autograd.grad(loss, list(lm.network_.parameters()))
    assert float(run.train_on(targets)) == pytest.approx(loss.item(), rel=1e-5)
    for before, after, gradient in zip(lm.network_.parameters(), run.network.parameters(), gradients, strict=True):
        clear = gradient.abs() > 1e-3
        assert clear.any()
        torch.testing.assert_close((after - before)[clear], -1e-3 * gradient.sign()[clear], rtol=0.02, atol=1e-5)


def test_dropout_is_of_training_only(fitted):
    lm, corpus, dev = fitted
    run = train.Backprop(lm, corpus, dev, TrainingConfig(dropout=0.5))
    targets = next(corpus.batches(64, lm.network_.lookback))
    with torch.no_grad():
        plain, evaluated = lm.network_(targets), run.network.eval()(targets)
        dropped = run.network.train()(targets)
    assert torch.equal(plain, evaluated)
    assert not torch.allclose(plain, dropped)


def test_cold_starts(train_text, fitted):
    lm = fitted[0]
    cold = TrainingConfig(start="cold")

    def start(seed, **settings):
        config = replace(SMALL, seed=seed)
        return SaffuLM(config, tokenizer=lm.tokenizer_).fit(train_text, training=replace(cold, **settings))

    one, same, other, wide = start(1), start(1), start(2), start(1, cold_scale=10.0)
    assert_same_weights(weights(one), weights(same))
    for name, weight in weights(one).items():
        if name.endswith(".E"):
            assert torch.equal(weight, weights(lm)[name])  # the cipher's, as in the warm model
        else:
            assert not torch.equal(weight, weights(other)[name])
            torch.testing.assert_close(10 * weight, weights(wide)[name])
            assert float(weight.std()) == pytest.approx(1 / math.sqrt(len(weight)), rel=0.5)


def test_warm_is_ahead_of_cold_after_the_same_steps(train_text, dev_text):
    best = {}
    for start in ("warm", "uniform", "cold"):
        config = replace(SMALL, attention="uniform") if start == "uniform" else SMALL
        training = TrainingConfig(start=start, batch=256, max_folds=4)
        lm = SaffuLM(config).fit(train_text, dev_text, training=training).backprop(train_text, dev_text, training)
        rows = [row for row in lm.log_ if "fold" in row]
        assert [row["fold"] for row in rows] == [0, 1, 2, 3, 4]
        assert rows[-1]["dev_perplexity"] < rows[0]["dev_perplexity"]
        best[start] = min(row["dev_perplexity"] for row in rows)
        assert lm.perplexity(dev_text) == best[start]
    assert best["warm"] * 1.8 < best["cold"]
    assert best["uniform"] * 1.8 < best["cold"]


# Stopping


def scripted(monkeypatch, perplexities):
    """Let the held-out text have these perplexities, one after another."""
    coming = iter(perplexities)
    monkeypatch.setattr(train.evaluate, "evaluate", lambda *_: Score(math.log(next(coming)) * 100, 100, 300))


def test_stops_at_the_running_total_of_rises_and_keeps_the_best(fitted, monkeypatch):
    lm, corpus, dev = fitted
    scripted(monkeypatch, [50, 40, 45, 30, 35, 33, 34, 20])  # rises at folds 2, 4 and 6
    run = train.Backprop(lm, corpus, dev, TrainingConfig(batch=512, rises=3))
    kept = []
    run.run(on_fold=lambda row: kept.append({n: w.clone() for n, w in run.network.state_dict().items()}))
    assert run.progress.ended.endswith("risen 3 times")
    assert [row["rises"] for row in lm.log_[1:]] == [0, 0, 1, 1, 2, 2, 3]
    assert [row["best"] for row in lm.log_[1:]] == [True, True, False, True, False, False, False]
    assert (run.progress.best, run.progress.best_fold) == (pytest.approx(30), 3)
    assert_same_weights(weights(lm), kept[3])


def test_the_log(fitted):
    lm, corpus, dev = fitted
    lm.backprop(corpus, dev, QUICK)
    row = lm.log_[-1]
    assert row["stage"] == "train 3"
    assert row["step"] == sum(math.ceil(ShuffledFold(corpus, 7, n, lm.network_, 0).targets / 128) for n in (1, 2, 3))
    assert row["tokens"] == sum(ShuffledFold(corpus, 7, n, lm.network_, 0).targets for n in (1, 2, 3))
    assert 1 < row["train_perplexity"] < 5
    assert row["sample"].startswith("<sod>")
    assert row["tokens_per_second"] > 0
    assert row["seconds"] > lm.log_[1]["seconds"]
    json.dumps(lm.log_)


def test_divergence_leaves_the_best_weights(fitted, tmp_path):
    lm, corpus, dev = fitted
    start = lm.perplexity(dev)
    with pytest.raises(SaffuError, match=r"diverged: the loss is nan at step 2; .* lower rate; .*model"):
        lm.backprop(corpus, dev, replace(QUICK, rate=1e30, clip=0.0), folder=tmp_path / "model")
    left = saffu.load(tmp_path / "model")
    assert left.perplexity(dev) == start
    assert [row["stage"] for row in left.log_] == ["init", "warm start"]
    with pytest.raises(SaffuError, match="no training to resume"):
        checkpoint.read_state(tmp_path / "model")


@pytest.mark.parametrize("perplexity", [math.inf, math.nan])
def test_held_out_text_tells_of_divergence_too(fitted, monkeypatch, perplexity):
    lm, corpus, dev = fitted
    scripted(monkeypatch, [50, perplexity])
    with pytest.raises(SaffuError, match="diverged: the held-out text"):
        lm.backprop(corpus, dev, QUICK)


def test_needs_held_out_text(fitted):
    lm, corpus, _ = fitted
    with pytest.raises(SaffuError, match="held-out"):
        lm.backprop(corpus, [], QUICK)


# Going on


def resumed(folder, corpus, dev, **changed):
    state = checkpoint.read_state(folder)
    lm = saffu.load(folder)
    run = train.Backprop(lm, corpus, dev, replace(state["settings"], **changed))
    checkpoint.restore(run, folder, state)
    run.run(folder)
    return lm, run


@pytest.mark.parametrize(
    "settings",
    [{}, {"free_embeddings": True, "weight_decay": 0.1}, {"schedule": "cosine", "warmup": 10, "leave_out": True}],
    ids=str,
)
def test_interrupted_anywhere_ends_like_one_never_interrupted(fitted, tmp_path, settings):
    lm, corpus, dev = fitted
    settings = replace(QUICK, **settings)
    whole = train.Backprop(lm, corpus, dev, settings)
    whole.run()
    lm_again = saffu.load(tmp_path / "fitted")
    run, sittings = train.Backprop(lm_again, corpus, dev, settings), 0
    interruptions = random.Random(1)
    while True:
        left = interruptions.randrange(1, 25)
        usual = run.train_on

        def train_on(targets, run=run, usual=usual):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGINT)  # heeded after this step
            return usual(targets)

        run.train_on = train_on
        try:
            run.run(tmp_path / "again")
            break
        except KeyboardInterrupt:
            sittings += 1
        state = checkpoint.read_state(tmp_path / "again")
        lm_again = saffu.load(tmp_path / "again")
        run = train.Backprop(lm_again, corpus, dev, state["settings"])
        checkpoint.restore(run, tmp_path / "again", state)
    assert sittings > 2
    assert_same_weights(whole.network.state_dict(), run.network.state_dict())
    assert_same_weights(weights(lm), weights(lm_again))
    timing = ("seconds", "tokens_per_second")
    for one, other in zip(lm.log_, lm_again.log_, strict=True):
        assert {k: v for k, v in one.items() if k not in timing} == {k: v for k, v in other.items() if k not in timing}
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_leaves_the_random_state_alone(fitted):
    lm, corpus, dev = fitted
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    lm.backprop(corpus, dev, replace(QUICK, max_folds=1))
    assert torch.equal(torch.rand(3), expected)


def test_a_finished_run_can_be_prolonged(fitted, tmp_path):
    lm, corpus, dev = fitted
    lm.backprop(corpus, dev, QUICK)
    short = saffu.load(tmp_path / "fitted").backprop(corpus, dev, replace(QUICK, max_folds=2), folder=tmp_path / "m")
    assert len(short.log_) == 4
    prolonged, run = resumed(tmp_path / "m", corpus, dev, max_folds=3)
    assert_same_weights(weights(lm), weights(prolonged))
    assert run.progress.ended == "3 folds done"
    again, _ = resumed(tmp_path / "m", corpus, dev)  # nothing is left to do
    assert len(again.log_) == 5


def test_resuming_from_python(fitted, tmp_path, train_text, dev_text):
    lm, corpus, dev = fitted
    lm.backprop(corpus, dev, QUICK)
    again, rows = saffu.load(tmp_path / "fitted"), []

    def stop(row):
        if row["fold"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        again.backprop(train_text, dev_text, QUICK, folder=tmp_path / "m", on_fold=stop)
    again = SaffuLM.resume(tmp_path / "m", train_text, dev_text, on_fold=rows.append)
    assert [row["fold"] for row in rows] == [3]
    assert_same_weights(weights(lm), weights(again))


def test_going_on_on_another_kind_of_device(fitted):
    """Its generator cannot take over the state of this one's; dropout is then drawn anew, and all else goes on."""
    lm, corpus, dev = fitted
    run = train.Backprop(lm, corpus, dev, QUICK)
    run.resumed_random_state = torch.zeros(16, dtype=torch.uint8)  # as a GPU's
    run.run()
    assert run.progress.ended == "3 folds done"


def test_other_text_is_refused(fitted, tmp_path):
    lm, corpus, dev = fitted
    lm.backprop(corpus, dev, replace(QUICK, max_folds=1), folder=tmp_path / "m")
    with pytest.raises(SaffuError, match="not the text"):
        resumed(tmp_path / "m", corpus.part(0, 500), dev)


def test_damaged_state_is_refused(fitted, tmp_path):
    lm, corpus, dev = fitted
    folder = tmp_path / "m"
    lm.backprop(corpus, dev, replace(QUICK, max_folds=1), folder=folder)
    tensors = (folder / "training.safetensors").read_bytes()
    (folder / "training.safetensors").write_bytes(tensors[:-9])
    with pytest.raises(SaffuError, match="damaged"):
        resumed(folder, corpus, dev)
    (folder / "training.json").write_text("{}")
    with pytest.raises(SaffuError, match="damaged"):
        resumed(folder, corpus, dev)


COMMAND = [sys.executable, "-m", "saffu", "train"]
SHAPE = [
    "--block",
    "16",
    "--radius",
    "4",
    "--block-dimension",
    "16",
    "--radius-dimension",
    "12",
    "--hidden-dimension",
    "32",
]
RUN = ["--backprop", "--batch", "64", "--fold", "2000", "--max-folds", "9", "--save-every", "0.1", "--seed", "4"]


def test_killed_at_random_and_resumed(tmp_path):
    """SIGKILL, three times, at moments drawn at random; the folder is always whole, and the end is the same."""
    (tmp_path / "text.txt").write_text("\n".join(sentences(1, 400)) + "\n")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def begin(*arguments):
        return subprocess.Popen(
            [*COMMAND, *arguments], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    whole = begin("text.txt", "--out", "whole", *SHAPE, *RUN)
    whole.communicate()
    assert whole.returncode == 0
    moments = random.Random(2)
    for sitting in range(4):
        run = begin("--resume", "killed") if sitting else begin("text.txt", "--out", "killed", *SHAPE, *RUN)
        if sitting == 3:
            out, _ = run.communicate()
            assert run.returncode == 0
            assert b"9 folds done" in out
            break
        for _ in range(
            moments.randrange(2, 4) + (0 if sitting else 3)
        ):  # at first three lines of the explicit solution
            run.stdout.readline()  # a line a fold; the kill comes somewhere in the next
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert run.returncode == -signal.SIGKILL
    ends = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        manifest = store.read_manifest(folder)
        ends.append([store.read_file(folder, file, manifest) for file in ("model.safetensors", "training.safetensors")])
    assert ends[0] == ends[1]


# The command


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    from saffu.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(sentences(1, 200)) + "\n")

    def run(*arguments):
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit.value.code, captured.out, captured.err

    return run


def test_the_command_trains_is_interrupted_and_goes_on(command, tmp_path, monkeypatch):
    begin = ["train", "text.txt", "--out", "model", *SHAPE, "--backprop", "--batch", 64, "--fold", 2000]
    usual = train.Backprop.train_on

    def interrupting(self, targets):
        if self.progress.steps == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return usual(self, targets)

    monkeypatch.setattr(train.Backprop, "train_on", interrupting)
    status, out, err = command(*begin, "--max-folds", 3)
    assert status == 130
    assert "saffu train --resume model" in err
    assert "warm start" in out
    assert "train 1 " in out
    assert "train 2 " not in out
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path / "model")  # the text is found from elsewhere too
    status, out, err = command("train", "--resume", tmp_path / "model", "--json")
    assert status == 0
    assert "resuming in fold 2 after 41 steps" in err
    facts = json.loads(out)
    assert [row["stage"] for row in facts["log"]][-3:] == ["train 1", "train 2", "train 3"]
    assert facts["log"] == saffu.load(tmp_path / "model").log_


def test_bad_input_of_training_is_one_clear_line(command, tmp_path):
    command("train", "text.txt", "--out", "solved", "--preset", "paper", *SHAPE)
    command("train", "text.txt", "--out", "trained", *SHAPE, "--backprop", "--max-folds", 1)
    (tmp_path / "other.txt").write_text("something else\n" * 50)
    for arguments, message in [
        ("text.txt --out m --start cold", "--start is a setting of --backprop"),
        ("text.txt --out m --tensorboard t", "add --backprop"),
        ("text.txt --out m --backprop --rate -1", "--rate is -1.0"),
        ("text.txt --out m --backprop --rate nan", "rate is nan"),
        ("text.txt --out m --backprop --batch 0", "--batch is 0"),
        ("text.txt --out m --backprop --dropout 1", "dropout is 1.0"),
        ("text.txt --out m --backprop --clip -1", "clip is -1.0"),
        ("text.txt --out m --backprop --fit-share 1.5", "--fit-share is 1.5"),
        ("text.txt --out m --backprop --schedule linear", "invalid choice"),
        ("text.txt --out m --backprop --schedule cosine", "with --max-folds"),
        ("text.txt --out m --backprop --start cold --leave-out", "cold start counts nothing"),
        ("text.txt --out m --backprop --start uniform --attention explicit", "--start uniform"),
        ("text.txt --out m --backprop --leave-out --hidden-dimension 0", "final decoder"),
        ("text.txt --out m --backprop --hold-out 0", "--dev"),
        ("--resume nowhere", "no model folder"),
        ("--resume solved", "no training to resume"),
        ("--resume trained --rate 0.1", "--rate cannot change"),
        ("--resume trained --radius 4", "--radius cannot change"),
        ("--resume trained --out m", "leave out --out"),
        ("other.txt --resume trained", "not the text"),
        ("text.txt", "--out"),
    ]:
        status, _, err = command("train", *arguments.split())
        assert (status, err.count("\n")) == (2, 1), (arguments, err)
        assert message in err, arguments
        assert not (tmp_path / "m").exists()


def test_the_papers_rate_is_in_its_preset(command):
    settings = ["--backprop", "--max-folds", 1, *SHAPE]
    for preset, rate in [([], 1e-2), (["--preset", "paper"], 5e-6), (["--preset", "paper", "--rate", 0.1], 0.1)]:
        status, out, _ = command("train", "text.txt", "--out", "m", "--force", "--json", *settings, *preset)
        assert status == 0
        assert json.loads(out)["log"][-1]["rate"] == pytest.approx(rate)


def test_tensorboard(command, tmp_path):
    pytest.importorskip("tensorboard")
    status, _, _ = command(
        "train", "text.txt", "--out", "m", "--backprop", "--max-folds", 1, "--tensorboard", "board", *SHAPE
    )
    assert status == 0
    assert len(list((tmp_path / "board").glob("events*"))) == 1


def test_tensorboard_is_an_extra(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    status, _, err = command("train", "text.txt", "--out", "m", "--backprop", "--tensorboard", "t", *SHAPE)
    assert status == 2
    assert "saffu[tensorboard]" in err
