"""Verdicts on runs, from made-up results: each can come out both ways."""

import math

import pytest

from lab import run_claims
from lab.claims import FAILS, HOLDS, IN_PART, OPEN


def tuned(first, last, plain, seed=0, radius=8, tokens=10**6):
    stages = {"init": first, "tune 1": (first + last) / 2, "tune 2": last}
    facts = {"radius": radius, "seed": seed, "tokens": tokens, "fold_tokens": 1000}
    return facts | {"dev_perplexities": stages, "without_tuning": plain}


def trained(start, radius, best, seed=0, rate=0.01, **facts):
    row = {"start": start, "radius": radius, "best_dev_perplexity": best, "seed": seed, "learning_rate": rate}
    curve = [{"dev_perplexity": 2 * best, "seconds": 3.0}, {"dev_perplexity": best, "seconds": 9.0}]
    return row | {"tokens": 10**6, "curve": curve} | facts


def starts(warm_8, warm_128, cold_8, cold_128):
    scores = {("explicit", 8): warm_8, ("explicit", 128): warm_128, ("random", 8): cold_8, ("random", 128): cold_128}
    return [trained(*start, best, seed) for start, found in scores.items() for seed, best in enumerate(found)]


def protocol(size, test, before=30_000, after=3_000, rate=0.01, seed=0):
    facts = {"run": "explicit-8", "size": size, "learning_rate": rate, "test_perplexity": test, "tokens": 10**7}
    facts["seed"] = seed
    facts |= {"text_tokens": 10**8}
    return facts | {"full_vocabulary": before, "vocabulary": after}


@pytest.mark.parametrize(
    ("runs", "verdict"),
    [
        ([tuned(100, 90, 95), tuned(102, 91, 96, seed=1)], HOLDS),
        ([tuned(100, 90, 85)], IN_PART),
        ([tuned(100, 90, 95), tuned(100, 101, 105, seed=1)], FAILS),
        ([tuned(100, 90, 95, radius=128)], OPEN),
        ([], OPEN),
    ],
)
def test_tuning(runs, verdict):
    assert run_claims.tuning(runs).verdict == verdict


def test_effect_and_spread_of_tuning():
    found = run_claims.tuning([tuned(100, 90, 95), tuned(100, 92, 95, seed=1, tokens=4000)])
    assert (found.effect, found.spread, found.seeds) == (pytest.approx(-0.09), pytest.approx(0.02 / math.sqrt(2)), 2)
    assert found.paper_effect == pytest.approx(42.44 / 43.33 - 1)
    assert found.size == "4,000 tokens counted, toy-sized"
    assert "One fold of 1,000 tokens: 100.00. After 2 tunings, each on a further fold: 91.00." in found.evidence


@pytest.mark.parametrize(
    ("scores", "ninth", "tenth"),
    [
        (([20, 21], [30, 31], [60, 61], [60.5, 60.5]), HOLDS, HOLDS),
        (([20, 32], [30, 31], [60, 61], [70, 70]), IN_PART, FAILS),  # warm starts win, but r = 8 not in every seed
        (([20], [70], [60], [90]), HOLDS, FAILS),  # each radius is compared with its own cold start
        (([20], [30], [19], [19.1]), IN_PART, HOLDS),
        (([40], [30], [20], [20]), FAILS, HOLDS),
    ],
)
def test_training(scores, ninth, tenth):
    found = run_claims.training(starts(*scores))
    assert [verdict.verdict for verdict in found] == [ninth, tenth]


def test_training_compares_best_rates_and_means():
    rows = [*starts([20, 22], [30, 30], [60, 64], [60, 62]), trained("random", 8, 40, rate=0.3)]
    rows.append(trained("random", 8, 40, seed=1, rate=0.3))
    ninth, tenth = run_claims.training(rows)
    assert ninth.effect == pytest.approx(21 / 40 - 1)
    assert (ninth.spread, ninth.seeds) == (pytest.approx(2 / 40 / math.sqrt(2)), 2)
    assert ninth.evidence.startswith("warm, r = 8: 21.0 (20.0 to 22.0 over 2 seeds); warm, r = 128: 30.0 (")
    assert tenth.evidence == "Cold, r = 128 is 52.5% above r = 8."
    assert [verdict.verdict for verdict in run_claims.training(rows[:4])] == [OPEN, OPEN]


@pytest.mark.parametrize(("test", "verdict"), [(58.05, HOLDS), (24.2, IN_PART), (23.0, FAILS)])
def test_initialized_on_a_tenth(test, verdict):
    rows = [protocol("10M", 23.84), protocol("100M", test), protocol("10M", 99.0, rate=5e-6)]
    rows.append(protocol("100M", 99.0) | {"settings": {"attention": "uniform"}})
    found = run_claims.large_text(rows)
    assert found.verdict == verdict and found.effect == pytest.approx(test / 23.84 - 1)
    assert run_claims.large_text(rows[:1]).verdict == OPEN
    other = run_claims.large_text([*rows, protocol("10M", 20.0, seed=1), protocol("100M", 19.0, seed=1)])
    assert other.verdict == FAILS and other.seeds == 2  # not in every seed


@pytest.mark.parametrize(
    ("before", "after", "verdict"), [(26_693, 2_848, HOLDS), (8_000, 3_000, IN_PART), (20_000, 10_000, FAILS)]
)
def test_vocabulary(before, after, verdict):
    found = run_claims.vocabulary([protocol("10M", 20, before, after)])
    assert found.verdict == verdict and f"{before:,} → {after:,} tokens" in found.evidence
    assert found.size == "100,000,000 tokens counted"
    assert run_claims.vocabulary([]).verdict == OPEN


def test_cost():
    warm, cold = trained("explicit", 8, 50, alone=True), trained("random", 8, 120, alone=True)
    found = run_claims.cost([warm, cold])
    assert found.verdict == HOLDS and found.evidence.endswith("A cold start has not reached it after 9.0 s.")
    assert "sharing" not in found.evidence
    found = run_claims.cost([warm, trained("random", 8, 100)])
    assert found.verdict == HOLDS and found.effect == pytest.approx(3 / 9 - 1)
    assert "sharing the machine with other runs" in found.evidence
    found = run_claims.cost([warm, cold, trained("random", 8, 40, rate=0.3)])
    assert found.verdict == FAILS and found.evidence.endswith(
        "A cold start has reached it when it is scored after 3.0 s."
    )
    assert run_claims.cost([warm]).verdict == OPEN


def stopped(perplexities, radius=8, size="10M", **settings):
    """A run that ended after its held-out perplexity had risen as often as the paper allows."""
    log = [{"stage": "init", "dev_perplexity": 999.0}]
    log += [{"fold": fold, "dev_perplexity": float(dev), "rises": 8} for fold, dev in enumerate(perplexities)]
    facts = {"start": "explicit", "radius": radius, "size": size, "seed": 0, "tokens": 10**6, "until_stopped": True}
    return facts | {"settings": settings, "log": log}


@pytest.mark.parametrize(
    ("long", "tenth", "uniform", "verdicts"),
    [
        ([90, 80], [95, 85], [96, 94, 88], (HOLDS, HOLDS, HOLDS)),
        ([90, 80, 70, 60], [95, 85, 75, 70, 72], [96, 75], (FAILS, FAILS, FAILS)),
        ([90, 80], [95, 94], [96, 80], (HOLDS, HOLDS, FAILS)),  # never as good
    ],
)
def test_stopped_runs(long, tenth, uniform, verdicts):
    runs = [stopped([90, 80, 70]), stopped(long, radius=128), stopped(tenth, size="100M")]
    runs.append(stopped(uniform, size="100M", attention="uniform"))
    found = run_claims.stopping(runs)
    assert tuple(verdict.verdict for verdict in found) == verdicts
    assert [verdict.number for verdict in found] == [19, 20, 21]


def test_runs_that_were_not_stopped_decide_nothing():
    cut = stopped([90, 80, 70], radius=128)
    cut["log"][-1]["rises"] = 2
    assert {verdict.verdict for verdict in run_claims.stopping([stopped([90, 80]), cut])} == {OPEN}
