"""A page, and one with a model of a small text."""

from __future__ import annotations

import pytest

from conftest import sentences


@pytest.fixture(scope="session")
def text() -> str:
    return "\n".join(sentences(1, 400)) + "\nthe zebra crossed the quiet river .\n"


@pytest.fixture
def page(tmp_path):
    """A page without a model."""
    from play_page import Page

    from saffu.play.studio import Studio

    return Page(Studio(saved_in=tmp_path))


@pytest.fixture(scope="module")
def counted_page(text, tmp_path_factory):
    """A page with a counted model; tests must not change the model."""
    from play_page import Page

    from saffu.play.studio import Studio

    page = Page(Studio(saved_in=tmp_path_factory.mktemp("saved")))
    page.id = page.count(text)["id"]
    return page
