"""saffu play as a command: its address, its end, and its errors."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

from conftest import each, sentences
from saffu.cli import play
from saffu.errors import install_command

httpx = pytest.importorskip("httpx", reason="pip install httpx")
pytest.importorskip("uvicorn", reason="pip install uvicorn")


def test_a_port_in_use_is_an_error_in_one_line(saffu):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = saffu(f"play --no-browser --port {taken.getsockname()[1]}")
    assert result.status == 2 and "choose another with --port" in result.err


@pytest.mark.skipif(sys.platform == "win32", reason="connections do not inherit the option")
def test_answers_are_sent_at_once():
    """asyncio sets this option only for sockets that name their protocol, which those of `create_server` do not."""
    from saffu.cli.play import listening

    with listening(0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_missing_server_is_an_error_in_one_line(saffu, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = saffu("play --no-browser")
    assert result.status == 2 and install_command("play") in result.err


def test_a_folder_that_is_not_a_model_is_an_error(saffu, tmp_path):
    assert saffu(["play", "--no-browser", tmp_path]).status == 2


@each("content", ["", " \n", "caf\xe9", "a\0b"])
def test_a_file_that_is_no_text_is_an_error_in_one_line(saffu, tmp_path, content):
    (tmp_path / "text.txt").write_text(content, "latin-1")
    result = saffu(["play", "--no-browser", tmp_path / "text.txt"])
    assert (result.status, result.out, len(result.err.splitlines())) == (2, "", 1)


def test_a_text_is_counted_as_one_dropped_on_the_page(saffu, tmp_path, monkeypatch):
    """In documents that its blank lines separate, none of which is held out in the end."""
    documents = [f"{sentence}\nand so on" for sentence in sentences(1, 40)]
    (tmp_path / "letters.txt").write_text("\ufeff" + "\n\n".join(documents), "utf-8")

    studios = []

    def served(studio, *rest):
        studios.append(studio)
        serve(studio, *rest)
        studio.wait()

    serve = play.serve
    monkeypatch.setattr(play, "serve", served)
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: None)
    monkeypatch.setattr("sys.setswitchinterval", lambda seconds: None)
    assert saffu(["play", "--no-browser", tmp_path / "letters.txt"]).status == 0
    (model,) = studios[0].facts()["models"]
    assert (model["name"], model["documents"]) == ("letters.txt", 40)
    assert model["bytes"] == sum(len(document) + 1 for document in documents)


def test_the_token_stays_out_of_the_command_line_of_the_browser(tmp_path):
    from saffu.cli.play import redirect

    address = "http://127.0.0.1:8765/a-token/"
    page = redirect(address, tmp_path)
    assert "a-token" not in page.as_uri() and f"url={address}" in page.read_text("utf-8")
    if sys.platform != "win32":
        assert page.stat().st_mode & 0o077 == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_the_command_serves_a_model_until_ctrl_c(fitted, tmp_path):
    fitted("calibrated").save(tmp_path / "model")
    command = [sys.executable, "-W", "error", "-m", "saffu", "play", "model", "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as server:
        address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", server.stdout.readline())[0]
        (model,) = httpx.get(f"{address}api/state").json()["models"]
        assert (model["name"], model["documents"]) == ("model", 600)
        assert "saffu play" in httpx.get(address).text
        assert httpx.get(address[:-2]).status_code == 404
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate()
    assert (server.returncode, errors) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_the_server_does_not_wait_for_the_browser(tmp_path):
    """Python waits until some browsers have started, and until others have ended."""
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\necho browsing\nexec cat\n")
    browser.chmod(0o755)
    command = [sys.executable, "-m", "saffu", "play"]
    environment = {**os.environ, "BROWSER": str(browser)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as server:
        lines = iter(server.stdout.readline, "browsing\n")
        address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", "".join(lines))[0]
        assert "saffu play" in httpx.get(address, timeout=60).text
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0  # the browser runs until its input, which is ours, is closed


BLOCKING = """
import os
print("blocked", flush=True)
os.read(0, 1)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM")
@pytest.mark.parametrize("module", ["uvicorn", "numpy"])
def test_a_signal_ends_it_at_any_stage_of_its_start(module, tmp_path):
    """While the server is imported, and while it answers and a thread works: with the same status."""
    (tmp_path / f"{module}.py").write_text(BLOCKING)  # found first, it stops the import in a call to the system
    command = [sys.executable, "-W", "error", "-m", "saffu", "play", "--no-browser"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as server:
        lines = iter(server.stdout.readline, "blocked\n")
        address = re.search(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", "".join(lines))[0]
        if module == "numpy":
            httpx.get(address, timeout=60)
        server.send_signal(signal.SIGTERM)
        if module == "numpy":
            server.wait(timeout=60)  # the thread is still in its call
        _, errors = server.communicate()  # whose end of input lets go of a call that began right after the signal
    assert (server.returncode, errors) == (143, "")


def test_the_page_is_served_before_models_are_imported():
    code = "import sys, saffu.play.server; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_folder_arithmetic_waits_for_the_settings_of_its_threads():
    """They are read when NumPy is imported, and several are slower on a busy machine."""
    code = """if True:
        import os, sys
        from saffu.cli import main, play
        os.environ.pop("OPENBLAS_NUM_THREADS", None)
        sys.modules["uvicorn"] = None  # which ends the command
        main.run(["play", "--no-browser"])
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1" and "numpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, stderr=subprocess.PIPE)
