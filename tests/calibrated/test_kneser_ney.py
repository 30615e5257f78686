from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrated_data import documents_of
from conftest import corpus_of, each, sentences
from reference import calibrated as reference
from saffu.calibrated import kneser_ney
from saffu.calibrated.kneser_ney import KneserNey, Table, discounts, ranks_in_order, unigrams
from saffu.calibrated.ngrams import NgramCounts
from saffu.errors import SaffuError
from saffu.text.tokenizer import EOD, PAD

VOCABULARY = 9
lines = st.lists(st.integers(4, VOCABULARY - 2), max_size=7)  # the last token never occurs
corpora = st.lists(st.lists(lines, min_size=1, max_size=2), min_size=1, max_size=6).map(corpus_of)
orders = st.integers(1, 6)


def as_dictionaries(table: Table, ranks) -> list[dict]:
    """By level: context → ({follower: mass}, backoff), as far as the context has followers or longer contexts."""
    tokens = np.argsort(ranks)
    found, contexts = [], {(token,): token for token in range(len(ranks))}
    for level, arrays in enumerate(table.levels):
        stored = {}
        for context, i in contexts.items():
            span = slice(int(arrays["begin"][i]), int(arrays["begin"][i + 1]))
            follow = arrays["follow"][span]
            assert (np.diff(follow.astype(int)) > 0).all()
            masses = arrays["mass"][span].tolist()
            stored[context] = dict(zip(tokens[follow].tolist(), masses, strict=True)), float(arrays["backoff"][i])
        found.append(stored)
        if level + 1 < len(table.levels):
            older, longer = table.levels[level + 1]["token"], {}
            for context, i in contexts.items():
                for j in range(arrays["child"][i], arrays["child"][i + 1]):
                    longer[(*context, int(older[j]))] = j
            assert len(longer) == len(older)
            contexts = longer
    return found


def test_discounts_by_hand():
    """n1 … n4 = 6, 3, 2, 1 give y = 6/(6 + 2·3) = 1/2, so

    D1 = 1 − 2·½·3/6 = 1/2,   D2 = 2 − 3·½·2/3 = 1,   D3 = 3 − 4·½·1/2 = 2.
    """
    assert discounts([6, 3, 2, 1]) == (0.5, 1.0, 2.0)
    assert discounts([2, 2, 1, 0]) == pytest.approx((1 / 3, 1.5, 3.0))


@each("counts", [[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 1], [9, 1, 9, 1], [9, 9, 1, 9]])
def test_discounts_that_cannot_be_estimated(counts):
    """A count of counts is zero, or a discount leaves (0, k]: D2 = 2 − 3·(9/11)·9 < 0, D3 = 3 − 4·(1/3)·9 < 0."""
    assert discounts(counts) is None


TOY = [[4, 5], [4, 5], [4, 6]]  # "a b", "a b", "a c"


def test_a_bigram_model_by_hand():
    """KenLM's `lmplz -o 2 --discount_fallback` on three lines: "a b", "a b", "a c"; token 7 is its <unk>.

    Unigrams count distinct predecessors: a 1 (the start), b 1 (a), c 1 (a), <eod> 2 (b, c), 5 in all. n3 = 0, so the
    discounts are the fallback ½, 1, 1½. They take off ½ + ½ + ½ + 1 = 2½, which the five outputs share: 2½/5/5 = 0.1.
    Bigrams keep their counts: start a 3, a b 2, b <eod> 2, a c 1, c <eod> 1. n1 … n4 = 2, 2, 1, 0 give y = 1/3 and the
    discounts 1/3, 3/2, 3.
    """
    model = KneserNey(NgramCounts.count(corpus_of(TOY), 2, 8))
    assert model.table.estimated.tolist() == [False, True]
    assert model.table.discounts == pytest.approx(np.array([[0, 0.5, 1, 1.5], [0, 1 / 3, 1.5, 3]]))
    by_token = dict(zip([3, 4, 5, 6, 7], model.table.unigram, strict=False))
    assert by_token == pytest.approx({3: 1 / 5 + 0.1, 4: 0.5 / 5 + 0.1, 5: 0.2, 6: 0.2, 7: 0.1})
    backoff_a = (1.5 + 1 / 3) / 3
    start, b, end_b = 0 + 3 / 3 * 0.2, 0.5 / 3 + backoff_a * 0.2, 0.5 / 2 + 1.5 / 2 * 0.3
    c, end_c = (2 / 3) / 3 + backoff_a * 0.2, (2 / 3) / 1 + 1 / 3 * 0.3
    expected = [start, b, end_b, start, b, end_b, start, c, end_c]
    assert np.exp(model.log_probabilities(corpus_of(TOY))) == pytest.approx(np.array(expected), abs=1e-6)


@each(
    "order, total, discounts",
    [
        (2, -1026.75198, [0.5, 1, 1.5]),
        (3, -819.34637, [0.272727, 1.727273, 0.272727]),
        (4, -831.70906, [0.370079, 1.028543, 1.054443]),
        (5, -842.02202, [0.376812, 0.383215, 2.142218]),
        (6, -851.53851, [0.491857, 1.312662, 2.043361]),
    ],
)
def test_parity_with_kenlm(order, total, discounts):
    """Golden numbers of KenLM 0.3.0, `lmplz -o ORDER --discount_fallback`: ln p of dev tokens and line ends, and the
    discounts of its second-longest n-grams.

    The last line of the text brings a new word last. KenLM (lm/builder/adjust_counts.cc) takes the last n-gram of each
    order into its statistics with its raw count instead of its adjusted count; here these are equal.
    """
    train, dev = [*sentences(1, 600), "a zebra saw the sea !"], [*sentences(2, 100), "the king saw wordless ball ."]
    ids = {word: number for number, word in enumerate(sorted({w for line in train for w in line.split()}), EOD + 1)}
    unknown = EOD + 1 + len(ids)  # KenLM's <unk>
    train_corpus, dev_corpus = (
        corpus_of([[ids.get(word, unknown) for word in line.split()] for line in text]) for text in (train, dev)
    )
    model = KneserNey(NgramCounts.count(train_corpus, order, unknown + 1))
    assert model.log_probabilities(dev_corpus).sum() == pytest.approx(total, abs=5e-5)
    assert model.table.discounts[-2, 1:] == pytest.approx(np.array(discounts), abs=1e-6)


def test_parity_with_the_arpa_file_of_a_toy():
    """The ARPA file that KenLM 0.3.0 writes for TOY, as in `test_a_bigram_model_by_hand`."""
    arpa = {(EOD, 4): -0.69897, (4, 5): -0.53926915, (4, 6): -0.4628808, (5, EOD): -0.32330638, (6, EOD): -0.1153934}
    model = KneserNey(NgramCounts.count(corpus_of(TOY), 2, 8))
    found = model.log_probabilities(corpus_of([[4, 5], [4, 6]])) / math.log(10)
    pairs = [(EOD, 4), (4, 5), (5, EOD), (EOD, 4), (4, 6), (6, EOD)]
    assert found == pytest.approx(np.array([arpa[pair] for pair in pairs]), abs=1e-6)


@given(corpora, orders, st.sampled_from([0, 0, 1, 2]))
def test_tables_agree_with_the_reference(corpus, order, prune):
    counts, ranks = NgramCounts.count(corpus, order, VOCABULARY), ranks_in_order(VOCABULARY)
    table = Table.solve(counts, range(1, order), ranks, prune)
    plain = reference.KneserNey(reference.rows(documents_of(corpus), range(1, order)), VOCABULARY, prune)
    assert table.discounts[:, 1:] == pytest.approx(np.array(plain.discounts), abs=1e-12)
    assert table.estimated.tolist() == plain.estimated
    for stored, masses in zip(as_dictionaries(table, ranks), plain.mass[1:], strict=True):
        seen = {context: entry for context, entry in stored.items() if entry[0] or context in masses}
        assert seen.keys() == masses.keys()
        for context, (shares, backoff) in seen.items():
            assert shares == {token: np.float32(mass) for token, mass in masses[context].items()}
            assert backoff == pytest.approx(1 - sum(masses[context].values()), rel=1e-6, abs=1e-7)
    expected = [plain.probability((), token) for token in range(EOD, VOCABULARY)]
    assert table.unigram == pytest.approx(np.array([*expected, 0, 0, 0]), rel=1e-6)
    assert table.ngrams == sum(len(masses) for level in plain.mass[1:] for masses in level.values())


@given(corpora, corpora, orders)
def test_log_probabilities_agree_with_the_reference(train, test, order):
    model = KneserNey(NgramCounts.count(train, order, VOCABULARY))
    plain = reference.KneserNey(reference.rows(documents_of(train), range(1, order)), VOCABULARY)
    expected = [
        math.log(plain.probability(reference.seen(document[:place], range(1, order)), token))
        for document in documents_of(test)
        for place, token in enumerate(document)
    ]
    assert model.log_probabilities(test) == pytest.approx(np.array(expected), abs=1e-5)


def all_next(model: KneserNey, context: list[int]) -> np.ndarray:
    """p of every token after a context; every token is followed by <eod>, whose probability is left out."""
    tokens = range(EOD, model.vocabulary)
    return np.exp([model.log_probabilities(corpus_of([[*context, t]]))[len(context)] for t in tokens])


@settings(max_examples=40)
@given(corpora, orders, st.lists(st.integers(4, VOCABULARY - 1), max_size=7))
def test_distributions_sum_to_one(corpus, order, context):
    model = KneserNey(NgramCounts.count(corpus, order, VOCABULARY))
    assert all_next(model, context).sum() == pytest.approx(1, abs=1e-6)


@settings(max_examples=40)
@given(corpora, orders, st.integers(1, 4))
def test_pruning_keeps_distributions_normalized(corpus, order, prune):
    counts, ranks = NgramCounts.count(corpus, order, VOCABULARY), ranks_in_order(VOCABULARY)
    model = KneserNey(counts)
    model.table = Table.solve(counts, range(1, order), ranks, prune)
    for context in ([], [4], [5, 4], [4, 5, 6, 7], [8, 8]):
        assert all_next(model, context).sum() == pytest.approx(1, abs=1e-6)
    assert model.table.ngrams <= KneserNey(counts).table.ngrams


def test_pruning_drops_trigrams_seen_once_and_keeps_bigrams():
    corpus = corpus_of([[4, 5, 6], [4, 5, 6], [4, 5, 7]])
    counts, ranks = NgramCounts.count(corpus, 3, VOCABULARY), ranks_in_order(VOCABULARY)
    full, pruned = (as_dictionaries(Table.solve(counts, [1, 2], ranks, n), ranks) for n in (0, 1))
    assert full[0] == pruned[0]
    assert full[1][5, 4][0].keys() == {6, 7}
    assert pruned[1][5, 4][0].keys() == {6}


def test_the_start_of_a_document_keeps_raw_counts():
    """`4` begins three documents, `5` one; within documents `4` and `5` follow one token each."""
    corpus = corpus_of([[4, 6], [4, 6], [4, 5], [5, 4]])
    plain = reference.KneserNey(reference.rows(documents_of(corpus), [1, 2]), VOCABULARY)
    assert plain.adjusted[1][EOD,] == {4: 3, 5: 1}
    assert plain.adjusted[1][4,] == {6: 1, 5: 1, 3: 1}  # preceded by the start only, or by 5
    model = KneserNey(NgramCounts.count(corpus, 3, VOCABULARY))
    followers = as_dictionaries(model.table, model.ranks)[0][EOD,][0]
    assert followers == pytest.approx({4: (3 - 1.5) / 4, 5: (1 - 0.5) / 4})


def test_orders_follow_from_the_longest_counts():
    corpus = corpus_of([[4, 5, 6, 4, 5], [5, 6, 7]])
    counts = NgramCounts.count(corpus, 5, VOCABULARY)
    for order in range(1, 6):
        alone = KneserNey(NgramCounts.count(corpus, order, VOCABULARY)).log_probabilities(corpus)
        assert KneserNey(counts, order).log_probabilities(corpus).tolist() == alone.tolist()
    with pytest.raises(SaffuError, match="within 1 to 5"):
        KneserNey(counts, 6)


def test_chunks_and_threads_do_not_matter(monkeypatch):
    corpus = corpus_of(np.random.default_rng(0).integers(4, 30, size=(20, 50)).tolist())
    model = KneserNey(NgramCounts.count(corpus, 4, 30))
    expected = model.log_probabilities(corpus).tolist()
    for chunk, threads in ((1, 1), (7, 3), (1020, 2), (1 << 14, 4)):  # 1,020 targets in all
        monkeypatch.setattr(kneser_ney, "TARGETS_AT_ONCE", (chunk, chunk))
        monkeypatch.setattr(kneser_ney, "cores", lambda threads=threads: threads)
        assert model.log_probabilities(corpus).tolist() == expected
        again = KneserNey(NgramCounts.count(corpus, 4, 30))
        for a, b in zip(again.table.arrays().values(), model.table.arrays().values(), strict=True):
            assert a.tobytes() == b.tobytes()


def test_unigrams_of_nothing_but_discounts():
    shares = unigrams(np.array([1, 0, 0, 0, 0, 0, 0]), np.array([0, 0.5, 1, 1.5]))
    assert shares.tolist() == [0.625, 0.125, 0.125, 0.125, 0, 0, 0]


def test_without_text_there_is_no_table():
    with pytest.raises(SaffuError, match="no n-gram has been counted"):
        KneserNey(NgramCounts.count(corpus_of([]), 3, VOCABULARY))


def test_unseen_ids_are_rejected():
    model = KneserNey(NgramCounts.count(corpus_of(TOY), 2, 8))
    with pytest.raises(SaffuError, match="ids outside"):
        model.log_probabilities(corpus_of([[8]]))
    assert model.log_probabilities(corpus_of([])).shape == (0,)


def stored_counts(rows: dict, order: int) -> NgramCounts:
    """Counts as a folder may hold them: of rows of tokens, the nearest first and the target last."""
    drawn = sorted(rows)
    keys = [sum(token << 16 * place for place, token in enumerate(reversed(row[1:]))) for row in drawn]
    sizes = np.bincount([row[0] for row in drawn], minlength=VOCABULARY)
    arrays = {
        "shape": np.array([order, VOCABULARY]),
        "offsets": np.concatenate([[0], sizes.cumsum()]),
        "keys": np.array(keys, dtype=np.uint16 if order == 2 else np.uint64),
        "counts": np.array([rows[row] for row in drawn], dtype=np.uint32),
    }
    return NgramCounts.from_arrays(arrays, VOCABULARY)


def test_sums_of_counts_do_not_wrap():
    """Three rows of 2³¹ would add up to 2³¹ again, after they have come to zero: a follower twice."""
    rows = {(4, PAD, older, target): 1 << 31 for older in (4, 5, 6) for target in (EOD, 7)}
    with pytest.raises(SaffuError, match="more than four billion times"):
        Table.solve(stored_counts(rows, 4), (1, 2, 3), ranks_in_order(VOCABULARY))


@pytest.mark.parametrize("numbers", [np.zeros(3), np.full(VOCABULARY, VOCABULARY), np.zeros((VOCABULARY, 2))])
def test_kernels_look_up_tokens_in_numbers_for_all_of_them(numbers):
    counts = NgramCounts.count(corpus_of([[4, 5, 6]]), 3, VOCABULARY)
    with pytest.raises(ValueError, match="for as many tokens"):
        Table.solve(counts, (1, 2), numbers.astype(np.uint16))
    with pytest.raises(ValueError, match="for as many tokens"):
        counts.marginal([1], numbers.astype(np.uint16))


tokens = st.sampled_from([PAD, EOD, 4, 5, VOCABULARY - 1])
targets = st.sampled_from([EOD, 4, VOCABULARY - 1])
often = st.sampled_from([1, 2, 3, 1 << 31, (1 << 32) - 1])


@pytest.mark.parametrize("order", [2, 3, 4])
@given(data=st.data())
def test_whatever_counts_are_accepted_gives_tables_that_are_accepted(order, data):
    rows = data.draw(st.dictionaries(st.tuples(*[tokens] * (order - 1), targets), often, min_size=1))
    try:
        table = Table.solve(stored_counts(rows, order), range(1, order), ranks_in_order(VOCABULARY))
    except SaffuError:
        assert sum(rows.values()) >= 1 << 32
        return
    assert table.alone().value
    found = Table.from_arrays(table.arrays())
    assert all(np.array_equal(found.arrays()[name], array) for name, array in table.arrays().items())
