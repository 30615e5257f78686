"""The recorded runs print and write what they did."""

from lab.recorded_runs import differences


def test_runs_are_as_recorded():
    assert not differences(), "if that is intended, run `python -m lab recorded-runs --record`"
