"""A page's server in this process, asked as the page's script asks it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("starlette", reason="pip install starlette")
pytest.importorskip("httpx", reason="pip install httpx")

from starlette.testclient import TestClient

from saffu.play.server import app
from saffu.play.studio import Studio

TOKEN, PORT = "a-token", 8765
ADDRESS = f"http://127.0.0.1:{PORT}"


class Page:
    """What the page's script does: posts JSON, and polls."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.client = TestClient(app(studio, TOKEN, PORT), base_url=f"{ADDRESS}/{TOKEN}/", headers={"Origin": ADDRESS})

    def post(self, name: str, status: int = 200, /, **body: Any) -> Any:
        answer = self.client.post(f"api/{name}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def state(self) -> Any:
        return self.client.get("api/state").json()

    def settled(self) -> Any:
        """The state once all work in the background is done."""
        self.studio.wait()
        return self.state()

    def count(self, text: str, **query: str) -> Any:
        """Count a text; the model's facts once it is ready."""
        answer = self.client.post("api/count", params=query, content=text.encode())
        assert answer.status_code == 200, answer.text
        job = self.settled()["job"]
        assert not job["error"], job["error"]
        return self.model(job["subject"])

    def model(self, id: str) -> Any:
        return next(model for model in self.state()["models"] if model["id"] == id)
