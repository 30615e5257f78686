"""Work in threads that stop together."""

import multiprocessing
import os
import threading

import pytest

from saffu.workers import cores, run_in_threads


def test_every_worker_has_its_number():
    assert run_in_threads(lambda number, stopped: (number, stopped()), 3) == [(0, False), (1, False), (2, False)]


def test_one_worker_runs_in_the_calling_thread():
    assert run_in_threads(lambda number, stopped: threading.current_thread(), 1) == [threading.current_thread()]


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
        run_in_threads(work, 2)
    assert stopped_early.is_set()


def report_cores(queue) -> None:
    queue.put(cores())


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["", "2"])
def test_a_worker_leaves_the_other_cores_to_other_workers(monkeypatch, limit):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setenv("SAFFU_THREADS", limit)
    context = multiprocessing.get_context("fork" if hasattr(os, "fork") else "spawn")
    queue = context.Queue()
    worker = context.Process(target=report_cores, args=(queue,))
    worker.start()
    assert queue.get(timeout=300) == int(limit or 1)
    worker.join()
    assert cores() == int(limit or 3)


def test_the_environment_lowers_the_number_of_cores(monkeypatch):
    monkeypatch.delenv("SAFFU_THREADS", raising=False)
    allowed = cores()
    assert allowed >= 1
    for limit, expected in [
        ("1", 1),
        ("0", 1),
        ("100000", allowed),
        ("many", allowed),
        ("²", allowed),
        ("9" * 5000, allowed),
    ]:
        monkeypatch.setenv("SAFFU_THREADS", limit)
        assert cores() == expected


@pytest.mark.parametrize("again", [0, 1, 3])
def test_no_work_goes_on_after_an_interrupt_that_meets_the_start_of_a_thread(monkeypatch, again):
    entered, left, start, wait_for, interrupts = [], [], threading.Thread.start, threading.Condition.wait_for, []

    def interrupted_again(condition, done):
        if len(interrupts) < again:
            interrupts.append(1)
            raise KeyboardInterrupt
        return wait_for(condition, done)

    def interrupted(thread):
        start(thread)
        while not entered:
            pass
        raise KeyboardInterrupt

    def work(number, stopped):
        entered.append(number)
        while not stopped():
            pass
        left.append(number)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    monkeypatch.setattr(threading.Condition, "wait_for", interrupted_again)
    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work, 2)
    assert entered == left == [0]
