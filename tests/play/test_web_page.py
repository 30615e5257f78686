"""The page without a server: its files, and its engine, run by Node if there is one (static_page.py: by a browser)."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from web_engine import MULTILINGUAL, browser_kernels, questions, random_texts, require_same  # noqa: F401

from saffu import CalibratedConfig, SaffuLM
from saffu.errors import SaffuError
from saffu.play import web_page
from saffu.play.demos import story
from saffu.play.studio import Studio
from saffu.play.subject import Subject
from saffu.play.texts import Texts
from saffu.play.why import why
from saffu.text.tokenizer import TokenizerConfig
from saffu.tools.generate import encode_prompt

COUNTED = re.compile(r"frequencies|room|table \d+\.(?!distances).*")
ZEBRA = "the zebra crossed the quiet river ."
TEXTS = [
    "",
    "the ",
    "the old ki",
    "the zebra crossed the quiet ",
    "a girl\n\nsaw Ünï 日本 ",
    "the old king saw the dog . " * 8,
]


@pytest.fixture(scope="module")
def lm(text):
    return SaffuLM().fit(text.splitlines())


@pytest.fixture
def asked(lm, browser_kernels, tmp_path, monkeypatch):  # noqa: F811
    """A function that asks the engine of the page."""
    if not shutil.which("node"):
        pytest.skip("no node")
    monkeypatch.setattr(web_page, "CODE", browser_kernels)

    def ask(requests, texts=(), lm=lm, documents=None):
        web_page.export_web(lm, tmp_path / "page", "toy", None if documents is None else lm.tokenize(documents))
        merges = json.loads(lm.tokenizer_.to_json())["model"]["merges"]
        asked = {"requests": requests, "texts": texts, "merges": [" ".join(merge) for merge in merges]}
        command = ["node", Path(__file__).with_name("engine.mjs"), tmp_path / "page"]
        shown = subprocess.run(
            command, input=json.dumps(asked).encode(), stdout=subprocess.PIPE, check=True, timeout=300
        )
        return json.loads(shown.stdout)

    return ask


def test_the_page_has_what_does_not_follow_from_counts(lm):
    arrays = web_page.page_arrays(lm, "toy", None)
    about = json.loads(arrays["about"].tobytes())
    made = lm.model_.native.arrays
    assert {*about["given"]} == {name for name in made if not COUNTED.fullmatch(name)}
    assert all((arrays[name] == made[name]).all() for name in about["given"])


def test_the_engine_answers_as_the_server_does(asked, counted_page):
    documents = story().splitlines()
    lm = SaffuLM().fit(documents)
    assert lm.model_.native.arrays["room"].size  # contexts with many followers
    studio = Studio(lm, "toy")
    studio.subjects["toy"] = Subject("toy", "toy", lm, Texts.of(dict(enumerate(documents)), lm))
    asks = questions(type(counted_page)(studio), "toy", ["The lamp was li", "I found a piano . ", *TEXTS])
    found = asked([(name, body) for name, body, _ in asks], lm=lm, documents=documents)["answers"]
    for (name, body, expected), answer in zip(asks, found, strict=True):
        require_same(expected, answer.get("result", answer), f"{name} {body['text'][:20]!r}")


@pytest.mark.parametrize(
    "settings", [{"cache": 0}, {"order": 3, "slots": 0, "word_classes": 0}, {"order": 7, "prune": 1}]
)
def test_other_shapes_of_models(text, asked, counted_page, settings):
    lm = SaffuLM(CalibratedConfig(**settings)).fit(text.splitlines()[:200])
    page = type(counted_page)(Studio(lm, "toy"))
    asks = questions(page, "folder", TEXTS[1:4])
    found = asked([(name, body) for name, body, _ in asks], lm=lm)["answers"]
    for (name, _, expected), answer in zip(asks, found, strict=True):
        require_same(expected, answer.get("result", answer), name)


def test_underscores_belong_to_words(asked):
    documents = ["    def __init__(self, name):", "        self.file_name = name", "print(__name__)"] * 30
    lm = SaffuLM().fit(documents)
    best = {"    def __in": "__init__", "        self.fi": "self.file_name"}
    answers = asked([("suggest", {"text": typed, "rest": "", "ending": None}) for typed in best], lm=lm)["answers"]
    for (typed, word), answer in zip(best.items(), answers, strict=True):
        words = {each["word"]: each["p"] for each in answer["result"]["words"]}
        assert next(iter(words)) == word
        assert words == pytest.approx({each: lm.complete_word(typed)[each] for each in words}, rel=1e-3)


def test_text_is_tokenized_as_by_the_library(lm, asked):
    texts = [*MULTILINGUAL, *random_texts(300), "a\r\nb\n \n\nc"]
    found = asked([("state", {})], texts)
    for text, ids, digest in zip(texts, found["ids"], found["hashes"], strict=True):
        assert ids == encode_prompt(lm.tokenizer_, text), text
        assert digest == hashlib.sha256(text.encode()).hexdigest()


def test_forgetting_is_verified_and_undone(lm, text, asked):
    documents = text.splitlines()
    number = documents.index(ZEBRA)
    place = {"text": "the zebra crossed the quiet ", "rest": "", "ending": None}
    word = {"text": place["text"], "ending": None, "word": "river"}
    requests = [
        ("suggest", place),
        ("forget", {"document": number}),
        ("suggest", place),
        ("why", word),
        ("documents", word),
        ("state", {}),
    ]
    requests += [
        ("undo", {}),
        ("suggest", place),
        ("learn", {"text": ZEBRA}),
        ("state", {}),
        ("forget", {"document": 5000}),
    ]
    found = asked(requests, documents=documents)["answers"]
    before, _, after, explained, holding, state, undone, again, _, learned, refused = [
        each.get("result") for each in found
    ]
    forgotten = SaffuLM(encoder=lm).fit([*documents[:number], *documents[number + 1 :]])
    expected = Studio(forgotten, "toy").suggest("folder", place["text"], "page", 1)
    require_same(expected, after)
    parts = why(forgotten, word["text"], "river")["parts"]
    assert [part["class"] for part in explained["parts"]] == [part["class"] for part in parts]  # none that is gone
    assert before["words"][0]["word"] == "river" and before == again and holding["holding"] == 0
    (change,) = state["models"][0]["changes"]
    assert change["equal"] and change["before"] != change["after"] == change["check"]
    assert change["vanished"] == ["zebra", "crossed", "quiet", "river"] and change["recounted"] == len(documents) - 1
    assert undone["models"][0]["changes"] == [] and learned["models"][0]["documents"] == len(documents) + 1
    assert refused is None and "no longer in the model" in found[-1]["error"]


def test_what_cannot_become_a_page(lm, tmp_path, monkeypatch):
    words = SaffuLM(tokenizer=TokenizerConfig(words_as_tokens=True)).fit(["the cat sat", "the dog sat"] * 5)
    with pytest.raises(SaffuError, match="models of words cannot become a page"):
        web_page.page_arrays(words, "words", None)
    monkeypatch.setattr(web_page, "CODE", tmp_path / "missing.wasm")
    with pytest.raises(SaffuError, match="no kernels for browsers"):
        web_page.export_web(lm, tmp_path / "page", "toy")
    assert not (tmp_path / "page").exists()
