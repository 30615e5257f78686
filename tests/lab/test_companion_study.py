"""The study of starts and optimizers, and what the pages show of it."""

from dataclasses import replace

import pytest

from companion_data import CONFIG, counted_model, dev_corpus, texts
from lab import companion_results
from lab.companion_study import run, table
from saffu.companion.cross_fit import cross_fitted


def row(start: str, ends: tuple[float, float], **more: object) -> dict[str, object]:
    """A made-up run of 10 s whose network and mixture fall along straight lines to these ends."""
    curve = [
        {"seconds": s, "dev_bits_per_byte": ends[1] + 0.1 * (10 - s), "network_bits_per_byte": ends[0] + 0.1 * (10 - s)}
        for s in range(1, 11)
    ]
    found = {"counted": 2.0, "network": ends[0], "mixture": ends[1]}
    return {"start": start, "optimizer": "muon", "seed": 0, "curve": curve, "bits_per_byte": found, **more}


def test_the_table_says_when_a_start_equals_the_random_one():
    lines = table([row("random", (3.0, 2.5)), row("counted", (2.8, 2.6)), row("counted", (2.6, 2.6))]).splitlines()
    assert lines[2] == "| muon | random | 1 | 3.0000 | 2.5000 | 10.0 s | 10.0 s |"
    assert lines[3] == "| muon | counted | 2 | 2.7000 ± 0.1414 | 2.6000 ± 0.0000 | 7.0 s | never |"


@pytest.mark.parametrize(
    ("counted", "expected"), [(9.0, "at 0 of them,"), (2.45, "at 10 of them (by 0.9500 at most),")]
)
def test_moments_above_the_counted_model_are_counted(counted, expected):
    sentence = companion_results.always_below([row("counted", (2.6, 2.5), excerpt_counted=counted)])
    assert expected in sentence
    assert "above the network alone at 0." in sentence


def test_a_run_reports_its_curve_and_all_held_out_text():
    lm = counted_model()
    corpus, dev = lm.tokenize(texts(1, 600)), dev_corpus(lm)
    counted = lm.model_.counted
    shared = cross_fitted(counted, corpus)
    found = run(counted, corpus, dev, replace(CONFIG, network_start="embeddings", network_dropout=0.2), 60.0, shared)
    assert found["start"] == "embeddings"
    assert found["curve"][-1]["step"] > found["curve"][0]["step"] > 0
    assert found["bits_per_byte"]["mixture"] < found["bits_per_byte"]["counted"]
    assert found["bits_per_byte"]["counted"] == pytest.approx(lm.score(texts(2, 120)).bits_per_byte)
