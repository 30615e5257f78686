"""What the server refuses, and the headers of what it gives."""

import pytest

from conftest import each

pytest.importorskip("starlette", reason="pip install starlette")

from saffu.play.guard import HEADERS, LARGEST_REQUEST, LARGEST_TEXT

ASK = {"model": "x", "text": "", "page": "a", "number": 1}


@each(
    "headers, status",
    [
        ({}, 422),
        ({"Host": "localhost:8765", "Origin": "http://localhost:8765"}, 422),
        ({"Host": "evil.example:8765"}, 421),
        ({"Host": "127.0.0.1"}, 421),
        ({"Host": "127.0.0.1:8766"}, 421),
        ({"Host": "127.0.0.1.evil.example:8765"}, 421),
        ({"Host": "evil.example:8765", "Origin": "http://evil.example:8765"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1:8765"}, 403),
        ({"Origin": "http://localhost:8765"}, 403),
    ],
)
def test_host_and_origin(page, headers, status):
    answer = page.client.post("api/suggest", json=ASK, headers=headers)
    assert answer.status_code == status and set(answer.json()) == {"error"}


def test_posts_without_an_origin_are_refused(page):
    del page.client.headers["Origin"]
    assert page.client.post("api/suggest", json=ASK).status_code == 403
    assert page.client.get("api/state").status_code == 200


@each("path", ["/", "/api/state", "/a-toke/api/state", "/a-token", "/A-TOKEN/"])
def test_nothing_without_the_token(page, path):
    answer = page.client.get(f"http://127.0.0.1:8765{path}")
    assert answer.status_code == 404 and "token" in answer.json()["error"]


@each("path", ["", "play.js", "reasons.js", "play.css", "icon.svg", "api/state", "api/nothing", "static/../server.py"])
def test_every_answer_has_the_headers(page, path):
    answer = page.client.get(path)
    assert answer.status_code == (404 if "nothing" in path or "server" in path else 200)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_large_requests_are_refused_with_a_clear_message(page):
    answer = page.client.post("api/suggest", content=b" " * (LARGEST_REQUEST + 1))
    assert answer.status_code == 413 and "1 MB" in answer.json()["error"]
    answer = page.client.post("api/suggest", content=b"{}", headers={"Content-Length": "1" * 5000})
    assert answer.status_code == 413 and "1 MB" in answer.json()["error"]
    answer = page.client.post("api/count", content=b" " * (LARGEST_TEXT + 1))
    assert answer.status_code == 413 and "20 MB" in answer.json()["error"]

    def endless():
        for _ in range(LARGEST_REQUEST // 1000 + 2):
            yield b" " * 1000

    answer = page.client.post("api/suggest", content=endless())
    assert answer.status_code == 413 and "1 MB" in answer.json()["error"]


@each(
    "content, status, message",
    [
        (b"", 400, "JSON object"),
        (b"[]", 400, "JSON object"),
        (b"[" * 100_000, 400, "JSON object"),
        (b'{"model": 3}', 422, "`model` must be a string"),
        (b'{"model": "../../etc"}', 422, "`text` must be a string"),
        (b'{"model": "../../etc", "text": "", "page": "a", "number": 1}', 422, "model is no longer available"),
        (b'{"model": "x", "text": "\\ud800", "page": "a", "number": 1}', 422, "`text` is not valid Unicode"),
        (b'{"model": "x", "text": "", "page": "a", "number": true}', 422, "`number` must be a number"),
        (b'{"model": "x", "text": "", "page": "a", "number": NaN}', 422, "`number` must be a number"),
    ],
)
def test_malformed_requests_give_one_line(page, content, status, message):
    answer = page.client.post("api/suggest", content=content)
    assert answer.status_code == status and message in answer.json()["error"]


def test_long_texts_are_refused_with_a_clear_message(counted_page):
    error = counted_page.post("suggest", 422, **{**ASK, "model": counted_page.id, "text": "x" * 10_001})["error"]
    assert "10,001 characters" in error and "10,000" in error


def test_only_posts_change_anything(page):
    for name in ("count", "forget", "learn", "undo", "save", "generate", "snapshot", "suggest", "why", "documents"):
        assert page.client.get(f"api/{name}").status_code == 405


def test_web_sockets_are_refused(page):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), page.client.websocket_connect("api/state"):
        pass
