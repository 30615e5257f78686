import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import each
from reference import paper as reference
from saffu.errors import SaffuError
from saffu.paper.cipher import bit_cipher, bit_vectors, coerced_embeddings, noised_embeddings


def words(tokens: int, bits: int) -> list[str]:
    return ["".join(map(str, row)) for row in bit_cipher(tokens, bits).tolist()]


def test_cipher_of_four_bits():
    expected = "1000 0100 0010 0001 0011 0101 1001 0110 1010 1100 1101 1011 0111 1110 1111"
    assert words(15, 4) == expected.split()


@each("tokens, bits", [(1, 1), (1, 5), (3, 2), (3, 7), (7, 7), (8, 7), (40, 6), (63, 6), (127, 7), (200, 20)])
def test_cipher_is_the_papers_procedure(tokens, bits):
    # A prefix of the full list; only the first two norms are needed where 20 bits would give a million.
    full = reference.bit_cipher(tokens, bits) if bits < 8 else two_norms(tokens, bits)
    assert [tuple(row) for row in bit_cipher(tokens, bits).tolist()] == full


def two_norms(tokens: int, bits: int) -> list[tuple[int, ...]]:
    pairs = [{i, j} for i in reversed(range(bits)) for j in reversed(range(bits)) if j < i]
    sets = [{i} for i in range(bits)] + pairs
    return [tuple(int(i in members) for i in range(bits)) for members in sets[:tokens]]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_cipher_rows_are_unique_and_norms_never_decrease(data):
    bits = data.draw(st.integers(1, 12))
    tokens = data.draw(st.integers(1, 2**bits - 1))
    cipher = bit_cipher(tokens, bits)
    norms = cipher.long().sum(1)
    assert cipher.shape == (tokens, bits)
    assert len({tuple(row) for row in cipher.tolist()}) == tokens
    assert norms[0] == 1
    assert (norms.diff() >= 0).all()


@each("tokens, bits, needed", [(16, 4, 5), (8, 3, 4), (2848, 11, 12), (4, 1, 3)])
def test_too_many_tokens_name_the_dimension_they_need(tokens, bits, needed):
    with pytest.raises(SaffuError, match=rf"`size` to at least {needed}$"):
        bit_cipher(tokens, bits, "size")
    assert len(bit_cipher(tokens, needed)) == tokens


def test_most_frequent_token_gets_the_first_row_and_ties_go_by_id():
    frequencies = torch.tensor([2, 7, 0, 7, 2])
    assigned = bit_vectors(frequencies, 3)
    assert assigned.tolist() == [[0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1]]
    assert assigned.tolist() == reference.bit_vectors(frequencies.tolist(), 3).tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=4, max_size=12).filter(any), st.integers(4, 6))
def test_noised_embeddings(counts, bits):
    cipher = bit_vectors(torch.tensor(counts), bits)
    embeddings = noised_embeddings(cipher, torch.tensor(counts))
    np.testing.assert_allclose(embeddings, reference.noised_embeddings(cipher.double().numpy(), counts), rtol=1e-12)
    np.testing.assert_allclose(embeddings.sum(1), 1, rtol=1e-12)
    assert (embeddings > 0).all()


def test_tokens_that_are_never_targets_are_all_noise():
    f = torch.tensor([0, 0, 0, 9, 4, 0])
    embeddings = noised_embeddings(bit_vectors(f, 4), f)
    noise = embeddings[0]
    assert torch.equal(embeddings[[1, 2, 5]], noise.expand(3, 4))
    average = (9 * torch.tensor([1.0, 0, 0, 0]) + 4 * torch.tensor([0, 1.0, 0, 0])) / 13
    np.testing.assert_allclose(noise, (1 - average) / 3, rtol=1e-6)


def test_any_vectors_can_be_coerced():
    vectors = torch.tensor([[0.0, 0.0, 0.0], [-3.0, 1.5, 2.0], [-900.0, 1.5, 900.0]], dtype=torch.float32)
    embeddings = coerced_embeddings(vectors)
    expected = [reference.softmax(row) for row in vectors.tolist()]
    np.testing.assert_allclose(embeddings[:2], expected[:2], rtol=1e-12)
    np.testing.assert_allclose(embeddings[2], expected[2], atol=1e-11)  # raised where it would be zero
    np.testing.assert_allclose(embeddings.sum(1), 1, rtol=1e-12)
    assert torch.isfinite(embeddings.float().log()).all()
