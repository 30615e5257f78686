"""The page without a server in a real browser: `make test-web`. Any console error or request to elsewhere fails."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from browser import AXE, FIREFOX, HOSTILE, PUPPETEER, ZEBRA, browser, prompt, pytestmark, serving, violations  # noqa: F401
from play_page import Page
from web_engine import MULTILINGUAL, browser_kernels, questions, random_texts, require_same  # noqa: F401

from conftest import sentences
from saffu import SaffuLM
from saffu.play import web_page
from saffu.play.studio import Studio
from saffu.play.subject import Subject
from saffu.play.texts import Texts
from saffu.tools.generate import encode_prompt

DOCUMENTS = [*sentences(1, 300), *HOSTILE * 6, ZEBRA]
ASK = """async (requests) => {
    const { ask } = await import("./server.js");
    const answers = [];
    for (const [name, body] of requests) answers.push(await ask(name, body, { replace: "test" }));
    return answers;
}"""
ENCODE = """async ([merges, texts]) => {
    const { Tokenizer } = await import("./tokenizer.js");
    const tokenizer = new Tokenizer(merges);
    return texts.map((text) => tokenizer.encodePrompt(text));
}"""


@pytest.fixture(scope="module")
def lm():
    return SaffuLM().fit(DOCUMENTS)


@pytest.fixture(scope="module")
def folder(lm, browser_kernels, tmp_path_factory):  # noqa: F811
    """What `saffu export --to web` writes."""
    folder = tmp_path_factory.mktemp("static") / "page"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(web_page, "CODE", browser_kernels)
        web_page.export_web(lm, folder, "toy", lm.tokenize(DOCUMENTS))
    return folder


@pytest.fixture
def open_page(browser, folder):  # noqa: F811
    """`open_page(width, scheme)`: the page, from a server of static files, on which nothing may go wrong."""
    problems: list[str] = []
    with ExitStack() as stack:
        address = stack.enter_context(serving(folder))

        def open_one(width: int = 1280, scheme: str = "light", height: int = 900):
            context = stack.enter_context(
                browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
            )
            context.set_default_timeout(15_000)
            page = context.new_page()
            page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("requestfailed", lambda asked: problems.append(f"failed: {asked.url}"))
            page.on("request", lambda asked: None if asked.url.startswith(address) else problems.append(asked.url))
            page.goto(address)
            page.wait_for_selector("#words li .p")
            return page

        yield open_one
    assert problems == []


def test_numbers_are_those_of_the_server(open_page, lm):
    studio = Studio(lm, "toy")
    studio.subjects["toy"] = Subject("toy", "toy", lm, Texts.of(dict(enumerate(DOCUMENTS)), lm))
    asks = questions(
        Page(studio), "toy", ["", "the zebra cr", "the zebra crossed the quiet ", "שלום ", *HOSTILE, ZEBRA * 9]
    )
    found = open_page().evaluate(ASK, [(name, body) for name, body, _ in asks])
    for (name, body, expected), answer in zip(asks, found, strict=True):
        require_same(expected, answer, f"{name} {body['text'][:20]!r}")


def test_text_is_tokenized_as_by_the_library(open_page, lm):
    texts = [*MULTILINGUAL, *HOSTILE, *random_texts(300)]
    merges = [" ".join(merge) for merge in json.loads(lm.tokenizer_.to_json())["model"]["merges"]]
    assert open_page().evaluate(ENCODE, [merges, texts]) == [encode_prompt(lm.tokenizer_, text) for text in texts]


def test_it_types_explains_and_forgets_without_a_network(open_page):
    page = open_page()
    page.context.set_offline(True)
    prompt(page, "the zebra crossed the quiet ", "river")
    assert "the quiet → river occurs once in the text" in page.inner_text("#sentence")
    assert page.inner_text("#documents li:first-child p") == ZEBRA
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal")
    said = page.inner_text("#changes")
    assert "bit for bit, as counting only the other 336 documents from scratch with the same tokenizer" in said
    assert "No longer in any document: zebra, crossed, quiet, river" in said
    assert page.locator(".recount").is_hidden()
    page.wait_for_selector('#words li:first-child .word:not(:text-is("river"))')
    page.wait_for_selector("#documents li:first-child button")
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li:nth-child(2)")
    page.click("#undo")
    page.wait_for_selector("#undone .vanished")
    assert page.inner_text("#undone").startswith("Undone: forgetting “")
    assert ZEBRA in page.inner_text("#changes") and "It changed" not in page.inner_text("#changes")
    page.click("#undo")
    page.wait_for_selector('#undone p:text-is("Undone: the model is as it was.")')
    page.wait_for_selector('#words li:first-child .word:text-is("river")')
    page.fill("#learn-text", "the dragon drinks lemonade <b>now</b>")
    page.press("#learn-text", "Enter")  # documents that appear move the button
    page.wait_for_selector("#changes li.equal")
    prompt(page, "the dragon drinks ", "lemonade")
    page.click("#generate")
    page.wait_for_selector('#generate:text-is("Generate")')
    assert page.inner_text("#our-text").startswith("the dragon drinks")
    for id in ("#again", "#theirs-title", "#save", "#snapshot-make-link"):
        assert page.locator(id).is_hidden()


def test_suggestions_do_not_lag_behind(open_page):
    page = open_page()
    page.fill("#editor", "")
    page.keyboard.type("the zebra cr", delay=0)
    page.wait_for_selector('#words li:first-child .word:text-is("crossed")')
    page.keyboard.press("Tab")
    assert page.input_value("#editor") == "the zebra crossed "


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1000, "dark"), (1600, "light")])
def test_every_width_and_theme(open_page, width, scheme):
    page = open_page(width, scheme)
    prompt(page, "the zebra crossed the quiet ", "river")
    page.wait_for_selector("#documents li p")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    if AXE.exists():
        assert violations(page) == []


@pytest.mark.skipif(not (PUPPETEER.exists() and FIREFOX), reason="no firefox or puppeteer-core; run make test-web")
def test_firefox_types_undoes_explains_and_forgets(folder):
    script = Path(__file__).with_name("firefox.mjs")
    with serving(folder) as address:
        command = ["node", script, PUPPETEER, FIREFOX, address, "dark", AXE]
        seen = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    assert (seen["inserted"], seen["undone"]) == ("the zebra crossed ", "the zebra cr")
    assert "the same, bit for bit, as counting only the other 336 documents" in seen["verdict"]
    assert seen["isDark"] is True and seen["problems"] == []
    assert seen["widths"] == [{"width": width, "wide": False, "violations": []} for width in (390, 640, 1000, 1600)]
