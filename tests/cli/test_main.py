"""Exit statuses and the one line that explains them."""

import argparse
import ast
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from conftest import each
from saffu.cli import commands
from saffu.cli.main import SHORT_WAITS, as_typed, main, run
from saffu.cli.signals import exit_if_received
from saffu.errors import SaffuError, install_command
from saffu.writing import ENDING


@pytest.fixture
def status_of(capsys, monkeypatch):
    """Run `saffu info x` with another function in place of the command's; return the status and standard error."""

    def run(action):
        replaced = replace(commands.COMMANDS["info"], run=lambda _: action())
        monkeypatch.setitem(commands.COMMANDS, "info", replaced)
        with pytest.raises(SystemExit) as exit:
            main(["info", "x"])
        return exit.value.code, capsys.readouterr().err

    return run


def raising(error):
    def action():
        raise error

    return action


@each(
    "error, status, line",
    [
        (SaffuError("`check` is 3;\nit must be less"), 2, "saffu: --check is 3; it must be less\n"),
        (SaffuError("\x1b[31mred"), 2, "saffu: \\x1b[31mred\n"),
        (KeyboardInterrupt(), 130, "saffu: interrupted; no partial output was left behind\n"),
        (KeyboardInterrupt("interrupted; rerun"), 130, "saffu: interrupted; rerun\n"),
        (MemoryError(), 2, "saffu: out of memory; use less text or smaller settings, or train with --memory-limit\n"),
        (
            ModuleNotFoundError("no", name="torch"),
            2,
            f"saffu: this needs torch; install it with `{install_command('torch')}`\n",
        ),
    ],
)
def test_errors_are_one_line(status_of, error, status, line):
    assert status_of(raising(error)) == (status, line)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_meets_a_finalizer_is_not_ignored(status_of, number, status):
    class Dying:
        def __del__(self):
            signal.raise_signal(number)

    def action():
        del_me = Dying()
        del del_me
        threading.Event().wait(60)

    ended, err = status_of(action)
    assert ended == status
    assert "Traceback" not in err


def test_a_second_ctrl_c_does_not_hide_the_message(status_of, monkeypatch):
    from saffu.cli import main as module

    def complain(message):
        signal.raise_signal(signal.SIGINT)
        return usual(message)

    usual = module.complain
    monkeypatch.setattr(module, "complain", complain)
    ended = status_of(lambda: signal.raise_signal(signal.SIGINT))
    assert ended == (130, "saffu: interrupted; no partial output was left behind\n")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_after_a_command_was_ended_is_silent():
    code = (
        "import atexit, os, signal, sys\n"
        "from saffu.cli import main\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "main.parse = lambda _: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main.main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (143, "")


@each(
    "path, named",
    [("/there", "/there"), ("/there/.m.writing-ab_1", "/there/"), ("/there/.m.lock", "/there/"), ("/.m.lock", "/")],
)
def test_errors_of_files_name_the_file_or_the_folder_of_an_output(status_of, path, named):
    status, line = status_of(raising(PermissionError(13, "Permission denied", path)))
    assert (status, line.count("\n")) == (2, 1)
    assert f"cannot read or write {named}: Permission denied" in line


def test_devices_out_of_memory(status_of):
    status, line = status_of(raising(RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")))
    assert (status, line.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    "message", ["<function f> returned NULL without setting an exception", "error return without exception set"]
)
def test_libraries_that_fail_without_a_reason(status_of, message):
    status, line = status_of(raising(SystemError(message)))
    assert (status, line.count("\n"), "lack of memory" in line) == (2, 1, True)


def test_programming_errors_stay_loud(monkeypatch):
    for error in (
        RuntimeError("shapes"),
        ValueError("no"),
        SystemError("no"),
        ModuleNotFoundError("no", name="saffu.nothing"),
    ):
        replaced = replace(commands.COMMANDS["info"], run=lambda _, error=error: raising(error)())
        monkeypatch.setitem(commands.COMMANDS, "info", replaced)
        with pytest.raises(type(error)):
            main(["info", "x"])


@pytest.mark.parametrize("number", ENDING[1:])
def test_termination_unwinds(status_of, number):
    """Also if the terminal is closed."""
    left = []

    def action():
        try:
            signal.raise_signal(number)
        finally:
            left.append("scratch removed")

    before = signal.getsignal(number)
    assert status_of(action) == (128 + number, "")
    assert left == ["scratch removed"]
    assert signal.getsignal(number) is before


def test_ctrl_c_while_parsing(capsys, monkeypatch):
    monkeypatch.setattr("saffu.cli.main.parse", lambda words: raising(KeyboardInterrupt())())
    with pytest.raises(SystemExit) as exit:
        main(["train", "--help"])
    assert exit.value.code == 130
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_that_python_wraps(status_of):
    def action():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("Error calling __set_name__") from interrupt

    assert status_of(action) == (130, "saffu: interrupted; no partial output was left behind\n")


@pytest.mark.parametrize(("number", "status"), [(number, 128 + number) for number in ENDING])
def test_signals_that_meet_code_which_then_fails_to_clean_up(status_of, number, status):
    """As argparse does in parse_intermixed_args."""

    def action():
        try:
            signal.raise_signal(number)
        finally:
            raise AttributeError("'_StoreAction' object has no attribute 'save_required'")

    ended, err = status_of(action)
    assert ended == status
    assert err == ("saffu: interrupted; no partial output was left behind\n" if status == 130 else "")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_that_a_library_replaces_by_an_error(status_of, number, status):
    """As NumPy does while it is imported."""

    def action():
        with suppress(KeyboardInterrupt, SystemExit):
            signal.raise_signal(number)
        raise ImportError('PyCapsule_Import could not import module "datetime"')

    assert status_of(action)[0] == status


@pytest.mark.skipif(sys.platform == "win32", reason="no such pipes")
def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -m saffu train --help | true; test ${{PIPESTATUS[0]}} = 0"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_closed_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert (run(["--version"]), run(["fly"])) == (0, 2)
    for stream in (sys.stdout, sys.stderr):
        stream.close()


def test_help_is_quick_to_import():
    code = "import sys; from saffu.cli.main import parse; parse(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not {"torch", "numpy", "tokenizers", "matplotlib"} & set(done.stderr.split())


def test_settings_are_shown_as_options():
    options = argparse.Namespace(top_k=1, encoding_errors="strict", rare={"smoothing": None})
    assert as_typed("raise `top_k`, not `seed`", options) == "raise --top-k, not `seed`"
    assert as_typed("`smoothing` is 0", options) == "--set smoothing is 0"
    assert as_typed("set `errors` to replace", options) == "set --encoding-errors to replace"
    assert as_typed("see `saffu --help`", options) == "see `saffu --help`"


@pytest.mark.parametrize(
    ("words", "message"), [([], "missing command"), (["trian"], "did you mean train?"), (["fly"], "see `saffu --help`")]
)
def test_unknown_commands(capsys, words, message):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_version(capsys):
    import saffu

    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert (exit.value.code, capsys.readouterr().out) == (0, f"saffu {saffu.__version__}\n")


def test_a_signal_whose_exception_vanished_still_ends_a_server(monkeypatch):
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        monkeypatch.setattr("saffu.cli.signals.received", [number])
        with pytest.raises(SystemExit) as ended:
            exit_if_received()
        assert ended.value.code == status
    monkeypatch.setattr("saffu.cli.signals.received", [])
    exit_if_received()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SHORT_WAITS),
        ({"GOMP_SPINCOUNT": "7"}, {**SHORT_WAITS, "GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_threads_hardly_wait_for_each_other_unless_they_are_to(given, expected):
    """The libraries read this when they are imported."""
    code = """if True:
        import os, sys
        from saffu.cli.main import run
        run(["--version"])
        assert "numpy" not in sys.modules and "torch" not in sys.modules
        print({name: value for name, value in os.environ.items() if "OMP_" in name or "THREAD_TIMEOUT" in name})
    """
    environment = {name: value for name, value in os.environ.items() if name not in SHORT_WAITS and "OMP" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == expected
