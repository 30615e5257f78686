import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_data import VOCABULARY, as_corpus, patterned_documents, random_documents

from reference import paper as reference
from reference.paper import EOD, FRG, PAD, Documents
from saffu.errors import SaffuError
from saffu.paper import counting
from saffu.paper.cipher import coerced_embeddings
from saffu.paper.config import PaperConfig
from saffu.paper.fit import fit, fragments, unsolved_network
from saffu.paper.model import PaperModel

SHAPE = {"block": 4, "radius": 3, "block_dimension": 5, "radius_dimension": 4, "hidden_dimension": 4}
SHAPE |= {"dtype": "float64"}  # as exact as the reference
DOCUMENTS = random_documents(0)


def fitted(documents: Documents = DOCUMENTS, **settings) -> PaperModel:
    *_, stage = fit(as_corpus(documents), VOCABULARY, PaperConfig(**SHAPE | settings))
    return stage.model


def assert_same_network(model: PaperModel, plain: reference.Network) -> None:
    expected = {"M": plain.M}
    for name, unit in plain.units.items():
        expected |= {f"units.{name}.E": unit.E, f"units.{name}.W": unit.W, f"units.{name}.U": unit.U}
    if plain.config.document_shards:
        expected["document.D"] = plain.D
    arrays = {name: array for name, array in model.arrays().items() if name != "frequencies"}
    assert arrays.keys() == expected.keys()
    for name, weight in expected.items():
        assert arrays[name].dtype == np.float32
        np.testing.assert_allclose(arrays[name], weight, rtol=1e-5, atol=1e-6, err_msg=name)


READINGS = [
    {},
    {"special_noise": "counted"},
    {"special_noise": "padding", "slot_weight": "natural"},
    {"special_noise": "zero", "document_shards": 2},
    {"block_mode": "cat", "radius_mode": "sum"},
    {"block_mode": "cat", "radius_mode": "cat", "block": 10},  # windows of several widths
    {"document_shards": 3},
    {"document_shards": 2, "block": 0, "special_noise": "counted"},
    {"attention": "uniform"},
    {"attention_priming": "measured", "decoder_priming": "measured"},
    {"attention_priming": "slots"},
    {"query_slot": "first"},
    {"variation_sign": -1, "smoothing": 0.5},
    {"variation_shift": "smallest"},
    {"variation_shift": "smallest", "radius_padding": "left", "slot_weight": "natural", "special_noise": "pure"},
    {"block": 2, "radius": 2},
    {"slot_weight": "unit", "hidden_targets": "normalized"},
    {"block_advance": "sliding", "padding": "left", "block": 10},
    {"radius_span": "block"},
    {"radius_padding": "left", "block_advance": "whole", "attention_priming": "slot_weight"},
    {"radius_span": "start", "special_noise": "zero-padding"},
    {"radius_span": "blocks", "special_noise": "padding", "radius": 6},
    {"radius_span": "blocks", "block": 3},
    {"gap": "block"},
    {"special_noise": "counted-padding", "gap": "both"},
]


@pytest.mark.parametrize("settings", READINGS, ids=str)
def test_initialization_is_the_references(settings):
    config = PaperConfig(**SHAPE | settings)
    (stage,) = fit(as_corpus(DOCUMENTS), VOCABULARY, config)
    ((plain, counts),) = reference.fit([DOCUMENTS], VOCABULARY, config)
    assert stage.name == "init"
    assert_same_network(stage.model, plain)
    np.testing.assert_allclose(stage.model.sums.F, counts["final"].F, rtol=1e-5, atol=1e-6)
    assert stage.facts["least_attention"] == pytest.approx(
        {name: counts[f"{name}.attention"].F.min() / counts["final"].targets for name in plain.units}
        if config.attention == "explicit"
        else {},
        rel=1e-6,
    )
    predicted = [row[target] for row, target in zip(reference.probabilities(plain, DOCUMENTS), flat(), strict=True)]
    np.testing.assert_allclose(stage.model.log_probabilities(as_corpus(DOCUMENTS)), np.log(predicted), rtol=1e-4)


def flat(documents: Documents = DOCUMENTS) -> list[int]:
    return [token for document in documents for token in document]


@pytest.mark.parametrize(
    "settings",
    [
        {"block_mode": "sum", "radius_mode": "cat"},
        {"block_mode": "cat", "radius_mode": "sum", "variation_sign": -1},
        {"accumulate": False},
        {"variation_shift": "smallest", "variation_sign": -1},
        {"restart_attention": False},
        {"accumulate": False, "restart_attention": False, "attention_priming": "measured"},
        {"attention": "uniform"},
        {"document_shards": 3, "slot_weight": "unit"},
    ],
    ids=str,
)
def test_tuning_is_the_references(settings):
    """The first fold initializes, then tuning t takes fold t mod their number; counts accumulate or restart."""
    documents = random_documents(1, 9)
    corpus = as_corpus(documents)
    config = PaperConfig(**SHAPE | settings, tune_folds=4, fold_tokens=corpus.targets // 3)
    parts = corpus.folds(config.fold_tokens)
    folds = [documents[f.first_document : f.first_document + f.documents] for f in parts]
    assert len(folds) == 3
    stages = list(fit(corpus, VOCABULARY, config))
    assert [stage.name for stage in stages] == ["init", "tune 1", "tune 2", "tune 3", "tune 4"]
    for stage, (plain, _) in zip(stages, reference.fit(folds, VOCABULARY, config), strict=True):
        assert_same_network(stage.model, plain)
        assert stage.model.sums is None  # counted with several encoders


def test_without_tuning_the_whole_corpus_initializes():
    assert np.array_equal(fitted(fold_tokens=2).sums.F, fitted().sums.F)


GOLDEN_TEXT, GOLDEN_HELD_OUT = patterned_documents(0, 200), patterned_documents(1, 40)
EARLIER = {"radius_padding": "left", "block_advance": "whole"}
"""As every reading was before blocks could be shifted."""
GOLDEN_SHAPE = {"block": 16, "radius": 4, "block_dimension": 16, "radius_dimension": 8, "hidden_dimension": 16}


@pytest.mark.parametrize(
    ("settings", "perplexity"),
    [
        ({}, 5.060299393066836),
        ({"special_noise": "zero"}, 4.854124187361235),
        (EARLIER | {"special_noise": "zero", "radius_span": "blocks"}, 5.408496144618706),
        (EARLIER | {"special_noise": "pure"}, 5.504447536587028),
        (EARLIER | {"special_noise": "pure", "slot_weight": "natural"}, 4.897437304720324),
        (EARLIER | {"special_noise": "counted", "slot_weight": "natural"}, 4.842525481335613),
        (
            {
                **EARLIER,
                "slot_weight": "natural",
                "special_noise": "counted",
                "tune_folds": 2,
                "fold_tokens": 1000,
                "document_shards": 3,
            },
            4.814881244822317,
        ),
    ],
    ids=str,
)
def test_golden_perplexities(settings, perplexity):
    """Of several readings, to notice when a number changes."""
    *_, stage = fit(as_corpus(GOLDEN_TEXT), VOCABULARY, PaperConfig(**GOLDEN_SHAPE, dtype="float64", **settings))
    log_p = stage.model.log_probabilities(as_corpus(GOLDEN_HELD_OUT))
    assert math.exp(-log_p.mean()) == pytest.approx(perplexity, rel=1e-6)


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 100))
def test_counts_do_not_depend_on_the_batch(batch):
    settings = {"document_shards": 3, "block": 10}
    whole = fitted(**settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(counting.BATCH, "cpu", batch)
        streamed = fitted(**settings)
    assert np.array_equal(streamed.sums.F, whole.sums.F)
    np.testing.assert_allclose(streamed.arrays()["units.block.W"], whole.arrays()["units.block.W"], rtol=1e-6)


@pytest.mark.parametrize("workers", [2, 5])
def test_counts_do_not_depend_on_the_number_of_workers(workers, monkeypatch):
    settings = {"document_shards": 3, "block": 10}
    alone = fitted(**settings)
    monkeypatch.setitem(counting.BATCH, "cpu", 3)
    monkeypatch.setattr(counting, "workers_for", lambda device, tasks: workers)
    assert np.array_equal(fitted(**settings).sums.F, alone.sums.F)


@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_counting_in_float32_is_nearly_as_good(mode):
    """By look-ups and by products: short windows of a "sum" unit and all of a "cat" unit add decoded tokens."""
    settings = {"document_shards": 3, "block": 40, "block_mode": mode, "radius_mode": mode}
    text = [*DOCUMENTS, *random_documents(1), [4, 5, 6, 7] * 20 + [EOD]]
    exact, quick = fitted(text, **settings), fitted(text, **settings | {"dtype": "float32"})
    np.testing.assert_allclose(quick.sums.F, exact.sums.F, rtol=3e-4, atol=1e-6)


def test_two_fits_are_identical():
    settings = {"document_shards": 3, "block": 10, "tune_folds": 2, "fold_tokens": 30, "dtype": "float32"}
    one, other = fitted(**settings), fitted(**settings)
    for name, array in one.arrays().items():
        assert np.array_equal(array, other.arrays()[name]), name


@settings(max_examples=10, deadline=None)
@given(st.sets(st.integers(1, len(DOCUMENTS) - 1), max_size=4), st.sampled_from(["sum", "cat"]))
def test_counts_of_shards_add_up(cuts, mode):
    """Every layer's counts, with the same encoder below it, over parts of whole documents."""
    model = fitted(document_shards=3, block_mode=mode, radius_mode=mode)
    network, corpus = counting.counting_network(model.network), as_corpus(DOCUMENTS)
    Z = torch.from_numpy(reference.bit_vectors(model.frequencies, 4))

    def count(part) -> dict[str, counting.Counts]:
        found: dict[str, counting.Counts] = {}
        for frequencies in (None, torch.from_numpy(model.frequencies)):
            attention = counting.count_attention(network, part, Z, frequencies)
            found |= {f"{name} {frequencies is None}": counts for name, counts in attention.items()}
        return found | counting.count_decoders(network, part, Z)

    shards = [corpus.slice(a, b) for a, b in pairwise([0, *sorted(cuts), len(DOCUMENTS)])]
    counted = [count(shard) for shard in shards]
    for layer, counts in count(corpus).items():
        np.testing.assert_allclose(sum(part[layer].F for part in counted), counts.F, rtol=1e-9, atol=1e-9)
        assert sum(part[layer].norm for part in counted) == pytest.approx(counts.norm, rel=1e-9)
        assert sum(part[layer].targets for part in counted) == counts.targets
    F = [counting.count_final(network, shard).numpy() for shard in shards]
    assert np.array_equal(sum(F), model.sums.F)


def test_given_embeddings_are_coerced():
    vectors = np.random.default_rng(0).normal(size=(VOCABULARY, 6)).astype(np.float32)
    (stage,) = fit(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE), embeddings=vectors)
    expected = coerced_embeddings(torch.from_numpy(vectors)).float().numpy()
    assert np.array_equal(stage.model.arrays()["units.block.E"], expected)
    assert np.array_equal(stage.model.arrays()["units.radius.E"], expected)
    assert np.isfinite(stage.model.log_probabilities(as_corpus(DOCUMENTS))).all()
    with pytest.raises(SaffuError, match="embeddings have 3 rows but the vocabulary has 12 tokens"):
        next(fit(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE), embeddings=vectors[:3]))


def test_the_noise_of_special_tokens():
    pure, counted, zero = (
        unsolved_network(as_corpus(DOCUMENTS), VOCABULARY, PaperConfig(**SHAPE, special_noise=noise))
        for noise in ("pure", "counted", "zero")
    )
    for name in ("block", "radius"):
        E = pure.units[name].E
        assert torch.equal(E[PAD], E[FRG])
        assert float(E[PAD].max() / E[PAD].min()) < 2  # nearly uniform
        assert float(counted.units[name].E[PAD].max() / counted.units[name].E[PAD].min()) > 5
        assert 0 < float(zero.units[name].E[PAD].sum()) < 1e-3
        assert torch.equal(zero.units[name].E[1:], E[1:])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(2, 12), st.sampled_from(["whole", "shifted"]))
def test_fragments(lengths, block, block_advance):
    """A block opens with its first target, which sees the marker alone, or with shifted blocks one token too."""
    documents = [[4] * (length - 1) + [EOD] for length in lengths]
    config = PaperConfig(block=block, block_advance=block_advance)
    empty = block - 1 if block_advance == "whole" else block - 2  # slots that its first target leaves empty
    contexts = [example.slots for example in reference.examples("block", documents, config)]
    opening = [slots for slots in contexts if slots[0] == FRG and slots.count(PAD) == empty]
    assert fragments(as_corpus(documents), config) == len(opening)


def test_variation_beyond_its_bound_is_an_error():
    """A rare target far from all others makes F(Q, V̂) negative."""
    vectors = np.zeros((VOCABULARY, 6))
    vectors[:11, 0], vectors[11, 1] = 60, 60
    documents = [[11, EOD]] + [[4, 5, 6, 7] * 4 + [EOD]] * 2
    config = PaperConfig(**SHAPE, tune_folds=1, fold_tokens=2)  # the first fold is the first document
    with pytest.raises(SaffuError, match=r"the smallest is -.*V outgrew .* block unit: use `attention` uniform"):
        list(fit(as_corpus(documents), VOCABULARY, config, embeddings=vectors))


@pytest.mark.parametrize(
    "setting", [{"document_shards": 3, "tune_folds": 2, "fold_tokens": 20}, {"document_shards": 20}], ids=str
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
