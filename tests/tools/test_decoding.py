"""States, and unfinished words."""

import copy
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import each
from saffu import SaffuError, SaffuLM
from saffu.text.tokenizer import EOD
from saffu.tools.decoding import Spelling


def test_steps_add_up_to_a_score(lm):
    text = "the small dog saw a house ."
    state, nats = lm.start(), 0.0
    for token in [*lm.tokenizer_.encode(text), EOD]:
        before = state
        assert np.exp(lm.next(state).astype(float)).sum() == pytest.approx(1, abs=1e-4)
        log_p, state = lm.step(state, token)
        assert lm.step(before, token) == (log_p, state)  # a state never changes
        nats -= log_p
    assert nats == pytest.approx(lm.score([text]).nll, rel=1e-5)


def test_states_are_hashable_and_copyable(lm):
    state = lm.start("the dog")
    assert len({state, copy.copy(state), copy.deepcopy(state), lm.start("the dog")}) == 1
    assert lm.start("the cat") not in {state}
    assert lm.start("a line\nthe dog") == lm.model_.start(
        [*lm.tokenizer_.encode("a line"), EOD, *lm.tokenizer_.encode("the dog")]
    )


def refused(lm, state):
    """Whether a model refuses a state, whatever it is asked."""
    token = EOD
    for ask in (lm.next, lambda state: lm.step(state, token), lambda state: lm.model_.next_log_probabilities([state])):
        with pytest.raises(SaffuError):
            ask(state)
    return True


def test_a_state_belongs_to_its_model(lm, fitted):
    """A kernel that reads the state of another model writes where it must not."""
    other = SaffuLM(lm.config).fit(["another text with other words", "so its memory has another shape"])
    assert refused(lm, other.start("another"))
    assert refused(lm, fitted("toy" if lm is not fitted("toy") else "calibrated").start("the"))
    assert refused(lm, "junk")
    assert refused(lm, other.model_.start([EOD]).document)


def test_a_state_belongs_to_its_model_as_it_was(fitted, train_text):
    changed = copy.copy(fitted("calibrated"))
    before = changed.start("the dog")
    assert np.array_equal(changed.next(before), fitted("calibrated").next(before))  # a copy shares the model
    changed.update(train_text[:2])
    assert refused(changed, before)
    assert np.isfinite(changed.next(changed.start("the dog"))[EOD])


def test_a_state_knows_whether_it_remembers(lm):
    """Steps add up to the score of a line, with memory and without."""
    text = "the dog saw the dog saw the dog saw"
    for memory in (True, False):
        state, nats = lm.start(memory=memory), 0.0
        for token in lm.encode(f"{text}\n"):
            log_p, state = lm.step(state, token)
            nats -= log_p
        score = lm.score_lines([text], memory)[0]
        assert nats / math.log(2) == pytest.approx(score.bits, rel=1e-5)
    if bare := lm.model_.without_memory():
        with pytest.raises(SaffuError):
            lm.model_.next_log_probabilities([bare.start()])
        with pytest.raises(SaffuError):
            bare.next_log_probabilities([lm.model_.start()])


def test_threads_may_share_a_model(fitted):
    lm = fitted("calibrated")
    prompts = [f"{article} {word}" for article in ("the", "a") for word in ("dog", "cat", "king", "girl", "sea")] * 4
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda prompt: lm.next(lm.start(prompt)), prompts))
    for prompt, row in zip(prompts, rows, strict=True):
        assert np.array_equal(row, lm.next(lm.start(prompt)))


@each("typed, word", [("the old ki", "king"), ("th", "the"), ("a dog\nthe ", "old"), ("a ", "small")])
def test_unfinished_words(fitted, typed, word):
    words = fitted("calibrated").complete_word(typed)
    assert word in words and all(found.startswith(typed.split("\n")[-1].split(" ")[-1]) for found in words)
    assert list(words.values()) == sorted(words.values(), reverse=True) and sum(words.values()) <= 1 + 1e-6


def test_beginnings_of_lines_are_not_glued_to_words():
    """In a tiny model, smoothing gives every token some probability after every word."""
    drawn = np.random.default_rng(0)
    parts = (["The", "Our", "My"], ["king", "teacher", "brother"], ["walked", "looked"], ["home.", "away."])
    lm = SaffuLM().fit([" ".join(drawn.choice(words) for words in parts) for _ in range(100)])
    assert list(lm.complete_word("The k", 5)) == ["king"]
    assert set(lm.complete_word("My ", 10)) <= {word.rstrip(".") for words in parts for word in words}


def test_underscores_belong_to_words():
    lm = SaffuLM().fit(["    def __init__(self, name):", "        self.file_name = name", "print(__name__)"] * 30)
    assert b"__(" in Spelling.of(lm.tokenizer_).pieces, "a token in which the word ends"
    best = {typed: next(iter(lm.complete_word(typed))) for typed in ("    def __in", "        self.fi")}
    assert list(best.values()) == ["__init__", "self.file_name"]
    assert sum(lm.complete_word("    def __in").values()) <= 1 + 1e-6


def test_completion_is_independent_of_tokenization(fitted):
    """However far a word is typed, its probability is that of the same sequences of tokens."""
    lm = fitted("calibrated")
    whole = lm.complete_word("the ", 10_000)
    among = sum(share for word, share in whole.items() if word.startswith("ki"))
    assert lm.complete_word("the ki", 10_000)["king"] == pytest.approx(whole["king"] / among, rel=0.05)
    assert sum(whole.values()) > 0.9


def test_a_search_for_few_words_finds_the_best_of_many(fitted):
    lm = fitted("calibrated")
    for typed in ("the ", "a small", "th"):
        many = lm.complete_word(typed, 10_000)
        for number in (1, 3):
            few = lm.complete_word(typed, number)
            assert list(few) == list(many)[:number]
            assert list(few.values()) == pytest.approx([many[word] for word in few], rel=0.01)


def test_completion_against_all_continuations(fitted):
    """Of words that are one token, the share is p(token) p(the word ends) over all that spell the prefix."""
    lm = fitted("toy")
    log_p = lm.next(lm.start("the"))
    spelled = [t for t in range(EOD, len(lm.tokenizer_)) if lm.tokenizer_.token(t).startswith(" k")]
    (king,) = lm.tokenizer_.encode(" king")
    ends = np.array([not lm.tokenizer_.token(t)[:1].isalnum() for t in range(len(lm.tokenizer_))])
    after = np.exp(lm.next(lm.start("the king")).astype(float))[ends].sum()
    expected = np.exp(log_p[king]) * after / np.exp(log_p[spelled].astype(float)).sum()
    assert lm.complete_word("the k")["king"] == pytest.approx(expected, rel=0.02)
