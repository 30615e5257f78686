"""The page in a real browser: `make test-web`. Any console error, CSP violation, or request to elsewhere fails."""

import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs
from xml.etree import ElementTree

import pytest

from conftest import sentences

playwright = pytest.importorskip("playwright.sync_api", reason="no playwright; run make test-web")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH; install it and run make test-web")

AXE = Path(sys.prefix) / "axe/node_modules/axe-core/axe.min.js"
PUPPETEER = Path(sys.prefix) / "axe/node_modules/puppeteer-core/lib/esm/puppeteer/puppeteer-core.js"
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
ZEBRA = "the zebra crossed the quiet river ."
WIDER_THAN_ITS_BOX = "all => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.className)"
HOSTILE = [
    "<script>window.hacked = 1</script> said the old king .",
    "<img src=x onerror=window.hacked=1> & &amp; \"quoted\" 'text'",
    "שלום עולם טוב",
    "مرحبا بالعالم الجميل",
    "👩‍👩‍👧‍👦 met 🎉 and 🦓 today",
    "a\u202eb \u2028 c \x1b[31m {{7*7}} ${x} javascript:alert(1)",
]


def long_line(size: int) -> str:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]
    return " ".join(rng.choices(words, k=size // 4))[:size]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address that the command prints, while it runs."""
    folder = tmp_path_factory.mktemp("play")
    command = [sys.executable, "-m", "saffu", "play", "--no-browser"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield re.search(r"http://127\.0\.0\.1:\d+/\S+/", server.stdout.readline())[0], folder
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """`open_page(width, scheme)`: a page on which nothing may go wrong."""
    problems, contexts = [], []

    def open_one(width: int = 1280, scheme: str = "light", hash: str = "", height: int = 900):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(15_000)
        page = context.new_page()
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        page.on("request", lambda asked: None if is_own(asked.url) else problems.append(f"request to {asked.url}"))
        page.goto(address[0] + hash)
        return page

    def is_own(url: str) -> bool:
        return url.startswith((address[0], f"blob:{address[0].split('/', 3)[0]}//"))

    yield open_one
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("() => window.hacked") is None
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def counted(browser, address):
    """The server after a hostile text has been pasted and counted."""
    page = browser.new_page()
    problems = []
    page.on("console", lambda said: problems.append(said.text))
    page.goto(address[0])
    page.wait_for_selector('#facts-title:text-is("The Keeper’s Log")')
    page.click("#again")
    page.click("#count-text")
    assert "There is no text to count" in page.inner_text("#error")
    page.fill("#source", "\n".join([*sentences(1, 300), *HOSTILE * 6, ZEBRA]))
    page.click("#count-text")
    page.wait_for_selector("#progress:not([hidden])")
    page.wait_for_selector('#facts-title:text-is("Your text")', timeout=300_000)
    assert page.locator("#numbers").is_hidden()  # one line until it is opened
    page.click("#facts summary")
    numbers = page.inner_text("#numbers")
    assert "337" in numbers and "documents" in numbers
    page.wait_for_selector("#scores .value")
    page.close()
    assert problems == []


def prompt(page, text: str, first: str | None = None) -> None:
    """Replace what is typed, and wait until it is explained."""
    page.fill("#editor", text)
    if first is not None:
        page.wait_for_selector(f'#words li:first-child .word:text-is("{first}")')
        page.wait_for_selector(f'#why-title:has-text("Why “{first}”?")')


def total(page) -> float:
    return number(page.inner_text("#bars tfoot .bits"))


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_the_page_opens_with_a_model_and_a_prompt(open_page, address):
    """Runs first: before another text is counted."""
    page = open_page()
    page.wait_for_selector('#why-title:has-text("Why “came”?")')
    assert page.input_value("#editor") == "A whale "
    said = page.inner_text("#sentence")
    assert re.fullmatch(r"came is 7\d% likely here, mostly because A whale → came occurs once in the text\.", said)
    assert page.locator("#mirror .ghost").inner_text() == "came"
    page.click("#try button:last-child")
    page.wait_for_selector('#why-title:not(:has-text("Why “came”?"))')
    assert page.input_value("#editor") != "A whale "
    page = open_page(390, height=664)  # a phone, less the bars of its browser
    page.wait_for_selector("#documents li:first-child .danger")
    box = page.locator("#documents li:first-child .danger").bounding_box()
    assert box["y"] + box["height"] <= 664  # in view without scrolling


def test_type_explain_forget_and_undo(open_page, counted):
    page = open_page()
    page.fill("#editor", "")
    page.click("#editor")
    page.keyboard.type("the zebra crossed the quiet ")
    page.wait_for_selector('#why-title:has-text("Why “river”?")')
    assert page.inner_text("#mirror").startswith("the zebra crossed the quiet")
    assert page.locator('#mirror span[class^="s"]').count() >= 1
    page.hover("#editor", position={"x": 30, "y": 25})
    page.wait_for_selector("#bubble:not([hidden])")
    assert re.fullmatch(r"\S+ \d+\.\d\d bits, .*%", page.inner_text("#bubble"))
    before = total(page)
    for wanted in (range(3, 10), range(13, 40)):  # the main reasons, then all parts
        parts = [number(text) for text in page.locator("#bars tbody .bits").all_inner_texts()]
        assert len(parts) in wanted and sum(parts) == pytest.approx(before, abs=0.005 * len(parts) + 0.01)
        page.click("#all-parts")
    titles = page.locator("#bars tbody .name").all_inner_texts()
    assert titles[0].startswith("starting point: ")
    legend = page.inner_text("#why-legend")
    assert "all words like it, which occur in similar places." in legend and "The starting point combines" in legend
    assert "after the quiet: river 1 of 1" in titles
    assert page.inner_text("#sentence").endswith("because the quiet → river occurs once in your text.")

    assert page.inner_text("#documents li:first-child p") == ZEBRA
    assert page.locator("#documents li:first-child mark").all_text_contents() == ["the quiet", "river"]
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal")
    prints = page.locator("#changes code").all_inner_texts()
    assert len(prints) == 2 and prints[0] != prints[1]
    said = page.inner_text("#changes")
    assert "bit for bit, as counting only the other 336 documents from scratch with the same tokenizer" in said
    assert "No longer in any document: zebra, crossed, quiet, river" in said
    page.wait_for_selector('#changes .gone:has(bdi:text-is("river"))')
    assert "It changed what is suggested after “the zebra crossed the quiet”:" in page.inner_text("#changes")
    page.wait_for_selector('#words li:first-child .word:not(:text-is("river"))')
    assert page.locator("#documents li", has_text="zebra").count() == 0

    assert re.search(r"Still in the tokenizer, .* but never suggested: \w+", said)
    page.click(".recount")
    page.wait_for_selector('#changes li.equal:has-text("with this fresh tokenizer")')
    page.wait_for_selector("#changes li:first-child .vanished")  # what that changed
    assert page.locator(".remains").count() == 0
    assert page.locator(".card").evaluate_all(WIDER_THAN_ITS_BOX) == []

    page.click("#undo")
    page.wait_for_selector("#changes li:only-child")
    page.wait_for_selector("#undone .vanished")
    said = page.inner_text("#undone")
    assert said.startswith("Undone: the recount with a fresh tokenizer") and "Undoing it changed" in said
    assert "It changed" not in page.inner_text("#changes")  # those are not the changes of what was forgotten
    page.click("#undo")
    page.wait_for_selector('#undone p:text-is("Undone: the model is as it was.")')
    page.wait_for_selector('#why-title:has-text("Why “river”?")')
    page.wait_for_selector("#documents li p")
    assert total(page) == before and page.locator("#changes > li").count() == 0


def test_forget_is_in_view_without_scrolling(open_page, counted):
    for width, height in ((390, 664), (1000, 800), (1600, 900)):  # a phone, less the bars of its browser
        page = open_page(width, height=height)
        prompt(page, "the zebra crossed the quiet ", "river")
        page.wait_for_selector("#documents li p")
        box = page.locator("#documents li:first-child button").bounding_box()
        assert box["y"] + box["height"] <= height
    page = open_page(390, height=844)
    prompt(page, "the zebra crossed the quiet ", "river")
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal .moves li")  # verified: shown for the last time
    box = page.locator("#changes .moves").bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= 844  # what changed is in view, too
    page.click("#undo")
    page.wait_for_selector("#changes:empty", state="attached")


def test_every_word_explains_itself(open_page, counted):
    page = open_page()
    prompt(page, "the old king saw the dog .", None)
    token = page.locator("#mirror span", has_text="king").bounding_box()
    page.mouse.click(token["x"] + token["width"] / 2, token["y"] + token["height"] / 2)
    page.wait_for_selector('#why-title:has-text("Why “king”?")')
    assert page.inner_text("#words-title") == "Instead of “king”"
    assert page.locator("#mirror .read").all_inner_texts() == [" king"]
    assert page.locator("#documents li").count() >= 1
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector('#why-title:has-text("Why “old”?")')
    other = page.inner_text("#words li:nth-child(2) .word")
    page.click("#words li:nth-child(2) .take")
    assert page.input_value("#editor") == f"the {other} king saw the dog ."
    page.keyboard.press("Control+z")
    assert page.input_value("#editor") == "the old king saw the dog ."


def test_a_word_that_is_written_stays_explained_when_its_document_is_forgotten(open_page, counted):
    page = open_page()
    prompt(page, ZEBRA)
    page.wait_for_selector("#mirror span")
    page.focus("#editor")
    page.evaluate("() => document.getElementById('editor').setSelectionRange(23, 23)")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector('#why-title:has-text("Why “quiet”?")')
    page.wait_for_selector('#documents-title:has-text("This document says “quiet”")')
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal .moves")
    assert "suggested after “the zebra crossed the”:" in page.inner_text("#changes")
    assert "→" in page.inner_text('#changes .moves li:has(bdi:text-is("quiet"))')
    assert page.inner_text("#words-title") == "Instead of “quiet”"
    page.click("#undo")
    page.wait_for_selector("#changes:empty", state="attached")


def test_a_space_that_is_a_token_belongs_to_the_word_after_it(open_page, counted):
    page = open_page()
    prompt(page, "the old qzx saw")
    page.wait_for_function(
        "() => [...document.querySelectorAll('#mirror span')].some((one) => one.textContent === ' ')"
    )
    box = page.locator("#mirror span").evaluate_all(
        "all => all.find((one) => one.textContent === ' ').getBoundingClientRect().toJSON()"
    )
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector('#why-title:has-text("Why “qzx”?")')
    page.wait_for_selector('#documents .empty:has-text("No document contains “qzx”.")')
    assert "qzx" not in page.locator("#words .word").all_inner_texts()  # not an alternative to itself
    prompt(page, "the old qzx", "qzx")
    page.wait_for_selector('#sentence:has-text(" likely here, mostly because of the letters you typed.")')


def asked(page, held, text=""):
    """The latest request that is held back, once there is one that contains a text."""
    for _ in range(1000):
        if held and text in (held[-1].request.post_data or ""):
            return held[-1]
        page.wait_for_timeout(10)
    raise AssertionError(f"nothing was asked about {text!r}")


def test_what_is_out_of_date_is_pale(open_page, counted):
    page = open_page()
    prompt(page, "the zebra crossed the quiet ", "river")
    assert page.locator(".stale").count() == 0
    held = []
    page.route("**/api/suggest", lambda route: held.append(route))
    page.focus("#editor")
    page.keyboard.type("r")
    page.wait_for_selector(".stale #why")
    page.fill("#editor", "a king")
    assert page.locator("#mirror span").count() == 0  # no colors of the text before
    asked(page, held, "a king").continue_()
    page.wait_for_selector("#with-model:not(.stale)")


def test_tab_inserts_at_the_caret_and_can_be_undone(open_page, counted):
    page = open_page()
    prompt(page, "the old king\nthe sea", None)
    page.focus("#editor")
    page.evaluate("() => document.getElementById('editor').setSelectionRange(12, 12)")
    page.keyboard.type(" saw the ze")
    page.wait_for_selector('#words li:first-child .word:text-is("zebra")')
    page.keyboard.press("Tab")  # the word may be there for "z" already; then Tab waits for the answer to "ze"
    page.wait_for_function("() => document.getElementById('editor').value === 'the old king saw the zebra\\nthe sea'")
    page.keyboard.press("Control+z")
    assert page.input_value("#editor") == "the old king saw the ze\nthe sea"


def test_tab_waits_for_the_answer_to_what_was_typed(open_page, counted):
    page = open_page()
    prompt(page, "the zebra crossed the quiet ", "river")
    held = []
    page.route("**/api/suggest", lambda route: held.append(route))
    page.focus("#editor")
    page.keyboard.type("r")
    page.keyboard.press("Backspace")
    page.keyboard.type("z")  # what is on the screen is for the text before
    page.keyboard.press("Tab")
    assert page.input_value("#editor") == "the zebra crossed the quiet z"
    asked(page, held, "quiet z").continue_()
    page.wait_for_function("() => document.getElementById('editor').value === 'the zebra crossed the quiet zebra '")


def test_tab_does_not_replace_a_word_that_the_caret_has_left(open_page, counted):
    page = open_page()
    prompt(page, "the old king saw the zebra crossed ")
    page.wait_for_selector("#mirror span")
    held = []
    page.route("**/api/read", lambda route: held.append(route))
    token = page.locator("#mirror span", has_text="king").bounding_box()
    page.mouse.click(token["x"] + token["width"] / 2, token["y"] + token["height"] / 2)
    page.keyboard.press("Control+End")  # where suggestions are known
    route = asked(page, held)
    with page.expect_request("**/api/suggest"):
        route.continue_()
    page.keyboard.press("Tab")
    page.wait_for_function("() => document.getElementById('editor').value.length > 35")
    assert page.input_value("#editor").startswith("the old king saw the zebra crossed ")


def test_after_a_change_the_best_suggestion_is_explained(open_page, counted):
    page = open_page()
    prompt(page, "the ")
    page.wait_for_selector("#documents li p")
    first = page.inner_text("#words li:first-child .word")
    page.click("#words li:nth-child(2) .ask")
    second = page.inner_text("#words li:nth-child(2) .word")
    page.wait_for_selector(f'#documents-title:has-text("“{second}”")')
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal")
    page.click("#undo")
    page.wait_for_selector(f'#why-title:has-text("Why “{first}”?")')
    assert page.locator("#mirror .ghost").inner_text() == first
    assert page.locator("#words li:first-child.chosen").count() == 1


def test_a_sentence_is_learned(open_page, counted):
    page = open_page()
    page.fill("#learn-text", "the dragon drinks lemonade <b>now</b>")
    page.click("#learn-form button[type=submit]")
    page.wait_for_selector("#changes li.equal")
    prompt(page, "the dragon drinks ", "lemonade")
    assert page.inner_text("#documents li:first-child p") == "the dragon drinks lemonade <b>now</b>"
    page.click("#undo")
    page.wait_for_selector('#words li:first-child .word:not(:text-is("lemonade"))')


def test_the_keyboard_suffices(open_page, counted):
    page = open_page()
    page.wait_for_selector("#editor")
    page.fill("#editor", "")
    page.keyboard.type("the zebra cr")
    page.wait_for_selector('#words li:first-child .word:text-is("crossed")')
    assert page.locator("#mirror .ghost").inner_text() == "ossed"
    page.keyboard.press("Tab")
    page.wait_for_selector('#words li:first-child .word:text-is("the")')
    assert page.input_value("#editor") == "the zebra crossed "
    page.keyboard.press("ArrowDown")
    second = page.inner_text("#words li:nth-child(2) .word")
    page.wait_for_selector(f'#why-title:has-text("Why “{second}”?")')
    page.keyboard.press("Tab")
    assert page.input_value("#editor") == f"the zebra crossed {second} "
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.id") != "editor"


def test_focus_stays_where_the_keyboard_forgets(open_page, counted):
    page = open_page()
    prompt(page, "the zebra crossed the quiet ", "river")
    page.wait_for_selector("#documents li p")
    page.focus("#documents li:first-child button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#changes li.equal")
    assert page.evaluate("() => document.activeElement.id") == "undo"
    page.keyboard.press("Enter")
    page.wait_for_selector("#changes:empty", state="attached")
    assert page.evaluate("() => document.activeElement.id") == "documents-title"


def test_forgetting_does_not_take_the_focus_from_who_types(open_page, counted):
    page = open_page()
    prompt(page, "the zebra crossed the quiet ", "river")
    page.wait_for_selector("#documents li p")
    held = []
    page.route("**/api/forget", lambda route: held.append(route))
    page.click("#documents li:first-child button")
    page.focus("#editor")
    asked(page, held).continue_()
    page.wait_for_selector("#changes li.equal")
    assert page.evaluate("() => document.activeElement.id") == "editor"
    page.click("#undo")
    page.wait_for_selector("#changes:empty", state="attached")


def test_no_panel_covers_another(open_page, counted):
    page = open_page(1000, height=800)
    prompt(page, "the zebra crossed the quiet ", "river")
    page.wait_for_selector("#bars tfoot .bits")
    page.locator("#compare").scroll_into_view_if_needed()
    why, below = (page.locator(id).bounding_box() for id in ("#why", "#compare"))
    assert why["y"] + why["height"] <= below["y"]


def test_nothing_is_certain_and_zero_has_no_sign(open_page, counted):
    shown = open_page().evaluate(
        """async () => {
            const { percent, signed } = await import("./dom.js");
            const bits = [-0.001, 0, 1.5, -0.126].map((each) => signed(each));
            return [[1, 0.9998, 0.9981, 0.74, 0.0123, 0.0004].map(percent), bits];
        }"""
    )
    assert shown == [["100.0%", ">99.9%", "99.8%", "74%", "1.2%", "<0.1%"], ["0.00", "0.00", "+1.50", "−0.13"]]


def test_hostile_text_is_only_text(open_page, counted):
    page = open_page()
    for text in HOSTILE:
        prompt(page, text)
        page.wait_for_selector("#mirror span")
        page.wait_for_selector("#bars tfoot .bits")
        assert page.locator("#words .word, .sentence i, .documents p, .changes bdi").evaluate_all(
            "all => all.every((one) => one.dir === 'auto')"  # U+202E ends where the text ends
        )
    prompt(page, "<script>window.hacked = 1</script> said the old ", "king")
    assert "<script>window.hacked = 1</script>" in page.inner_text("#documents li:first-child p")
    assert "after > said the old: king 6 of 6" in page.locator("#bars .name").all_inner_texts()
    prompt(page, "שלום ", "עולם")
    assert page.evaluate("() => getComputedStyle(document.getElementById('mirror')).direction") == "rtl"
    prompt(page, "👩‍👩‍👧‍👦 met ", "🎉")
    assert page.locator("#mirror script, #documents script, #documents img").count() == 0
    prompt(page, "the zebra crossed the quiet ", "river")
    assert page.locator("#mirror .ghost").inner_text() == "river"
    prompt(page, "\u202ethe zebra crossed the quiet ", "river")  # gray text would push away what is typed
    assert page.locator("#mirror .ghost").count() == 0


def test_long_text_gets_a_clear_message(open_page, counted):
    page = open_page()
    page.fill("#editor", long_line(1_000_000), timeout=120_000)
    page.wait_for_selector("#error:not([hidden])")
    assert "1,000,000 characters" in page.inner_text("#error")
    page.wait_for_selector(".stale #why")  # which is about the text before
    prompt(page, "the zebra crossed the quiet ", "river")
    assert page.locator("#error").is_hidden()


def test_the_address_holds_the_state(open_page, counted):
    page = open_page()
    prompt(page, "the zebra crossed ", "the")
    page.click("#words li:nth-child(2) .ask")
    second = page.inner_text("#words li:nth-child(2) .word")
    page.wait_for_selector(f'#why-title:has-text("Why “{second}”?")')
    page.wait_for_url(lambda url: parse_qs(url.split("#")[-1]).get("word") == [second])
    again = open_page(hash="#" + page.url.split("#")[1])
    again.wait_for_selector(f'#why-title:has-text("Why “{second}”?")')
    assert again.input_value("#editor") == "the zebra crossed "


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def serving(folder):
    """The address of a server of static files."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def saved(page, button, folder):
    with page.expect_download() as waiting:
        page.click(button)
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return path


def test_cards_snapshots_and_models_are_saved(open_page, counted, address, browser, tmp_path):
    page = open_page()
    prompt(page, "<b>the</b> zebra crossed the quiet ", "river")
    page.click("#share-open")
    assert page.input_value("#snapshot-name") == "why-crossed-the-quiet-river"
    picture = ElementTree.parse(saved(page, "#card-svg", tmp_path))
    texts = ["".join(each.itertext()) for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "<b>the</b> zebra crossed the quiet river" in " ".join(texts)
    assert any("“the quiet → river” occurs once" in text for text in texts)
    assert "saffu play" in texts
    png = saved(page, "#card-png", tmp_path).read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", png[16:24]) == (1200, 630)

    page.fill("#snapshot-name", "river")
    path = saved(page, "#snapshot button[type=submit]", tmp_path)
    whole = path.read_text("utf-8")
    assert path.name == "river.html" and "<b>the" not in whole and "&lt;b&gt;the" in whole
    assert "<script" not in whole and "http:" not in whole and "https:" not in whole and "url(" not in whole
    page.click("#snapshot-make-link")
    page.wait_for_selector("#snapshot-link:not([hidden])")
    link = page.get_attribute("#snapshot-address", "href")
    assert address[0].split("/")[3] not in link
    with browser.new_context(viewport={"width": 1000, "height": 700}) as context:
        frame, refused = context.new_page(), []
        frame.on("console", lambda said: refused.append(said.text))
        (tmp_path / "outer.html").write_text(
            f'<!doctype html><link rel="icon" href="data:,"><iframe src="{link}"></iframe>'
        )
        with serving(tmp_path) as outer, frame.expect_response(link) as answer:
            frame.goto(f"{outer}/outer.html")
        assert answer.value.status == 200
        alone = context.new_page()
        alone.goto(path.as_uri())
        assert alone.inner_text("h1") == "<b>the</b> zebra crossed the quiet river"
        assert alone.inner_text("tr.total").startswith("sum = log₂ p")
        assert alone.evaluate("() => document.documentElement.scrollWidth") <= 1000
        assert refused == []
    page.click("#share-close")

    page.click("#facts summary")
    page.fill("#save-name", "from-the-page")
    page.click("#save button")
    page.wait_for_selector('#save button:text-is("Saved as from-the-page")')
    assert (address[1] / "from-the-page" / "config.json").exists()


def test_generation_streams(open_page, counted):
    page = open_page()
    prompt(page, "the old ")
    page.click("#generate")
    page.wait_for_selector('#generate:text-is("Generate")')
    assert page.inner_text("#our-text").startswith("the old") and len(page.inner_text("#our-text")) > 10


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (768, "dark"), (1000, "light"), (1600, "dark")]
)
def test_every_width_and_theme(open_page, counted, width, scheme):
    page = open_page(width, scheme)
    prompt(page, "the zebra crossed the quiet ", "river")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(18, 19, 22)"
    assert dark == (scheme == "dark")


@pytest.mark.skipif(not AXE.exists(), reason="no axe-core; run make test-web")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(open_page, counted, scheme):
    """axe-core finds no violation: while typing, after forgetting, in the dialog, and in the form for another text."""
    page = open_page(1000, scheme)
    prompt(page, "the zebra crossed the quiet ", "river")
    page.wait_for_selector("#documents li p")
    found = violations(page)
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal")
    page.wait_for_selector("#changes .moves li")
    found += violations(page)
    page.click("#undo")
    page.wait_for_selector("#changes:empty", state="attached")
    page.wait_for_selector('#why-title:has-text("Why “river”?")')
    page.click("#share-open")
    found += violations(page)
    page.click("#share-close")
    page.click("#facts summary")
    found += violations(page)
    page.click("#again")
    found += violations(page)
    assert found == []


def violations(page) -> list[str]:
    """What axe-core reports; evaluated by the driver, which the page's policy does not concern."""
    page.emulate_media(reduced_motion="reduce")  # colors that fade in count as too pale
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("() => axe.run()")["violations"]
    return [f"{each['id']}: {node['target']}" for each in found for node in each["nodes"]]


@pytest.mark.skipif(not (PUPPETEER.exists() and FIREFOX), reason="no firefox or puppeteer-core; run make test-web")
def test_firefox_types_undoes_explains_and_forgets(counted, address):
    script = Path(__file__).with_name("firefox.mjs")
    command = ["node", script, PUPPETEER, FIREFOX, address[0], "light", AXE]
    seen = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    assert (seen["inserted"], seen["undone"]) == ("the zebra crossed ", "the zebra cr")
    assert "the same, bit for bit, as counting only the other 336 documents" in seen["verdict"]
    assert seen["isDark"] is False and seen["problems"] == []
    assert seen["widths"] == [{"width": width, "wide": False, "violations": []} for width in (390, 640, 1000, 1600)]


def test_at_200_percent_everything_fits(open_page, counted):
    page = open_page(640, height=450)  # 1280 × 900 at 200%
    prompt(page, "the zebra crossed the quiet ", "river")
    page.click("#sum summary")
    page.wait_for_selector("#bars tfoot .bits")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 640
    assert page.locator(".card").evaluate_all(WIDER_THAN_ITS_BOX) == []


def test_a_megabyte_in_one_line_is_counted_while_typing_goes_on(open_page, counted):
    """After the others, because the model is another one from here on."""
    page = open_page()
    prompt(page, "the zebra crossed the quiet ", "river")
    page.click("#again")
    page.fill("#source", "\n".join([*sentences(2, 30), long_line(1_000_000)]))
    page.click("#count-text")
    page.wait_for_selector("#progress:not([hidden])")
    prompt(page, "the zebra crossed the ", "quiet")
    assert page.locator("#progress").is_visible()
    page.wait_for_selector("#facts:not([hidden])", timeout=300_000)
    assert "31 documents" in page.inner_text("#facts-line")
    prompt(page, "the old ")
    page.wait_for_selector("#bars tfoot .bits")


def test_scripts_without_spaces_are_suggested_word_by_word(open_page, address):
    page = open_page()
    page.wait_for_selector("#again:visible")
    page.click("#again")
    page.fill("#source", "\n".join(["今天天气很好。我喜欢吃苹果。", "我喜欢喝茶。", "他喜欢吃面包。"] * 8))
    page.click("#count-text")
    page.wait_for_selector("#progress:not([hidden])", state="attached")
    page.wait_for_selector("#facts:not([hidden])")
    page.wait_for_function("() => document.getElementById('editor').value === ''")  # no example of the text before
    prompt(page, "天气很好。我喜欢", None)
    page.wait_for_selector('#words .word:text-is("喝茶"), #words .word:text-is("喝")')
    page.click("#words li:first-child .take")
    assert page.input_value("#editor").startswith("天气很好。我喜欢") and " " not in page.input_value("#editor")
