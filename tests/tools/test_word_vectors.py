"""Vectors of words of one or several tokens, and their neighbors."""

import numpy as np
import pytest

from saffu import SaffuError
from saffu.tools.word_vectors import to_word2vec


@pytest.mark.parametrize("kind", ["toy", "calibrated"])
def test_similar_words_are_neighbors(fitted, kind):
    vectors = fitted(kind).word_vectors_
    assert vectors.neighbors("dog", 1)[0][0] in {" cat", " girl", " king"}
    assert vectors.similarity("dog", "cat") > vectors.similarity("dog", "saw")
    assert vectors.similarity("dog", "dog") == pytest.approx(1, abs=1e-5)


def test_kinds(lm):
    vectors, sources = lm.word_vectors_, lm.model_.vectors()
    assert vectors.kinds == list(sources)
    assert vectors.kind == vectors.kinds[0]
    for kind in vectors.kinds:
        assert np.allclose(vectors.of(kind).vectors, sources[kind])
        assert vectors.of(kind).vectors.shape[0] == len(lm.tokenizer_)
    with pytest.raises(SaffuError, match=f"choose one of {vectors.kinds[0]}"):
        vectors.of("soul")


def test_words_of_several_tokens_are_their_mean(fitted):
    lm = fitted("toy")
    vectors = lm.word_vectors_
    ids = vectors.tokens("xylophone")
    assert len(ids) > 1
    assert np.allclose(vectors["xylophone"], vectors.vectors[ids].mean(0))
    assert vectors.tokens("dog") == lm.tokenizer_.encode(" dog")
    (dog,) = vectors.tokens("dog")
    assert np.array_equal(vectors["dog"], vectors.vectors[dog])
    with pytest.raises(SaffuError, match="empty"):
        vectors["  "]


def test_neighbors_by_plain_loops(lm):
    vectors = lm.word_vectors_
    f, rows = lm.frequencies_, vectors.vectors.astype(np.float64)
    rows = rows - (f / f.sum()) @ rows
    (dot,) = vectors.tokens(".")
    cosines = {
        token: float(rows[dot] @ rows[token] / np.linalg.norm(rows[dot]) / np.linalg.norm(rows[token]))
        for token in range(4, len(rows))
        if f[token] > 0 and token != dot
    }
    expected = sorted(cosines, key=lambda token: -cosines[token])[:5]
    found = vectors.neighbors(".", 5)
    assert [cosine for _, cosine in found] == pytest.approx([cosines[token] for token in expected], abs=1e-4)
    assert {token for token, _ in found} <= {lm.tokenizer_.token(token) for token in cosines}


def test_word2vec_has_one_line_per_word(fitted):
    vectors = fitted("toy").word_vectors_
    words = [("dog", vectors["dog"]), ("cat", vectors["cat"])]
    lines = to_word2vec(words).splitlines()
    assert lines[0] == f"2 {vectors.vectors.shape[1]}"
    assert np.allclose([float(cell) for cell in lines[2].split(" ")[1:]], vectors["cat"], atol=1e-5)
