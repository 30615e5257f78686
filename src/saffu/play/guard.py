"""Keep everyone else from using the page: a token in the path, checks of Host and Origin, limits, and headers."""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_TEXT = 20_000_000  # bytes of a text to be counted
LARGEST_REQUEST = 1_000_000  # bytes of any other request
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

SHARED = "/s/"  # snapshots, each under a key of its own; the only pages that others may frame
SHARED_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "sandbox",  # any page may frame it, also one that is opened as a file
    "Cross-Origin-Resource-Policy": "cross-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guard:
    """Pass on only requests of the page itself, opened under its own address.

    A page elsewhere that makes this browser send a request does not know the token; one that points its own host name
    here (DNS rebinding) has another Host; and one that posts from another site has another Origin.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app = app
        self.prefix = f"/{token}/"
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SHARED_HEADERS if is_shared else HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        path = scope["path"]
        is_shared = path.startswith(SHARED) and scope["method"] in ("GET", "HEAD")
        limit = LARGEST_TEXT if path.endswith("/api/count") else LARGEST_REQUEST
        refusal = self.refusal(scope["method"], path, headers, limit)
        if refusal:
            status, reason = refusal
            await JSONResponse({"error": reason}, status)(scope, receive, send_with_headers)
            return
        received = 0

        async def receive_at_most() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, too_large(limit))
            return message

        inner = {**scope, "path": path if is_shared else path[len(self.prefix) - 1 :], "raw_path": None}
        await self.app(inner, receive_at_most, send_with_headers)

    def refusal(self, method: str, path: str, headers: Headers, limit: int) -> tuple[int, str] | None:
        """Why a request is not passed on: status and reason."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        if host not in self.hosts:
            return 421, "open the page at the address that saffu play printed"
        if origin is not None and origin != f"http://{host}":
            return 403, "this request comes from another site"
        if method not in ("GET", "HEAD") and origin is None:
            return 403, "this request does not come from the page"
        if path.startswith(SHARED) and method in ("GET", "HEAD"):
            return None
        if not secrets.compare_digest(path[: len(self.prefix)].encode(), self.prefix.encode()):
            return 404, "open the address that saffu play printed, with all of its token"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15 or int(length) > limit:  # Python refuses thousands of digits
            return 413, too_large(limit)
        return None


def too_large(limit: int) -> str:
    return f"this is larger than {limit // 1_000_000} MB, the limit of this page; use saffu train for large texts"
