"""Distributions sum to one on real text: the pages of this repository."""

from pathlib import Path

import numpy as np
import pytest

from saffu import SaffuLM

DOCS = Path(__file__).parents[2] / "docs"


def test_distributions_sum_to_one_on_the_documentation():
    lm = SaffuLM().fit([(DOCS / "living-models.md").read_text("utf-8"), (DOCS / "scale.md").read_text("utf-8")])
    tokens = lm.encode((DOCS / "performance.md").read_text("utf-8"))
    places = [0, *np.random.default_rng(0).integers(0, len(tokens), size=20)]
    for model in (lm.model_, lm.model_.without_memory()):
        log_p = model.next_log_probabilities([model.start(tokens[:place]) for place in places])
        assert np.exp(log_p.astype(np.float64)).sum(axis=1) == pytest.approx(np.ones(21), abs=1e-5)
