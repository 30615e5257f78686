import math

import numpy as np
import pytest
import torch
from paper_data import VOCABULARY, as_corpus, patterned_documents, random_documents

from reference.paper import EOD, PAD, SOD, bit_vectors
from saffu.errors import SaffuError
from saffu.interface import Model
from saffu.paper import model as model_module
from saffu.paper.config import PaperConfig
from saffu.paper.fit import fit
from saffu.paper.model import PaperModel

SHAPE = {"block": 12, "radius": 4, "block_dimension": 8, "radius_dimension": 6, "hidden_dimension": 8}
SHAPE |= {"document_shards": 0}
TEXT, MORE = patterned_documents(0, 60), patterned_documents(1, 20)
KINDS = {
    "both units": {},
    "float64": {"dtype": "float64"},
    "documents": {"document_shards": 3},
    "other modes": {"block_mode": "cat", "radius_mode": "sum"},
    "other windows": {"block_advance": "shifted", "pad_side": "right"},
    "block only": {"radius": 0, "document_shards": 2},
    "radius only": {"block": 0},
}
CONTEXTS = [[], [4], TEXT[0][:-1], [*TEXT[1], *TEXT[2]], TEXT[3] * 5]


def fitted(**settings) -> PaperModel:
    (stage,) = fit(as_corpus(TEXT), VOCABULARY, PaperConfig(**SHAPE | settings))
    return stage.model


@pytest.fixture(scope="module", params=KINDS)
def model(request) -> PaperModel:
    return fitted(**KINDS[request.param])


def test_it_is_a_model(model):
    interface: Model = model
    assert interface.vocabulary == VOCABULARY
    assert interface.config == model.network.config


def test_distributions_sum_to_one_and_markers_have_no_probability(model):
    p = np.exp(model.next_log_probabilities([model.start(context) for context in CONTEXTS]))
    assert p.dtype == np.float32
    assert p.sum(1) == pytest.approx(1, abs=1e-5)
    assert (p[:, :EOD] == 0).all()
    assert (p[:, EOD:] > 0).all()
    assert model.next_log_probabilities([]).shape == (0, VOCABULARY)


def test_states_predict_what_log_probabilities_says(model):
    documents = [TEXT[0], TEXT[1] + TEXT[2], TEXT[3] * 4, [EOD]]
    states, targets = [], []
    for document in documents:
        state = model.start()
        for token in document:
            states.append(state)
            targets.append(token)
            state = model.advance(state, token)
        assert state == model.start(document)
        assert hash(state) == hash(model.start(document))
    chosen = model.next_log_probabilities(states)[np.arange(len(targets)), targets]
    np.testing.assert_allclose(chosen, model.log_probabilities(as_corpus(documents)), rtol=1e-3, atol=1e-4)


def test_log_probabilities_do_not_depend_on_batches_or_workers(model, monkeypatch):
    whole = model.log_probabilities(as_corpus(MORE))
    monkeypatch.setattr(type(model.network), "batch_size", lambda self: 7)
    monkeypatch.setattr(model_module, "workers_for", lambda device, tasks: 3)
    np.testing.assert_allclose(model.log_probabilities(as_corpus(MORE)), whole, rtol=1e-4, atol=1e-5)
    assert model.log_probabilities(as_corpus([])).shape == (0,)


def test_it_learned_something(model):
    perplexity = math.exp(-model.log_probabilities(as_corpus(MORE)).mean())
    assert perplexity < VOCABULARY - EOD


def same(one: PaperModel, other: PaperModel) -> bool:
    arrays, others = one.arrays(), other.arrays()
    return arrays.keys() == others.keys() and all(np.array_equal(a, others[name]) for name, a in arrays.items())


MODEL = fitted(dtype="float64", document_shards=3)


def test_it_is_solved_once():
    assert MODEL.sums is None
    for change in (lambda: MODEL.count(as_corpus(MORE)), lambda: MODEL.solved(None)):
        with pytest.raises(SaffuError, match="do not change"):
            change()


def test_round_trip_through_arrays(model):
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    for array in arrays.values():
        array.flags.writeable = False  # as read from a file
    loaded = PaperModel.from_arrays(model.config, VOCABULARY, arrays)
    assert same(loaded, model)
    corpus = as_corpus(MORE)
    assert np.array_equal(loaded.log_probabilities(corpus), model.log_probabilities(corpus))
    weights = {name: array for name, array in model.arrays().items() if name != "frequencies"}
    assert {array.dtype for array in weights.values()} == {np.dtype(np.float32)}


def test_weights_that_do_not_match_the_settings():
    arrays = dict(MODEL.arrays())
    with pytest.raises(SaffuError, match="weights do not match the settings"):
        PaperModel.from_arrays(PaperConfig(**SHAPE), VOCABULARY, arrays)
    with pytest.raises(SaffuError, match="weights do not match the settings"):
        PaperModel.from_arrays(MODEL.config, VOCABULARY + 1, arrays)
    del arrays["frequencies"]
    with pytest.raises(SaffuError, match="weights do not match the settings"):
        PaperModel.from_arrays(MODEL.config, VOCABULARY, arrays)


def test_size():
    # E 12·8 + 12·6, W 12² + 4², U 8·8 + 24·8, M 16·12; and with 3 shards D 8·3, M (16 + 3)·12
    assert fitted().size == 96 + 72 + 144 + 16 + 64 + 192 + 192
    assert MODEL.size == fitted().size + 24 + 36


def test_a_trained_network_is_copied():
    network = model_module.copy.deepcopy(MODEL.network)
    trained = MODEL.with_network(network)
    before = trained.arrays()["M"]
    with torch.no_grad():
        network.M.add_(1)
    assert np.array_equal(trained.arrays()["M"], before)


def test_vectors(model):
    vectors = model.vectors()
    names = list(model.config.units())
    assert list(vectors) == ["decoder", *(f"{name}.U" for name in names), *(f"{name}.E" for name in names)]
    assert np.array_equal(vectors["decoder"], model.network.M.numpy().T)
    for name in names:
        unit = model.network.units[name]
        rows = unit.U.numpy()[-unit.E.shape[1] :]
        np.testing.assert_allclose(vectors[f"{name}.U"], unit.E.numpy() @ rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", CONTEXTS, ids=len)
def test_explanations_add_up(model, context):
    explanation = model.explain(context)
    assert explanation.context == tuple(context)
    summed = sum(term.values for term in explanation.terms)
    assert np.abs(summed - explanation.log_probabilities)[EOD:].max() < 1e-9
    assert np.exp(explanation.log_probabilities).sum() == pytest.approx(1, rel=1e-12)
    assert (explanation.log_probabilities[:EOD] == -np.inf).all()
    predicted = model.next_log_probabilities([model.start(context)])[0]
    np.testing.assert_allclose(explanation.log_probabilities[EOD:], predicted[EOD:], rtol=1e-3, atol=1e-3)
    units = [f"{name} unit" for name in model.config.units()]
    parts = units + ["document model"] * bool(model.config.document_shards)
    assert [term.name for term in explanation.terms] == ["prior", *parts, "normalizer"]
    assert list(explanation.details) == units


@pytest.mark.parametrize("context", CONTEXTS, ids=len)
def test_slots_add_up_to_the_unit_s_own_prediction(model, context):
    exact = model_module.copy.deepcopy(model.network).double()
    Z = bit_vectors(model.frequencies, model.config.hidden_dimension)
    wanted = Z / Z.sum(1, keepdims=True)
    *_, target = exact.batches(as_corpus([[*context, EOD]]), 1)
    for title, terms in model.explain(context).details.items():
        own = torch.log_softmax(exact.unit_logits(title.removesuffix(" unit"), target), dim=1)[0].numpy()
        assert np.abs(sum(term.values for term in terms) - wanted @ own).max() < 1e-9


def test_slots_by_plain_loops():
    """A_k E[x_k]·U_k of each slot, minus its share of the prior and its mean under the prior."""
    model = fitted()
    unit = model.network.units["radius"]
    E, W, U = (tensor.double().numpy() for tensor in (unit.E, unit.W, unit.U))
    Z = bit_vectors(model.frequencies, 8)
    wanted = Z / Z.sum(1, keepdims=True)
    f = model.frequencies + 0.5
    prior = f / f.sum() @ wanted
    tokens = [4, 5, 7]
    slots = [PAD, *tokens]
    scores = [sum(E[tokens[-1]] @ E[slots[j]] * W[j, k] for j in range(4)) for k in range(4)]
    A = [math.log(sum(math.exp(s) for s in scores)) - score for score in scores]
    terms = {term.name: term for term in model.explain(tokens).details["radius unit"]}
    assert list(terms) == ["prior", "radius 3", "radius 2", "radius 1", "radius <pad>", "normalizer"]
    for k, token in enumerate(tokens, 1):
        raw = A[k] * E[token] @ U[k * 6 : (k + 1) * 6] - A[k] / sum(A) * np.log(prior)
        term = terms[f"radius {4 - k}"]
        assert term.seen == (token,)
        assert term.weight == pytest.approx(A[k])
        assert np.allclose(term.values, wanted @ (raw - prior @ raw), atol=1e-9)
    assert terms["radius <pad>"].slots == 1
    block = model.explain(tokens).details["block unit"]
    assert block[1].seen == (SOD,)


def test_bits_that_no_token_has_do_no_harm():
    """A vocabulary smaller than the number of hidden bits leaves some of them unused."""
    documents = random_documents(2)
    config = PaperConfig(**SHAPE | {"hidden_dimension": 2 * VOCABULARY})
    (stage,) = fit(as_corpus(documents), VOCABULARY, config)
    for terms in stage.model.explain(documents[1]).details.values():
        assert all(np.isfinite(term.values[EOD:]).all() for term in terms)
