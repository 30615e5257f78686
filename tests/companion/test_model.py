"""The mixture as a model, its training, and the command that makes one."""

import copy
import json
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from companion_data import CONFIG, counted_model, dev_corpus, texts, training
from conftest import each, part
from reference import companion as reference
from saffu import CalibratedConfig, SaffuError, SaffuLM, load
from saffu.companion import config, cross_fit, torch_networks
from saffu.companion.config import CompanionConfig, resolved
from saffu.companion.networks import Networks
from saffu.companion.rows import ages_of, excerpt, gate_inputs
from saffu.companion.scoring import DeviceCorpus, Division, score
from saffu.companion.spelling import spellings_of
from saffu.companion.torch_networks import score_on_device
from saffu.companion.train import Training
from saffu.interface import Score
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import EOD
from saffu.tools.evaluate import evaluate
from saffu.training.checkpoint import read_checkpoint

SHAPE = "--order 2 --slots 1 --word-classes 0 --cache 0"


@pytest.fixture(scope="module", autouse=True)
def one_precision():
    """Networks are trained in float32, whatever the machine prefers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_networks, "dtypes", lambda device: (torch.float32, torch.float32))
        yield


@pytest.fixture
def short_steps(monkeypatch):
    """Steps of a text that is far shorter than the rule is made for."""
    monkeypatch.setitem(config.BATCH_TOKENS, "cpu", 512)


@pytest.fixture(scope="module")
def counted() -> SaffuLM:
    return counted_model()


@pytest.fixture(scope="module")
def trained(counted: SaffuLM) -> SaffuLM:
    return copy.copy(counted).backprop(texts(1, 600), texts(2, 120))


@pytest.fixture(scope="module")
def dev(counted: SaffuLM) -> TokenCorpus:
    return dev_corpus(counted)


def test_training_from_python(counted, trained):
    """With one call: from nothing, or next to the counts of a fitted model; both as `fit` and `backprop` do."""
    length = {name: getattr(counted.config, name) for name in ("minutes", "epochs")}
    assert any(length.values())
    plain = CalibratedConfig(**{name: getattr(counted.config, name) for name in CalibratedConfig().to_dict()})
    made = SaffuLM(counted.config, tokenizer=counted.tokenizer_).train(texts(1, 600), texts(2, 120), **length)
    assert made.model_.has_network and "outcome" in made.log_[-1]
    assert made.score(texts(2, 50)).nll == pytest.approx(trained.score(texts(2, 50)).nll, rel=0.02)
    fitted = SaffuLM(plain, tokenizer=counted.tokenizer_).fit(texts(1, 600))
    assert fitted.config.preset == "calibrated"
    fitted.train(texts(1, 600), texts(2, 120), epochs=0.2)
    assert fitted.config.preset == "companion" and fitted.config.epochs == 0.2
    assert "network" in fitted.log_[-1]["outcome"]
    with pytest.raises(SaffuError, match="pass `minutes` or `epochs`"):
        SaffuLM(plain).train(texts(1, 20), texts(2, 5))


@pytest.mark.parametrize("kind", [CalibratedConfig, CompanionConfig])
def test_training_on_text_that_is_not_counted_changes_nothing(counted, kind):
    names = CalibratedConfig().to_dict()
    config = kind(**{name: getattr(counted.config, name) for name in names})
    lm = SaffuLM(config, tokenizer=counted.tokenizer_).fit(texts(1, 120))
    before = dict(vars(lm))
    own, others, dev = texts(1, 120), texts(3, 120), texts(2, 60)
    for documents, held_out in ((others, dev), ([*own, own[0]], dev), ([*own, others[0]], dev), (own, [])):
        with pytest.raises(SaffuError):
            lm.train(documents, held_out, epochs=0.2)
        assert all(vars(lm)[name] is value for name, value in before.items()), "something was changed"
    lm.train(own[2:], dev, epochs=0.2)
    assert lm.config.epochs == 0.2


def test_models_whose_networks_are_gone_merge_with_counted_ones(counted, trained, saffu, tmp_path):
    """A network that was dropped or never kept leaves a counted model; equal networks stay."""
    dropped = copy.copy(trained)
    dropped.forget(texts(1, 600)[:1], drop_network=True)
    plain = CalibratedConfig(**{name: getattr(counted.config, name) for name in CalibratedConfig().to_dict()})
    base = SaffuLM(plain, tokenizer=counted.tokenizer_).fit(texts(1, 600))
    sibling = SaffuLM(encoder=base).fit(texts(3, 60))
    expected = SaffuLM(encoder=base).fit([*texts(1, 600)[1:], *texts(3, 60)])
    for number, (one, other) in enumerate([(dropped, sibling), (sibling, dropped)]):
        merged = one.merge(other)
        assert_same_arrays(dict(merged.model_.sums.arrays()), dict(expected.model_.sums.arrays()))
        assert_same_arrays(dict(merged.model_.arrays()), dict(expected.model_.arrays()))
        assert merged.config == plain
        merged.save(tmp_path / f"{number}")
        assert load(tmp_path / f"{number}", check=True).trained_on_ == expected.trained_on_
    assert dropped.config.preset == "companion" and counted.merge(sibling).config == plain
    with pytest.raises(SaffuError, match="counted, with a network"):
        trained.merge(sibling)
    longer = copy.copy(trained)
    longer.config = replace(trained.config, epochs=99.0)  # as `update --epochs` leaves it
    assert trained.merge(longer).model_.has_network


def test_the_mixture_is_better_than_the_counts(counted, trained, dev):
    assert trained.model_.networks is not None
    assert evaluate(trained.model_, dev).bits_per_byte < evaluate(counted.model_, dev).bits_per_byte
    rows = [row for row in trained.log_ if "fold" in row]
    assert rows[-1]["stage"] == "train 100%"
    for row in rows:  # from the first moment on
        assert row["dev_bits_per_byte"] < row["counted_bits_per_byte"] + 1e-6  # equal while the gate is shut
        assert row["dev_bits_per_byte"] < row["network_bits_per_byte"] + 0.002
    assert rows[-1]["dev_bits_per_byte"] < rows[-1]["counted_bits_per_byte"] - 0.005


def test_several_networks_are_better_than_each_on_average(counted, dev, tmp_path):
    run = training(counted, dev, networks=2, epochs=6)
    rows = []
    best = run.run(on_check=lambda row, model: rows.append(row))
    assert best.config.networks == 2 and len(best.networks.weights) == 2
    parts, each = best.scores_by_part(dev), []
    for place in range(2):
        arrays = {name: array[place : place + 1] for name, array in best.networks.arrays().items()}
        each.append(
            best.with_parts(networks=Networks(arrays, best.config.context, best.counted.ranks)).scores_by_part(dev)
        )
    for name in ("", "network"):  # the mean of their probabilities, target by target
        expected = np.log(np.mean([np.exp(alone[name]) for alone in each], axis=0))
        np.testing.assert_allclose(parts[name], expected, atol=1e-5)
        assert parts[name].mean() > np.mean([alone[name].mean() for alone in each]) + 0.001
    assert "the 2 networks improve held-out text" in rows[-1]["outcome"]
    assert rows[-1]["outcome"].endswith("the budget is spent") and "outcome" not in rows[-2]
    lm = copy.copy(counted)
    lm.model_, lm.config = best, best.config
    lm.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").model_.log_probabilities(dev), parts[""])


def test_a_run_without_time_says_that_it_achieved_nothing(counted, dev):
    run = training(counted, dev, minutes=1e-9)
    rows = []
    assert run.run(on_check=lambda row, model: rows.append(row)).networks is None
    assert [row["step"] for row in rows] == [0, 1]
    assert "adds nothing and was not kept: it took only 1 step in" in rows[-1]["outcome"]
    assert rows[-1]["outcome"].endswith("allow more time")
    run.progress.steps = run.steps = 2  # as if the epochs had ended, not the time
    assert run.outcome().endswith("it needs a longer text, or more epochs")


def seconds_of_a_run(counted, dev, monkeypatch, counting, preparing, step, scoring):
    """How long a run of one minute takes where its parts take so long: by a clock that only these move."""

    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    def taking(seconds, work):
        def work_that_takes(*arguments, **options):
            clock.now += seconds
            return work(*arguments, **options)

        return work_that_takes

    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    monkeypatch.setattr(cross_fit, "with_context", taking(preparing / cross_fit.FOLDS, cross_fit.with_context))
    monkeypatch.setattr(Training, "_step", taking(step, lambda run: None))
    monkeypatch.setattr(Training, "_scores", taking(scoring, Training._scores))
    monkeypatch.setattr(Division, "calibrated", taking(3 * scoring, lambda division, networks: networks.copy()))
    run = training(counted, dev, seconds=counting, minutes=1, epochs=10_000)
    run.run()
    assert run.progress.ended == "the budget is spent"
    return counting + clock.now


@pytest.mark.parametrize(
    "parts", [(5, 10, 0.2, 0.5), (10, 10, 1, 2), (15, 20, 2, 1), (2, 3, 0.1, 3), (12, 24, 0.5, 0.1), (0, 0, 4, 1)]
)
def test_a_run_keeps_to_its_minutes(counted, dev, monkeypatch, caplog, parts):
    assert 54 < seconds_of_a_run(counted, dev, monkeypatch, *parts) < 66
    assert caplog.records == []


@pytest.mark.parametrize("parts", [(40, 80, 1, 1), (10, 60, 1, 1), (70, 10, 0.1, 0.5)])
def test_a_run_that_cannot_keep_to_its_minutes_says_so_before(counted, dev, monkeypatch, caplog, parts):
    counting, preparing, *_ = parts
    taken = seconds_of_a_run(counted, dev, monkeypatch, *parts)
    assert taken == pytest.approx(counting + preparing + 15, rel=0.1)  # a quarter of the minute is for training
    assert len(caplog.records) == 1


def test_training_in_bfloat16_is_close_and_scores_in_float32(counted, dev, monkeypatch):
    exact = training(counted, dev, network_dropout=0.0)
    monkeypatch.setattr(torch_networks, "dtypes", lambda device: (torch.bfloat16, torch.float32))
    short = training(counted, dev, network_dropout=0.0)
    for run in (exact, short):
        for _ in range(20):
            run._step()
            run.progress.steps += 1
    assert float(short._loss) != float(exact._loss)
    assert float(short._loss) == pytest.approx(float(exact._loss), rel=0.01)
    assert short.networks.copy().stack.dtype == torch.float32


def test_text_is_scored_as_torch_scores_it(trained, dev):
    model = trained.model_
    counted, certainty = model.counted.log_probabilities_and_certainty(dev)
    in_torch = score_on_device(model, dev, counted, gate_inputs(certainty, ages_of(dev)), None)
    parts = model.scores_by_part(dev)
    np.testing.assert_allclose(parts[""], in_torch.mixture, atol=1e-4)
    np.testing.assert_allclose(parts["network"], in_torch.trained, atol=1e-4)
    assert np.abs(parts[""] - counted).max() > 0.1


def test_text_is_scored_as_defined(trained, dev):
    (weights,), document = trained.model_.networks.weights, dev.slice(0, 1)
    counted, certainty = trained.model_.counted.log_probabilities_and_certainty(document)
    states = reference.hidden(weights, [EOD, *document.ids[: CONFIG.context - 1]])
    log_p = reference.log_probabilities(weights, states, trained.model_.counted.encoder.output_classes)
    network = log_p[np.arange(len(states)), document.ids[: len(states)]]
    seen = gate_inputs(certainty, ages_of(document))
    logit = reference.gate_logit(weights, states, seen[: len(states)])
    expected = reference.mixture(logit[None], network[None], counted[: len(states)])
    np.testing.assert_allclose(trained.model_.log_probabilities(document)[: len(states)], expected, atol=1e-4)


@each("temperature", [1.0, 0.5, 2.0])
@each("class_first", [True, False])
def test_samples_follow_the_distribution(trained, dev, temperature, class_first):
    model, rng = trained.model_, np.random.default_rng(0)
    if not class_first:
        arrays = {name: array for name, array in model.networks.arrays().items() if ".class_" not in name}
        model = model.with_parts(networks=Networks(arrays, CONFIG.context, model.counted.ranks))
    state = model.start(dev.ids[:9].tolist())
    p = np.exp(model.next_log_probabilities([state])[0].astype(np.float64) / temperature)
    p /= p.sum()
    drawn = [model.sample(state, rng, temperature) for _ in range(5000)]
    counts = np.bincount([token for token, _ in drawn], minlength=len(p))
    likely = p > 0.01
    assert likely.sum() > 3
    assert np.abs((counts - 5000 * p)[likely] / np.sqrt(5000 * p[likely])).max() < 4.5
    token, after = drawn[0]
    assert after == model.advance(state, token)


def test_distributions_sum_to_one_and_agree_with_the_scores(trained, dev):
    model, document = trained.model_, dev.slice(2, 3)
    expected = model.log_probabilities(document)
    state, found = model.start(), []
    assert document.targets > 2 * CONFIG.context
    for token in document.ids.tolist():
        (row,) = model.next_log_probabilities([state])
        assert np.exp(row.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
        found.append(row[token])
        state = model.advance(state, token)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert state == model.start(document.ids.tolist())


def test_no_prediction_depends_on_what_follows(trained, dev):
    document = dev.slice(2, 3)
    changed = TokenCorpus(document.ids.copy(), document.starts, document.sizes)
    place = document.targets - 9  # after the window has moved
    changed.ids[place:-1] = changed.ids[place:-1][::-1]
    before, after = (trained.model_.log_probabilities(corpus) for corpus in (document, changed))
    np.testing.assert_array_equal(before[:place], after[:place])
    assert not np.allclose(before[place:], after[place:], atol=0.1)


def test_states_are_predicted_alike_alone_and_together(trained, dev):
    model, ids = trained.model_, dev.ids.tolist()
    states = [model.start(ids[:length]) for length in (0, 3, 40, 70)]
    together = model.next_log_probabilities(states)
    for state, row in zip(states, together, strict=True):
        np.testing.assert_allclose(model.next_log_probabilities([state])[0], row, atol=1e-5)


def test_with_the_gate_shut_it_is_the_counted_model(trained, dev):
    plain, arrays = trained.model_.counted, trained.model_.networks.arrays()
    arrays["trained.gate.weight"] = np.zeros_like(arrays["trained.gate.weight"])
    arrays["trained.gate.bias"] = np.full_like(arrays["trained.gate.bias"], -100)
    shut = trained.model_.with_parts(networks=Networks(arrays, trained.config.context, plain.ranks))
    np.testing.assert_allclose(shut.log_probabilities(dev), plain.log_probabilities(dev), rtol=1e-5)
    np.testing.assert_array_equal(trained.model_.scores_by_part(dev)["counted"], plain.log_probabilities(dev))
    alone = trained.model_.without_network()
    assert np.array_equal(alone.log_probabilities(dev), plain.log_probabilities(dev))


def test_the_terms_of_an_explanation_add_up(trained, dev):
    for context in ([], dev.ids[:5].tolist(), dev.ids[:50].tolist()):
        explanation = trained.model_.explain(context)
        total = np.sum([term.values for term in explanation.terms], axis=0)
        predicted = np.isfinite(explanation.log_probabilities)
        np.testing.assert_allclose(total[predicted], explanation.log_probabilities[predicted], atol=1e-9)
        row = trained.model_.next_log_probabilities([trained.model_.start(context)])[0]
        np.testing.assert_allclose(explanation.log_probabilities[predicted], row[predicted], atol=1e-5)
        shares = explanation.details["gate share"]
        np.testing.assert_allclose(shares[0].values[predicted] + shares[1].values[predicted], 1)
        assert shares[0].values.min() >= 0 and shares[0].values.max() <= 1 + 1e-6


def test_without_its_cache(trained, dev, saffu, tmp_path):
    config = replace(trained.config, cache=50)
    lm = SaffuLM(config, tokenizer=trained.tokenizer_).fit(["\n".join(texts(1, 300))])
    cached, alone = lm.model_.log_probabilities(dev), lm.model_.without_memory().log_probabilities(dev)
    assert np.abs(cached - alone).max() > 0.01
    assert np.array_equal(alone, lm.model_.counted.without_memory().log_probabilities(dev))
    assert np.array_equal(trained.model_.without_memory().log_probabilities(dev), trained.model_.log_probabilities(dev))
    lm.save(tmp_path / "m")
    (tmp_path / "dev.txt").write_text("\n".join(texts(2, 50)))
    shown = saffu(f"eval {tmp_path / 'm'} {tmp_path / 'dev.txt'} --no-memory")
    assert shown.status == 0 and "this model, no memory" in shown.out


def test_a_folder_holds_all_of_it(trained, dev, tmp_path):
    trained.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.config == trained.config and again.config.depth == 1
    assert again.parameters_ == trained.parameters_
    np.testing.assert_array_equal(again.model_.log_probabilities(dev), trained.model_.log_probabilities(dev))
    assert again.generate("ann saw", seed=1) == trained.generate("ann saw", seed=1)


def test_int8_weights_predict_almost_alike_and_can_be_trained_further(trained, counted, dev, saffu, tmp_path):
    trained.save(tmp_path / "model")
    shown = saffu(f"export {tmp_path}/model --to int8 --out {tmp_path}/small")
    assert shown.status == 0 and "MB instead of" in shown.out
    assert "int8 weights" in saffu(f"info {tmp_path}/small").out
    with pytest.raises(SaffuError, match="no trained network"):
        copy.copy(counted).quantize()
    small = load(tmp_path / "small", check=True)
    assert trained.model_.networks.weights[0].mlp.nbytes == 4 * small.model_.networks.weights[0].mlp.nbytes
    own, given = evaluate(small.model_, dev).bits_per_byte, evaluate(trained.model_, dev).bits_per_byte
    assert 0 < abs(own - given) < 0.002
    states = [small.model_.start(dev.ids[:length]) for length in (0, 7, 40)]
    log_p = small.model_.next_log_probabilities(states)
    np.testing.assert_allclose(np.exp(log_p.astype(np.float64)).sum(1), 1, atol=1e-5)
    scores = small.model_.log_probabilities(dev)
    assert log_p[1, dev.ids[7]] == pytest.approx(scores[7], abs=0.02)
    counted_scores, certainty = small.model_.counted.log_probabilities_and_certainty(dev)
    on_torch = score_on_device(small.model_, dev, counted_scores, gate_inputs(certainty, ages_of(dev)), None)
    assert on_torch.mixture.mean() == pytest.approx(scores.mean(), abs=0.005)
    assert copy.copy(small).quantize().score(texts(2, 24)) == small.score(texts(2, 24))
    further = training(small, small.tokenize(texts(1, 600)), epochs=2).run()  # on this text, it can only gain
    assert not further.networks.weights[0].is_rounded


def test_updating_counts_new_text_and_keeps_the_network(trained, dev):
    lm, new = copy.copy(trained), ["ann saw the sea ."] * 30
    before = lm.score(new).bits_per_byte
    lm.update(new)
    assert lm.score(new).bits_per_byte < before
    assert lm.model_.networks is trained.model_.networks


@pytest.mark.parametrize(("step", "ended"), [(-0.01, ""), (0.01, "held-out text was not predicted better in 3 checks")])
def test_a_run_ends_early_only_if_it_gets_worse(counted, dev, monkeypatch, step, ended):
    run = training(counted, dev)
    run._since, run.progress.best = 0.0, 1.0  # of the counts, which the network does not reach
    run._step()
    run.progress.steps = round(0.7 * run.steps)
    for number in range(4):
        found = Score((5 + number * step) * np.log(2), 1, 1)
        monkeypatch.setattr(run, "_scores", lambda networks, found=found: (found, found))
        run._check(None)
    assert (run.progress.ended, run.progress.best) == (ended, 1.0)


def test_more_training_never_makes_a_model_worse(trained, counted, dev):
    lm = copy.copy(trained)
    lm.config = CompanionConfig(**lm.config.to_dict() | {"epochs": 0.2, "decay": 50.0})  # a harmful setting
    lm.backprop(texts(1, 600), texts(2, 120))
    assert lm.model_.networks is not None
    assert lm.score(dev).bits_per_byte <= trained.score(dev).bits_per_byte


def test_forgetting_needs_the_network_to_be_dropped(trained, counted, dev):
    lm = copy.copy(trained)
    with pytest.raises(SaffuError, match="cannot forget it; use `drop_network`"):
        lm.forget(texts(1, 600)[:1])
    lm.forget(texts(1, 600)[:1], drop_network=True)
    assert lm.model_.networks is None
    plain = copy.copy(counted)
    plain.forget(texts(1, 600)[:1])
    np.testing.assert_array_equal(lm.model_.log_probabilities(dev), plain.model_.log_probabilities(dev))


def test_the_gate_is_calibrated_by_text_that_the_network_never_sees(counted, dev):
    run = training(counted, dev)
    parts, number = run.division, len(run.division.flat.targets)
    held = np.setdiff1d(np.arange(number), parts.kept.numpy())
    assert len(held) == 8 * (number // 20 // 8)
    assert torch.equal(parts.flat.targets[held], parts.gate_flat.targets[parts.gate_targets])
    for epoch in range(3):
        positions = parts.rows(np.random.default_rng(epoch), 2).numpy()
        assert not np.array_equal(positions[0], positions[1])  # each network reads in its own order
        assert not np.isin(positions, held).any()
        jumps = np.diff(positions) != 1
        documents = parts.flat.documents.numpy()[positions]
        assert (documents[..., 1:] != documents[..., :-1])[jumps].all()
    with torch.no_grad():
        run.networks.gates.bias.fill_(30)  # all trust in an untrained network
    networks = parts.calibrated(run.networks)
    found = score(networks.stack, networks.gates, parts.gate_text, parts.gate_flat).mixture[parts.gate_targets]
    assert found.mean() > parts.gate_flat.counted.numpy()[parts.gate_targets].mean() - 1e-6
    assert run.networks.gates.bias.item() == 30  # training continues with the gate it has


def test_networks_that_are_too_sure_are_softened(counted, dev, monkeypatch):
    monkeypatch.setattr(torch_networks, "counted_start", lambda networks, counted: None)
    run = training(counted, dev)  # predicts the prior
    run.division.gate_flat.counted.fill_(-np.log(len(counted.tokenizer_)))  # counts that know nothing
    bias = run.networks.stack.output_bias.detach().clone()
    assert torch.equal(run.division.calibrated(run.networks).stack.output_bias, bias)  # it is right
    run.networks.stack.soften(1 / 2)  # logits that are twice too large
    softened = run.division.calibrated(run.networks)
    assert (softened.stack.output_bias / bias).mean() < 1.5
    assert torch.equal(run.networks.stack.output_bias, bias * 2)  # training continues with what it has
    gains = [run.division._with_fitted_gates(some, 1.0)[1].mean() for some in (run.networks, softened)]
    assert gains[1] > gains[0]


def test_what_is_learned_of_spellings_is_stored_with_the_embeddings(counted, dev):
    spellings = spellings_of(
        [b"", b"", b"", b"", *(b" x%d" % (number % 7) for number in range(4, len(counted.tokenizer_)))]
    )
    run = training(counted, dev, spellings=spellings, epochs=2)
    assert not run.networks.stack.spelling.any()
    run.run()
    stack = run.networks.stack.eval()
    shared = stack.embeddings() - stack.embedding  # the same for all tokens of one spelling
    assert shared[0, 4].any() and torch.allclose(shared[0, 4], shared[0, 11])
    assert not shared[0, :4].any()
    without_torch = run.networks.without_torch(run.model.counted)
    counted_scores, certainty = run.model.counted.log_probabilities_and_certainty(dev)
    found = without_torch.score(dev, counted_scores, gate_inputs(certainty, ages_of(dev)))
    flat = DeviceCorpus(dev, counted_scores, gate_inputs(certainty, ages_of(dev)), run.device)
    expected = score(stack, run.networks.gates, dev, flat)
    np.testing.assert_allclose(found.trained, expected.network, atol=1e-4)
    resumed = training(counted, dev, spellings=spellings, epochs=2)
    resumed.load(run.arrays())
    assert torch.equal(resumed.networks.stack.spelling, stack.spelling)
    assert torch.equal(resumed.networks.stack.embedding, stack.embedding)


def test_a_resumed_run_ends_like_one_that_was_never_interrupted(counted, dev, tmp_path):
    """Interrupted at the first step, before and after a check, and before the last one."""
    whole, rows = training(counted, dev, epochs=8), []
    best = whole.run(on_check=lambda row, model: rows.append(row))
    checks = [row["step"] for row in rows]
    lm, log = copy.copy(counted), []
    run = training(counted, dev, epochs=8)

    def save(files):
        lm.model_, lm.config = run.best, run.config
        lm.save(tmp_path / "model", files)

    for steps in (1, checks[2], checks[2] + 1, checks[-1]):

        def step(positions, run=run, take_step=run.take_step, last=steps - 1):
            if run.progress.steps == last:
                signal.raise_signal(signal.SIGINT)  # takes effect after this step
            return take_step(positions)

        run.take_step = step
        with pytest.raises(KeyboardInterrupt):
            run.run(save, lambda row, model: log.append(row))
        assert read_checkpoint(tmp_path / "model").progress["steps"] == steps
        run = training(load(tmp_path / "model"), dev, epochs=8)
        run.restore(read_checkpoint(tmp_path / "model"))
    assert_same_arrays(dict(run.run(save, lambda row, model: log.append(row)).arrays()), dict(best.arrays()))
    assert_same_arrays(run.networks.arrays(), whole.networks.arrays())
    timing = ("seconds", "tokens_per_second")
    assert [{name: row[name] for name in row if name not in timing} for row in log] == [
        {name: row[name] for name in row if name not in timing} for row in rows
    ]


def assert_same_arrays(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_the_counted_start_is_ahead_of_a_random_one(counted, dev, monkeypatch):
    def first_row() -> dict:
        rows: list = []
        training(counted, dev, epochs=0.5).run(on_check=lambda row, model: rows.append(row))
        return rows[0]

    ahead = first_row()
    monkeypatch.setattr(torch_networks, "counted_start", lambda networks, counted: None)
    behind = first_row()
    assert ahead["network_bits_per_byte"] < behind["network_bits_per_byte"] - 0.02


def test_an_excerpt_holds_whole_lines_of_every_document(dev):
    running = TokenCorpus(dev.ids, np.array([0, dev.starts[5], dev.targets]), dev.sizes)
    part = excerpt(running, 200)
    assert part.documents == 2 and 200 <= part.targets < 240
    assert part.lines == int((part.ids == 3).sum())
    assert evaluate_bytes(part, running) == part.bytes


def evaluate_bytes(part: TokenCorpus, whole: TokenCorpus) -> int:
    """Bytes of the lines that a part holds, found in the whole by their number."""
    first = whole.line_starts()
    total = 0
    for number in range(part.documents):
        lines = int((part.ids[part.starts[number] : part.starts[number + 1]] == 3).sum())
        begin = int(np.searchsorted(first, whole.starts[number]))
        total += int(whole.sizes[begin : begin + lines].sum())
    return total


def test_the_rule_decides_by_text_time_and_device():
    small = resolved(CompanionConfig(minutes=10), 2_000_000, "cpu")
    assert (small.depth, small.class_first, small.network_dropout) == (2, True, 0.0)
    large = resolved(CompanionConfig(minutes=1), 2_000_000, "cuda:0")
    assert (large.depth, large.class_first, large.decay, large.networks) == (6, False, 3.0, 1)
    assert large.network_dropout == pytest.approx(0.2, abs=0.02) and large.rate == pytest.approx(0.25, abs=0.01)
    several = resolved(CompanionConfig(minutes=5), 2_000_000, "cuda")
    assert (several.depth, several.networks) == (6, 6)
    assert several.network_dropout == pytest.approx(0.2, abs=0.02)
    often = resolved(CompanionConfig(minutes=5), 900_000, "cuda")  # there is time for several large networks
    assert (often.depth, often.networks, often.network_dropout) == (8, 7, pytest.approx(0.35, abs=0.015))
    assert resolved(CompanionConfig(minutes=5, networks=2), 2_000_000, "cuda").networks == 2
    assert resolved(CompanionConfig(epochs=8), 2_000_000, "cuda").networks == 1
    assert resolved(CompanionConfig(minutes=0.2), 20_000_000, "cuda").depth == 4
    long = resolved(CompanionConfig(minutes=10), 20_000_000, "cuda")
    assert (long.depth, long.networks, long.network_dropout, long.decay) == (8, 1, 0.1, pytest.approx(0.385))
    assert (long.batch_tokens, several.batch_tokens) == (16_384, 8192)
    assert resolved(CompanionConfig(minutes=1, depth=3), 2_000_000, "cuda").depth == 3  # of a network that exists


def test_the_command_trains_evaluates_and_resumes(saffu, tmp_path, short_steps):
    (tmp_path / "text.txt").write_text("\n".join(texts(1, 600)) + "\n")
    (tmp_path / "dev.txt").write_text("\n".join(texts(2, 120)) + "\n")
    text, dev, out = tmp_path / "text.txt", tmp_path / "dev.txt", tmp_path / "model"
    done = saffu(f"train {text} --dev {dev} --out {out} --epochs 12 {SHAPE}")
    assert done.status == 0, done.err
    assert "train 100%" in done.out
    facts = json.loads(saffu(f"eval {out} {dev} --json").out)
    counts_alone = load(out).model_.without_network()
    corpus = TokenCorpus.build(lines_of([dev.read_text()]), load(out).tokenizer_)
    assert facts["bits_per_byte"] < evaluate(counts_alone, corpus).bits_per_byte
    assert saffu(f"generate {out} --seed 1 --max-tokens 5").status == 0
    assert "network" in saffu(f"explain {out} ann").out
    assert "forget (with --drop-network)" in saffu(f"info {out}").out
    assert len(saffu(f"score {out} {dev}").out.splitlines()) == 1 + 120
    assert saffu(f"export {out} --out {tmp_path / 'hf'}").status == 0
    head, *_ = saffu(f"pairs {out}").out.splitlines()
    assert head.split() == ["pairs", "tokens", "accuracy", "ties", "counted", "network", "beyond", "counts", "trigram"]
    assert not {"checkpoint.json", "checkpoint.safetensors"} & {path.name for path in out.iterdir()}
    assert str(text.name) not in "".join(path.read_text() for path in out.glob("*.json*")), "where its text lies"
    refused = saffu(f"train --resume {out}")
    assert refused.status == 2 and "nothing to resume" in refused.err
    refused = saffu(f"train {text} --out {tmp_path / 'other'} --networks 2")
    assert refused.status == 2 and "requires --minutes or --epochs" in refused.err


def test_the_command_updates_trains_further_and_forgets(saffu, tmp_path, short_steps):
    for name, seed, number in (("text", 1, 600), ("new", 3, 240), ("dev", 2, 120)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts(seed, number)) + "\n")
    text, new, dev, out = (tmp_path / name for name in ("text.txt", "new.txt", "dev.txt", "model"))
    assert saffu(f"train {text} --dev {dev} --out {out} --epochs 8 {SHAPE}").status == 0
    first = load(out)
    assert first.model_.networks is not None
    assert saffu(f"update {out} {new}").status == 0
    second = load(out)
    assert np.array_equal(
        second.model_.networks.arrays()["trained.gate.weight"], first.model_.networks.arrays()["trained.gate.weight"]
    )
    assert second.trained_on_["tokens"] > first.trained_on_["tokens"]
    before = second.score([dev.read_text()]).bits_per_byte
    assert saffu(f"forget {out} {new}").err.count("--drop-network") == 1
    refused = saffu(f"update {out} {new} --epochs 4")
    assert refused.status == 2 and "held-out text" in refused.err
    for option, message in (
        (f"--epochs 1 --dev {new}", "the text of --dev is the training text"),
        (f"--epochs 1e9 --dev {dev}", "--epochs is 1000000000.0; it must be a number from 0 to 100000"),
    ):
        refused = saffu(f"update {out} {new} {option}")
        assert refused.status == 2 and message in refused.err
    assert load(out).trained_on_ == second.trained_on_
    assert saffu(f"compare {out} --out {tmp_path / 'curves'}").status == 0
    done = saffu(f"update {out} {new} --epochs 8 --dev {dev} --json")
    assert done.status == 0, done.err
    third = load(out)
    assert third.score([dev.read_text()]).bits_per_byte < before
    assert json.loads(done.out)["added"] == 1 and third.log_[-1]["stage"] == "train 100%"
    assert not part(out, "checkpoint.json").exists()
    refused = saffu(f"compare {out} --out {tmp_path / 'others'}")
    assert refused.status == 2 and "trained further by saffu update" in refused.err
    assert saffu(f"forget {out} {new} --drop-network").status == 0
    assert load(out).model_.networks is None
    assert saffu(f"update {out} {new}").status == 0


def test_an_interrupted_update_is_resumed(saffu, tmp_path, monkeypatch, short_steps):
    for name, seed, number in (("text", 1, 240), ("new", 3, 120), ("dev", 2, 60)):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts(seed, number)) + "\n")
    text, new, dev, out = (tmp_path / name for name in ("text.txt", "new.txt", "dev.txt", "model"))
    assert saffu(f"train {text} --dev {dev} --out {out} --epochs 1 {SHAPE}").status == 0
    shutil.copytree(out, tmp_path / "other")
    assert saffu(f"update {tmp_path / 'other'} {new} --epochs 2 --dev {dev}").status == 0

    def step(run, usual=Training._step):
        if run.progress.steps == 2:
            signal.raise_signal(signal.SIGINT)
        usual(run)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", step)
        stopped = saffu(f"update {out} {new} --epochs 2 --dev {dev}")
    assert stopped.status == 130
    assert f"the documents are counted; progress is saved. Resume with: saffu train --resume {out}" in stopped.err
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for line in (f"update {out} {new}", f"forget {out} {new}"):
        refused = saffu(line)
        assert refused.status == 2 and "holds an interrupted training, which would be lost" in refused.err, line
        assert ("--drop-network" in refused.err) == line.startswith("forget")
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    shutil.copytree(out, tmp_path / "dropped")
    assert saffu(f"forget {tmp_path / 'dropped'} {new} --drop-network").status == 0
    assert not {"checkpoint.json", "checkpoint.safetensors"} & {path.name for path in (tmp_path / "dropped").iterdir()}
    refused = saffu(f"train --resume {out} --device cuda:99")
    assert refused.status == 2 and "device 'cuda:99' is not available" in refused.err
    (tmp_path / "other.txt").write_text("\n".join(texts(3, 300)) + "\n")
    refused = saffu(f"train {tmp_path / 'other.txt'} --resume {out}")
    assert refused.status == 2 and "this run was trained on different text" in refused.err
    resumed = saffu(f"train --resume {out}")
    assert resumed.status == 0, resumed.err
    assert_same_arrays(dict(load(out).model_.arrays()), dict(load(tmp_path / "other").model_.arrays()))
