"""Windows that are read token by token, against the plain definition of two networks over the whole window."""

import pickle

import numpy as np
import pytest

from network_data import CLASS_OF, VOCABULARY, random_weights
from reference import companion as reference
from saffu.calibrated.kneser_ney import Ranks
from saffu.companion.kernels import NativeNetwork
from saffu.companion.networks import Networks
from saffu.companion.rows import window_start
from saffu.companion.weights import stored
from saffu.companion.window import Memory, moved, read, window_of
from saffu.text.tokenizer import EOD

CONTEXT, LENGTH = 16, 45
TOKENS = np.random.default_rng(0).integers(EOD, VOCABULARY, LENGTH).tolist()


def made(seed: int) -> Networks:
    both = [random_weights(True, seed + k, context=CONTEXT) for k in range(2)]
    return Networks(stored(both), CONTEXT, Ranks(CLASS_OF.astype(np.uint16)))


@pytest.fixture(scope="module")
def networks() -> Networks:
    return made(0)


def assert_read(networks: Networks, memory: Memory, tokens: list[int]) -> None:
    """Compare what is known after a document with a run over its whole window."""
    window = [EOD, *tokens][window_start(len(tokens), CONTEXT) :]
    for weights, state, logit in zip(networks.weights, memory.states, memory.logits, strict=True):
        expected = reference.hidden(weights, window)[-1]
        np.testing.assert_allclose(state, expected, rtol=1e-5, atol=2e-5)
        assert logit == pytest.approx(weights.gate_weight[: weights.width] @ expected, abs=1e-4)


def test_a_document_read_token_by_token(networks, monkeypatch):
    sizes = []
    plain, step = NativeNetwork.read, NativeNetwork.step
    monkeypatch.setattr(NativeNetwork, "read", lambda *given: sizes.append(len(given[1]) - given[2]) or plain(*given))
    monkeypatch.setattr(NativeNetwork, "step", lambda *given: sizes.append(1) or step(*given))
    window = window_of([], CONTEXT)
    for age, token in enumerate([*TOKENS, EOD]):
        assert_read(networks, read(networks, [window])[0], TOKENS[:age])
        window = moved(window, age, token, CONTEXT)
        assert window == window_of([*TOKENS, EOD][: age + 1], CONTEXT)
    moves = [age for age in range(1, LENGTH + 1) if window_start(age, CONTEXT) > window_start(age - 1, CONTEXT)]
    assert moves == [16, 24, 32, 40]
    assert sizes[::2] == [CONTEXT // 2 + 1 if age in moves else 1 for age in range(LENGTH + 1)]


def test_windows_of_all_ages_are_read_together(networks):
    chain = [window_of([], CONTEXT)]
    for age, token in enumerate(TOKENS):
        chain.append(moved(chain[-1], age, token, CONTEXT))
    read(networks, [chain[5], chain[18]])  # of some, a part is known already
    other = moved(chain[20], 20, EOD, CONTEXT)
    states = read(networks, [*chain, other, chain[0], window_of(TOKENS[:7], CONTEXT)])
    documents = [*(TOKENS[:age] for age in range(LENGTH + 1)), [*TOKENS[:20], EOD], [], TOKENS[:7]]
    for state, tokens in zip(states, documents, strict=True):
        assert_read(networks, state, tokens)


def test_other_networks_read_a_window_anew(networks):
    begun = window_of(TOKENS[:6], CONTEXT)
    window = moved(moved(moved(begun, 6, TOKENS[6], CONTEXT), 7, TOKENS[7], CONTEXT), 8, TOKENS[8], CONTEXT)
    read(networks, [window])
    changed = made(5)
    assert_read(changed, read(changed, [begun])[0], TOKENS[:6])
    longer = moved(window, 9, TOKENS[9], CONTEXT)  # of which each has read a part
    assert_read(networks, read(networks, [longer])[0], TOKENS[:10])
    assert_read(changed, read(changed, [longer])[0], TOKENS[:10])


def test_windows_are_values(networks):
    window, same = window_of(TOKENS[:20], CONTEXT), window_of(TOKENS[:20], CONTEXT)
    read(networks, [window])
    assert window == same and hash(window) == hash(same)
    assert window != window_of([*TOKENS[:19], EOD], CONTEXT)
    kept = pickle.dumps(window)
    assert len(kept) < 2000 and pickle.loads(kept) == window  # tokens alone
