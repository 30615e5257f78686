"""saffu play: a local page to count a text, get suggestions while typing, see why, forget, and compare."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saffu.cli.options import Command, Parser, integer, named_path
from saffu.cli.signals import exit_if_received
from saffu.errors import SaffuError

if TYPE_CHECKING:
    import socket

    from saffu.play.studio import Studio

LOOPBACK = "127.0.0.1"
SWITCH = 5e-4  # seconds after which counting lets a keystroke through


def add_options(parser: Parser, _: Sequence[str]) -> None:
    help = "model folder to open, or a text to count [count a text on the page instead]"
    parser.add_argument("model", nargs="?", type=named_path, metavar="MODEL", help=help)
    help = "port on this machine's loopback address [any free port]"
    parser.add_argument("--port", type=integer(0, 65535), default=0, metavar="N", help=help)
    parser.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")


def run(options: argparse.Namespace) -> None:
    """Name and open the address first: the browser starts while the server does, and the page loads while it counts."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its matrices are small, and its threads fight for busy cores
    import shutil
    import webbrowser
    from importlib.util import find_spec
    from secrets import token_urlsafe
    from tempfile import TemporaryDirectory
    from threading import Thread

    from saffu import load

    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"there is no {name}", name=name)
    text = None if options.model is None or not is_file(options.model) else read_text(options.model)
    lm = load(options.model) if options.model and text is None else None
    with listening(options.port) as listener, TemporaryDirectory(prefix="saffu-play-") as private:
        token = token_urlsafe(24)
        address = f"http://{LOOPBACK}:{listener.getsockname()[1]}/{token}/"
        print(f"open {address}\nKeep this address to yourself; press Ctrl-C to stop.", flush=True)
        if not options.no_browser:
            page = redirect(address, Path(private)).as_uri()
            Thread(target=webbrowser.open, args=[page], daemon=True).start()  # waits for some browsers to start
        from saffu.play.studio import Studio

        studio = Studio() if lm is None else Studio(lm, options.model.resolve().name)
        if text is not None:
            studio.count(lambda: text, name=options.model.name)
        status: str | int | None = 0
        try:
            serve(studio, listener, token)
        except KeyboardInterrupt:
            print()
        except SystemExit as exit:
            status = exit.code
            raise
        finally:
            if studio.is_working:  # native threads would abort the process if the interpreter ended first
                sys.stdout.flush()
                shutil.rmtree(private, ignore_errors=True)
                os._exit(status if isinstance(status, int) else 1)


def is_file(path: Path) -> bool:
    """Whether a path that exists is no folder: a file, or a pipe."""
    return path.exists() and not path.is_dir()


def read_text(path: Path) -> str:
    """The text of a file, within the limits that the page has for a text that is dropped on it."""
    from saffu.play.guard import LARGEST_TEXT, too_large
    from saffu.play.server import decoded

    with path.open("rb") as file:
        data = file.read(LARGEST_TEXT + 1)
    if len(data) > LARGEST_TEXT:
        raise SaffuError(f"{path}: {too_large(LARGEST_TEXT)}")
    text = decoded(data)
    if not text.strip():
        raise SaffuError(f"{path} has no text to count; name another file")
    return text


def serve(studio: Studio, listener: socket.socket, token: str) -> None:
    """Answer the page until a signal ends it. Without a model or a text, count a short book meanwhile."""
    import uvicorn

    from saffu.play.server import app

    config = uvicorn.Config(
        app(studio, token, listener.getsockname()[1]),
        log_level="warning",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    config.load()
    exit_if_received()
    sys.setswitchinterval(SWITCH)
    if not studio.subjects and studio.job is None:
        studio.count_demo("story")
    uvicorn.Server(config).run([listener])


def redirect(address: str, private: Path) -> Path:
    """A file that leads a browser to an address whose token other users of this machine must not see.

    They see the command lines of all processes, and a browser is started with what it opens. The folder and the file
    are readable for their owner only.
    """
    page = private / "open.html"
    page.touch(0o600)
    link = f'<meta http-equiv="refresh" content="0; url={address}"><a href="{address}">Open saffu play</a>'
    page.write_text(f'<!doctype html><meta charset="utf-8"><title>saffu play</title>{link}\n', "utf-8")
    return page


def listening(port: int) -> socket.socket:
    """A socket that only this machine can reach, bound before anything is printed or opened."""
    import socket

    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise SaffuError(f"port {port} cannot be used ({error.strerror}); choose another with `port`") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for an acknowledgment
    return listener


COMMAND = Command(
    "play",
    "open a local page: count a text, get suggestions while typing, see why, and forget",
    "[MODEL | TEXT] [options]",
    "saffu play\nsaffu play letters.txt\nsaffu play model --port 8000 --no-browser",
    add_options,
    run,
)
