"""The routes of the page. Every answer is JSON, except for the page itself, generated text, and snapshots.

Nothing here imports a model or NumPy before the page asks for its answers: the page is served, and loads, while they
are imported and a text is counted.
"""

from __future__ import annotations

import json
from asyncio import to_thread
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from saffu.errors import SaffuError
from saffu.play.guard import SHARED, Guard
from saffu.play.studio import Studio

POSTS = (
    "suggest", "why", "read", "documents", "forget", "learn", "undo", "recount", "compare", "train", "save", "snapshot",
)  # fmt: skip
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
STATIC = Path(__file__).with_name("static")

Endpoint = Callable[[Request], Any]


def app(studio: Studio, token: str, port: int) -> ASGIApp:
    """The application for one user, who has the token."""

    async def count(request: Request) -> Response:
        data = await request.body()
        query = request.query_params

        def begin() -> Any:
            if query.get("demo"):
                return studio.count_demo(query["demo"]).facts()
            pasted = decoded(data)
            return studio.count(lambda: pasted, query.get("split", "auto"), query.get("name", "")[:100]).facts()

        return await answered(begin)

    async def state(request: Request) -> Response:
        stage = request.query_params.get("stage", "")
        return await answered(lambda: studio.facts(int(stage) if stage.isdecimal() else None))

    async def generate(request: Request) -> Response:
        try:
            pieces = await to_thread(answer, studio, "generate", await parsed(request))
        except SaffuError as error:
            return refused(error)
        return StreamingResponse(iterate_in_threadpool(pieces), media_type="text/plain; charset=utf-8")

    async def shared(request: Request) -> Response:
        page = studio.shared.get(request.path_params["rest"])
        if page is None:
            raise HTTPException(404, "this link belongs to a page that no longer runs; open the saved page instead")
        return Response(page, headers={"Content-Type": "text/html; charset=utf-8"})

    routes = [Route("/", page_part(STATIC / "index.html"))]
    routes += [Route(f"/{part.name}", page_part(part)) for part in STATIC.iterdir()]
    routes += [Route(f"/api/{name}", posting(studio, name), methods=["POST"]) for name in POSTS]
    routes += [
        Route("/api/state", state),
        Route("/api/count", count, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        Route(SHARED + "{rest:path}", shared),
    ]
    handlers: Any = {HTTPException: failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)


def page_part(path: Path) -> Endpoint:
    """An endpoint that serves one of the files of the page."""

    async def serve(request: Request) -> Response:
        return Response(path.read_bytes(), headers={"Content-Type": f"{KINDS[path.suffix]}; charset=utf-8"})

    return serve


def posting(studio: Studio, name: str) -> Endpoint:
    """An endpoint that answers a posted JSON object."""

    async def serve(request: Request) -> Response:
        body = await parsed(request)
        return await answered(lambda: answer(studio, name, body))

    return serve


def answer(studio: Studio, name: str, body: dict[str, Any]) -> Any:
    from saffu.play import answers

    return getattr(answers, name)(studio, body)


async def answered(work: Callable[[], Any]) -> Response:
    """Return the result of some work in another thread, or the error that a user can fix."""
    try:
        return JSONResponse(await to_thread(work))
    except SaffuError as error:
        return refused(error)
    except OSError as error:
        reason = error.strerror or error
        return refused(SaffuError(f"cannot read or write: {reason}; check permissions and free disk space"))


def refused(error: SaffuError) -> Response:
    return JSONResponse({"error": str(error)}, 422)


async def failed(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code)


async def parsed(request: Request) -> dict[str, Any]:
    """The JSON object of a request."""
    data = await request.body()
    with suppress(ValueError, RecursionError):
        body = json.loads(data)
        if isinstance(body, dict):
            return body
    raise HTTPException(400, "a request must be a JSON object")


def decoded(data: bytes) -> str:
    """A posted text."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SaffuError(f"the text is not UTF-8 at byte {error.start}; convert it first") from None
    if "\0" in text:
        raise SaffuError("the file looks like a binary file (it has NUL bytes); convert it to UTF-8 text")
    return text.removeprefix("\ufeff")
