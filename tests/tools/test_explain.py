"""Explanations: they add up to what scoring sees, and are given in bits."""

import json

import numpy as np
import pytest

from conftest import each, sentences
from saffu import SaffuError
from saffu.text.tokenizer import EOD, PAD
from saffu.tools.explain import (
    HalfWord,
    candidate,
    candidate_text,
    explanation_facts,
    most_likely,
    reasons,
    seen_text,
)
from saffu.tools.generate import encode_prompt

PROMPTS = ["", "the small dog saw", " ".join(sentences(3, 6)), "the dog saw a cat .\nthe", "ünseen 🙂 \t wörds\0"]


@each("prompt", PROMPTS)
def test_terms_add_up_to_the_prediction(lm, prompt):
    explanation = lm.explain(prompt)
    context = encode_prompt(lm.tokenizer_, prompt)
    assert list(explanation.context) == context
    log_p = explanation.log_probabilities[EOD:]
    assert np.abs(sum(term.values[EOD:] for term in explanation.terms) - log_p).max() < 1e-9
    predicted = lm.model_.next_log_probabilities([lm.model_.start(context)])[0]
    assert np.abs(log_p - predicted[EOD:]).max() < 1e-4
    assert (explanation.log_probabilities[:EOD] == -np.inf).all()
    assert np.exp(explanation.log_probabilities).sum() == pytest.approx(1, abs=1e-6)


def test_facts_are_json_in_bits(lm):
    explanation = lm.explain("the small dog")
    chosen = [EOD, *most_likely(lm.model_, explanation, 3)]
    facts = json.loads(json.dumps(explanation_facts(explanation, lm.tokenizer_, chosen)))
    assert facts["context"] == [lm.tokenizer_.token(token) for token in explanation.context]
    assert [entry["id"] for entry in facts["candidates"]] == chosen
    assert facts["candidates"][0]["token"] == "<eod>"
    for number, token in enumerate(chosen):
        assert 2 ** facts["log_probabilities"][number] == pytest.approx(facts["probabilities"][number])
        assert facts["probabilities"][number] == pytest.approx(np.exp(explanation.log_probabilities[token]))
        total = sum(term["values"][number] for term in facts["terms"])
        assert total == pytest.approx(facts["log_probabilities"][number], abs=1e-9)
    assert facts["details"].keys() == explanation.details.keys()


def test_earlier_occurrences_of_candidates(fitted):
    lm = fitted("calibrated")
    explanation = lm.explain("the dog saw the cat and the")
    the, cat = (lm.tokenizer_.encode(text)[0] for text in (" the", " cat"))
    facts = explanation_facts(explanation, lm.tokenizer_, [the, cat, EOD])
    places = [entry["earlier"] for entry in facts["candidates"]]
    assert [[facts["context"][place] for place in each] for each in places] == [[" the", " the"], [" cat"], []]
    assert places[0][-1] == len(facts["context"]) - 1
    seen = {term["name"]: term["seen"] for term in facts["terms"]}
    assert (seen["document, 1 token"], seen["document, 2 tokens"]) == ([" the"], [" and", " the"])
    assert seen["document, half-life 20"] == []


def test_reasons_are_what_is_neither_prior_nor_normalizer(lm):
    explanation = lm.explain("the old king saw the small")
    rest = [term for term in explanation.terms if term.name in ("prior", "normalizer")]
    assert len(rest) < len(explanation.terms)
    for token in [EOD, *most_likely(lm.model_, explanation, 3)]:
        found = reasons(explanation, lm.tokenizer_, token)
        bits = [reason.bits for reason in found]
        total = sum(bits) + sum(term.values[token] for term in rest) / np.log(2)
        assert total == pytest.approx(explanation.log_probabilities[token] / np.log(2), abs=1e-6)
        assert bits == sorted(bits, key=abs, reverse=True)
        assert len({reason.text for reason in found}) == len(found)


def test_the_text_that_a_part_saw(fitted):
    tokenizer = fitted("calibrated").tokenizer_
    context = encode_prompt(tokenizer, "the dog saw\nthe kings (a")
    texts = [seen_text(tokenizer, context, context[first:]) for first in range(len(context))]
    assert texts[0] == "“the dog saw ⏎ the kings (a”" and texts[3] == texts[4] == "“the kings (a”"
    assert any(text.startswith("“…") for text in texts) and texts[-1] == "“a”"
    assert seen_text(tokenizer, context, [PAD, PAD, EOD, *context[:2]]) == "“the dog”"
    assert seen_text(tokenizer, context, [PAD, EOD]) == seen_text(tokenizer, [], []) == ""
    assert seen_text(tokenizer, context, context[1:4]) == "“dog saw ⏎”"
    assert candidate_text(tokenizer, context[:2], EOD) != candidate_text(tokenizer, context[:2], context[2]) == "“saw”"


def test_shares_are_not_bits(fitted):
    from dataclasses import replace

    explanation = fitted("toy").explain("the")
    halves = replace(explanation.terms[0], values=np.full(fitted("toy").model_.vocabulary, 0.5))
    explanation = replace(explanation, details={"a share": [halves], "more bits": [halves]})
    details = explanation_facts(explanation, fitted("toy").tokenizer_, [EOD])["details"]
    assert details["a share"][0]["values"] == [0.5]
    assert details["more bits"][0]["values"] == [pytest.approx(0.5 / np.log(2))]


def test_most_likely_is_in_order(lm):
    explanation = lm.explain("the")
    ids = most_likely(lm.model_, explanation, 5)
    assert len(set(ids)) == 5
    assert np.array_equal(-np.sort(-explanation.log_probabilities)[:5], explanation.log_probabilities[ids])
    assert len(most_likely(lm.model_, explanation, 10**6)) == np.count_nonzero(lm.frequencies_)


def test_candidates(fitted):
    tokenizer = fitted("toy").tokenizer_
    assert tokenizer.token(candidate(tokenizer, "the small", "dog")) == " dog"
    assert tokenizer.token(candidate(tokenizer, "the small ", "dog")) != " dog"
    assert candidate(tokenizer, "the dog", "<eod>") == EOD
    assert tokenizer.token(candidate(tokenizer, "the dog", ".")) == "."
    with pytest.raises(SaffuError, match="empty"):
        candidate(tokenizer, "the dog", "")


def test_half_words(fitted):
    """A prompt that ends inside a word is explained by the tokens that the word may begin with."""
    lm = fitted("calibrated")
    half = HalfWord.of(lm.model_, lm.tokenizer_, "the old kin")
    assert half and (half.before, half.typed, half.completion) == ("the old", " kin", "king")
    among = half.tokens(lm.tokenizer_)
    shown = most_likely(lm.model_, lm.explain(half.before), 3, among)
    assert lm.tokenizer_.token(shown[0]) == " king" and set(shown) <= set(among)
    for prompt in ("", "the", "the old ", "the old king", "the dog saw"):
        assert HalfWord.of(lm.model_, lm.tokenizer_, prompt) is None
