"""The scripts in benchmarks/ that other numbers rest on."""

import math
import sys
from pathlib import Path

import pytest

from conftest import corpus_of, sentences
from saffu.calibrated.kneser_ney import KneserNey
from saffu.calibrated.ngrams import NgramCounts
from saffu.paper.config import PaperConfig
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import gpt2_baseline
import peers
import roofline

SMALL = PaperConfig(block=16, radius=4, block_dimension=16, radius_dimension=12, hidden_dimension=32)
MACHINE = roofline.Machine("made up", 1, operations_per_second=100.0, bytes_per_second=10.0, gathered_per_second=5.0)


def test_slots_seen():
    corpus = corpus_of([[4, 5, 6, 7, 8], [], [9]])  # positions 0 … 5, 0, 0 1
    config = PaperConfig(block=4, radius=2)
    assert roofline.slots_seen(config, corpus, "block").tolist() == [2, 3, 4, 2, 3, 4, 2, 2, 3]  # the marker counts
    assert roofline.slots_seen(config, corpus, "radius").tolist() == [1, 2, 2, 2, 2, 2, 1, 1, 2]


def test_a_lower_bound_is_the_longest_of_arithmetic_and_memory():
    Work = roofline.Work
    assert MACHINE.lower_bound_seconds(Work(200, 10)) == 2
    assert MACHINE.lower_bound_seconds(Work(200, 10) + Work(0, 20) * 2) == 5
    assert MACHINE.lower_bound_seconds(Work(200, 10, gathered=15)) == 3


def test_work_is_proportional_to_tokens():
    work = roofline.explicit_work(SMALL, corpus_of([[4, 5, 6, 7]]), MACHINE)
    for name, more in roofline.explicit_work(SMALL, corpus_of([[4, 5, 6, 7]] * 2), MACHINE).items():
        assert (more.operations, more.bytes) == (2 * work[name].operations, 2 * work[name].bytes)


def test_the_baseline_reads_every_document_after_its_marker():
    assert gpt2_baseline.sequence(corpus_of([[4, 5], [], [6]])).tolist() == [1, 4, 5, 3, 1, 3, 1, 6, 3]


def test_the_baseline_has_about_as_many_parameters_and_scores_the_same_targets():
    pytest.importorskip("transformers")
    tokenizer = Tokenizer.train(sentences(0, 200))
    corpus, dev = (TokenCorpus.build(lines_of(sentences(seed, 100)), tokenizer) for seed in (1, 2))
    row = gpt2_baseline.train_gpt2(corpus, dev, len(tokenizer), parameters=100_000, seconds=0.01)
    assert row["parameters"] == pytest.approx(100_000, rel=0.4)
    assert row["steps"] >= 1
    assert 0 < row["dev_bits_per_byte"] < 8


def test_kenlm_scores_the_same_targets(tmp_path):
    pytest.importorskip("kenlm", reason="pip install kenlm, which needs a compiler")
    tokenizer = Tokenizer.train(sentences(0, 200))
    corpus, dev = (TokenCorpus.build(lines_of(sentences(seed, 100)), tokenizer) for seed in (1, 2))
    facts = peers.measure_kenlm(corpus, dev, tokenizer, tmp_path)
    log_p = KneserNey(NgramCounts.count(corpus, peers.ORDER, len(tokenizer))).log_probabilities(dev)
    exact = facts["estimated_by"] != "lmplz"  # which also counts its own unknown word
    assert facts["bits_per_byte"] == pytest.approx(-log_p.sum() / math.log(2) / dev.bytes, rel=1e-5 if exact else 0.05)
    assert facts["load_and_score_a_line_s"] > 0
