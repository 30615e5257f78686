"""Changes of a model in random order, each against counting all its documents again (see `test_changes.py`)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from test_changes import Changes
from torture.harness import Attempt

STEPS = 60


def attack(rng: random.Random, place: Path) -> Iterator[Attempt]:
    """Yield the outcome of one example after the other."""
    how = settings(
        max_examples=1,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    while True:
        drawn = rng.randrange(2**32)
        machine = seed(drawn)(type("Changes", (Changes,), {}))
        wrong = ""
        try:
            run_state_machine_as_test(machine, settings=how)
        except Exception as error:
            wrong = f"seed {drawn}: {error!r:.500}"
        yield "changes", wrong
