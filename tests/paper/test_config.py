from dataclasses import fields

import pytest

from saffu.errors import SaffuError
from saffu.paper.config import PaperConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": 1}, "`block`"),
        ({"block": 0, "radius": 0}, "at least one unit"),
        ({"radius_span": "block", "block": 0}, "`radius_span` block needs blocks"),
        ({"radius_span": "blocks", "gap": "both"}, "a radius through blocks cannot skip a token"),
        ({"hidden_dimension": 0}, "`hidden_dimension`"),
        ({"document_shards": 1}, "`document_shards`"),
        ({"variation_sign": 0}, "1 or -1"),
        ({"smoothing": 0.0}, "`smoothing`"),
        ({"special_noise": "none"}, "masked or zero or pure or zero-padding or padding or counted"),
    ],
)
def test_settings_that_make_no_model(settings, message):
    with pytest.raises(SaffuError, match=message):
        PaperConfig(**settings)


def test_readings_are_rare_settings_and_shapes_are_not():
    plain = [entry.name for entry in fields(PaperConfig) if not entry.metadata["rare"]]
    assert plain == [
        *("block", "radius", "block_mode", "radius_mode", "block_dimension", "radius_dimension", "hidden_dimension"),
        *("document_shards", "tune_folds", "fold_tokens", "seed"),
    ]


def test_round_trip():
    config = PaperConfig(block=0, radius=4, special_noise="counted")
    assert PaperConfig.from_dict(config.to_dict()) == config
    assert list(config.units()) == ["radius"]
