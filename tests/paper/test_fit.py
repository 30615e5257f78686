"""The explicit solution of a whole network, layer by layer, against the reference."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_data import VOCABULARY, as_corpus, patterned_documents, random_documents

from conftest import each
from reference import paper as reference
from reference.paper import EOD, FRG, PAD, SOD, Documents
from saffu.errors import SaffuError
from saffu.paper import counting
from saffu.paper.cipher import coerced_embeddings
from saffu.paper.config import PaperConfig
from saffu.paper.fit import fit, solve, unsolved_network
from saffu.paper.model import PaperModel
from saffu.paper.network import Network
from saffu.paper.sums import Counts

SHAPE = {"block": 4, "radius": 3, "block_dimension": 5, "radius_dimension": 4, "hidden_dimension": 4}
SHAPE |= {"document_shards": 0, "dtype": "float64"}  # as exact as the reference
DOCUMENTS = random_documents(0)


def fitted(documents: Documents = DOCUMENTS, **settings) -> PaperModel:
    *_, stage = fit(as_corpus(documents), VOCABULARY, PaperConfig(**SHAPE | settings))
    return stage.model


def solved(documents: Documents = DOCUMENTS, **settings) -> tuple[Network, dict[str, Counts]]:
    *_, last = solve(as_corpus(documents), VOCABULARY, PaperConfig(**SHAPE | settings))
    return last


def assert_same_solution(
    network: Network,
    counts: dict[str, Counts],
    plain: reference.Network,
    expected: dict[str, reference.Counts],
    documents: Documents,
) -> None:
    """Every weight, every layer's counts, the inputs of the final decoder, and the probabilities."""
    weights = {"M": plain.M}
    for name, unit in plain.units.items():
        weights |= {f"units.{name}.E": unit.E, f"units.{name}.W": unit.W, f"units.{name}.U": unit.U}
    if plain.config.document_shards:
        weights["document.D"] = plain.D
    found = network.state_dict()
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert found[name].dtype == torch.float64
        np.testing.assert_allclose(found[name], weight, rtol=1e-9, atol=1e-12, err_msg=name)
    assert counts.keys() == expected.keys()
    for layer, count in expected.items():
        np.testing.assert_allclose(counts[layer].F, count.F, rtol=1e-9, atol=1e-25, err_msg=layer)
        assert counts[layer].targets == count.targets
        if layer != "final":
            assert counts[layer].norm == pytest.approx(count.norm, rel=1e-9)
    (targets,) = network.batches(as_corpus(documents), 1000)
    hidden = reference.outputs(plain, documents)
    np.testing.assert_allclose(network.hidden(targets), hidden, rtol=1e-9, atol=1e-25)
    p = reference.probabilities(plain, documents)
    np.testing.assert_allclose(torch.softmax(network(targets), dim=1), p, rtol=1e-9, atol=1e-25)


CHOICES = [
    {},
    {"block_mode": "cat", "radius_mode": "sum"},
    {"block_mode": "cat", "radius_mode": "cat", "block": 10},  # windows of several widths
    {"block_mode": "sum", "radius_mode": "sum", "block": 10, "radius": 9},
    {"document_shards": 3},
    {"document_shards": 2, "block": 0},
    {"radius": 0},
    {"attention": "uniform"},
    {"attention_priming": "measured", "decoder_priming": "measured"},
    {"attention_priming": "slots"},
    {"variation_sign": -1, "smoothing": 0.5},
    {"variation_shift": "smallest"},
    {"variation_shift": "smallest", "block_mode": "cat", "document_shards": 3},
    {"block": 2, "radius": 2},
    {"hidden_targets": "normalized"},
    {"block_advance": "shifted", "pad_side": "right", "block": 10, "radius": 9},
]


@each("settings", CHOICES)
def test_initialization_is_the_references(settings):
    config = PaperConfig(**SHAPE | settings)
    ((network, counts),) = solve(as_corpus(DOCUMENTS), VOCABULARY, config)
    ((plain, expected),) = reference.fit([DOCUMENTS], VOCABULARY, config)
    assert_same_solution(network, counts, plain, expected, DOCUMENTS)


def test_the_stage_of_an_initialization():
    (stage,) = fit(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE))
    network, counts = solved()
    assert stage.name == "init"
    for name, weight in network.float().state_dict().items():
        assert np.array_equal(stage.model.arrays()[name], weight)
    least = {name: float(counts[f"{name}.attention"].F.min()) / len(flat()) for name in ("block", "radius")}
    assert stage.facts["least_attention"] == pytest.approx(least)
    assert fit_facts(attention="uniform") == {}


def fit_facts(**settings) -> dict[str, float]:
    (stage,) = fit(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE | settings))
    return dict(stage.facts["least_attention"])


def flat(documents: Documents = DOCUMENTS) -> list[int]:
    return [token for document in documents for token in document]


@each(
    "settings",
    [
        {"block_mode": "sum", "radius_mode": "cat"},
        {"block_mode": "cat", "radius_mode": "sum", "variation_sign": -1},
        {"block_mode": "cat", "radius_mode": "cat", "document_shards": 3, "block": 10},
        {"variation_shift": "smallest", "variation_sign": -1},
        {"attention_priming": "measured", "decoder_priming": "measured"},
        {"attention": "uniform"},
        {"document_shards": 3, "hidden_targets": "normalized", "pad_side": "right", "block_advance": "shifted"},
    ],
)
def test_tuning_is_the_references(settings):
    """The first fold initializes, then tuning t takes fold t; ȳ is the mean target of the first fold."""
    documents = random_documents(1, 15)
    corpus = as_corpus(documents)
    config = PaperConfig(**SHAPE | settings, tune_folds=2, fold_tokens=corpus.targets // 4)
    parts = corpus.folds(config.fold_tokens)
    folds = [documents[f.first_document : f.first_document + f.documents] for f in parts]
    assert len(folds) == 4
    stages = solve(corpus, VOCABULARY, config)
    for plain, expected in reference.fit(folds, VOCABULARY, config):
        assert_same_solution(*next(stages), plain, expected, documents)
    assert [stage.name for stage in fit(corpus, VOCABULARY, config)] == ["init", "tune 1", "tune 2"]


def test_tuning_needs_a_fold_for_each_tuning():
    corpus = as_corpus(DOCUMENTS)
    config = PaperConfig(**SHAPE, tune_folds=3, fold_tokens=corpus.targets // 3)
    with pytest.raises(SaffuError, match=r"3 folds .* needs 4"):
        next(solve(corpus, VOCABULARY, config))


def test_without_tuning_the_whole_corpus_initializes():
    assert torch.equal(solved(fold_tokens=2)[1]["final"].F, solved()[1]["final"].F)


GOLDEN_TEXT, GOLDEN_HELD_OUT = patterned_documents(0, 200), patterned_documents(1, 40)
GOLDEN_SHAPE = {"block": 16, "radius": 4, "block_dimension": 16, "radius_dimension": 8, "hidden_dimension": 16}
GOLDEN_SHAPE |= {"document_shards": 0, "dtype": "float64"}


@pytest.mark.parametrize(
    ("settings", "perplexity"),
    [
        ({}, 4.897437304720324),
        ({"block_advance": "shifted", "pad_side": "right"}, 4.966815378766573),
        ({"variation_shift": "smallest"}, 5.855840087286675),
        ({"tune_folds": 2, "fold_tokens": 1000, "document_shards": 3}, 4.89001002239504),
    ],
    ids=str,
)
def test_golden_perplexities(settings, perplexity):
    """Of several choices, to notice when a number changes."""
    *_, stage = fit(as_corpus(GOLDEN_TEXT), VOCABULARY, PaperConfig(**GOLDEN_SHAPE | settings))
    log_p = stage.model.log_probabilities(as_corpus(GOLDEN_HELD_OUT))
    assert math.exp(-log_p.mean()) == pytest.approx(perplexity, rel=1e-6)


def assert_same_counts(one: dict[str, Counts], other: dict[str, Counts], rtol: float = 1e-12) -> None:
    assert one.keys() == other.keys()
    for layer, counts in one.items():
        np.testing.assert_allclose(other[layer].F, counts.F, rtol=rtol, atol=1e-25, err_msg=layer)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 100))
def test_counts_do_not_depend_on_the_batch(batch):
    settings = {"document_shards": 3, "block": 10}
    _, whole = solved(**settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(counting.BATCH, "cpu", batch)
        assert_same_counts(whole, solved(**settings)[1], rtol=1e-10)


@pytest.mark.parametrize("workers", [2, 5])
def test_counts_do_not_depend_on_the_number_of_workers(workers, monkeypatch):
    settings = {"document_shards": 3, "block": 10}
    _, alone = solved(**settings)
    monkeypatch.setitem(counting.BATCH, "cpu", 3)
    monkeypatch.setattr(counting, "workers_for", lambda device, tasks: workers)
    assert_same_counts(alone, solved(**settings)[1], rtol=1e-10)


@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_counting_in_float32_is_nearly_as_good(mode):
    """By look-ups and by products: short windows of a "sum" unit and all of a "cat" unit add decoded tokens."""
    settings = {"document_shards": 3, "block": 40, "block_mode": mode, "radius_mode": mode}
    text = [*DOCUMENTS, *random_documents(1), [4, 5, 6, 7] * 20 + [EOD]]
    exact, quick = (solved(text, **settings, dtype=dtype)[1]["final"] for dtype in ("float64", "float32"))
    np.testing.assert_allclose(quick.F, exact.F, rtol=3e-4, atol=1e-6)


def test_two_fits_are_identical():
    settings = {"document_shards": 3, "block": 10, "tune_folds": 2, "fold_tokens": 15, "dtype": "float32"}
    one, other = fitted(**settings), fitted(**settings)
    for name, array in one.arrays().items():
        assert np.array_equal(array, other.arrays()[name]), name


@settings(max_examples=10, deadline=None)
@given(st.sets(st.integers(1, len(DOCUMENTS) - 1), max_size=4), st.sampled_from(["sum", "cat"]))
def test_counts_of_parts_add_up(cuts, mode):
    """Every layer's counts, with the same weights below it, over parts of whole documents."""
    network, whole = solved(document_shards=3, block_mode=mode, radius_mode=mode)
    corpus = as_corpus(DOCUMENTS)
    frequencies = torch.from_numpy(corpus.frequencies(VOCABULARY))
    Z = torch.from_numpy(reference.bit_vectors(frequencies.tolist(), 4))

    def count(part) -> dict[str, counting.Counts]:
        found: dict[str, counting.Counts] = {}
        for observed in (None, frequencies):
            attention = counting.count_attention(network, part, Z, observed)
            found |= {f"{name} {observed is None}": counts for name, counts in attention.items()}
        return found | counting.count_decoders(network, part, Z)

    parts = [corpus.slice(a, b) for a, b in pairwise([0, *sorted(cuts), len(DOCUMENTS)])]
    counted = [count(part) for part in parts]
    for layer, counts in count(corpus).items():
        np.testing.assert_allclose(sum(part[layer].F for part in counted), counts.F, rtol=1e-9, atol=1e-9)
        assert sum(part[layer].norm for part in counted) == pytest.approx(counts.norm, rel=1e-9)
        assert sum(part[layer].targets for part in counted) == counts.targets
    F = sum(counting.count_final(network, part).numpy() for part in parts)
    np.testing.assert_allclose(F, whole["final"].F, rtol=1e-12, atol=1e-25)


def test_given_embeddings_are_coerced():
    vectors = np.random.default_rng(0).normal(size=(VOCABULARY, 6)).astype(np.float32)
    (stage,) = fit(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE), embeddings=vectors)
    expected = coerced_embeddings(torch.from_numpy(vectors)).float().numpy()
    assert np.array_equal(stage.model.arrays()["units.block.E"], expected)
    assert np.array_equal(stage.model.arrays()["units.radius.E"], expected)
    assert np.isfinite(stage.model.log_probabilities(as_corpus(DOCUMENTS))).all()
    with pytest.raises(SaffuError, match="embeddings have 3 rows but the vocabulary has 12 tokens"):
        next(fit(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE), embeddings=vectors[:3]))


def test_special_tokens_are_the_noise_of_tokens_that_do_not_occur():
    documents = [[token for token in document if token != 11] for document in DOCUMENTS]
    network = unsolved_network(as_corpus(documents), VOCABULARY, PaperConfig(**SHAPE))
    for name in ("block", "radius"):
        E = network.units[name].E
        torch.testing.assert_close(E.sum(1), torch.ones(VOCABULARY, dtype=torch.float64))
        for token in (SOD, FRG, 11):
            assert torch.equal(E[token], E[PAD])
        assert float(E[PAD].max() / E[PAD].min()) < 2  # nearly uniform


def test_variation_beyond_its_bound_is_an_error():
    """A slot that is filled only where the target is far from all other tokens makes F(Q, V̂) negative."""
    vectors = np.zeros((VOCABULARY, 6))
    vectors[:, 0] = 60
    vectors[PAD] = [0, 0, 60, 0, 0, 0]
    vectors[11] = [0, 60, 0, 0, 0, 0]
    documents = [[4, 5, 11, EOD]] * 3
    with pytest.raises(SaffuError, match=r"the smallest is -.*V outgrew .* block unit: use `attention` uniform"):
        list(fit(as_corpus(documents), VOCABULARY, PaperConfig(**SHAPE), embeddings=vectors))


@pytest.mark.parametrize(
    "setting", [{"document_shards": 3, "tune_folds": 2, "fold_tokens": 15}, {"document_shards": 20}], ids=str
)
def test_shards_without_documents(setting):
    """The first fold holds documents of the first shards only, and a short corpus fills only some of the shards."""
    assert np.isfinite(fitted(**setting).arrays()["document.D"]).all()


def test_bits_that_no_target_has():
    """With more bits than tokens seen, some bits never occur."""
    documents = [[4, 5, 4, EOD], [5, 4, EOD]]
    chosen = np.exp(fitted(documents, hidden_dimension=20).log_probabilities(as_corpus(documents)))
    assert np.isfinite(chosen).all()
    assert chosen.mean() > 1 / 3  # three tokens occur: 4, 5, and `<eod>`


def test_smallest_corpus():
    """A single empty document: its end is the only target."""
    model = fitted([[EOD]])
    assert np.argmax(model.next_log_probabilities([model.start()])) == EOD
    assert model.log_probabilities(as_corpus([[EOD]]))[0] > math.log(0.9)


def test_no_text():
    with pytest.raises(SaffuError, match="no text to count"):
        next(fit(as_corpus([]), VOCABULARY, PaperConfig(**SHAPE)))
