"""The recorded runs print and write what they did."""

import json

import pytest

from lab.recorded_runs import RECORDING, differences, machine


def test_runs_are_as_recorded():
    if machine() != json.loads(RECORDING.read_text("utf-8"))["machine"]:
        pytest.skip("recorded on another machine, or with other versions")
    assert not differences(), "if that is intended, run `python -m lab recorded-runs --record`"
