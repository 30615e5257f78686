"""Options: made from settings, two-step parsing, --set."""

import argparse
import re
from dataclasses import dataclass, fields
from typing import Literal

import pytest

from conftest import each
from saffu.calibrated.config import CalibratedConfig
from saffu.cli.commands import COMMANDS
from saffu.cli.main import parse
from saffu.cli.options import Command, Parser, add_set_option, add_settings, count, given_settings, integer, rare_help
from saffu.errors import SaffuError
from saffu.model.solutions import offered_presets
from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.settings import Settings, setting
from toy_model import ToyConfig


@dataclass(frozen=True)
class Shape(Settings):
    order: int = setting(5, "longest n-gram")
    mode: Literal["sum", "cat"] = setting("sum", "how slots are joined")
    greedy: bool = setting(False, "whether 100% of it is taken")
    limit: int | None = setting(None, "at most this many")
    smoothing: float = setting(1e-3, "added to counts", rare=True)
    dense: bool = setting(True, "no zeros", rare=True)


@pytest.fixture
def parser():
    made = Parser(Command("fly", "take off", "", "saffu fly", lambda *_: None, lambda _: None))
    add_settings(made, Shape)
    add_set_option(made, [Shape()])
    return made


def given(parser, line):
    return given_settings(parser.parse(line.split()), Shape)


def test_options_of_settings(parser):
    assert given(parser, "") == {}
    assert given(parser, "--order 3 --mode cat --greedy --limit 7") == {
        "order": 3,
        "mode": "cat",
        "greedy": True,
        "limit": 7,
    }
    assert given(parser, "--no-greedy") == {"greedy": False}
    shown = parser.format_help()
    assert "longest n-gram [5]" in shown and "100%" in shown and "--smoothing" not in shown


def test_rare_settings(parser):
    assert given(parser, "--set smoothing=1e-2 --set dense=no") == {"smoothing": 0.01, "dense": False}
    assert "smoothing=0.001" in rare_help(parser.parse([])) and "dense=yes" in rare_help(parser.parse([]))


@each(
    "line, message",
    [
        ("--set order=3", "--set order=3 is an option of its own; use --order 3"),
        ("--set smooth=3", "did you mean smoothing?"),
        ("--set smoothing", "use --set smoothing=VALUE"),
        ("--set smoothing=much", "--set smoothing must be a number, got 'much'"),
        ("--set dense=perhaps", "--set dense must be yes or no"),
        ("--ordr 3", "unknown option --ordr; did you mean --order?"),
        ("--orde 3", "did you mean --order?"),
        ("--order many", "must be an integer, got 'many'; see `saffu fly --help`"),
        ("--mode mean", "invalid choice: 'mean'"),
        ("word", "unexpected argument 'word'"),
    ],
)
def test_mistakes(parser, line, message):
    with pytest.raises(SaffuError, match=re.escape(message)):
        given(parser, line)


@each(
    "text, number",
    [("7", 7), ("1e6", 10**6), ("500k", 500_000), ("2M", 2 * 10**6), ("1.001k", 1001), (str(2**63 - 1), 2**63 - 1)],
)
def test_counts(text, number):
    assert count(text) == number


@each("text", ["", "0", "-5", "many", "1e400", "nan", "inf", "k", "9e30", "1.5", "1e999999999"])
def test_no_counts(text):
    with pytest.raises(argparse.ArgumentTypeError):
        count(text)


def test_integers():
    assert integer(2)("2") == 2
    for text in ("1", "x", "1.5", "9" * 30, "9" * 5000):
        with pytest.raises(argparse.ArgumentTypeError, match="must be an integer"):
            integer(2)(text)


def help_of(capsys, monkeypatch, line):
    monkeypatch.setenv("COLUMNS", "80")
    assert parse(line.split()) is None
    return capsys.readouterr().out


def test_older_names_of_options_and_presets_still_work():
    for line in ("train --memory-tokens 7", "train --cache 7", "train --preset calibrated --cache 7"):
        options = parse(line.split())
        assert (options.cache, options.preset) == (7, "counted")
    assert parse(["score", "model", "--no-cache"]).memory is False
    assert parse(["score", "model"]).memory is None
    assert parse(["eval", "model", "--no-cache"]).no_memory is parse(["eval", "model", "--no-memory"]).no_memory is True


@pytest.mark.parametrize("preset", ["counted", "paper"])
def test_help_of_train_fits_two_screens(capsys, monkeypatch, preset):
    shown = help_of(capsys, monkeypatch, f"train --preset {preset} --help")
    assert preset == "paper" or len(shown.splitlines()) <= 100
    assert ("\n  --backprop " in shown) == (preset == "paper")
    assert shown.rstrip().endswith("saffu train --resume network")


def test_each_setting_is_an_option_of_its_preset_only(capsys, monkeypatch):
    shown = {name: help_of(capsys, monkeypatch, f"train --preset {name} --help") for name in offered_presets()}
    options = {name: set(re.findall(r"^  (--[\w-]+)", text, re.M)) for name, text in shown.items()}
    settings = {"counted": [CalibratedConfig], "paper": [PaperConfig, TrainingConfig], "toy": [ToyConfig]}
    for name, classes in settings.items():
        for entry in (entry for kind in classes for entry in fields(kind)):
            flag = "--" + (entry.metadata["option"] or entry.name).replace("_", "-")
            assert (flag in options[name]) != entry.metadata["rare"], flag
            for other in settings:
                has_it = any(entry.name == field.name for kind in settings[other] for field in fields(kind))
                assert flag not in options[other] or has_it, flag


@each("name", COMMANDS)
def test_every_command_ends_its_help_with_an_example(capsys, monkeypatch, name):
    shown = help_of(capsys, monkeypatch, f"{name} --help")
    assert f"saffu {name} " in shown.split("examples:\n")[1]
    assert shown.startswith(f"usage: saffu {name} ")
    assert help_of(capsys, monkeypatch, f"help {name}") == shown


def test_help_lists_every_command(capsys):
    assert parse(["--help"]) is None
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.purpose)}$", shown, re.M)


def test_examples_can_be_parsed():
    import shlex

    for command in COMMANDS.values():
        for line in command.examples.splitlines():
            words = shlex.split(line.split("|")[-1].split("#")[0].split(" > ")[0])
            assert words[0] == "saffu"
            assert parse(words[1:]).command.name == words[1]
