"""Explanations: they add up, they agree with plain loops, and a person can read them."""

import copy
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import SMALL, sentences
from saffu import SaffuConfig, SaffuError, SaffuLM, Tokenizer
from saffu.cli import main
from saffu.commands.common import visible
from saffu.commands.explain import tables
from saffu.corpus import TokenCorpus
from saffu.explain import candidate
from saffu.ngram import KneserNey
from saffu.tokenizer import EOD, PAD, SOD

KINDS = {
    "hidden bits": SMALL,
    "hidden bits, documents": replace(SMALL, documents=3),
    "hidden bits, other modes": replace(SMALL, block_mode="cat", radius_mode="sum", head="first"),
    "block only": replace(SMALL, radius=0),
    "no hidden bits": replace(SMALL, hidden_dimension=0),
    "no hidden bits, radius only": replace(SMALL, hidden_dimension=0, block=0, radius_mode="sum"),
    "calibrated": SaffuConfig.preset("calibrated", classes=20),
    "calibrated, slots only": SaffuConfig.preset("calibrated", memory=0),
}
LONG = " ".join(sentences(3, 6))
PROMPTS = ["", "the small dog saw", LONG, "ünseen 🙂 \t wörds\0"]


@pytest.fixture(scope="module")
def tokenizer(train_text):
    return Tokenizer.train(train_text, kept_words=0, count_by="tokens")


@pytest.fixture(scope="module", params=KINDS)
def lm(request, tokenizer, train_text):
    return SaffuLM(KINDS[request.param], tokenizer=tokenizer).fit(train_text, references=False)


def logits(lm, prompt, network=None):
    """As `eval` computes them: of the last target of the prompt as a document."""
    network = network or lm.network_
    *_, target = TokenCorpus.build([prompt], lm.tokenizer_).batches(1, network.lookback)
    with torch.no_grad():
        return network(target)[0].double().numpy()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_contributions_add_up_for_every_candidate(lm, prompt):
    explanation = lm.explain(prompt)
    summed = sum(term.values for term in explanation.terms)
    assert np.abs(summed - explanation.logits).max() < 1e-9
    exact = lm.network_ if lm.config.solution == "calibrated" else copy.deepcopy(lm.network_).double()
    assert np.abs(summed - logits(lm, prompt, exact))[EOD:].max() < 1e-5
    assert np.abs(summed - logits(lm, prompt))[EOD:].max() < 1e-4  # float32 rounds sums of many slots
    p = np.exp(explanation.log_probabilities)
    assert p.sum() == pytest.approx(1)
    assert (p[:EOD] == 0).all()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_slots_add_up_to_the_unit_s_own_logits(lm, prompt):
    if not (lm.config.solution == "paper" and lm.config.hidden_dimension):
        assert lm.explain(prompt).units == {}
        return
    from saffu.fit import ciphered

    bits = ciphered(len(lm.tokenizer_), lm.config.hidden_dimension, lm.frequencies_).double().numpy()
    bits /= bits.sum(1, keepdims=True)
    exact = copy.deepcopy(lm.network_).double()
    *_, target = TokenCorpus.build([prompt], lm.tokenizer_).batches(1, exact.lookback)
    for name, terms in lm.explain(prompt).units.items():
        with torch.no_grad():
            own = torch.log_softmax(exact.unit_logits(name, target), dim=1)[0].numpy()
        assert np.abs(sum(term.values for term in terms) - bits @ own).max() < 1e-9


def test_slots_by_plain_loops(tokenizer, train_text):
    """A_k E[x_k]·U_k of each slot, its share of the prior and its mean under the prior taken off."""
    lm = SaffuLM(KINDS["no hidden bits"], tokenizer=tokenizer).fit(train_text, references=False)
    unit = copy.deepcopy(lm.network_).double().units["radius"]
    E, W, U = (tensor.detach().numpy() for tensor in (unit.E, unit.W, unit.U))
    prior = lm.network_.log_prior.double().numpy()
    tokens = lm.tokenizer_.encode("the small dog saw")[-4:]
    D, slots = E.shape[1], len(tokens)
    scores = [sum(E[tokens[-1]] @ E[tokens[j]] * W[j, k] for j in range(slots)) for k in range(slots)]
    A = [math.log(sum(math.exp(s) for s in scores)) - score for score in scores]
    terms = {term.name: term for term in lm.explain("the small dog saw").terms}
    for k, token in enumerate(tokens):
        raw = A[k] * E[token] @ U[k * D : (k + 1) * D] - A[k] / sum(A) * prior
        term = terms[f"radius {slots - k}"]
        assert term.seen == (token,)
        assert term.weight == pytest.approx(A[k])
        assert np.allclose(term.values, raw - np.exp(prior) @ raw, atol=1e-9)


def test_views_of_a_calibrated_model(tokenizer, train_text):
    lm = SaffuLM(KINDS["calibrated"], tokenizer=tokenizer).fit(train_text, references=False)
    explanation = lm.explain("the small dog")
    context = lm.tokenizer_.encode("the small dog")
    terms = {term.name: term for term in explanation.terms}
    assert explanation.context == context
    assert terms["slot 1"].seen == (context[-1],)
    assert terms["slot 4"].seen == (SOD,)
    assert terms["slot 5"].seen == (PAD,)
    assert terms["memory"].seen == (SOD, *context)
    memory = next(part for part in lm.network_.parts if part.view.name == "memory")
    p = KneserNey(lm.network_.counts.of(memory.view)).distribution(torch.tensor([[SOD, *context]]))[0].numpy()
    prior = lm.network_.prior.double().numpy()
    expected = terms["memory"].weight * (np.log(p[EOD:]) - prior[EOD:])
    assert np.allclose(terms["memory"].values[EOD:], expected, atol=1e-5)
    assert np.allclose(sum(share.values for share in explanation.memory)[EOD:], 1)
    by_length = {share.name: share.values for share in explanation.memory}
    assert list(by_length) == ["4 tokens", "3 tokens", "2 tokens", "1 token", "none"]
    seen = lm.tokenizer_.encode(" saw")[0]
    assert by_length["4 tokens"][seen] > 0.5  # "the small dog saw" begins many a sentence
    never = lm.tokenizer_.encode("~")[0]
    assert by_length["none"][never] == pytest.approx(1)


def test_candidates(tokenizer):
    assert tokenizer.token(candidate(tokenizer, "the small", "dog")) == " dog"
    assert tokenizer.token(candidate(tokenizer, "the small ", "dog")) != " dog"
    assert candidate(tokenizer, "the dog", "<eod>") == EOD
    assert tokenizer.token(candidate(tokenizer, "the dog", ".")) == "."
    with pytest.raises(SaffuError, match="empty"):
        candidate(tokenizer, "the dog", "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer, train_text):
    folder = tmp_path_factory.mktemp("models") / "model"
    SaffuLM(KINDS["hidden bits"], tokenizer=tokenizer).fit(train_text, references=False).save(folder)
    return folder


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return exit.value.code, captured.out, captured.err


def test_the_verb(capsys, folder):
    status, out, err = run(capsys, "explain", folder, "the small", "--target", "dog", "<eod>", "--top", 3, "--json")
    assert (status, err) == (0, "")
    facts = json.loads(out)
    assert [c["token"] for c in facts["candidates"][:2]] == [" dog", "<eod>"]
    assert 3 <= len(facts["candidates"]) <= 5
    for number in range(len(facts["candidates"])):
        added = sum(term["values"][number] for term in facts["contributions"])
        assert added == pytest.approx(facts["logits"][number], abs=1e-9)
        assert 2 ** facts["log_probabilities"][number] == pytest.approx(facts["probabilities"][number])
    status, out, _ = run(capsys, "explain", folder, LONG, "--rows", 3, "--top", 12)
    assert status == 0
    assert "others" in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "\033" not in out  # not a terminal


def test_a_target_of_several_tokens_is_not_cut_silently(capsys, folder):
    status, out, err = run(capsys, "explain", folder, "the small", "--target", "dog saw", "--json")
    assert status == 0
    assert json.loads(out)["candidates"][0]["token"] == " dog"
    assert err == (
        "saffu: the target 'dog▁saw' is several tokens;"
        " the next token can only be its beginning, '▁dog', which is shown\n"
    )


def test_exponents_are_those_that_info_shows(capsys, tmp_path, tokenizer, train_text):
    SaffuLM(KINDS["calibrated"], tokenizer=tokenizer).fit(train_text).save(tmp_path / "model")
    info = run(capsys, "info", tmp_path / "model")[1]
    shown = {name.strip(): float(value) for name, value in re.findall(r"^  (\S.*?)\s+exponent (\S+)$", info, re.M)}
    facts = json.loads(run(capsys, "explain", tmp_path / "model", "the small", "--json")[1])
    weights = {term["name"]: term["weight"] for term in facts["contributions"]}
    memories = sum(weight for name, weight in weights.items() if name.startswith("memory"))
    assert weights["prior"] == pytest.approx(facts["prior_exponent"] + memories)
    assert shown == pytest.approx(weights | {"prior": facts["prior_exponent"]}, abs=6e-4)
    told = f"(the prior's {weights['prior']:.2f} is its exponent {facts['prior_exponent']:.2f} and the memories'"
    assert told in run(capsys, "explain", tmp_path / "model", "the small")[1]


@pytest.mark.parametrize("arguments", [["--top", "0"], ["--rows", "0"], ["--target", ""], ["--top", "x"]])
def test_bad_input_is_one_clear_line(capsys, folder, arguments):
    status, out, err = run(capsys, "explain", folder, "the", *arguments)
    assert (status, out) == (2, "")
    assert len(err.strip().splitlines()) == 1


def test_tables_sum_up_and_have_colour_if_asked(lm):
    facts = lm.explain("the small dog saw").to_dict(lm.tokenizer_, lm.explain("the small dog saw").likeliest(4))
    plain, painted = ("\n".join(tables(facts, colour=colour)) for colour in (False, True))
    assert "\033[32m" in painted
    assert re.sub(r"\033\[\d+m", "", painted) == plain
    row = next(line for line in plain.splitlines() if line.startswith("= log₂ p"))
    shown = [float(cell.replace("−", "-")) for cell in row[40:].split()]
    assert shown == pytest.approx(facts["log_probabilities"], abs=0.006)


def test_no_token_steers_the_terminal():
    assert visible(" a\n\x1b[31m") == "▁a\\n\\x1b[31m"


def test_bits_that_no_token_has_do_no_harm(tokenizer, train_text):
    """A vocabulary smaller than the number of hidden bits leaves some of them unused."""
    config = replace(KINDS["hidden bits"], hidden_dimension=2 * len(tokenizer))
    explanation = SaffuLM(config, tokenizer=tokenizer).fit(train_text, references=False).explain("the small dog")
    for terms in explanation.units.values():
        assert all(np.isfinite(term.values[EOD:]).all() for term in terms)
