"""--params: the shape that is chosen needs no more than it may, and what cannot be is refused."""

import json

import pytest

from conftest import sentences
from saffu import SaffuConfig, SaffuError, SaffuLM
from saffu.cli import main
from saffu.sizes import CALIBRATED_SHAPES, fitting


@pytest.mark.parametrize(("preset", "limits"), [("calibrated", (3000, 1600)), ("network", (200_000, 60_000))])
def test_shapes_fit_their_purse(preset, limits, train_text):
    sizes = []
    for limit in limits:
        config, tokenizer = fitting(SaffuConfig.preset(preset), train_text, limit)
        lm = SaffuLM(config, tokenizer=tokenizer).fit(train_text)
        sizes.append(lm.parameters_)
        assert lm.parameters_ <= limit
    assert sizes[1] < sizes[0]


def test_with_room_enough_nothing_is_lost(train_text):
    config, _ = fitting(SaffuConfig.preset("calibrated"), train_text, 10**9)
    assert config == SaffuConfig.preset("calibrated")
    assert CALIBRATED_SHAPES[0] == (config.memory, config.radius)


def test_counts_are_foreseen_exactly(train_text):
    """One parameter less than a shape needs, and the next one is taken."""
    config, tokenizer = fitting(SaffuConfig.preset("calibrated"), train_text, 10**9)
    needed = SaffuLM(config, tokenizer=tokenizer).fit(train_text).parameters_
    assert fitting(SaffuConfig.preset("calibrated"), train_text, needed)[0] == config
    assert fitting(SaffuConfig.preset("calibrated"), train_text, needed - 1)[0] != config


def test_too_little(train_text):
    with pytest.raises(SaffuError, match="allow more"):
        fitting(SaffuConfig.preset("calibrated"), train_text, 50)


def test_command(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(1, 200)))
    with pytest.raises(SystemExit) as end:
        main(["train", str(text), "--out", str(tmp_path / "model"), "--params", "20k", "--json", "--hold-out", "0"])
    assert not end.value.code
    assert json.loads(capsys.readouterr().out)["parameters"] <= 20_000
    for options, message in [
        (["--preset", "paper"], "the paper's shape"),
        (["--radius", "3"], "--radius by itself"),
        (["--backprop"], "the paper's shape"),
    ]:
        with pytest.raises(SystemExit) as end:
            main(["train", str(text), "--out", str(tmp_path / "other"), "--params", "20k", *options])
        assert end.value.code == 2
        assert message in capsys.readouterr().err
