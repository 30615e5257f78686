"""saffu play: a local page to count a text, get suggestions while typing, see why, forget, and compare."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from saffu.cli.options import Command, Parser, integer, named_path
from saffu.cli.signals import exit_if_received
from saffu.errors import SaffuError

LOOPBACK = "127.0.0.1"
SWITCH = 5e-4  # seconds after which counting lets a keystroke through


def add_options(parser: Parser, _: Sequence[str]) -> None:
    help = "model folder to open [count a text on the page instead]"
    parser.add_argument("model", nargs="?", type=named_path, metavar="MODEL", help=help)
    help = "port on this machine's loopback address [any free port]"
    parser.add_argument("--port", type=integer(0, 65535), default=0, metavar="N", help=help)
    parser.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")


def run(options: argparse.Namespace) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its matrices are small, and its threads fight for busy cores
    import uvicorn

    from saffu import load
    from saffu.play.server import app, new_token
    from saffu.play.studio import Studio

    studio = Studio(load(options.model), options.model.resolve().name) if options.model else Studio()
    with listening(options.port) as listener, TemporaryDirectory(prefix="saffu-play-") as private:
        if options.model is None:
            studio.count_demo("story")
        token = new_token()
        port = listener.getsockname()[1]
        address = f"http://{LOOPBACK}:{port}/{token}/"
        print(f"open {address}\nKeep this address to yourself; press Ctrl-C to stop.", flush=True)
        if not options.no_browser:
            webbrowser.open(redirect(address, Path(private)).as_uri())
        config = uvicorn.Config(
            app(studio, token, port), log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        exit_if_received()
        sys.setswitchinterval(SWITCH)
        try:
            uvicorn.Server(config).run([listener])
        except KeyboardInterrupt:
            print()
        finally:
            if studio.is_working:  # native threads would abort the process if the interpreter ended first
                sys.stdout.flush()
                shutil.rmtree(private, ignore_errors=True)
                os._exit(0)


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
    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise SaffuError(f"port {port} cannot be used ({error.strerror}); choose another with `port`") from None
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each answer waits 40 ms for an acknowledgment
    return listener


COMMAND = Command(
    "play",
    "open a local page: count a text, get suggestions while typing, see why, and forget",
    "[MODEL] [options]",
    "saffu play\nsaffu play model --port 8000 --no-browser",
    add_options,
    run,
)
