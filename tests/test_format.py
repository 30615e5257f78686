"""Progress: lines where there is no terminal, and no long work without any."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from saffu import format
from saffu.calibrated import fit, reading
from saffu.calibrated.kneser_ney import Table
from saffu.calibrated.views import CalibratedSums
from saffu.format import ProgressBar, hide_progress, progress_bar
from saffu.model import folder
from saffu.model.ledger import Ledger
from saffu.text import tokenizer
from saffu.tools import evaluate


class Stream(io.StringIO):
    """Standard error that is no terminal, and says when a line has been written."""

    def __init__(self):
        super().__init__()
        self.written = threading.Event()

    def flush(self):
        self.written.set()


def shown(monkeypatch):
    """What is shown from now on, each progress at once and only once."""
    stream = Stream()
    monkeypatch.delenv("TQDM_DISABLE")
    monkeypatch.setattr(format, "_hidden", False)
    monkeypatch.setattr(format, "LINE_AFTER", 0.0)
    monkeypatch.setattr(format, "LINES_APART", 1e6)
    monkeypatch.setattr("sys.stderr", stream)
    return stream


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"total": 4}, "work: 25%, 0 s"),
        ({}, "work: 1 tokens, 0 s"),
        ({"unit": None}, "work: 0 s"),
        ({"total": 10, "initial": 4}, "work: 50%, 0 s"),
    ],
)
def test_progress_is_lines_where_there_is_no_terminal(monkeypatch, options, line):
    stream = shown(monkeypatch)
    monkeypatch.setattr("time.time", lambda: 0.0)
    threads = threading.active_count()
    bar = progress_bar("work", **options)
    bar.update()
    with bar:
        assert stream.written.wait(60)
    assert stream.getvalue() == f"{line}\n"
    assert threading.active_count() == threads


def test_hidden_progress_has_no_thread(monkeypatch):
    stream = shown(monkeypatch)
    threads = threading.active_count()
    hide_progress()
    with progress_bar("count"):
        assert threading.active_count() == threads
    hide_progress(False)
    with progress_bar(None):
        assert threading.active_count() == threads
    monkeypatch.setenv("TQDM_DISABLE", "1")
    with progress_bar("count"):
        assert threading.active_count() == threads
    assert stream.getvalue() == ""


def test_threads_update_one_bar():
    with progress_bar(None) as bar, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: [bar.update(2) for _ in range(1000)], range(4)))
    assert bar.n == 8000


LONG = [
    (tokenizer, "count_training_words"), (tokenizer, "learn_merges"), (tokenizer.Tokenizer, "encode_batch"),
    (CalibratedSums, "count"), (fit, "vectors_of_pairs"), (fit, "context_classes"), (fit, "output_classes"),
    (fit, "near_pairs"), (Table, "solve"), (fit.Calibration, "moments"), (reading, "run_in_threads"), (Ledger, "of"),
    (folder, "write"),
]  # fmt: skip


def test_no_long_work_of_training_is_silent(saffu, monkeypatch, tmp_path, train_text):
    """All that takes time with the length of a text is done under a bar."""
    bars = []
    silent = {}

    def watch(owner, name):
        work = getattr(owner, name)

        def watched(*arguments, **options):
            silent[name] = silent.get(name, 0) + (not bars)
            return work(*arguments, **options)

        monkeypatch.setattr(owner, name, watched if work.__class__.__name__ == "function" else staticmethod(watched))

    for owner, name in LONG:
        watch(owner, name)
    monkeypatch.setattr(evaluate, "PROGRESS_BAR_FROM", 0)
    monkeypatch.setattr(ProgressBar, "__enter__", lambda bar: (bar.title and bars.append(bar), bar)[1])
    monkeypatch.setattr(ProgressBar, "__exit__", lambda bar, *error: bar in bars and bars.remove(bar))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.txt").write_text("\n".join(train_text))
    assert saffu("train train.txt --out model").status == 0
    assert silent == {name: 0 for _, name in LONG}
