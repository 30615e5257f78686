from dataclasses import fields

import pytest

from conftest import each
from saffu.errors import SaffuError
from saffu.paper.config import PaperConfig, TrainingConfig


@each(
    "settings, message",
    [
        ({"block": 1}, "`block`"),
        ({"block": 0, "radius": 0}, "at least one unit"),
        ({"hidden_dimension": 0}, "`hidden_dimension`"),
        ({"document_shards": 1}, "`document_shards`"),
        ({"variation_sign": 0}, "1 or -1"),
        ({"smoothing": 0.0}, "`smoothing`"),
        ({"pad_side": "none"}, "left or right"),
    ],
)
def test_settings_that_make_no_model(settings, message):
    with pytest.raises(SaffuError, match=message):
        PaperConfig(**settings)


def test_choices_are_rare_settings_and_shapes_are_not():
    rare = [entry.name for entry in fields(PaperConfig) if entry.metadata["rare"]]
    plain = [entry.name for entry in fields(PaperConfig) if not entry.metadata["rare"]]
    assert plain == [
        *("block", "radius", "block_mode", "radius_mode", "block_dimension", "radius_dimension", "hidden_dimension"),
        *("document_shards", "tune_folds", "fold_tokens", "seed"),
    ]
    assert len(rare) == 10


def test_printed_is_the_papers_best_model():
    printed = PaperConfig()
    assert (printed.block, printed.block_mode, printed.block_dimension) == (128, "sum", 128)
    assert (printed.radius, printed.radius_mode, printed.radius_dimension) == (8, "cat", 32)
    assert printed.document_shards == 256
    assert (printed.attention, printed.variation_shift, printed.variation_sign) == ("explicit", "bound", 1)


@pytest.mark.parametrize("rate", [0.0, -0.01])
def test_training_needs_a_learning_rate(rate):
    with pytest.raises(SaffuError, match="`learning_rate`"):
        TrainingConfig(learning_rate=rate)


def test_round_trip():
    config = PaperConfig(block=0, radius=4, pad_side="right")
    assert PaperConfig.from_dict(config.to_dict()) == config
    assert list(config.units()) == ["radius"]
