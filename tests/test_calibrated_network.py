"""Networks with measured exponents: the SAFFU form against the plain formula, and what calibration promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import saffu
from conftest import sentences
from saffu import SaffuConfig, SaffuError, SaffuLM, Tokenizer, TrainingConfig
from saffu.calibrated_network import CalibratedFit, once_a_slot, saffu_form, weigh_slots
from saffu.counted_embeddings import counted_layer, log_ratios, on_simplex, slot_pairs
from saffu.network import Network
from saffu.slot_features import OwnShare, log_prior, relative_decoder, slot_groups
from saffu.tokenizer import EOD, PAD, SOD
from saffu.unit import Unit

SHAPE = {"block": 10, "radius": 3, "block_dimension": 10, "radius_dimension": 9, "hidden_dimension": 12}
STRAIGHT = {**SHAPE, "hidden_dimension": 0}
COUNTED = {**STRAIGHT, "block": 0, "radius_dimension": 16, "embedding": "counted"}


@pytest.fixture(scope="module")
def tokens():
    """Documents as token ids, and how many tokens there are."""
    text = sentences(1, 150)
    tokenizer = Tokenizer.train(text, kept_words=0)
    return [tokenizer.encode(line) for line in text], len(tokenizer)


class Watched(CalibratedFit):
    """Remembers what it was given to weigh."""

    def _weigh(self, layers, exponents, log_f):
        self.__dict__.setdefault("weighed", []).append((layers, exponents.double(), log_f))
        super()._weigh(layers, exponents, log_f)


def fitted(tokens, **shape) -> Watched:
    documents, vocabulary = tokens
    config, corpus = SaffuConfig(calibrate=True, **shape), reference.as_corpus(documents)
    fragments = corpus.fragments(config.block) if config.block else 0
    fit = Watched(config, corpus.frequencies(vocabulary), corpus.documents, fragments)
    fit.initialise(corpus)
    return fit


def plain_logits(fit, documents, layers, exponents, log_f):
    """γ log f + Σ_k a_k X_k·R_k by loops over targets and slots."""
    place = 1
    total = float(exponents[0]) * log_f.numpy()
    for name, (E, R) in layers.items():
        slots, cat = getattr(fit.config, name), getattr(fit.config, f"{name}_mode") == "cat"
        groups = fit._groups(name)
        found = exponents[place : place + int(groups.max()) + 1].numpy()
        place += len(found)
        D, rows = E.shape[1], []
        examples = {"block": reference.block_examples, "radius": reference.radius_examples}[name](documents, slots)
        for example in examples:
            row = 0.0
            for slot, token in enumerate(example.slots):
                decoder = R[slot * D : (slot + 1) * D] if cat else R
                row = row + found[groups[slot]] * (E[token].double() @ decoder.double()).numpy()
            rows.append(row)
        total = total + np.array(rows)
    return total


def log_softmax(logits):
    return torch.log_softmax(torch.as_tensor(logits).double(), 1).numpy()


@pytest.mark.parametrize(
    "shape",
    [
        {**STRAIGHT, "block": 0},
        {**STRAIGHT, "block": 0, "radius": 12},  # far slots share exponents
        {**STRAIGHT, "radius": 0},
        STRAIGHT,
        {**STRAIGHT, "block_mode": "cat", "radius_mode": "sum"},
        COUNTED,
    ],
    ids=str,
)
def test_network_is_the_plain_formula(tokens, shape):
    fit = fitted(tokens, **shape)
    documents = tokens[0][:20]
    ((layers, exponents, log_f),) = fit.weighed
    (targets,) = reference.as_corpus(documents).batches(10000, fit.network.lookback)
    expected = log_softmax(plain_logits(fit, documents, layers, exponents, log_f))
    with torch.no_grad():
        np.testing.assert_allclose(log_softmax(fit.network(targets)), expected, atol=1e-4)  # float32
        for name, (E, R) in layers.items():  # the same weights in float64
            unit, groups = fit.frozen.units[name], fit._groups(name)
            found, exponents = exponents.split([1 + int(groups.max()) + 1, len(exponents) - int(groups.max()) - 2])
            exponents = torch.cat([found[:1], exponents])
            unit.E.copy_(E)
            weigh_slots(unit, R, found[1:][groups], log_f, (float(found[0]) + len(layers) - 1) / len(layers))
        fit.frozen.log_prior.copy_(log_f)
        np.testing.assert_allclose(log_softmax(fit.frozen(targets)), expected, atol=1e-6)
        for unit in fit.network.every_unit():
            assert math.isclose(torch.exp(unit.b).sum(), 1, rel_tol=1e-5)
            assert not unit.W.any()


@pytest.mark.parametrize("documents", [0, 3])
def test_decoded_units_are_the_plain_formula(tokens, documents):
    """Each unit predicts its bits, and the final decoder weighs each part's output h: γ log f + Σ_p β_p h_p·R_p."""
    fit = fitted(tokens, **SHAPE, documents=documents)
    text = tokens[0][:20]
    (targets,) = reference.as_corpus(text).batches(10000, fit.network.lookback)
    fit.frozen.requires_grad_(False)
    hidden = []
    for layers, exponents, log_f in {tuple(w[0]): w for w in fit.weighed}.values():  # the last of each unit
        (name,) = layers
        logits = plain_logits(fit, text, layers, exponents, log_f)
        hidden.append(np.exp(log_softmax(logits)))
        np.testing.assert_allclose(
            log_softmax(fit.frozen.unit_logits(name, targets)), log_softmax(logits), rtol=1e-6, atol=1e-5
        )
    if documents:
        E = fit.frozen.document_embeddings.numpy()
        inputs = np.array(reference.document_inputs(E, text))
        hidden.append(np.exp(log_softmax(inputs @ fit.frozen.D.numpy())))
    log_f = log_prior(fit.frequencies)
    parts = ["block", "radius", "document"][: len(hidden)]
    logits = fit.exponents["final prior"] * log_f.numpy()
    sizes = [12, 12, documents][: len(hidden)]
    errors = []
    for pseudo_counts in (1.0, 10.0, 100.0):
        R = relative_decoder(fit.counts["final"].F, log_f, pseudo_counts).split(sizes)
        weighed = [fit.exponents[f"final {p}"] * h @ r.numpy() for p, h, r in zip(parts, hidden, R, strict=True)]
        expected = log_softmax(logits + sum(weighed))
        errors.append(np.abs(log_softmax(fit.frozen(targets)) - expected).max())
    assert min(errors) < 1e-4


@given(st.lists(st.floats(0, 5), min_size=2, max_size=20))
def test_saffu_form(exponents):
    a = torch.tensor(exponents, dtype=torch.float64)
    attention, factor = saffu_form(a)
    assert math.isclose(torch.exp(-attention).sum(), 1, rel_tol=1e-9)
    assert attention.max() <= 4.001 * attention.min()  # so that training can go on
    assert torch.allclose(attention * factor, a, atol=1e-12)


@given(st.integers(0, 10**6), st.sampled_from(["sum", "cat"]))
@settings(max_examples=15, deadline=None)
def test_gradient_of_the_exponents_is_the_papers_variation(seed, mode):
    """Σ_m V_mk − c, with U for R: the pull of the likelihood on the weight of slot k."""
    generator = torch.Generator().manual_seed(seed)
    E = torch.softmax(torch.randn(7, 4, dtype=torch.float64, generator=generator), 1)
    unit = Unit(E, 3, mode, 7, bias=True).double()
    R = torch.randn(12 if mode == "cat" else 4, 7, dtype=torch.float64, generator=generator)
    exponents = torch.rand(3 if mode == "cat" else 1, dtype=torch.float64, generator=generator).repeat(
        1 if mode == "cat" else 3
    )
    log_f = torch.log_softmax(torch.randn(7, dtype=torch.float64, generator=generator), 0)
    documents = [torch.randint(EOD + 1, 7, (5,), generator=generator).tolist() for _ in range(3)]
    corpus = reference.as_corpus(documents)
    config = SaffuConfig(block=0, radius=3, radius_mode=mode, hidden_dimension=0, calibrate=True, radius_dimension=4)
    network = Network(config, {"radius": E}, 7).double()
    network.units["radius"] = unit
    (targets,) = corpus.batches(100, 3)
    weigh_slots(unit, R, exponents, log_f, 0.7)
    (window,) = network.windows("radius", targets)
    wanted = torch.nn.functional.one_hot(targets.ids, 7) - torch.softmax(unit(window), 1)
    with torch.no_grad():
        unit.U.copy_(R)  # V of an unscaled decoder
    variation = unit.variation(window, wanted).sum(0).detach()
    a = exponents.clone().requires_grad_()
    slots = [E[window.ids[:, k]] @ (R if mode == "sum" else R[4 * k : 4 * k + 4]) for k in range(3)]
    logits = 0.7 * log_f + sum(a[k] * slots[k] for k in range(3))
    torch.nn.functional.cross_entropy(logits, targets.ids, reduction="sum").backward()
    assert torch.allclose(variation, -a.grad, atol=1e-8)


def test_each_stage_predicts_held_out_text_better(tokens):
    """On the very targets that calibrate: the prior alone, then one exponent for all slots, then one for each."""
    from saffu.calibrate import calibrated_exponents, moments

    fit = fitted(tokens, **{**STRAIGHT, "block": 0})
    ((layers, _, log_f),) = fit.weighed
    corpus = reference.as_corpus(tokens[0][:50])
    batches = list(fit._slot_batches(layers, log_f, corpus))

    def likelihood(join):
        joined = [(join(features), wanted) for features, wanted in batches]
        start = torch.full((joined[0][0].shape[1],), 0.1)
        return float(moments(joined, calibrated_exponents(lambda: joined, start, 1e-8)).log_likelihood)

    stages = [
        likelihood(lambda f: f[:, :1]),
        likelihood(lambda f: torch.stack([f[:, 0], f[:, 1:].sum(1)], 1)),
        likelihood(lambda f: f),
    ]
    assert stages[0] < stages[1] < stages[2]


def test_calibrated_beats_plain(train_text, dev_text):
    for shape in (SHAPE, STRAIGHT):
        plain = SaffuLM(SaffuConfig(**shape)).fit(train_text)
        calibrated = SaffuLM(SaffuConfig(**shape, calibrate=True), tokenizer=plain.tokenizer_).fit(train_text)
        assert calibrated.perplexity(dev_text) < 0.9 * plain.perplexity(dev_text)


@pytest.mark.parametrize("mode", ["sum", "cat"])
def test_leaving_one_out_is_counting_without_the_target(tokens, mode):
    """Features at a target are those of counts from which just this target was taken."""
    fit = fitted(
        (tokens[0][:40], tokens[1]), **STRAIGHT | {"block": 0, "radius_mode": mode, "held_out": "leave-one-out"}
    )
    documents = tokens[0][:40]
    unit = fit.frozen.units["radius"]
    F = once_a_slot(fit.counts["radius.decoder"], unit)
    examples = reference.radius_examples(documents, 3)
    own = OwnShare(F.float(), fit.frequencies.float(), 10.0)
    layers = {"radius": (unit.E, relative_decoder(F, log_prior(fit.frequencies), 10.0))}
    batches = fit._slot_batches(layers, log_prior(fit.frequencies), reference.as_corpus(documents[:1]), {"radius": own})
    ((features, wanted),) = batches
    for row, example in enumerate(examples[: len(wanted)]):
        inputs = unit.E[example.slots]  # (K, D)
        less = F.clone()
        less[:, example.target] -= inputs.flatten() if mode == "cat" else inputs.sum(0)
        frequencies = fit.frequencies.clone()
        frequencies[example.target] -= 1
        prior = torch.log((frequencies + 0.5) / (fit.frequencies + 0.5).sum())  # its sum is the same for all tokens
        smoothed = torch.log(less + 10 * log_prior(fit.frequencies).exp()) - torch.log(F.sum(1, keepdim=True) + 10)
        R = smoothed - prior
        assert torch.allclose(features[row, 0].double(), prior, atol=1e-5)
        said = [inputs[slot] @ (R.unflatten(0, (3, -1))[slot] if mode == "cat" else R) for slot in range(3)]
        expected = torch.stack(said[::-1] if mode == "cat" else [sum(said)])
        assert torch.allclose(features[row, 1:].double(), expected, atol=2e-4)


def test_groups():
    assert slot_groups("radius", 4, "cat").tolist() == [3, 2, 1, 0]
    assert slot_groups("radius", 18, "cat").tolist() == [9] * 2 + [8] * 8 + [7, 6, 5, 4, 3, 2, 1, 0]
    assert slot_groups("block", 10, "cat").tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4, 4]
    assert slot_groups("block", 10, "sum").tolist() == [0] * 10


def test_counted_embeddings_of_full_rank_are_exact(tokens):
    """With as many dimensions as tokens nothing is lost: E·R_k is the table of slot k."""
    documents, vocabulary = tokens
    corpus = reference.as_corpus(documents)
    log_f = log_prior(corpus.frequencies(vocabulary)).float()
    pairs = slot_pairs(corpus, 3, vocabulary)
    E, R = counted_layer(pairs, log_f, vocabulary + 1)
    assert (E >= 0).all()
    assert torch.allclose(E.sum(1), torch.ones(vocabulary), atol=1e-5)
    for table, decoder in zip(log_ratios(pairs, log_f), R.unflatten(0, (3, -1)), strict=True):
        seen = corpus.frequencies(vocabulary) > 0
        assert torch.allclose((E @ decoder)[seen], table[seen], atol=2e-2)


def test_padding_says_the_beginning_once(tokens):
    documents, vocabulary = tokens
    corpus = reference.as_corpus(documents)
    log_f = log_prior(corpus.frequencies(vocabulary)).float()
    tables = log_ratios(slot_pairs(corpus, 3, vocabulary), log_f)
    assert torch.allclose(sum(table[PAD] for table in tables), tables[-1][SOD], atol=1e-4)


@given(st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_on_simplex_keeps_products(seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(9, 4, generator=generator)
    decoder = torch.randn(4, 2, 5, generator=generator)
    E, R = on_simplex(vectors, decoder, 6)
    assert E.shape == (9, 6)
    assert (E >= 0).all()
    assert torch.allclose(E.sum(1), torch.ones(9))
    products = torch.stack([E @ R[:6], E @ R[6:]], 1)
    assert torch.allclose(products, torch.einsum("xd,dkn->xkn", vectors, decoder), atol=1e-4)


@pytest.mark.parametrize("shape", [STRAIGHT, SHAPE, COUNTED], ids=["straight", "decoded", "counted"])
@pytest.mark.parametrize(
    "text",
    [["a a a a a a a"] * 50, ["ab"], ["x", "y"] * 40, ["a b c d e f"] * 30],
    ids=["one word", "one document", "short documents", "one sentence"],
)
def test_degenerate_data_gives_finite_models(text, shape):
    lm = SaffuLM(SaffuConfig(**shape, calibrate=True), tokenizer=Tokenizer.from_merges([])).fit(text)
    assert all(torch.isfinite(weight).all() for weight in lm.network_.state_dict().values())
    assert math.isfinite(lm.perplexity([*text[:3], "zebra"]))
    lm.generate(seed=1)


def test_save_load_and_train_on(train_text, dev_text, tmp_path):
    config = SaffuConfig(**COUNTED, calibrate=True, fold=2000)
    training = TrainingConfig(max_folds=1, batch=128, rate=1e-3, dropout=0)
    lm = SaffuLM(config).fit(train_text, dev_text, training=training)
    lm.save(tmp_path / "a")
    loaded = saffu.load(tmp_path / "a")
    assert loaded.score(dev_text) == lm.score(dev_text)
    before = lm.perplexity(dev_text)
    assert lm.backprop(train_text, dev_text, training).perplexity(dev_text) <= before
    assert lm.log_[-1]["train_perplexity"] < 2 * before


def test_half_precision_is_what_was_scored(train_text, dev_text, tmp_path):
    lm = SaffuLM(SaffuConfig(**COUNTED, calibrate=True, store="float16")).fit(train_text, dev_text)
    lm.save(tmp_path / "a")
    loaded = saffu.load(tmp_path / "a")
    assert loaded.score(dev_text) == lm.score(dev_text)
    assert loaded.network_.units["radius"].U.dtype == torch.float32
    assert lm.log_[0]["exponents"].keys() == {"prior", "radius 1", "radius 2", "radius 3"}
    assert lm.log_[0]["dev_perplexity"] == pytest.approx(lm.perplexity(dev_text), rel=1e-6)


def test_paper_models_keep_their_weights():
    unit = Unit(torch.full((5, 2), 0.5), 3, "cat", 5)
    assert set(unit.state_dict()) == {"E", "W", "U"}


def test_wrong_settings():
    with pytest.raises(SaffuError, match="tune"):
        SaffuConfig(calibrate=True, tune=1)
    with pytest.raises(SaffuError, match="add `calibrate`"):
        SaffuConfig(**COUNTED)
    with pytest.raises(SaffuError, match="more than its own column"):
        SaffuConfig(**SHAPE, calibrate=True, held_out="leave-one-out")
    with pytest.raises(SaffuError, match="`block` 0"):
        SaffuConfig(**{**COUNTED, "block": 4}, calibrate=True)
