import threading

import pytest
import torch

from saffu.workers import side_by_side


def test_every_worker_has_its_number_and_one_core():
    before = torch.get_num_threads()
    found = side_by_side(lambda number, stopped: (number, torch.get_num_threads(), stopped()), workers=3)
    assert found == [(0, 1, False), (1, 1, False), (2, 1, False)]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_when_one_fails_the_others_stop(error):
    stopped_early = threading.Event()

    def work(number, stopped):
        if number == 1:
            raise error("the second fails")
        while not stopped():
            pass
        stopped_early.set()

    with pytest.raises(error, match="the second fails"):
        side_by_side(work, workers=2)
    assert stopped_early.is_set()


def test_denormal_numbers_are_zero_within_and_stay_without():
    tiny = torch.tensor([1e-39])
    assert side_by_side(lambda number, stopped: float(tiny * 1), workers=1) == [0.0]
    assert float(tiny * 1) > 0
