import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from reference import EOD, Documents, as_corpus
from saffu.config import SaffuConfig
from saffu.counters import AttentionCounter, DecoderCounter
from saffu.errors import SaffuError
from saffu.explicit import Counts, InitialVariation
from saffu.fit import ExplicitFit, stages

VOCABULARY = 12
SHAPE = {"block": 4, "radius": 3, "block_dimension": 5, "radius_dimension": 4, "hidden_dimension": 4}
SHAPE |= {"counting": "float64"}  # as exactly as the reference


def random_documents(seed: int, count: int = 8) -> Documents:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, VOCABULARY, size=length).tolist() for length in [0, *rng.integers(1, 12, count - 1)]]


DOCUMENTS = random_documents(0)


def new_fit(text: Documents = DOCUMENTS, *, batch: int | None = None, embeddings=None, **settings) -> ExplicitFit:
    config, corpus = SaffuConfig(**SHAPE | settings), as_corpus(text)
    fragments = corpus.fragments(config.block) if config.block else 0
    frequencies = corpus.frequencies(VOCABULARY)
    return ExplicitFit(config, frequencies, corpus.documents, fragments, embeddings=embeddings, batch=batch)


def plain_fit(text: Documents = DOCUMENTS, **settings) -> reference.Fit:
    return reference.Fit(SaffuConfig(**SHAPE | settings), text, VOCABULARY)


def assert_same_counts(found: Counts, expected: Counts | reference.Counts, rtol: float = 1e-9) -> None:
    np.testing.assert_allclose(found.F, expected.F, rtol=rtol, atol=float(expected.targets) * 2**-34)
    np.testing.assert_allclose(float(found.norm), float(expected.norm), rtol=rtol)
    assert found.targets == expected.targets


def assert_same_fit(fit: ExplicitFit, plain: reference.Fit) -> None:
    assert fit.counts.keys() == plain.counts.keys()
    for layer, counts in plain.counts.items():
        assert_same_counts(fit.counts[layer], counts)
    weights = {name.removeprefix("units."): w for name, w in fit.network.state_dict().items()}
    assert weights.keys() == plain.weights.keys()
    for name, weight in plain.weights.items():
        assert weights[name].dtype == torch.float32
        np.testing.assert_allclose(weights[name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


SETTINGS = [
    {},
    {"block_mode": "cat", "radius_mode": "sum"},
    {"block_mode": "cat", "radius_mode": "cat", "block": 10},  # windows of several widths
    {"documents": 3},
    {"documents": 2, "block": 0},
    {"attention": "uniform"},
    {"attention_priming": "measured", "decoder_priming": "measured"},
    {"attention_priming": "slots"},
    {"head": "first"},
    {"variation_sign": -1, "smoothing": 0.5},
    {"block": 2, "radius": 2},
    {"hidden_dimension": 0},
    {"radius": 0, "hidden_dimension": 0},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_initialise_stage_by_stage(settings):
    fit, plain = new_fit(**settings), plain_fit(**settings)
    fit.initialise(as_corpus(DOCUMENTS))
    plain.initialise(DOCUMENTS)
    assert_same_fit(fit, plain)
    targets = next(as_corpus(DOCUMENTS).batches(1000, fit.network.lookback))
    with torch.inference_mode():
        predicted = torch.softmax(fit.network(targets), dim=1)
    np.testing.assert_allclose(predicted, plain.probabilities(DOCUMENTS), rtol=1e-4)


TUNING = [
    {"block_mode": "sum", "radius_mode": "cat"},
    {"block_mode": "cat", "radius_mode": "sum", "variation_sign": -1},
    {"accumulate": False},
    {"restart_attention": False},
    {"accumulate": False, "restart_attention": False, "attention_priming": "measured"},
    {"attention": "uniform"},
    {"hidden_dimension": 0},
]


@pytest.mark.parametrize("settings", TUNING, ids=str)
def test_stages_tune_fold_after_fold(settings):
    """The first fold initialises, then tuning t takes fold t mod their number; counts go on as the settings say."""
    documents = random_documents(1, 9)
    targets = sum(len(document) + 1 for document in documents)
    settings = {**settings, "tune": 4, "fold": targets // 3}
    fit, plain = new_fit(documents, **settings), plain_fit(documents, **settings)
    corpus = as_corpus(documents)
    parts = corpus.folds(settings["fold"])
    folds = [documents[f.first_document : f.first_document + f.documents] for f in parts]
    assert len(folds) == 3
    run = stages(fit, corpus)
    for number, name in enumerate(["init", "tune 1", "tune 2", "tune 3", "tune 4"]):
        assert next(run) == name
        if number == 0:
            plain.initialise(folds[0])
        else:
            plain.tune(folds[number % 3], number)
        assert_same_fit(fit, plain)
    assert next(run, None) is None


def test_counts_accumulate_and_restart():
    """How many targets each layer has seen, after initialising and after each of two tunings."""
    one, two = as_corpus(DOCUMENTS[:4]), as_corpus(DOCUMENTS[4:])
    first, second = one.targets, two.targets
    cases = [
        ({}, [first, second, second + first], [first, first + second, 2 * first + second]),
        ({"restart_attention": False}, [first, first + second, 2 * first + second], None),
        ({"accumulate": False}, [first, second, second + first], [first, second, first]),
    ]
    for setting, attention, decoder in cases:
        fit, seen = new_fit(**setting), []
        fit.initialise(one)
        seen.append({layer: int(counts.targets) for layer, counts in fit.counts.items()})
        for corpus, is_first in [(two, True), (one, False)]:
            fit.tune(corpus, first=is_first)
            seen.append({layer: int(counts.targets) for layer, counts in fit.counts.items()})
        assert [row["block.attention"] for row in seen] == attention
        assert [row["radius.attention"] for row in seen] == attention
        for layer in ("block.decoder", "radius.decoder", "final"):
            assert [row[layer] for row in seen] == (decoder or [first, first + second, 2 * first + second])


def test_without_tuning_the_whole_corpus_initialises():
    fit, plain = new_fit(fold=2), plain_fit(fold=2)
    assert list(stages(fit, as_corpus(DOCUMENTS))) == ["init"]
    plain.initialise(DOCUMENTS)
    assert_same_fit(fit, plain)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 100))
def test_counts_do_not_depend_on_the_batch(batch):
    settings = {"documents": 3, "block": 10}
    whole, streamed = new_fit(**settings), new_fit(**settings, batch=batch)
    whole.initialise(as_corpus(DOCUMENTS))
    streamed.initialise(as_corpus(DOCUMENTS))
    for layer, counts in whole.counts.items():
        assert_same_counts(streamed.counts[layer], counts)


@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_counting_in_float32_is_nearly_as_good(mode):
    """By tables and by products: short windows of a "sum" unit and all of a "cat" unit add decoded tokens."""
    settings = {"documents": 3, "block": 40, "block_mode": mode, "radius_mode": mode}
    text = [*DOCUMENTS, *random_documents(1), [4, 5, 6, 7] * 20]
    exact, quick = new_fit(text, **settings), new_fit(text, **settings | {"counting": "float32"})
    exact.initialise(as_corpus(text))
    quick.initialise(as_corpus(text))
    for layer, counts in exact.counts.items():
        assert_same_counts(quick.counts[layer], counts, rtol=3e-4)


@pytest.mark.parametrize("workers", [2, 5])
def test_counts_do_not_depend_on_the_number_of_workers(workers, monkeypatch):
    settings = {"documents": 3, "block": 10, "batch": 3}
    alone, together = new_fit(**settings), new_fit(**settings)
    alone.initialise(as_corpus(DOCUMENTS))
    monkeypatch.setattr(torch, "get_num_threads", lambda: workers)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # or it would outlast this test
    together.initialise(as_corpus(DOCUMENTS))
    for layer, counts in alone.counts.items():
        assert_same_counts(together.counts[layer], counts, rtol=1e-12)


def test_two_fits_are_identical():
    fits = [new_fit(documents=3, block=10), new_fit(documents=3, block=10)]
    for fit in fits:
        fit.initialise(as_corpus(DOCUMENTS))
        fit.tune(as_corpus(DOCUMENTS), first=True)
    for (name, a), b in zip(fits[0].network.state_dict().items(), fits[1].network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for layer, counts in fits[0].counts.items():
        assert torch.equal(counts.F, fits[1].counts[layer].F), layer
        assert torch.equal(counts.norm, fits[1].counts[layer].norm), layer


@settings(max_examples=10, deadline=None)
@given(st.sets(st.integers(1, len(DOCUMENTS) - 1), max_size=4), st.sampled_from(["sum", "cat"]))
def test_counts_of_shards_add_up(cuts, mode):
    """Every layer's counts, with the same encoder below it, over parts of whole documents."""
    fit = new_fit(documents=3, block_mode=mode, radius_mode=mode)
    corpus = as_corpus(DOCUMENTS)
    fit.initialise(corpus)
    bounds = [0, *sorted(cuts), len(DOCUMENTS)]
    shards = [corpus.part(a, b) for a, b in pairwise(bounds)]

    def count(part) -> dict[str, Counts]:
        counters = {}
        for name, unit in fit.frozen.units.items():
            initial = InitialVariation(unit.E, fit.frequencies)
            counters[f"{name}.attention"] = AttentionCounter(unit, fit.hidden, 1, initial)
            counters[f"{name}.tuning"] = AttentionCounter(unit, fit.hidden, 1, None)
            counters[f"{name}.decoder"] = DecoderCounter(unit, fit.hidden)
        for targets in part.batches(5, fit.frozen.lookback):
            for layer, counter in counters.items():
                for window in fit.frozen.windows(layer.partition(".")[0], targets):
                    counter.add(window, targets.ids[window.rows])
        counts = {layer: counter.counts for layer, counter in counters.items()}
        return counts | {"document": fit._count_documents(part), "final": fit._count_final(part)}

    counted, whole = [count(shard) for shard in shards], count(corpus)
    for layer, counts in whole.items():
        total = counted[0][layer]
        for other in counted[1:]:
            total = total + other[layer]
        assert_same_counts(total, counts)
    for layer in fit.counts:  # and the fit counted the same
        assert_same_counts(whole[layer], fit.counts[layer])


def test_given_embeddings_are_coerced():
    vectors = torch.randn(VOCABULARY, 6, generator=torch.Generator().manual_seed(0))
    fit, plain = new_fit(embeddings=vectors), plain_fit()
    coerced = reference.single(np.array([reference.softmax(row) for row in vectors.tolist()]))
    plain.weights |= {"block.E": coerced, "radius.E": coerced}
    fit.initialise(as_corpus(DOCUMENTS))
    plain.initialise(DOCUMENTS)
    assert_same_fit(fit, plain)


def test_variation_beyond_its_bound_is_an_error():
    """A rare target far from all others makes F(Q, V̂) negative, a huge decoder F(Q, V); the remedies differ."""
    vectors = torch.zeros(VOCABULARY, 6)
    vectors[:11, 0], vectors[11, 1] = 60, 60
    with pytest.raises(SaffuError, match=r"co-occurrence of -.*uniform"):
        new_fit([[4, 5, 6, 7] * 4, [11]], embeddings=vectors).initialise(as_corpus([[11]]))
    fit = new_fit()
    fit.initialise(as_corpus(DOCUMENTS))
    for unit in fit.frozen.units.values():
        unit.U.mul_(1000)
    with pytest.raises(SaffuError, match=r"co-occurrence of -.*tun"):
        fit.tune(as_corpus(DOCUMENTS), first=True)


@pytest.mark.parametrize("setting", [{"documents": 3, "tune": 2, "fold": 20}, {"documents": 20}], ids=str)
def test_shards_without_documents(setting):
    """The first fold holds documents of the first shards only, and a short corpus fills only some of the shards."""
    fit = new_fit(**setting)
    assert len(list(stages(fit, as_corpus(DOCUMENTS)))) == 1 + fit.config.tune
    assert torch.isfinite(fit.network.D).all()


def test_bits_that_no_target_has():
    """With more bits than tokens seen, some bits never occur: the unit must learn just that."""
    documents = [[4, 5, 4], [5, 4]]
    fit = new_fit(documents, hidden_dimension=20)
    fit.initialise(as_corpus(documents))
    targets = next(as_corpus(documents).batches(100, fit.network.lookback))
    with torch.inference_mode():
        chosen = fit.network.log_probabilities(targets).exp()
    assert torch.isfinite(chosen).all()
    assert chosen.mean() > 1 / 3  # three tokens occur: 4, 5 and `<eod>`


def test_smallest_corpus():
    """A single empty document: its end is all there is to predict."""
    fit = new_fit([[]], hidden_dimension=0)
    fit.initialise(as_corpus([[]]))
    targets = next(as_corpus([[]]).batches(1, fit.network.lookback))
    with torch.inference_mode():
        assert fit.network(targets).argmax(1).tolist() == [EOD]
        assert fit.network.log_probabilities(targets).item() > math.log(0.9)
