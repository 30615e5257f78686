"""Grids from shared sums equal grids of models fitted one by one with uniform attention."""

import math

import pytest

from conftest import sentences
from lab.shared_units import SharedUnits
from saffu.experiments.grid import MODES, grid
from saffu.experiments.scoring import GridCorpus
from saffu.paper.fit import fit
from saffu.text.corpus import TokenCorpus, lines_of
from saffu.text.tokenizer import Tokenizer
from saffu.tools.evaluate import evaluate


@pytest.fixture(scope="module")
def text() -> GridCorpus:
    train, dev = sentences(1, 200), sentences(2, 40)
    tokenizer = Tokenizer.train(train)
    corpora = [TokenCorpus.build(lines_of(documents), tokenizer) for documents in (train, dev)]
    return GridCorpus.build(*corpora, tokenizer, eval_tokens=1000)


READINGS = [
    {},
    {"special_noise": "pure", "slot_weight": "natural", "radius_padding": "right", "radius_span": "document"},
    {"special_noise": "zero-padding", "block_advance": "shifted", "radius_span": "start"},
    {"special_noise": "padding", "block_advance": "shifted", "radius_padding": "right"},
    {"hidden_targets": "normalized", "hidden_dimension": 40, "smoothing": 0.1},
]


def test_perplexities_are_those_of_whole_models(text):
    """All readings are solved by the same object, so nothing that it keeps may depend on what it leaves out."""
    shared = SharedUnits(text, "cpu")
    dimensions = {"block_dimension": [16], "radius_dimension": [12], "hidden_dimension": [32], "attention": ["uniform"]}
    for reading in READINGS:
        settings = dimensions | {name: [value] for name, value in reading.items()}
        found = shared.nats(grid([2, 8], [4], MODES, 0, settings))
        assert len(found) == 8
        for cell, nats in found.items():
            *_, stage = fit(text.train, text.vocabulary, cell)
            expected = evaluate(stage.model, text.samples["dev"]).perplexity
            assert math.exp(nats) == pytest.approx(expected, rel=2e-5), cell
