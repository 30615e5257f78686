"""Sampling: reproducible, the same alone and in batches, true to the distribution, and cut off where asked."""

import numpy as np
import pytest

from conftest import each, sentences
from saffu import CalibratedConfig, SaffuError, SaffuLM, Sampling
from saffu.text.tokenizer import EOD
from saffu.tools.generate import Joints, draw, encode_prompt, generate_tokens, open_end

P = np.log(np.array([[0.3, 0.3, 0.3, 0.05, 0.5, 0.25, 0.15, 0.1]]))


def test_samples_are_valid_text():
    """Even of a model that has seen each character once, in bytes."""
    lm = SaffuLM(CalibratedConfig(order=3, slots=2, word_classes=0, output_classes=4)).fit(
        [f"{chr(0x4E00 + 7 * n)}é{chr(0x1F600 + n % 50)} {n}" for n in range(60)]
    )
    for options in ({}, {"temperature": 1.3}):
        texts = [lm.generate(seed=seed, max_tokens=40, **options) for seed in range(30)]
        assert not any("\ufffd" in text for text in texts) and any(ord(c) > 0x3000 for c in "".join(texts))
        assert not any("\ufffd" in "".join(lm.stream(seed=seed, max_tokens=25, **options)) for seed in range(10))
    batch = lm.generate_batch(["é", ""], seed=1, max_tokens=30)
    assert not any("\ufffd" in text for text in batch)


def test_generation_stops_at_the_end_and_repeats_with_a_seed(lm):
    text = lm.generate("the small", seed=5)
    assert text == lm.generate("the small", seed=5)
    assert "<" not in text
    assert "".join(lm.stream("the small", seed=5)) == text
    assert len({lm.generate(seed=seed) for seed in range(8)}) > 4
    assert len(lm.tokenizer_.encode(lm.generate(max_tokens=3, seed=1))) <= 3


def test_batches_generate_what_single_prompts_would(lm):
    prompts = ["the", "a small dog", "", "the king found the house and went"]
    greedy = [lm.generate(prompt, temperature=0) for prompt in prompts]
    assert lm.generate_batch(prompts, temperature=0) == greedy
    assert lm.generate_batch([]) == []


def test_lines_are_counted_by_their_ends(lm):
    text = lm.generate("the dog", lines=3, seed=2, max_tokens=400)
    assert text.count("\n") == 2
    assert all(line for line in text.split("\n"))
    assert text == "".join(lm.stream("the dog", lines=3, seed=2, max_tokens=400))
    (first,) = lm.generate_batch(["the dog"], lines=1, seed=2, max_tokens=400)
    assert text.startswith(first + "\n")
    assert lm.generate("the dog", lines=9, max_tokens=20, seed=1).count("\n") < 8
    with pytest.raises(SaffuError, match="`lines` is 0"):
        lm.generate(lines=0)


def test_a_prompt_of_several_lines_is_a_document(fitted):
    lm = fitted("toy")
    corpus = lm.tokenize(["the dog saw\na cat"])
    assert encode_prompt(lm.tokenizer_, "the dog saw\na cat") == corpus.ids[:-1].tolist()
    assert encode_prompt(lm.tokenizer_, "the dog saw\r\n") == [*lm.tokenizer_.encode("the dog saw"), EOD]
    assert encode_prompt(lm.tokenizer_, "") == []


def test_generation_sees_what_scoring_sees(lm, dev_text):
    """Token by token, from nothing and from the middle of a document of two lines."""
    corpus = lm.tokenize([dev_text[0] + "\n" + dev_text[1]])
    expected, ids = lm.model_.log_probabilities(corpus), corpus.ids.tolist()
    states = [lm.model_.start(), lm.model_.start(ids[:5])]
    for place, token in enumerate(ids):
        active = states if place >= 5 else states[:1]
        for row in lm.model_.next_log_probabilities(active):
            assert row[token] == pytest.approx(expected[place], abs=2e-4), place
            assert np.exp(row.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)
            assert not np.isfinite(row[:EOD]).any()
        states = [lm.model_.advance(state, token) for state in active] + states[len(active) :]


def test_plain_sampling_is_true_to_the_distribution(lm):
    """Also by a model's own way to sample, if it has one."""
    state, rng, draws = lm.model_.start(lm.tokenizer_.encode("the")), np.random.default_rng(0), 4000
    p = np.exp(lm.model_.next_log_probabilities([state])[0].astype(np.float64))
    if lm.model_.can_sample:
        drawn = np.array([lm.model_.sample(state, rng)[0] for _ in range(draws)])
        assert lm.model_.sample(state, rng)[1] != state
    else:
        drawn = draw(np.log(np.maximum(p, 1e-300))[None].repeat(draws, 0), Sampling(), rng)
    counts = np.bincount(drawn, minlength=len(p))
    assert counts[:EOD].sum() == 0
    frequent = p > 10 / draws
    expected = np.append(p[frequent], p[~frequent].sum()) * draws
    found = np.append(counts[frequent], counts[~frequent].sum())
    chi_square = ((found - expected) ** 2 / np.maximum(expected, 1)).sum()
    freedom = len(expected) - 1
    assert chi_square < freedom + 4 * (2 * freedom) ** 0.5  # four standard deviations


@each("temperature", [1.0, 0.6, 2.0])
def test_models_sample_from_the_most_likely_tokens(lm, temperature):
    if not lm.model_.can_sample:
        pytest.skip("samples from the probabilities of all tokens")
    state, rng, draws, top_k = lm.model_.start(lm.tokenizer_.encode("the")), np.random.default_rng(0), 3000, 8
    p = np.exp(lm.model_.next_log_probabilities([state])[0].astype(np.float64))
    p = np.where(p >= np.sort(p)[-top_k] * (1 - 1e-5), p, 0) ** (1 / temperature)
    assert 0 < p[p > 0].size < 3 * top_k
    drawn = np.array([lm.model_.sample(state, rng, temperature, top_k)[0] for _ in range(draws)])
    expected = p / p.sum() * draws
    counts = np.bincount(drawn, minlength=len(p))
    assert not counts[p == 0].any()
    chi_square = ((counts - expected) ** 2 / np.maximum(expected, 1)).sum()
    assert chi_square < top_k + 5 * (2 * top_k) ** 0.5


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_more_tokens_than_there_are_may_be_drawn_from(lm, temperature):
    texts = {lm.generate("the", top_k=top_k, seed=3, temperature=temperature) for top_k in (len(lm.tokenizer_), 2**31)}
    assert len(texts) == 1


def test_line_beginnings_are_not_glued_to_words():
    """Of a text so small that all tokens are likely everywhere."""
    lines = ["When the dog ran, the cat slept.", "Nobody saw the small king.", "Perhaps (so they say) it rained."] * 3
    lm = SaffuLM(CalibratedConfig(order=3, slots=2, word_classes=0, output_classes=4)).fit(["\n".join(lines)])
    texts = lm.generate_batch([""] * 200, top_k=0, temperature=1.5, max_tokens=40, seed=1)
    inside = [text[place - 1] for text in texts for place, letter in enumerate(text) if place and letter in "WNP"]
    assert not any(before.isalnum() for before in inside)
    assert not any(text.startswith(" ") for text in texts)
    words = {word.strip("(),.") for line in lines for word in line.split()}
    usual = [word.strip("(),.") for text in lm.generate_batch([""] * 200, seed=1) for word in text.split()]
    assert np.mean([word in words for word in usual]) > 0.9
    assert all(word in words for word in lm.complete_word("Wh", 3))


def test_joints_are_those_of_the_text(fitted):
    lm = fitted("calibrated")
    joints = Joints.of(lm.model_, lm.tokenizer_)
    corpus = lm.tokenize(sentences(1, 400))
    starts = set(corpus.starts.tolist())
    pairs = {
        (EOD if place in starts else int(corpus.ids[place - 1]), int(token)) for place, token in enumerate(corpus.ids)
    }
    assert all(joints.allow(*pair, exactly=True) and joints.allow(*pair, exactly=False) for pair in pairs)
    for before in {before for before, _ in pairs}:
        for exactly in (True, False):
            refused = set(joints.refused(before, exactly).tolist())
            allowed = {token for token in range(EOD, lm.model_.vocabulary) if joints.allow(before, token, exactly)}
            assert refused | allowed >= set(range(EOD, lm.model_.vocabulary)) and not refused & allowed


def test_top_k_and_top_p_cut_the_tail():
    rows, rng = P.repeat(400, axis=0), np.random.default_rng(0)
    assert set(draw(rows, Sampling(), rng)) == {3, 4, 5, 6, 7}  # never a marker
    assert set(draw(rows, Sampling(top_k=2), rng)) == {4, 5}
    assert set(draw(rows, Sampling(top_p=0.7), rng)) == {4, 5}
    assert set(draw(rows, Sampling(top_p=0.4), rng)) == {4}
    assert set(draw(rows, Sampling(top_p=0.0), rng)) == {4}
    assert set(draw(rows, Sampling(temperature=0), rng)) == {4}
    assert (draw(rows, Sampling(temperature=0.1), rng) == 4).mean() > 0.98
    assert set(draw(rows, Sampling(top_k=100, top_p=0.999999), rng)) == {3, 4, 5, 6, 7}


def test_tokens_without_probability_are_never_drawn():
    with np.errstate(divide="ignore"):
        rows = np.log(np.array([[0, 0, 0, 0, 0.5, 0, 0.5, 0]])).repeat(300, axis=0)
    rng = np.random.default_rng(1)
    for sampling in (Sampling(), Sampling(top_k=5), Sampling(top_p=0.9), Sampling(temperature=3.0)):
        assert set(draw(rows, sampling, rng)) == {4, 6}


def test_a_space_at_the_end_of_a_prompt_belongs_to_the_next_word(fitted):
    lm = fitted("calibrated")
    greedy = lm.generate("the dog", temperature=0)
    assert greedy.startswith(" ") and lm.generate("the dog ", temperature=0) == greedy[1:]
    assert "".join(lm.stream("the dog ", temperature=0)) == greedy[1:]
    prompts = ["the dog ", "the dog", "the ", ""]
    samples = lm.generate_batch(prompts, seed=3)
    for prompt, text in zip(prompts, samples, strict=True):
        assert not (prompt + text).count("  "), "no word begins after two spaces in this text"


def test_a_word_at_the_end_of_a_prompt_may_go_on(fitted):
    lm = fitted("calibrated")
    greedy = lm.generate("the", temperature=0)
    word = greedy.split()[0]
    for letters in range(1, len(word) + 1):
        assert lm.generate(f"the {word[:letters]}", temperature=0).startswith(word[letters:])
    prompt = f"the {word[:1]}"
    assert "".join(lm.stream(prompt, temperature=0)) == lm.generate(prompt, temperature=0)
    words = {word for line in sentences(1, 400) for word in line.split()}
    for text in lm.generate_batch([prompt] * 20, seed=1):
        assert (word[:1] + text).split()[0] in words


def test_the_end_of_a_prompt_is_kept_where_no_counted_token_spells_it(fitted):
    lm = fitted("calibrated")
    for prompt in ("the qzx", "x 東京", "a(b", "näï", "the dog\nthe", "!"):
        text = lm.generate(prompt, max_tokens=3, seed=1)
        assert "".join(lm.stream(prompt, max_tokens=3, seed=1)) == text and "\ufffd" not in text
        ids, end = open_end(lm.tokenizer_, prompt)
        assert (
            lm.tokenizer_.decode_bytes(token for token in ids if token != EOD) + end
            == prompt.replace("\n", "").encode()
        )
    assert [open_end(lm.tokenizer_, prompt)[1] for prompt in ("a dog.", "the ", "f(dog", "")] == [
        b"",
        b" ",
        b"dog",
        b"",
    ]


@each("wrong", [{"max_tokens": 0}, {"temperature": -1.0}, {"top_k": -1}, {"top_p": -0.1}, {"top_p": 1.5}, {"seed": -1}])
def test_wrong_sampling_is_refused(fitted, wrong):
    with pytest.raises(SaffuError, match=f"`{next(iter(wrong))}` is"):
        fitted("toy").generate("the", **wrong)


def test_prompts_are_not_one_string(fitted):
    with pytest.raises(SaffuError, match=r"such as \[prompt\]"):
        fitted("toy").generate_batch("abc")
    with pytest.raises(SaffuError, match="unknown setting 'temprature'"):
        fitted("toy").generate("abc", temprature=0)


def test_next_to_temperature_zero_the_most_likely_token_is_drawn(lm):
    prompts = ["the small", "the king"]
    greedy = lm.generate_batch(prompts, temperature=0)
    for temperature in (1e-3, 1e-5, 1e-40, 5e-324):
        assert lm.generate_batch(prompts, temperature=temperature, seed=1) == greedy


def test_ended_texts_give_none(fitted):
    lm = fitted("toy")
    steps = list(generate_tokens(lm.model_, [[], [], []], Sampling(seed=1, max_tokens=200)))
    for tokens in zip(*steps, strict=True):
        end = tokens.index(EOD)
        assert all(token is not None and token > EOD for token in tokens[:end])
        assert all(token is None for token in tokens[end + 1 :])
    assert any(token == EOD for token in steps[-1])  # it stops when the last one has ended
