from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import corpus_of
from saffu.calibrated import classes as word_classes
from saffu.calibrated.classes import Neighbors, context_classes, output_classes, token_classes, token_vectors
from saffu.calibrated.ngrams import NgramCounts
from saffu.errors import SaffuError
from saffu.text.tokenizer import EOD

VOCABULARY = 40
seeds = st.integers(0, 2**32 - 1)


def memory(seed: int, order: int = 3, vocabulary: int = VOCABULARY) -> NgramCounts:
    """Counts of documents in which a few groups of tokens take turns."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 4, size=vocabulary)
    documents = []
    for _ in range(40):
        turns = (rng.integers(4) + np.arange(12)) % 4
        documents.append(
            [int(rng.choice(np.flatnonzero(groups[4:] == g) + 4)) for g in turns if (groups[4:] == g).any()]
        )
    return NgramCounts.count(corpus_of(documents), order, vocabulary)


def pairs_of(company: Neighbors) -> Counter:
    tokens = np.repeat(np.arange(len(company.begin) - 1), np.diff(company.begin))
    return Counter(
        dict(zip(zip(tokens.tolist(), company.neighbor.tolist(), strict=True), company.count.tolist(), strict=True))
    )


def objective(company: Neighbors, classes, first: int) -> float:
    """Σ n(class, neighbor) ln n(class, neighbor) − Σ n(class) ln n(class): the log-likelihood of neighbors."""
    joint, total = Counter(), Counter()
    for (token, neighbor), count in pairs_of(company).items():
        if token >= first:
            joint[classes[token], neighbor] += count
            total[classes[token]] += count
    return math.fsum(n * math.log(n) for n in joint.values()) - math.fsum(n * math.log(n) for n in total.values())


def test_company_before_is_company_after_turned_around():
    counts = NgramCounts.count(corpus_of([[4, 5, 5], [5, 4]]), 3, 8)
    after, before = pairs_of(Neighbors.after(counts.marginal([1]))), pairs_of(Neighbors.before(counts.marginal([1])))
    assert {(b, a): n for (a, b), n in after.items()} == before
    assert before[5, 4] == 1
    assert before[5, 5] == 1
    assert before[4, 5] == 1


@settings(deadline=None, max_examples=25)
@given(seeds, st.integers(1, 12), st.booleans())
def test_exchange_never_lowers_its_objective(seed, number, after):
    counts = memory(seed)
    company = Neighbors.after(counts.marginal([1])) if after else Neighbors.before(counts.marginal([1]))
    rng = np.random.default_rng(seed + 1)
    start = rng.integers(0, number, size=VOCABULARY).astype(np.uint16)
    candidates = np.tile(np.arange(number, dtype=np.uint16), (VOCABULARY, 1))
    improved = company.exchange(start, candidates, first=EOD)
    assert improved[:EOD].tolist() == start[:EOD].tolist()
    assert objective(company, improved, EOD) >= objective(company, start, EOD) - 1e-9
    if number > 3:
        assert objective(company, improved, EOD) > objective(company, start, EOD)


def test_exchange_ends_where_no_move_gains(monkeypatch):
    monkeypatch.setattr(word_classes, "SWEEPS", 100)
    company = Neighbors.after(memory(5).marginal([1]))
    candidates = np.tile(np.arange(5, dtype=np.uint16), (VOCABULARY, 1))
    found = company.exchange(np.arange(VOCABULARY, dtype=np.uint16) % 5, candidates, first=EOD)
    best = objective(company, found, EOD)
    for token in range(EOD, VOCABULARY):
        for other in range(5):
            moved = found.copy()
            moved[token] = other
            assert objective(company, moved, EOD) <= best + 1e-6


def test_exchange_of_counts_beyond_31_bits():
    """What follows 4 to 7 is 8 or 9, so that the classes {4, 6} and {5, 7} are best, however large the counts."""
    begin, neighbors = np.array([0, 0, 0, 0, 0, 1, 2, 3, 4, 4, 4]), np.array([8, 9, 8, 9], dtype=np.uint16)
    mixed, candidates = np.array([0, 0, 0, 0, 0, 0, 0, 1, 0, 0], np.uint16), np.tile(np.uint16([0, 1]), (10, 1))
    counts = np.array([5, 3, 4, 2], dtype=np.uint32)
    for scale in (1, 3 << 27):
        found = Neighbors(begin, neighbors, counts * np.uint32(scale)).exchange(mixed, candidates, first=4)
        assert found[4] == found[6] != found[5] == found[7], scale
    with pytest.raises(SaffuError, match="more than four billion times"):
        Neighbors(begin, neighbors, counts * np.uint32(1 << 29)).exchange(mixed, candidates, first=4)


def test_tokens_move_to_candidates_only():
    company = Neighbors.after(memory(6).marginal([1]))
    start = np.zeros(VOCABULARY, dtype=np.uint16)
    candidates = np.tile(np.array([[0, 3]], dtype=np.uint16), (VOCABULARY, 1))
    assert set(company.exchange(start, candidates, first=EOD).tolist()) <= {0, 3}


def test_vectors_are_unit_vectors_and_always_the_same():
    counts = memory(7)
    vectors = token_vectors(counts)
    occur = counts.frequencies() > 0
    assert vectors.shape == (VOCABULARY, min(VOCABULARY, word_classes.DIMENSIONS))
    assert np.linalg.norm(vectors[occur], axis=1) == pytest.approx(1, abs=1e-5)
    assert token_vectors(counts).tobytes() == vectors.tobytes()
    assert token_vectors(counts, 5).shape == (VOCABULARY, 5)


VECTORS = """
import sys
from test_classes import memory
from saffu.calibrated.classes import token_vectors
sys.stdout.buffer.write(token_vectors(memory(8, vocabulary=300)).tobytes())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("processor", "threads"), [("Prescott", 1), ("Nehalem", 2)])
def test_vectors_do_not_depend_on_the_processor(processor, threads):
    """OpenBLAS is told which instructions to use, for as many threads; other libraries do not know these variables."""
    places = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": places, "OPENBLAS_CORETYPE": processor, "OMP_NUM_THREADS": str(threads)}
    made = subprocess.run([sys.executable, "-c", VECTORS], env=environment, stdout=subprocess.PIPE, check=True)
    assert made.stdout == token_vectors(memory(8, vocabulary=300)).tobytes()


@given(seeds, st.integers(1, 300))
def test_products_do_not_depend_on_the_order_of_sums(seed, inner):
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((3, inner)) * 10.0 ** rng.integers(-9, 9), rng.standard_normal((inner, 2))
    shuffled = rng.permutation(inner)
    result = word_classes.product(left, right)
    assert word_classes.product(left[:, shuffled], right[shuffled]).tobytes() == result.tobytes()
    lengths = np.linalg.norm(left, axis=1)[:, None] * np.linalg.norm(right, axis=0)
    assert result == pytest.approx(left @ right, abs=1e-5 * lengths.max())


@given(seeds, st.integers(1, 30), st.integers(0, 3))
def test_factors_multiply_to_the_matrix(seed, size, repeated):
    """Also where columns repeat others: the inverse has none for them."""
    columns = np.random.default_rng(seed).standard_normal((50, size))
    columns = np.hstack([columns, columns[:, :repeated]])
    gram = columns.T @ columns
    upper, inverse = word_classes.factors(gram)
    assert (upper == np.triu(upper)).all()
    assert upper.T @ upper == pytest.approx(gram, abs=1e-6 * np.diag(gram).max())
    once = [number for number in range(len(gram)) if upper[number, number]]
    assert len(once) == size
    assert (upper @ inverse)[np.ix_(once, once)] == pytest.approx(np.eye(len(once)), abs=1e-4)


def test_tokens_with_the_same_company_have_the_same_vector():
    documents = [[4, x, 6] for x in (10, 11)] + [[7, y, 8] for y in (12, 13)]
    vectors = token_vectors(NgramCounts.count(corpus_of(documents), 3, 14))
    near = vectors @ vectors.T
    assert near[10, 11] == pytest.approx(1, abs=1e-4)
    assert near[12, 13] == pytest.approx(1, abs=1e-4)
    assert near[10, 12] < 0.6


def test_clusters_are_found():
    rng = np.random.default_rng(0)
    centers = np.eye(6)[:3]
    labels = np.arange(60) % 3
    vectors = centers[labels] + rng.normal(scale=0.1, size=(60, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    classes, candidates = token_classes(vectors.astype(np.float32), np.arange(60, 0, -1), 3)
    assert classes.tolist() == labels.tolist()
    assert candidates.shape == (60, 3)
    assert (candidates[:, 0] == classes).all()


@settings(deadline=None, max_examples=10)
@given(seeds, st.sampled_from([1, 2, 7, 39, 40, 100]))
def test_classes_fit_the_vocabulary(seed, number):
    counts = memory(seed)
    vectors, frequencies = token_vectors(counts), counts.frequencies()
    outputs = output_classes(vectors, frequencies, number, Neighbors.before(counts.marginal([1])))
    assert outputs.dtype == np.uint16
    assert set(outputs[EOD:].tolist()) == set(range(outputs.max() + 1))
    assert outputs.max() < min(number, VOCABULARY)
    contexts = context_classes(vectors, frequencies, number, Neighbors.after(counts.marginal([1])))
    assert contexts[: EOD + 1].tolist() == [0, 1, 2, 3]
    assert contexts[EOD + 1 :].min() > EOD
    assert contexts.max() < EOD + 1 + number


def test_as_many_classes_as_tokens():
    counts = memory(0)
    after = Neighbors.after(counts.marginal([1]))
    contexts = context_classes(token_vectors(counts), counts.frequencies(), VOCABULARY, after)
    assert contexts.max() < VOCABULARY
