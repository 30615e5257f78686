"""N-gram models: parity with a plain reading of the formulas, exact counts, proper distributions."""

from collections import Counter

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from saffu import ngram
from saffu.errors import SaffuError
from saffu.ngram import KneserNey, NgramCounts, context_windows
from saffu.tokenizer import EOD, FRG, PAD, SOD

VOCABULARY = 9

tiny_corpora = st.lists(st.lists(st.integers(EOD + 1, VOCABULARY - 2), max_size=8), min_size=1, max_size=8)


def corpus(documents):
    """The flat ids and starts of documents, each closed by <eod>."""
    closed = [[*document, EOD] for document in documents]
    ids = torch.tensor([token for document in closed for token in document], dtype=torch.int32)
    return ids, torch.tensor([0, *map(len, closed)]).cumsum(0)


def count(documents, order, vocabulary=VOCABULARY):
    return NgramCounts.count(*corpus(documents), order, vocabulary)


def zipf_documents(seed, size, vocabulary=VOCABULARY):
    """Documents of about 12 tokens, repetitive enough for all discounts to exist at the lower orders."""
    rng = np.random.default_rng(seed)
    odds = 1.0 / np.arange(1, vocabulary - EOD)
    return [rng.choice(np.arange(EOD + 1, vocabulary), n, p=odds / odds.sum()) for n in rng.poisson(12, size)]


def assert_equal(a, b):
    assert (a.order, a.vocabulary) == (b.order, b.vocabulary)
    np.testing.assert_array_equal(a.keys, b.keys)
    np.testing.assert_array_equal(a.counts, b.counts)


class Reference:
    """Interpolated modified Kneser–Ney with dictionaries, straight from Chen & Goodman (1998)."""

    def __init__(self, documents, order, vocabulary):
        self.order, self.vocabulary = order, vocabulary
        texts = [(SOD, *map(int, document), EOD) for document in documents]
        grams = {k: Counter(t[i : i + k] for t in texts for i in range(len(t) - k + 1)) for k in range(1, order + 1)}
        del grams[1][(SOD,)]
        self.counts = {order: grams[order]}
        for k in range(1, order):
            left = Counter(longer[1:] for longer in grams[k + 1])  # one for each distinct token before it
            self.counts[k] = {g: n if g[0] == SOD else left[g] for g, n in grams[k].items()}
        self.discounts = {k: self.estimate(list(counts.values())) for k, counts in self.counts.items()}

    @staticmethod
    def estimate(counts):
        n1, n2, n3, n4 = (counts.count(k) for k in (1, 2, 3, 4))
        if 0 in (n1, n2, n3):
            return 0, 0.5, 1, 1.5
        y = n1 / (n1 + 2 * n2)
        d1, d2, d3 = 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3
        return (0, d1, d2, d3) if 0 < d1 <= 1 and 0 < d2 <= 2 and 0 < d3 <= 3 else (0, 0.5, 1, 1.5)

    def probability(self, context, token):
        context = tuple(map(int, context))
        if PAD in context:
            context = context[len(context) - context[::-1].index(PAD) :]
        return self._probability(context[max(0, len(context) - self.order + 1) :], int(token))

    def _probability(self, context, token):
        k = len(context) + 1
        shorter = self._probability(context[1:], token) if context else 1 / (self.vocabulary - 3)
        followers = {g[-1]: n for g, n in self.counts[k].items() if g[:-1] == context}
        if not followers:
            return shorter
        total, d = sum(followers.values()), self.discounts[k]
        freed = sum(d[min(n, 3)] for n in followers.values())
        seen = followers.get(token, 0)
        return (seen - d[min(seen, 3)]) / total + freed / total * shorter


def assert_agrees(documents, other, order, vocabulary=VOCABULARY, counted=None):
    """Model and reference agree on the whole distribution of every window of `other`, which may be unseen."""
    model = KneserNey(count(documents, counted or order, vocabulary), order)
    reference = Reference(documents, order, vocabulary)
    ids, starts = corpus(other)
    windows = context_windows(ids, starts, 0, len(ids), order - 1)
    tokens = np.arange(EOD, VOCABULARY)
    expected = np.array([[reference.probability(window, token) for token in tokens] for window in windows])
    distribution = model.distribution(windows)
    np.testing.assert_allclose(distribution[:, EOD:VOCABULARY], expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(distribution.sum(axis=1), 1, rtol=0, atol=1e-10)
    assert not distribution[:, :EOD].any()
    for column, token in enumerate(tokens):
        logs = model.log_probabilities(windows, torch.full((len(windows),), int(token)))
        np.testing.assert_allclose(logs, np.log(expected[:, column]), rtol=0, atol=1e-10)
    return model


@settings(max_examples=60, deadline=None)
@given(tiny_corpora, tiny_corpora, st.integers(1, 5))
def test_agrees_with_the_formulas_on_tiny_corpora(documents, other, order):
    assert_agrees(documents, other, order)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(10, 40), st.integers(1, 5))
def test_agrees_with_the_formulas_on_larger_corpora(seed, size, order):
    assert_agrees(zipf_documents(seed, size), zipf_documents(seed + 1, 2), order, counted=5)


def test_agrees_where_discounts_are_estimated_and_rows_need_two_words():
    model = assert_agrees(zipf_documents(0, 40), zipf_documents(1, 3), 5, vocabulary=1 << 17)
    assert [tuple(d) for d in model.discounts.tolist()].count((0, 0.5, 1, 1.5)) < 4
    assert count(zipf_documents(0, 40), 5, 1 << 17).keys.shape[0] == 2


@pytest.mark.parametrize(("vocabulary", "words"), [(7131, 1), (7132, 2), (1 << 17, 2)])
def test_words_hold_large_ids(vocabulary, words):
    documents = [*zipf_documents(2, 20, vocabulary), [vocabulary - 1] * 6]
    counts = count(documents, 5, vocabulary)
    assert len(counts.keys) == words
    rows = [(0, 0, 0, SOD, *map(int, d), EOD) for d in documents]
    expected = Counter(t[i : i + 5] for t in rows for i in range(len(t) - 4))
    contexts = [counts.columns()[index].tolist() for index in (3, 2, 1, 0, 4)]
    assert dict(zip(zip(*contexts, strict=True), counts.counts.tolist(), strict=True)) == expected


def test_discounts_by_hand():
    """n₁ … n₄ = 10, 5, 3, 2: Y = 10/20, D₁ = 1 − 2Y·5/10, D₂ = 2 − 3Y·3/5, D₃ = 3 − 4Y·2/3."""
    counts = torch.tensor([1, 2, 3, 4, 9]).repeat_interleave(torch.tensor([10, 5, 3, 2, 7]))
    np.testing.assert_allclose(ngram.discounts(counts), [0, 0.5, 1.1, 5 / 3])


def test_unigrams_by_hand():
    """`a <eod>`: each counted once of 2, less ½; the ½ freed is spread over 4 tokens."""
    model = KneserNey(count([[4]], 3, vocabulary=7), order=1)
    np.testing.assert_allclose(model.unigram, [0, 0, 0, 0.375, 0.375, 0.125, 0.125])


@pytest.mark.parametrize(
    "documents",
    [
        [[]],
        [[], [], []],
        [[4]],
        [[4] * 50],
        [[4, 5, 6]],
        [[4], [4], [5]],
        [[4] * 9] * 9,
        [[], [4, 5, 4, 5, 4, 5]],
    ],
)
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_degenerate_corpora(documents, order):
    assert_agrees(documents, [*documents, [4, 5, 6, 7], [7, 7, 4], []], order)


@settings(deadline=None)
@given(tiny_corpora, st.integers(0, 5), st.data())
def test_context_windows(documents, width, data):
    ids, starts = corpus(documents)
    lo = data.draw(st.integers(0, len(ids)))
    hi = data.draw(st.integers(lo, len(ids)))
    padded = [[PAD] * width + [SOD, *document, EOD] for document in documents]
    expected = [text[i - width : i] for text in padded for i in range(width + 1, len(text))]
    windows = context_windows(ids, starts, lo, hi, width)
    assert windows.shape == (hi - lo, width)
    assert windows.tolist() == expected[lo:hi]


@settings(deadline=None)
@given(tiny_corpora, tiny_corpora, st.integers(1, 5), st.integers(1, 7))
def test_counts_add_and_subtract_exactly(documents, more, order, chunk):
    whole, part, rest = count(documents + more, order), count(documents, order), count(more, order)
    assert_equal(part + rest, whole)
    assert_equal(rest + part, whole)
    assert_equal(whole - rest, part)
    assert (whole - whole).distinct == 0
    ids, starts = corpus(documents + more)
    shards = [starts[: len(documents) + 1], starts[len(documents) :]]
    assert_equal(sum((NgramCounts.count(ids, s, order, VOCABULARY) for s in shards), start=whole - whole), whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngram, "CHUNK", {"cpu": chunk})
        assert_equal(count(documents + more, order), whole)


@settings(deadline=None)
@given(tiny_corpora, st.integers(1, 5), st.data())
def test_shortened_counts_are_the_counts_of_the_lower_order(documents, order, data):
    lower = data.draw(st.integers(1, order))
    assert_equal(count(documents, order).shortened(lower), count(documents, lower))


@settings(deadline=None)
@given(tiny_corpora, st.integers(1, 5), st.sampled_from([VOCABULARY, 1 << 17]))
def test_counts_survive_storage(documents, order, vocabulary):
    counts = count(documents, order, vocabulary)
    stored = safetensors.torch.load(safetensors.torch.save(counts.tensors()))
    assert stored["counts"].dtype == torch.uint8
    assert_equal(NgramCounts.from_tensors(stored), counts)


def test_higher_orders_predict_a_second_order_source_better():
    rng = np.random.default_rng(0)
    tokens = np.arange(EOD + 1, VOCABULARY)
    odds = rng.dirichlet(np.full(len(tokens), 0.3), size=(VOCABULARY, VOCABULARY))

    def document():
        text = [4, 4]
        for _ in range(60):
            text.append(int(rng.choice(tokens, p=odds[text[-2], text[-1]])))
        return text

    counts = count([document() for _ in range(150)], 5)
    ids, starts = corpus([document() for _ in range(30)])
    windows = context_windows(ids, starts, 0, len(ids), 4)  # wider than lower orders need
    loss = {k: -KneserNey(counts, k).log_probabilities(windows, ids).mean() for k in range(1, 6)}
    assert loss[1] - loss[2] > 0.05 and loss[2] - loss[3] > 0.05
    assert abs(loss[3] - loss[5]) < 0.1


def test_unseen_contexts_and_special_ids_back_off():
    model = KneserNey(count([[4, 5, 6], [4, 5, 7]], 3))
    nothing = model.distribution(torch.tensor([[PAD, PAD], [7, FRG], [4, PAD]]))
    np.testing.assert_allclose(nothing, np.tile(model.unigram, (3, 1)), rtol=1e-12)


def test_what_is_undefined_is_refused():
    counts = count([[4, 5]], 3)
    model = KneserNey(counts)
    for refused in (
        lambda: counts - count([[4, 5], [6]], 3),
        lambda: counts + count([[4, 5]], 2),
        lambda: counts + count([[4, 5]], 3, VOCABULARY + 1),
        lambda: count([[VOCABULARY]], 3),
        lambda: count([[SOD]], 3),
        lambda: count([[4]], 0),
        lambda: KneserNey(counts, 4),
        lambda: KneserNey(counts - counts),
        lambda: model.log_probabilities(torch.tensor([[4, 5]]), torch.tensor([SOD])),
        lambda: model.distribution(torch.tensor([[4, VOCABULARY]])),
        lambda: model.distribution(torch.tensor([[4]])),
    ):
        with pytest.raises(SaffuError, match=r"[;:] "):
            refused()


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20), st.integers(1, 2**62))
def test_division_of_unsigned_words(numbers, divisor):
    words = torch.from_numpy(np.array(numbers, dtype=np.uint64).view(np.int64))
    quotients = ngram._divided(words, divisor).numpy().view(np.uint64)
    assert quotients.tolist() == [number // divisor for number in numbers]
