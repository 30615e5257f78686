"""The routes of the page. Every answer is JSON, except for the page itself, generated text, and snapshots."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from saffu.errors import SaffuError
from saffu.play.guard import SHARED, Guard
from saffu.play.studio import Studio
from saffu.play.subject import Version
from saffu.play.typist import completed
from saffu.play.why import why, why_typed, word_after
from saffu.text.records import is_valid

MOST_TYPED = 10_000  # characters of a text that is typed
LINES = 3  # of generated text, if documents have several
MOST_LEARNED = 100_000  # characters of a document that is learned or forgotten
MOST_SHARED = 300_000  # characters of a snapshot
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

Body = dict[str, Any]


def app(studio: Studio, token: str, port: int) -> ASGIApp:
    """The application for one user, who has the token."""

    def suggest(body: Body) -> Any:
        found = studio.suggest(
            model(body),
            typed(body),
            text(body, "page", 64),
            int(number(body, "number", 0, 2**53)),
            rest=text(body, "rest", MOST_TYPED) if "rest" in body else "",
            ending=ending(body),
        )
        return {"outdated": True} if found is None else found

    def explain(body: Body) -> Any:
        version, word = studio.subject(model(body)).version, text(body, "word", 1000)
        return {**why(version.lm, typed(body), word, ending(body)), "said": said(version, body, word)}

    def read(body: Body) -> Any:
        version = studio.subject(model(body)).version
        answer = why_typed(version.lm, typed(body), text(body, "rest", MOST_TYPED))
        word = answer["word"]
        return {**answer, "said": said(version, {"text": answer["before"]}, word) if word.strip() else None}

    def said(version: Version, body: Body, word: str) -> Any:
        if version.texts is None:
            return None
        context, tokens, _ = word_after(version.lm, typed(body), word, ending(body))
        return version.texts.said(version.lm.tokenizer_, context, tokens)

    def documents(body: Body) -> Any:
        version = studio.subject(model(body)).version
        if version.texts is None:
            return {"documents": [], "holding": 0}
        context, tokens, _ = word_after(version.lm, typed(body), text(body, "word", 1000), ending(body))
        return version.texts.speaking_for(version.lm.tokenizer_, context, tokens)

    def forget(body: Body) -> Any:
        chosen = None if body.get("document") is None else int(number(body, "document", 0, 2**53))
        document = text(body, "text", MOST_LEARNED) if chosen is None else ""
        drop = body.get("drop_network") is True
        studio.change(model(body), lambda subject: subject.forget(chosen, document, drop))
        return studio.facts()

    def learn(body: Body) -> Any:
        document = text(body, "text", MOST_LEARNED)
        studio.change(model(body), lambda subject: subject.learn(document))
        return studio.facts()

    def undo(body: Body) -> Any:
        studio.subject(model(body)).undo()
        return studio.facts()

    def recount(body: Body) -> Any:
        studio.change(model(body), lambda subject: subject.recount())
        return studio.facts()

    def compare(body: Body) -> Any:
        studio.compare(model(body))
        return studio.facts()

    def train(body: Body) -> Any:
        studio.train(model(body), number(body, "minutes", 0.05, 60))
        return studio.facts()

    def save(body: Body) -> Any:
        return {"saved": studio.save(model(body), text(body, "name", 64))}

    async def count(request: Request) -> Response:
        data = await request.body()
        query = request.query_params

        def begin() -> Any:
            split, name = query.get("split", "auto"), query.get("name", "")[:100]
            if query.get("demo"):
                return studio.count_demo(query["demo"]).facts()
            pasted = decoded(data)
            return studio.count(lambda: pasted, split, name).facts()

        return await answered(begin)

    async def state(request: Request) -> Response:
        return await answered(studio.facts)

    async def generate(request: Request) -> Response:
        body = await parsed(request)

        def begin() -> Iterator[str]:
            settings: dict[str, Any] = {"temperature": number(body, "temperature", 0, 10)}
            settings["top_p"] = number(body, "top_p", 0, 1)
            settings["max_tokens"] = int(number(body, "max_tokens", 1, 1000))
            settings["seed"] = int(number(body, "seed", 0, 2**32))
            lm = studio.subject(model(body)).version.lm
            lines = LINES if lm.trained_on_["lines"] > lm.trained_on_["documents"] else 1
            prompt = typed(body)
            whole = completed(lm, prompt)
            return chain([whole[len(prompt) :]], lm.stream(whole, lines=lines, **settings))

        try:
            pieces = await run_in_threadpool(begin)
        except SaffuError as error:
            return refused(error)
        return StreamingResponse(iterate_in_threadpool(pieces), media_type="text/plain; charset=utf-8")

    def take_snapshot(body: Body) -> Any:
        return {"path": SHARED + studio.share(text(body, "name", 64), text(body, "page", MOST_SHARED))}

    async def shared(request: Request) -> Response:
        page = studio.shared.get(request.path_params["rest"])
        if page is None:
            raise HTTPException(404, "this link belongs to a page that no longer runs; open the saved page instead")
        return Response(page, headers={"Content-Type": "text/html; charset=utf-8"})

    posts = {"suggest": suggest, "why": explain, "documents": documents, "forget": forget, "learn": learn}
    posts |= {
        "undo": undo,
        "save": save,
        "read": read,
        "recount": recount,
        "compare": compare,
        "train": train,
        "snapshot": take_snapshot,
    }
    routes = [Route("/", page_part("index.html"))]
    routes += [Route(f"/{part.name}", page_part(part.name)) for part in (files("saffu.play") / "static").iterdir()]
    routes += [Route(f"/api/{name}", posting(work), methods=["POST"]) for name, work in posts.items()]
    routes += [
        Route("/api/state", state),
        Route("/api/count", count, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        Route(SHARED + "{rest:path}", shared),
    ]
    handlers: Any = {HTTPException: failed}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)


def new_token() -> str:
    return secrets.token_urlsafe(24)


def page_part(name: str) -> Callable[[Request], Response]:
    """An endpoint that serves one of the files of the page."""
    kind = KINDS[Path(name).suffix]

    def serve(request: Request) -> Response:
        content = (files("saffu.play") / "static" / name).read_bytes()
        return Response(content, headers={"Content-Type": f"{kind}; charset=utf-8"})

    return serve


def posting(work: Callable[[Body], Any]) -> Callable[[Request], Any]:
    """An endpoint that gives a posted JSON object to some work."""

    async def serve(request: Request) -> Response:
        body = await parsed(request)
        return await answered(lambda: work(body))

    return serve


async def answered(work: Callable[[], Any]) -> Response:
    """Return the result of some work in another thread, or the error that a user can fix."""
    try:
        return JSONResponse(await run_in_threadpool(work))
    except SaffuError as error:
        return refused(error)
    except OSError as error:
        reason = error.strerror or error
        return refused(SaffuError(f"cannot read or write: {reason}; check permissions and free disk space"))


def refused(error: SaffuError) -> Response:
    return JSONResponse({"error": str(error)}, 422)


async def failed(request: Request, error: HTTPException) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code)


async def parsed(request: Request) -> Body:
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
        found = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SaffuError(f"the text is not UTF-8 at byte {error.start}; convert it first") from None
    if "\0" in found:
        raise SaffuError("the file looks like a binary file (it has NUL bytes); convert it to UTF-8 text")
    return found.removeprefix("\ufeff")


def text(body: Body, name: str, most: int) -> str:
    """A string in a request."""
    value = body.get(name)
    if not isinstance(value, str):
        raise SaffuError(f"`{name}` must be a string, got {type(value).__name__}")
    if not is_valid(value):
        raise SaffuError(f"`{name}` is not valid Unicode: it has half of a character; remove it")
    if len(value) > most:
        raise SaffuError(f"`{name}` has {len(value):,} characters, but the page accepts at most {most:,}; shorten it")
    return value


def typed(body: Body) -> str:
    return text(body, "text", MOST_TYPED).replace("\r\n", "\n")


def ending(body: Body) -> str | None:
    """The unfinished word at the end of a text, if the page found it in a script without spaces."""
    if body.get("ending") is None:
        return None
    found = text(body, "ending", MOST_TYPED)
    if not typed(body).endswith(found):
        raise SaffuError("`ending` must be the end of `text`")
    return found


def model(body: Body) -> str:
    return text(body, "model", 64)


def number(body: Body, name: str, low: float, high: float) -> float:
    """A number in a request."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SaffuError(f"`{name}` must be a number from {low:g} to {high:g}")
    return value
