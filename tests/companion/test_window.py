"""Windows that are read token by token, against the network's run over the whole window."""

import copy
import pickle

import numpy as np
import pytest
import torch

from saffu.companion.network import Network
from saffu.companion.rows import window_start
from saffu.companion.window import moved, read, window_of
from saffu.text.tokenizer import EOD

VOCABULARY, CONTEXT, LENGTH = 30, 16, 45
TOKENS = np.random.default_rng(0).integers(EOD, VOCABULARY, LENGTH).tolist()


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    made = Network(np.log(np.full(VOCABULARY, 1 / VOCABULARY)), 2, CONTEXT)
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return made.eval()


@torch.no_grad()
def expected(network: Network, tokens: list[int]) -> torch.Tensor:
    """h after a document, by a run over its whole window."""
    inputs = torch.tensor([[EOD, *tokens][window_start(len(tokens), CONTEXT) :]])
    return network.hidden(inputs, torch.zeros_like(inputs))[0, -1]


def test_a_document_read_token_by_token(network, monkeypatch):
    sizes = []
    extended = network.extended
    monkeypatch.setattr(network, "extended", lambda *given: sizes.append(given[0].shape[1]) or extended(*given))
    window = window_of([], CONTEXT)
    for age, token in enumerate([*TOKENS, EOD]):
        assert torch.allclose(read(network, [window])[0], expected(network, TOKENS[:age]), atol=1e-5)
        window = moved(window, age, token, CONTEXT)
        assert window == window_of([*TOKENS, EOD][: age + 1], CONTEXT)
    moves = [age for age in range(1, LENGTH + 1) if window_start(age, CONTEXT) > window_start(age - 1, CONTEXT)]
    assert moves == [16, 24, 32, 40]
    assert sizes == [CONTEXT // 2 + 1 if age in moves else 1 for age in range(LENGTH + 1)]


def test_windows_of_all_ages_are_read_together(network):
    chain = [window_of([], CONTEXT)]
    for age, token in enumerate(TOKENS):
        chain.append(moved(chain[-1], age, token, CONTEXT))
    read(network, [chain[5], chain[18]])  # of some, a part is known already
    other = moved(chain[20], 20, EOD, CONTEXT)
    found = read(network, [*chain, other, chain[0], window_of(TOKENS[:7], CONTEXT)])
    documents = [*(TOKENS[:age] for age in range(LENGTH + 1)), [*TOKENS[:20], EOD], [], TOKENS[:7]]
    for row, tokens in zip(found, documents, strict=True):
        assert torch.allclose(row, expected(network, tokens), atol=1e-5)


def test_another_network_reads_a_window_anew(network):
    begun = window_of(TOKENS[:6], CONTEXT)
    window = moved(moved(moved(begun, 6, TOKENS[6], CONTEXT), 7, TOKENS[7], CONTEXT), 8, TOKENS[8], CONTEXT)
    read(network, [window])
    changed = copy.deepcopy(network)
    with torch.no_grad():
        changed.attention.mul_(1.5)
    assert torch.allclose(read(changed, [begun])[0], expected(changed, TOKENS[:6]), atol=1e-5)
    longer = moved(window, 9, TOKENS[9], CONTEXT)  # of which each network has read a part
    assert torch.allclose(read(network, [longer])[0], expected(network, TOKENS[:10]), atol=1e-5)
    assert torch.allclose(read(changed, [longer])[0], expected(changed, TOKENS[:10]), atol=1e-5)


def test_windows_are_values(network):
    window, same = window_of(TOKENS[:20], CONTEXT), window_of(TOKENS[:20], CONTEXT)
    read(network, [window])
    assert window == same and hash(window) == hash(same)
    assert window != window_of([*TOKENS[:19], EOD], CONTEXT)
    stored = pickle.dumps(window)
    assert len(stored) < 2000 and pickle.loads(stored) == window  # tokens alone
