import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import SMALL
from saffu import SaffuError, SaffuLM, alone
from saffu.alone import Decoder
from saffu.generate import Alone, Sampling, draw
from saffu.tokenizer import EOD


def test_generation_stops_at_the_end_and_repeats_with_a_seed(small_lm):
    text = small_lm.generate("the small", seed=5)
    assert text == small_lm.generate("the small", seed=5)
    assert "<" not in text
    assert "".join(small_lm.stream("the small", seed=5)) == text
    assert len({small_lm.generate(seed=seed) for seed in range(8)}) > 4
    assert len(small_lm.tokenizer_.encode(small_lm.generate(max_tokens=3, seed=1))) <= 3


def test_batches_write_what_single_prompts_would(small_lm):
    prompts = ["the", "a small dog", "", "the king found the house and went"]
    greedy = [small_lm.generate(prompt, temperature=0) for prompt in prompts]
    assert small_lm.generate_batch(prompts, temperature=0) == greedy
    assert small_lm.generate_batch([]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"documents": 3},
        {"head": "first"},
        {"block_mode": "cat", "radius_mode": "sum"},
        {"block": 0},
        {"radius": 0},
        {"hidden_dimension": 0},
        {"calibrate": True},
    ],
    ids=str,
)
def test_writing_agrees_with_evaluation(train_text, change):
    """The distribution that sampling sees is the one that scoring sees, token by token across blocks."""
    config = replace(SMALL, **{"block": 4, **change})
    lm = SaffuLM(config).fit(train_text[:100])
    corpus = lm.tokenize([train_text[0]])
    (targets,) = corpus.batches(1000, lm.network_.lookback)
    expected = torch.log_softmax(lm.network_(targets), dim=1)
    ids = lm.tokenizer_.encode(train_text[0])
    with torch.inference_mode():
        documents = Alone(lm.network_, []), Alone(lm.network_, ids[:5])  # one grows from nothing, one from a prompt
        for place, token in enumerate([*ids, EOD]):
            for document in documents if place >= 5 else documents[:1]:
                written = torch.log_softmax(document.logits(), dim=1)[0]
                assert torch.allclose(written, expected[place], atol=2e-4), place
                document.add(torch.tensor([token]))


@pytest.mark.parametrize("large", [0.0, 0.01, 0.1, 0.3])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.8])
def test_draws_that_read_little_are_exact(large, temperature, monkeypatch):
    """Whatever is called large, tokens come as often as softmax(h·M/temperature) says, or not at all."""
    monkeypatch.setattr(alone, "LARGE", large)
    monkeypatch.setattr(alone, "TRIES", 1000)
    generator = torch.Generator().manual_seed(0)
    M = 2 * torch.randn(40, 12, generator=generator)
    hidden = torch.softmax(4 * torch.randn(2, 20, generator=generator), dim=1).flatten()
    decoder = Decoder(M, M.amax(1))
    draws = 4000
    drawn = [decoder.draw(hidden.numpy(), temperature, generator) for _ in range(draws)]
    counts = torch.bincount(torch.tensor(drawn), minlength=12).double()
    p = torch.softmax((hidden @ M)[EOD:].double() / temperature, dim=0)
    assert counts[:EOD].sum() == 0
    chi_square = ((counts[EOD:] - draws * p) ** 2 / (draws * p)).sum()
    assert chi_square < 26.1  # once in a thousand, for 9 tokens; up to 380 if no draw were thrown away


def test_a_hopeless_bound_is_given_up(small_lm, monkeypatch):
    """Then all of M is read, and the text is as likely as before."""
    monkeypatch.setattr(alone, "TRIES", 0)
    generator = torch.Generator().manual_seed(0)
    assert Decoder(torch.randn(4, 9), torch.zeros(4)).draw(np.full(4, 0.5, np.float32), 1.0, generator) is None
    text = small_lm.generate("the small", seed=5)
    assert text == small_lm.generate("the small", seed=5)
    assert text


def test_a_trained_decoder_is_drawn_from_as_it_is_now(small_lm):
    """What is kept of M must not outlive a change of M."""
    network = copy.deepcopy(small_lm.network_)
    before = network.highest()
    with torch.no_grad():
        network.M += 1
    assert torch.allclose(network.highest(), before + 1)


def test_top_k_and_top_p_cut_the_tail(small_lm):
    logits = torch.log(torch.tensor([[0.3, 0.3, 0.3, 0.05, 0.5, 0.25, 0.15, 0.1]])).repeat(400, 1)
    generator = torch.Generator().manual_seed(0)
    assert set(draw(logits, Sampling(), generator).tolist()) == {3, 4, 5, 6, 7}  # never a marker
    assert set(draw(logits, Sampling(top_k=2), generator).tolist()) == {4, 5}
    assert set(draw(logits, Sampling(top_p=0.7), generator).tolist()) == {4, 5}
    assert set(draw(logits, Sampling(top_p=0.4), generator).tolist()) == {4}
    assert set(draw(logits, Sampling(temperature=0), generator).tolist()) == {4}
    cold = draw(logits, Sampling(temperature=0.1), generator)
    assert (cold == 4).float().mean() > 0.98


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}], ids=str
)
def test_wrong_sampling_is_refused(small_lm, wrong):
    with pytest.raises(SaffuError, match=next(iter(wrong))):
        small_lm.generate("the", **wrong)


def test_next_to_temperature_zero_the_likeliest_is_drawn(small_lm):
    prompts = ["the small", "a"]
    coldest = small_lm.generate_batch(prompts, temperature=0)
    for temperature in (1e-3, 1e-5, 1e-40, 5e-324):
        assert small_lm.generate(prompts[0], temperature=temperature, seed=1) == coldest[0]
        assert small_lm.generate_batch(prompts, temperature=temperature, seed=1) == coldest
