from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrated_data import documents_of
from conftest import corpus_of, each
from reference import calibrated as reference
from saffu.calibrated import storage
from saffu.calibrated.kernels import Buffer, library, pointer
from saffu.calibrated.ngrams import NgramCounts, checked_ids, count_rows, merge_rows, merged, regroup_rows
from saffu.calibrated.storage import even_cuts
from saffu.errors import SaffuError
from saffu.text.corpus import TokenCorpus

VOCABULARY = 9
lines = st.lists(st.integers(4, VOCABULARY - 1), max_size=7)
corpora = st.lists(st.lists(lines, min_size=1, max_size=3), max_size=5).map(corpus_of)
orders = st.integers(1, 6)


def digits(key, order: int) -> list[int]:
    """The tokens of a key, oldest context token … target: c2 … t."""
    words = [int(word) for word in np.atleast_1d(key)]
    number = sum(word << (64 * place) for place, word in enumerate(words))
    return [(number >> (16 * place)) & 0xFFFF for place in reversed(range(max(1, order - 1)))]


def as_rows(counts: NgramCounts) -> Counter:
    """Counts as a dictionary of rows, after checking that they are stored sorted, once each, and positive."""
    rows = []
    for bucket in range(counts.vocabulary):
        for place in range(counts.offsets[bucket], counts.offsets[bucket + 1]):
            nearest = [bucket] if counts.order > 1 else []
            rows.append((*nearest, *digits(counts.keys[place], counts.order)))
    assert rows == sorted(set(rows))
    assert counts.rows().tolist() == [list(row) for row in rows]
    assert counts.counts.dtype == np.uint32
    assert (counts.counts > 0).all()
    return Counter(dict(zip(rows, counts.counts.tolist(), strict=True)))


def same(a: NgramCounts, b: NgramCounts) -> bool:
    pairs = [(x, y) for x, y in zip(a.arrays().values(), b.arrays().values(), strict=True)]
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


def test_rows_of_the_docstring():
    counts = NgramCounts.count(corpus_of([[7, 8]]), 3, VOCABULARY)
    assert as_rows(counts) == {(3, 0, 7): 1, (7, 3, 8): 1, (8, 7, 3): 1}


@given(corpora, orders)
def test_counts_agree_with_the_reference(corpus, order):
    counts = NgramCounts.count(corpus, order, VOCABULARY)
    assert as_rows(counts) == reference.rows(documents_of(corpus), range(1, order))
    assert counts.distinct == len(counts.counts)
    if counts.distinct:
        assert counts.frequencies().tolist() == corpus.frequencies(VOCABULARY).tolist()


@pytest.mark.parametrize("order", [1, 3])
def test_frequencies_of_nothing(order):
    assert NgramCounts.count(corpus_of([]), order, VOCABULARY).frequencies().tolist() == [0] * VOCABULARY


@given(corpora, st.lists(st.integers(1, 9), max_size=5, unique=True))
def test_contexts_at_other_distances(corpus, distances):
    counts = NgramCounts.count(corpus, len(distances) + 1, VOCABULARY, distances)
    assert as_rows(counts) == reference.rows(documents_of(corpus), distances)


@pytest.mark.parametrize("order", [7, 8, 9])
def test_long_rows_keep_every_token(order):
    tokens = [4 + (i * i) % 5 for i in range(60)]
    corpus = corpus_of([tokens, tokens[7:40]])
    assert as_rows(NgramCounts.count(corpus, order, VOCABULARY)) == reference.rows(
        documents_of(corpus), range(1, order)
    )


def test_large_ids_and_large_buckets_sort():
    """Buckets of more than 512 rows are sorted by radix; ids use all 16 bits."""
    ids = np.random.default_rng(0).choice([4, 5, 255, 256, 257, 4096, 65534, 65535], size=(3, 1500))
    corpus = corpus_of([[*row] for row in ids.tolist()])
    for order in (2, 4, 6):
        assert as_rows(NgramCounts.count(corpus, order, 1 << 16)) == reference.rows(
            documents_of(corpus), range(1, order)
        )


@given(corpora, corpora, corpora, orders)
def test_sums_add_and_subtract_exactly(first, second, third, order):
    a, b, c = (NgramCounts.count(corpus, order, VOCABULARY) for corpus in (first, second, third))
    assert as_rows(a + b) == as_rows(a) + as_rows(b)
    assert same((a + b) + c, a + (b + c))
    assert same(a + b, b + a)
    assert same(a + b - b, a)
    assert same(a + c - a, c)
    assert (a - a).distinct == 0


@given(corpora, corpora, orders)
def test_counts_never_fall_below_zero(first, second, order):
    a, b = (NgramCounts.count(corpus, order, VOCABULARY) for corpus in (first, second))
    if as_rows(b) <= as_rows(a):
        assert as_rows(a - b) == as_rows(a) - as_rows(b)
    else:
        with pytest.raises(SaffuError, match="below zero"):
            a - b


def test_counts_that_do_not_fit_are_errors():
    """At 2³² occurrences, whether n-grams are added up by merging, by dropping columns, or by token."""
    offsets = np.array([0, 0, 0, 0, 0, 2, 2, 2, 2, 2])
    keys = np.array([5 << 16 | 7, 6 << 16 | 7], dtype=np.uint64)  # 4 5 7 and 4 6 7

    def trigrams(first: int, second: int) -> NgramCounts:
        return NgramCounts(3, 0, offsets, keys, np.array([first, second], dtype=np.uint32))

    half, most = 1 << 31, (1 << 32) - 1
    assert as_rows(trigrams(half, 1) + trigrams(half - 1, 1)) == {(4, 5, 7): most, (4, 6, 7): 2}
    assert as_rows(trigrams(half, half - 1).marginal([1])) == {(4, 7): most}
    assert as_rows(trigrams(half, half - 1).lower_order(1)) == {(7,): most}
    for overflow in (
        lambda: trigrams(half, 1) + trigrams(half, 1),
        lambda: trigrams(half, half).marginal([1]),
        lambda: trigrams(half, half).lower_order(1),
    ):
        with pytest.raises(SaffuError, match="more than four billion times"):
            overflow()


def test_counts_of_different_shape_do_not_mix():
    corpus = corpus_of([[4, 5]])
    with pytest.raises(SaffuError, match="do not mix"):
        NgramCounts.count(corpus, 2, 9) + NgramCounts.count(corpus, 3, 9)
    with pytest.raises(SaffuError, match="do not mix"):
        NgramCounts.count(corpus, 2, 9) - NgramCounts.count(corpus, 2, 10)


@given(corpora, orders, st.data())
def test_marginals_agree_with_the_reference(corpus, order, data):
    counts = NgramCounts.count(corpus, order, VOCABULARY)
    columns = data.draw(st.lists(st.integers(1, order - 1), unique=True)) if order > 1 else []
    classes = data.draw(st.none() | st.lists(st.integers(0, VOCABULARY - 1), min_size=9, max_size=9))
    exact = data.draw(st.integers(0, 2))
    if columns or counts.distinct:
        found = counts.marginal(columns, None if classes is None else np.array(classes), exact)
        assert as_rows(found) == reference.marginal(as_rows(counts), columns, classes, exact)


@given(corpora, orders, orders)
def test_lower_orders_are_counts_of_shorter_rows(corpus, order, lower):
    counts = NgramCounts.count(corpus, order, VOCABULARY)
    if lower > order:
        with pytest.raises(SaffuError, match=f"within 1 to {order}"):
            counts.lower_order(lower)
    elif lower > 1 or counts.distinct:
        assert same(counts.lower_order(lower), NgramCounts.count(corpus, lower, VOCABULARY))


@given(corpora.filter(lambda corpus: corpus.targets > 0), orders, st.data())
def test_ranges_add_up_to_the_whole(corpus, order, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, corpus.targets), max_size=4)))
    bounds = np.array([0, *cuts, corpus.targets])
    ranges = np.stack([bounds[:-1], bounds[1:]], axis=1)
    whole = NgramCounts.count(corpus, order, VOCABULARY)
    odd, even = (NgramCounts.count(corpus, order, VOCABULARY, ranges=ranges[part::2]) for part in (1, 0))
    assert same(odd + even, whole)
    assert same(whole - odd, even)


def test_contexts_reach_before_a_range():
    corpus = corpus_of([[4, 5, 6, 7], [8]])
    counts = NgramCounts.count(corpus, 3, VOCABULARY, ranges=np.array([[2, 3], [5, 6]]))
    assert as_rows(counts) == {(5, 4, 6): 1, (3, 0, 8): 1}
    assert NgramCounts.count(corpus, 3, VOCABULARY, ranges=np.zeros((0, 2), dtype=int)).distinct == 0


@given(corpora, orders)
def test_arrays_round_trip(corpus, order):
    counts = NgramCounts.count(corpus, order, VOCABULARY)
    assert same(NgramCounts.from_arrays(counts.arrays(), VOCABULARY), counts)


def test_counts_are_stored_in_the_smallest_type():
    for repeats, dtype in ((250, np.uint8), (300, np.uint16), (70000, np.uint32)):
        counts = NgramCounts.count(corpus_of([[4] * repeats]), 1, VOCABULARY)
        assert counts.arrays()["counts"].dtype == dtype
        assert NgramCounts.from_arrays(counts.arrays(), VOCABULARY).counts.tolist() == [1, repeats]


def damaged(counts: NgramCounts):
    """Arrays that no counts can have."""
    arrays = counts.arrays()
    for name in arrays:
        yield f"no {name}", {key: array for key, array in arrays.items() if key != name}
    for shape in ([0, 9], [10, 9], [3, 3], [3, 1 << 17], [3], [3, 9, 1], [2, 9], [6, 9], [-3, 9], [3, -9]):
        yield f"shape {shape}", arrays | {"shape": np.array(shape)}
    for name in ("offsets", "keys", "counts"):
        yield f"{name} too short", arrays | {name: arrays[name][:-1]}
        yield f"{name} too long", arrays | {name: np.concatenate([arrays[name], arrays[name][-1:]])}
        yield f"{name} of floats", arrays | {name: arrays[name].astype(np.float32)}
        yield f"{name} of another width", arrays | {name: arrays[name].astype(np.int16)}
        yield f"{name} of two columns", arrays | {name: np.stack([arrays[name]] * 2, axis=1)}
        yield f"no {name} at all", arrays | {name: np.zeros(())}
    falling = arrays["offsets"].copy()
    falling[5] = falling[-1] + 1
    yield "offsets beyond the rows", arrays | {"offsets": falling}
    yield "offsets below zero", arrays | {"offsets": arrays["offsets"] - 1}
    overflowing = arrays["offsets"].copy()
    overflowing[1:3] = [2**63 - 1, -2]  # differences that wrap around to positive numbers
    yield "offsets that overflow", arrays | {"offsets": overflowing}
    yield "an infinite shape", arrays | {"shape": np.array([np.inf, 9])}
    zero, target, older = (arrays[name].copy() for name in ("counts", "keys", "keys"))
    zero[0], target[0], older[0] = 0, 60_000, (60_000 << 16) | 4
    yield "a count of zero", arrays | {"counts": zero}
    yield "a target beyond the vocabulary", arrays | {"keys": target}
    yield "an older token beyond the vocabulary", arrays | {"keys": older}
    yield "rows out of order", arrays | {"keys": arrays["keys"][[1, 0, *range(2, len(zero))]]}
    yield "a row twice", arrays | {"keys": arrays["keys"][[0, 0, *range(2, len(zero))]]}


DAMAGED = dict(damaged(NgramCounts.count(corpus_of([[4, 5, 6], [5, 6, 7]]), 3, VOCABULARY)))


@each("name", DAMAGED)
def test_damaged_arrays_are_rejected(name):
    arrays = DAMAGED[name]
    with pytest.raises(SaffuError, match="damaged"):
        NgramCounts.from_arrays(arrays, VOCABULARY)


@each("threads", ["1", "2", "7"])
@each("parts", [1, 3, 50])
def test_parts_and_threads_do_not_matter(monkeypatch, threads, parts):
    corpus = corpus_of(np.random.default_rng(1).integers(4, 60, size=(30, 40)).tolist())
    classes = np.arange(60) // 7
    expected = NgramCounts.count(corpus, 4, 60)
    expected_classes = expected.marginal([2, 3], classes)
    monkeypatch.setenv("SAFFU_THREADS", threads)
    monkeypatch.setattr(storage, "PARTS", parts)
    counts = NgramCounts.count(corpus, 4, 60)
    assert same(counts, expected)
    assert same(counts.marginal([2, 3], classes), expected_classes)


def test_what_cannot_be_counted_is_rejected():
    corpus = corpus_of([[4, 5]])
    for order, vocabulary in ((0, 9), (10, 9), (-1, 9), (1 << 40, 9), (3, 3), (3, (1 << 16) + 1)):
        with pytest.raises(SaffuError, match="cannot be counted"):
            NgramCounts.count(corpus, order, vocabulary)
    for bad in ([4, 9], [2, 4], [0], [70_000], [-1], [(1 << 16) + 4]):
        with pytest.raises(SaffuError, match="ids outside 3 to 8"):
            NgramCounts.count(corpus_of([bad], dtype=np.int64), 3, VOCABULARY)


def test_ids_of_any_integer_type_and_layout():
    expected = NgramCounts.count(corpus_of([[4, 5, 6, 7]]), 3, VOCABULARY)
    for dtype in (np.int32, np.int64, np.uint16):
        corpus = corpus_of([[4, 5, 6, 7]], dtype=dtype)
        strided = TokenCorpus(np.repeat(corpus.ids, 2)[::2], corpus.starts, corpus.sizes)
        assert same(NgramCounts.count(strided, 3, VOCABULARY), expected)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 60))
def test_cuts_cover_everything_once(weights, parts):
    cuts = even_cuts(np.array(weights) + 1, parts)
    assert cuts[0] == 0
    assert cuts[-1] == len(weights)
    assert cuts == sorted(set(cuts))
    assert len(cuts) <= parts + 1


def test_kernels_without_memory_raise():
    """More buckets than any machine can hold."""
    corpus, keys, counts = corpus_of([[4, 5]]), Buffer(), Buffer()
    ids, starts = checked_ids(corpus, VOCABULARY), np.array([0, 3])
    arguments = [pointer(ids, np.uint16), pointer(starts, np.int64), 1, pointer(starts, np.int64), 1]
    with pytest.raises(MemoryError):
        library.saffu_count_rows(*arguments, None, 1, 2, 0, 1 << 60, None, keys, counts)
    assert NgramCounts.count(corpus, 2, VOCABULARY).distinct == 3


@given(corpora, corpora, st.integers(2, 6), st.data())
def test_ranges_of_buckets_join_to_the_whole(first, second, order, data):
    """Counted, regrouped, merged, and subtracted range by range, whatever the ranges."""
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, VOCABULARY - 1)))), VOCABULARY]
    ranges = list(pairwise(cuts))
    wholes = [NgramCounts.count(corpus, order, VOCABULARY) for corpus in (first, second)]
    parts = [[count_rows(c, order, VOCABULARY, r) for r in ranges] for c in (first, second)]
    for whole, pieces in zip(wholes, parts, strict=True):
        assert same(NgramCounts.joined(order, VOCABULARY, pieces), whole)
        assert sum(piece.target_counts(VOCABULARY) for piece in pieces).tolist() == whole.frequencies().tolist()
    sums = [merge_rows(runs) for runs in zip(*parts, parts[0], strict=True)]
    assert same(NgramCounts.joined(order, VOCABULARY, sums), wholes[0] + wholes[1] + wholes[0])
    left = [merged(total, piece, -1) for total, piece in zip(sums, parts[1], strict=True)]
    assert same(NgramCounts.joined(order, VOCABULARY, left), wholes[0] + wholes[0])
    columns = data.draw(st.lists(st.integers(1, order - 1), unique=True, min_size=1))
    classes = np.arange(VOCABULARY) // 2
    views = [merge_rows([regroup_rows(piece, columns, r, classes) for piece in parts[0]]) for r in ranges]
    assert same(NgramCounts.joined(len(columns) + 1, VOCABULARY, views), wholes[0].marginal(columns, classes))


def test_keys_of_two_words_may_lie_anywhere_in_a_file():
    counts = NgramCounts.count(corpus_of([[[4, 5, 6, 7, 8, 4, 5, 6]]]), 6, VOCABULARY)
    arrays = counts.arrays()
    size = arrays["keys"].nbytes
    memory = np.zeros(size + 32, dtype=np.uint8)
    begin = (8 - memory.ctypes.data) % 16  # in the middle of 16 bytes
    keys = memory[begin : begin + size].view(np.uint64).reshape(arrays["keys"].shape)
    keys[:] = arrays["keys"]
    found = NgramCounts.from_arrays(arrays | {"keys": keys}, VOCABULARY)
    assert as_rows(found + counts) == as_rows(counts + counts)
