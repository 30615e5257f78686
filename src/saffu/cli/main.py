"""Entry point of the command `saffu`: parse, call, print."""

from __future__ import annotations

import _thread
import io
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from saffu import __version__
from saffu.cli.signals import received

if TYPE_CHECKING:
    import argparse

INTERRUPTED = "interrupted; no partial output was left behind"
NO_MEMORY = "out of memory|allocate memory|size calculation overflow|start new thread|thread pool|map segment"
HIDDEN = re.compile(r"(?<=[/\\])\.[^/\\]+\.(writing-\w+|lock)$")  # made next to an output
EXTRAS = {"torch": "torch", "matplotlib": "plots", "transformers": "hf", "starlette": "play", "uvicorn": "play"}


SHORT_WAITS = {"GOMP_SPINCOUNT": "1000", "OPENBLAS_THREAD_TIMEOUT": "16"}
"""How long threads of torch and of NumPy wait actively for each other: by default for milliseconds, in which they take
the cores from those that they wait for, if others are busy, too. A step of training then took ten times as long."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit: 0 success, 2 user error, 130 interrupted, 143 terminated, 129 terminal closed."""
    status = 130
    previous = {}
    hook = sys.unraisablehook
    try:  # around the imports too, so that Ctrl-C never shows a traceback
        sys.unraisablehook = _send_again
        received.clear()
        if "saffu.commit" in sys.modules:  # when called from Python
            sys.modules["saffu.commit"].committed.clear()
        hang_up = getattr(signal, "SIGHUP", signal.SIGTERM)  # which Windows does not have
        handlers: dict[int, Any] = {signal.SIGTERM: _terminate, hang_up: _terminate, signal.SIGINT: _interrupt}
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and background jobs have it
                previous[number] = signal.signal(number, handler)
        status = run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt as interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C while the command ends
        complain(str(interrupt) or interrupted())
    except Exception:
        if not received:
            raise
        if received[-1] == signal.SIGINT:  # which led to this error
            complain(interrupted())
        else:
            status = 128 + received[-1]
    finally:
        for number, usual in previous.items():
            is_ending = arguments is None and received and number == signal.SIGINT
            signal.signal(number, signal.SIG_IGN if is_ending else usual)
        sys.unraisablehook = hook
    if arguments is None and received and "ray" in sys.modules:  # whose threads can crash an interpreter that ends
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115, PTH123 (closed, as daemons have them)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = "utf-8" if sys.platform == "win32" else None  # where pipes would get another encoding
            stream.reconfigure(encoding=encoding, errors="backslashreplace")

    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in SHORT_WAITS.items():  # read by libraries when they are loaded
            os.environ.setdefault(name, value)

    from saffu.cli.output import Harmless
    from saffu.errors import SaffuError, install_command

    notes = logging.getLogger("saffu")
    if not any(isinstance(handler, Notes) for handler in notes.handlers):
        notes.addHandler(Notes())
    if sys.stdout.isatty():
        sys.stdout = cast("TextIO", Harmless(sys.stdout))
    options: argparse.Namespace | None = None
    try:
        options = parse(words)
        if options is not None:
            options.command.run(options)
        sys.stdout.flush()
    except SaffuError as error:
        return fail(as_typed(str(error), options))
    except BrokenPipeError:  # the reader of our output has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except MemoryError:
        return fail("out of memory; use less text or smaller settings, or train with --memory-limit")
    except ImportError as error:
        if re.search(NO_MEMORY, str(error)):
            return fail("not enough memory to load a library; raise the limit on memory")
        if error.name not in EXTRAS or not isinstance(error, ModuleNotFoundError):
            raise
        return fail(f"this needs {error.name}; install it with `{install_command(EXTRAS[error.name])}`")
    except OSError as error:
        where = f" {HIDDEN.sub('', str(error.filename))}" if error.filename else ""
        reason = error.strerror or error
        return fail(f"cannot read or write{where}: {reason}; check the path, permissions, and free disk space")
    except RuntimeError as error:
        if not re.search(NO_MEMORY, str(error)):
            raise
        return fail("not enough memory on the device; use smaller settings or less text")
    except SystemError as error:  # how Python reports that a library, out of memory, has not reported it
        if not re.search("without (setting an )?exception", str(error)):
            raise
        return fail("a library failed without a reason, most likely for lack of memory; raise the limit on memory")
    except BaseException as error:  # how the tokenizers library reports that it cannot start its threads
        if type(error).__name__ != "PanicException" or not re.search(NO_MEMORY, str(error)):
            raise
        return fail("not enough memory for threads; raise the limit on memory or processes")
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace | None:
    """Parse a command line, including its command; return None after printing help or the version."""
    from difflib import get_close_matches

    from saffu.cli.commands import COMMANDS
    from saffu.cli.options import Parser
    from saffu.errors import SaffuError

    if not words:
        raise SaffuError("missing command; run `saffu --help` for a list")
    name, *rest = words
    if name == "help" and rest:
        name, rest = rest[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(top_help())
        return None
    if name in ("-V", "--version"):
        print(f"saffu {__version__}")
        return None
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, 1)
        raise SaffuError(f"unknown command {name!r}; " + (f"did you mean {near[0]}?" if near else "see `saffu --help`"))
    parser = Parser(COMMANDS[name])
    parser.set_defaults(commands=COMMANDS.values())
    COMMANDS[name].add_options(parser, rest)
    if {"-h", "--help"} & set(rest):
        print(parser.format_help(), end="")
        return None
    return parser.parse(rest)


def top_help() -> str:
    """What `saffu --help` prints."""
    from saffu.cli.commands import GROUPS

    lines = [
        "usage: saffu COMMAND [options]",
        "",
        "Small language models of your own text: counted first and, if you like, then trained.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {command.name:<11} {command.purpose}" for command in commands)]
    return "\n".join(
        [*lines, "", "Run `saffu COMMAND --help` for options and examples; `saffu --version` for the version."]
    )


class Notes(logging.Handler):
    """Prints what the library warns of on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def fail(message: str) -> int:
    """Print why a command has failed, and what it had written before; return the status of a user error."""
    return complain(f"{message}; {already}" if (already := already_written()) else message)


def interrupted() -> str:
    """What an interrupted command has left."""
    already = already_written()
    return f"interrupted, but {already}" if already else INTERRUPTED


def already_written() -> str:
    """What this process has written before it failed; empty if nothing."""
    commit = sys.modules.get("saffu.commit")
    if commit is None or not commit.committed:
        return ""
    return f"{commit.committed[-1]} had been written: it holds the new version"


def complain(message: str) -> int:
    """Print one line on standard error; return the status of a user error."""
    from saffu.cli.output import print_unless_closed
    from saffu.format import escape_controls

    line = " ".join(message.split("\n"))
    print_unless_closed(f"saffu: {escape_controls(line)}", sys.stderr)
    return 2


def as_typed(message: str, options: argparse.Namespace | None) -> str:
    """A message with its backquoted settings as options, where the command has them.

    >>> from argparse import Namespace
    >>> as_typed("`top_k` must be an integer; see `saffu --help`", Namespace(top_k=1))
    '--top-k must be an integer; see `saffu --help`'
    """
    if options is None:
        return message
    named = vars(options)

    def option(match: re.Match[str]) -> str:
        name = {"errors": "encoding_errors"}.get(match[1], match[1])
        if name in named.get("rare", ()):
            return f"--set {name}"
        return "--" + name.replace("_", "-") if name in named else match[0]

    return re.sub(r"`(\w+)`", option, message)


def _interrupt(*_: object) -> None:
    """Raise KeyboardInterrupt on SIGINT."""
    received.append(signal.SIGINT)
    if _importing_torch():
        complain(interrupted())
        os._exit(130)
    raise KeyboardInterrupt


def _importing_torch() -> bool:
    """Whether torch is being imported, which aborts the process instead of passing an exception on."""
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.__spec__, "_initializing", False)


def _terminate(number: int, _: object) -> NoReturn:
    """Exit on SIGTERM or SIGHUP, removing scratch folders; a second one kills at once."""
    received.append(number)
    signal.signal(number, signal.SIG_DFL)
    if _importing_torch():
        os._exit(128 + number)
    sys.exit(128 + number)


def _send_again(event: sys.UnraisableHookArgs) -> None:
    """Resend a signal whose exception was raised in a finalizer, where Python ignores exceptions."""
    if event.exc_type not in (KeyboardInterrupt, SystemExit):
        sys.__unraisablehook__(event)
        return
    number = signal.SIGINT if event.exc_type is KeyboardInterrupt else signal.SIGTERM
    signal.signal(number, _interrupt if number == signal.SIGINT else _terminate)

    def send() -> None:
        time.sleep(0.01)  # the finalizer has to end first
        if sys.platform == "win32":
            _thread.interrupt_main(number)
        else:  # wakes up a call that waits
            signal.pthread_kill(main_thread, number)

    main_thread = _thread.get_ident()
    _thread.start_new_thread(send, ())
