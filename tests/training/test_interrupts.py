"""Signals that are held back."""

import signal
import threading

import pytest

from saffu.writing import uninterrupted


class Terminated(Exception):
    pass


@pytest.fixture(autouse=True)
def sigterm_raises():
    def terminate(number, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_takes_effect_at_the_end(number, error):
    usual, steps = signal.getsignal(number), []
    with pytest.raises(error), uninterrupted(once=True) as received:
        signal.raise_signal(number)
        steps.append(list(received))
    assert steps == [[number]]
    assert signal.getsignal(number) is usual


def test_a_second_signal_takes_effect_at_once():
    steps = []
    with pytest.raises(KeyboardInterrupt), uninterrupted(once=True):
        signal.raise_signal(signal.SIGINT)
        steps.append(1)
        signal.raise_signal(signal.SIGINT)
        steps.append(2)
    assert steps == [1]


def test_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted(once=True) as received:
            signal.raise_signal(signal.SIGINT)
        assert received == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    handlers = []

    def work():
        with uninterrupted(once=True) as received:
            handlers.append((signal.getsignal(signal.SIGINT), received))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [(signal.getsignal(signal.SIGINT), [])]
