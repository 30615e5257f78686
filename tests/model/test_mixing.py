"""Mixtures: their probabilities, their weights, and what they forget."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from conftest import sentences
from saffu import CalibratedConfig, SaffuError, SaffuLM, load
from saffu.calibrated.mixture import fit_weights, fitted_mixture, inputs, log_softmax
from saffu.calibrated.model import CalibratedModel
from saffu.model.checking import check_model

CONFIG = CalibratedConfig(order=3, slots=3, word_classes=20, output_classes=8)


def letters(seed, number):
    """Other sentences with some of the same words."""
    return [line.replace("saw", "wrote to").replace("house", "friend") for line in sentences(seed, number)]


@pytest.fixture(scope="module")
def parts():
    general = SaffuLM(CONFIG).fit(sentences(1, 500))
    own = SaffuLM(CONFIG, tokenizer=general.tokenizer_).fit(letters(2, 60))
    return own, general


@pytest.fixture(scope="module")
def mixed(parts):
    own, general = parts
    return own.mix(general, dev=letters(3, 60))


def test_it_predicts_better_than_its_parts(parts, mixed):
    held_out = letters(4, 80)
    bits = mixed.score(held_out).bits_per_byte
    own, general = parts
    pooled = CalibratedModel.from_sums(CONFIG, general.model_.encoder, own.model_.sums + general.model_.sums)
    others = [lm.model_ for lm in parts] + [pooled]
    corpus = mixed.tokenize(held_out)
    for other in others:
        assert bits < -other.log_probabilities(corpus).sum() / np.log(2) / corpus.bytes - 0.001
    by_part = mixed.model_.scores_by_part(corpus)
    assert list(by_part) == ["", *mixed.model_.names] and mixed.model_.names[-1] == "all parts"
    assert (by_part[""] <= np.max([by_part[name] for name in mixed.model_.names], axis=0) + 1e-9).all()


def test_probabilities_are_those_of_the_formula(mixed):
    """One path for text, one for distributions, and samples; each is the weighted sum, which is one in total."""
    model, corpus = mixed.model_, mixed.tokenize(letters(5, 3))
    log_p = model.log_probabilities(corpus)
    state, place = model.start(), 0
    for token in corpus.ids[: corpus.starts[1]].tolist():
        row = model.next_log_probabilities([state])[0].astype(float)
        assert np.exp(row).sum() == pytest.approx(1, abs=1e-4)
        assert row[token] == pytest.approx(log_p[place], abs=2e-5)
        state, place = model.advance(state, token), place + 1
    start = model.start()
    p = np.exp(model.next_log_probabilities([start])[0].astype(float))
    rng = np.random.default_rng(0)
    drawn = np.bincount([model.sample(start, rng)[0] for _ in range(3000)], minlength=len(p))
    assert np.abs(drawn / 3000 - p).max() < 0.04
    explained = model.explain(corpus.ids[:4].tolist())
    total = sum(term.values for term in explained.terms)
    predicted = np.isfinite(explained.log_probabilities)
    np.testing.assert_allclose(total[predicted], explained.log_probabilities[predicted], atol=1e-6)
    shares = sum(term.values for term in explained.details["share of each part"])
    np.testing.assert_allclose(shares[predicted], 1, atol=1e-9)
    without = model.without_memory()
    assert without.config.cache == 0 and np.abs(without.log_probabilities(corpus) - log_p).max() > 0


def test_weights_are_the_best():
    """No small change of the weights makes the targets more likely."""
    rng = np.random.default_rng(1)
    certainty = [rng.normal(size=(5000, 2)).astype(np.float32) for _ in range(2)]
    first = rng.random(5000) < 1 / (1 + np.exp(-2 * certainty[0][:, 0]))  # where the first member is right
    log_p = np.log(np.stack([np.where(first, 0.8, 0.1), np.where(first, 0.1, 0.8)]))

    def likelihood(weights):
        return float(np.logaddexp.reduce(log_softmax(weights @ inputs(certainty)) + log_p, axis=0).mean())

    weights = fit_weights(log_p, certainty)
    best = likelihood(weights)
    assert best > likelihood(np.zeros_like(weights)) + 0.15 and (weights[0] - weights[1])[1] > 1
    for change in rng.normal(size=(20, *weights.shape)):
        assert likelihood(weights + 0.05 * change) < best + 1e-5


def test_a_useless_part_is_left_out(parts):
    _, general = parts
    noise = SaffuLM(CONFIG, tokenizer=general.tokenizer_).fit(["zq vx jk " * 5] * 30)
    model = fitted_mixture([general.model_, noise.model_], general.tokenize(sentences(6, 60)))
    assert 1 not in model.owners and model.parts == 2
    again = type(model).from_arrays(model.config, model.arrays(), model.sums.arrays())
    corpus = general.tokenize(sentences(7, 5))
    np.testing.assert_array_equal(again.log_probabilities(corpus), model.log_probabilities(corpus))


def test_each_part_forgets(parts, mixed, tmp_path):
    """Bit for bit the mixture that never counted the documents, whichever part had them; additions go to the first."""
    mixed.save(tmp_path / "m")
    lm = load(tmp_path / "m")
    before = lm.model_.arrays()
    corpus = lm.tokenize(letters(8, 5))
    np.testing.assert_array_equal(lm.model_.log_probabilities(corpus), mixed.model_.log_probabilities(corpus))
    lm.update(["a queer addition"])
    assert lm.trained_on_["documents"] == mixed.trained_on_["documents"] + 1
    assert lm.forget(["a queer addition"]) == 1
    for name, array in before.items():
        np.testing.assert_array_equal(array, lm.model_.arrays()[name], err_msg=name)
    assert lm.forget([letters(2, 60)[0], sentences(1, 500)[3]]) == 2
    fewer_own, fewer_general = copy.copy(parts[0]), copy.copy(parts[1])
    fewer_own.forget([letters(2, 60)[0]])
    fewer_general.forget([sentences(1, 500)[3]])
    expected = mixed.model_.solved(type(mixed.model_.sums)((fewer_own.model_.sums, fewer_general.model_.sums)))
    for name, array in expected.arrays().items():
        np.testing.assert_array_equal(array, lm.model_.arrays()[name], err_msg=name)
    with pytest.raises(SaffuError, match="this document is not in the model"):
        lm.forget(["never counted"])


@pytest.mark.parametrize("pages", [None, 7, [], [2], [1, 1, 0], [3, -1], [True, 1], ["1", 1], [0, 2], {"1": 1}])
def test_a_mixture_that_does_not_say_which_part_has_counted_what(mixed, pages):
    lm = copy.copy(mixed)
    lm.source_ = {} if pages is None else {"pages": pages}
    with pytest.raises(SaffuError, match="the ledger is damaged"):
        lm.forget([letters(2, 60)[0]])


def test_its_counts_are_checked_against_its_text(mixed):
    """Each document in the part that counted it; a document of the second part in the first is another mixture."""
    own, general = letters(2, 60), sentences(1, 500)
    findings = check_model(mixed, mixed.tokenize([*general, *own]))
    assert findings.verified[-1].startswith("the counts are exactly those of the text")
    with pytest.raises(SaffuError, match="1 document or parts that are counted are not in the text"):
        check_model(mixed, mixed.tokenize([*general, *own[1:]]))
    moved = mixed.model_.count_in(1, mixed.tokenize(own[:1]))
    swapped = copy.copy(mixed)
    swapped.model_ = mixed.model_.solved(mixed.model_.sums - mixed.model_.count(mixed.tokenize(own[:1])) + moved)
    with pytest.raises(SaffuError, match=r"part 0.* differs"):
        check_model(swapped, mixed.tokenize([*general, *own]))


def test_what_cannot_be_mixed(parts, fitted):
    own, _ = parts
    with pytest.raises(SaffuError, match="at least two"):
        own.mix(dev=["a"])
    with pytest.raises(SaffuError, match="no text to fit the weights on"):
        own.mix(parts[1], dev=[" "])
    with pytest.raises(SaffuError, match="a mixture cannot be an encoder"):
        SaffuLM(encoder=own.mix(parts[1], dev=letters(3, 60))).fit(["a"])
    with pytest.raises(SaffuError, match="tokenizer is another one"):
        own.mix(SaffuLM(CONFIG).fit(letters(9, 100)), dev=["a"])
    with pytest.raises(SaffuError, match="preset toy"):
        own.mix(fitted("toy"), dev=["a"])
    with pytest.raises(SaffuError, match="its order is 4"):
        own.mix(SaffuLM(CalibratedConfig(order=4), tokenizer=own.tokenizer_).fit(letters(9, 50)), dev=["a"])
    with pytest.raises(SaffuError, match="same text"):
        own.mix(own, dev=["a dog"])


def test_weights_fitted_on_counted_text_come_with_a_warning(parts, caplog):
    own, general = parts
    own.mix(general, dev=sentences(1, 50))
    assert [record.getMessage()[:27] for record in caplog.records] == ["model 2 has counted 100% of"]


def test_the_commands(saffu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in {"general": sentences(1, 500), "own": letters(2, 80), "dev": letters(3, 60)}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    quick = "--split line --quiet --order 3 --slots 3 --word-classes 20"
    assert saffu(f"train general.txt --out general {quick}").status == 0
    assert saffu(f"train own.txt --tokenizer general --out own {quick}").status == 0
    mixed = saffu("mix own general --dev dev.txt --out mixed")
    members = " + ".join(load("mixed").log_[-1]["members"])
    assert mixed.status == 0 and mixed.out.startswith(f"mixed {members}: ")
    assert "bits per byte of the text that the weights were fitted on" in mixed.out
    based = saffu("train own.txt --base general --out based --split line --json")
    assert based.status == 0 and load("based").config.preset == "mixture", based.err
    scores = {
        name: json.loads(saffu(f"eval {name} dev.txt --json --split line").out)["bits_per_byte"]
        for name in ("own", "general", "mixed", "based")
    }
    assert scores["mixed"] < min(scores["own"], scores["general"]) and scores["based"] < scores["general"]
    for line in (
        "generate based --seed 1",
        "info based",
        "check based",
        "score mixed dev.txt",
        "explain mixed 'the dog'",
    ):
        assert saffu(line).status == 0, line
    forgotten = saffu("forget based own.txt --skip-uncounted")
    assert forgotten.status == 2 and "a part of the mixture would have no text" in forgotten.err
    (tmp_path / "line.txt").write_text(sentences(1, 500)[3] + "\n")
    for name in ("mixed", "based"):  # the tokenizer of both was learned from general.txt
        refused = saffu(f"forget {name} line.txt --retokenize general.txt own.txt")
        assert refused.status == 2 and "a mixture cannot be retokenized; make it again of models" in refused.err
        said = saffu(f"forget {name} line.txt").out
        assert "note: the tokenizer and the encoders stay as they were fitted" in said
        assert "--retokenize" not in said and "make the mixture again of models without them" in said
    assert "remove --encoder" in saffu("train own.txt --base general --tokenizer own --out x").err
    assert "preset mixture" in saffu("train own.txt --base mixed --out x").err
    doubtful = saffu("train own.txt --base general --dev general.txt --out doubtful --split line")
    assert "saffu: general has counted " in doubtful.err and doubtful.err.count("has counted") == 1


def test_held_out_lines_that_are_also_counted(saffu, tmp_path, monkeypatch):
    """A text that repeats itself holds out lines that its own model has counted, which the mixture then overrates."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "general.txt").write_text("\n".join(sentences(1, 300)) + "\n")
    (tmp_path / "own.txt").write_text("\n".join(letters(2, 10) * 20) + "\n")
    assert saffu("train general.txt --out general --split line --quiet --order 3 --slots 3").status == 0
    warned = saffu("train own.txt --base general --out based --split line --quiet")
    assert warned.status == 0 and warned.err == (
        "saffu: the model of your text has counted 100% of the held-out text, so the mixture relies on it more than "
        "new text would warrant; hold out text that it has not counted\n"
    )


def test_a_model_with_a_network_is_called_by_what_made_it(saffu, tmp_path, monkeypatch):
    """Its preset has a name of its own, which nobody chooses."""
    monkeypatch.chdir(tmp_path)
    golden = Path(__file__).parents[1] / "golden" / "0.3.0"
    (tmp_path / "own.txt").write_text("\n".join(letters(2, 80)) + "\n")
    refused = [
        saffu(f"train own.txt --base {golden / 'companion'} --out x"),
        saffu(f"mix {golden / 'calibrated'} {golden / 'companion'} --dev own.txt --out x"),
        saffu(f"merge {golden / 'calibrated'} {golden / 'companion'} --out x"),
    ]
    for result in refused:
        message = result.err.replace(str(golden / "companion"), "X")
        assert result.status == 2 and "counted, with a network" in message and "companion" not in message, message


def test_what_is_not_mixed_yet_is_not_saved(saffu, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in {"own": 1, "general": 2}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(letters(seed, 100)) + "\n")
    assert saffu("train general.txt --out general --split line --order 3").status == 0

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("saffu.model.mixing.mix", interrupted)
    result = saffu("train own.txt --base general --out based --split line")
    assert result.status == 130 and "no partial output was left behind" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["general", "general.txt", "own.txt"]
