"""The page's server, asked as its script asks: count, type, explain, forget, undo, learn, save, generate."""

import copy
import errno
import math
import threading
from dataclasses import replace

import numpy as np
import pytest
from play_page import ADDRESS, TOKEN, Page

import saffu
from conftest import each, sentences
from saffu.errors import install_command
from saffu.play import counting
from saffu.play.evidence import counts_behind
from saffu.play.studio import Studio
from saffu.play.subject import fingerprint
from saffu.play.texts import split_text
from saffu.play.typist import Typist
from saffu.play.why import why, word_after
from saffu.text.tokenizer import EOD


def test_count_reports_tokens_seconds_and_bits_per_byte(counted_page, text):
    facts = counted_page.model(counted_page.id)
    assert facts["documents"] == 401 and facts["bytes"] == len(text.encode())
    scores = facts["scores"]
    assert (scores["held_out"], scores["fitted"]) == (40, 361)
    documents = text.split("\n")[:-1]
    held_out = documents[9::10]
    rest = [document for number, document in enumerate(documents) if number % 10 != 9]
    lm = saffu.SaffuLM().fit(rest)
    assert scores["calibrated"] == pytest.approx(lm.score(held_out).bits_per_byte)
    assert scores["kneser_ney"] == pytest.approx(lm.reference_scores(held_out)["5-gram"].bits_per_byte)
    assert fingerprint(lm.update(held_out)) == fingerprint(counted_page.studio.subject(facts["id"]).version.lm)


def test_the_papers_model_is_fitted_to_the_same_text(tmp_path, text):
    pytest.importorskip("torch", reason="the paper's model needs torch")
    page = Page(Studio(saved_in=tmp_path))
    id = page.count(text)["id"]
    assert page.model(id)["rival"] is None and "paper" not in page.model(id)["scores"]  # only on request
    page.post("compare", model=id)
    page.studio.wait()
    facts = page.model(id)
    assert facts["scores"]["paper"] > facts["scores"]["calibrated"] > 0
    words = page.post("suggest", model=facts["rival"], text="the ", page="a", number=1)["words"]
    assert len(words) > 3 and sum(word["p"] for word in words) <= 1.0001
    explained = page.post("why", model=facts["rival"], text="the ", word=words[0]["word"])
    assert math.fsum(row["bits"] for row in explained["rows"]) == pytest.approx(math.log2(words[0]["p"]), abs=1e-4)


def test_without_torch_the_page_says_so_in_one_line(monkeypatch, tmp_path, text):
    monkeypatch.setattr("saffu.play.counting.importlib.util.find_spec", lambda name: None)
    page = Page(Studio(saved_in=tmp_path))
    id = page.count(text)["id"]
    page.post("compare", model=id)
    page.studio.wait()
    assert install_command("torch") in page.model(id)["rival_note"]
    assert page.model(id)["rival"] is None and "paper" not in page.model(id)["scores"]


@each(
    "content, query, message",
    [
        (b"", {}, "no text to count"),
        (b" \n \n", {}, "no text to count"),
        (b"\xff\xfe", {}, "not UTF-8 at byte 0"),
        (b"a\0b", {}, "NUL"),
        (b"a text", {"split": "letter"}, "`split` must be one of"),
    ],
)
def test_texts_that_cannot_be_counted_give_one_line(page, content, query, message):
    answer = page.client.post("api/count", params=query, content=content)
    if answer.status_code == 200:
        error = page.settled()["job"]["error"]
    else:
        assert answer.status_code == 422
        error = answer.json()["error"]
    assert message in error and "\n" not in error
    assert page.count("one line of text\n" * 3)["documents"] == 3  # nothing is stuck


def test_a_second_text_waits_for_the_first(page, monkeypatch):
    hold = threading.Event()
    monkeypatch.setattr("saffu.play.counting.count", lambda *_: hold.wait() and None)
    page.client.post("api/count", content=b"one")
    answer = page.client.post("api/count", content=b"two")
    hold.set()
    assert answer.status_code == 422 and "being counted" in answer.json()["error"]


def test_the_state_is_sent_when_the_stage_changes(page, monkeypatch):
    begun, hold = threading.Event(), threading.Event()

    def count(id, name, text, split, on_stage, on_subject):
        on_stage(1)
        begun.set()
        hold.wait()
        on_stage(2)

    monkeypatch.setattr("saffu.play.studio.STAGE_SECONDS", 60)
    monkeypatch.setattr("saffu.play.counting.count", count)
    page.client.post("api/count", content=b"one")
    begun.wait()
    assert page.client.get("api/state?stage=0").json()["job"]["stage"] == 1  # at once
    threading.Timer(0.05, hold.set).start()
    assert page.client.get("api/state?stage=1").json()["job"]["stage"] >= 2


def test_texts_are_cut_into_lines_or_paragraphs():
    assert split_text("a\n\nb\n\nc\n") == ["a", "b", "c"]
    assert split_text("a\nb\n\nc\nd", "paragraph") == ["a\nb", "c\nd"] == split_text("a\r\nb\r\n\r\nc\r\nd")
    assert split_text("a\nb\n\nc\nd", "line") == ["a", "b", "c", "d"]


def test_suggestions_are_words_with_their_probabilities(counted_page):
    lm = counted_page.studio.subject(counted_page.id).version.lm
    for text in ("", "the ", "the ol", "a dog saw the ho", "the old king\nthe "):
        answer = counted_page.post("suggest", model=counted_page.id, text=text, page="a", number=1)
        assert {word["word"]: word["p"] for word in answer["words"]} == pytest.approx(lm.complete_word(text), rel=1e-4)
        scored = text[:-1] if text.endswith(" ") else text
        assert "".join(span["text"] for span in answer["spans"]) == scored


def step_bits(lm, text):
    """log2 p of each token of a line, one step after the other."""
    state = lm.start()
    for token in lm.tokenizer_.encode(text):
        log_p, state = lm.step(state, token)
        yield log_p / math.log(2)


def test_surprisals_of_typed_text_are_those_of_the_model(counted_page):
    """However a text came about: typed letter by letter, shortened, changed in the middle, or pasted."""
    lm = counted_page.studio.subject(counted_page.id).version.lm
    typist, story = Typist(lm), "the old dog saw a tree .\nthe girl found the sea and went home ."
    texts = [story[:end] for end in range(1, len(story), 7)]
    texts += [
        story[:20],
        story,
        story.replace("girl", "king"),
        " ".join(sentences(3, 30)),
        "naïve 日本語 🎉 text",
        "the",
    ]
    for text in texts:
        answer = typist.suggest(text)
        if "\n" not in text and not text.endswith(" "):
            assert answer["bits"] == pytest.approx(-sum(step_bits(lm, text)), rel=1e-4)
            assert sum(span["bits"] for span in answer["spans"]) == pytest.approx(answer["bits"], abs=0.01)
        assert "".join(span["text"] for span in answer["spans"]) == text.removesuffix(" ")


def test_outdated_keystrokes_are_dropped(counted_page):
    ask = {"model": counted_page.id, "text": "the ", "page": "typing"}
    assert "words" in counted_page.post("suggest", **ask, number=7)
    assert counted_page.post("suggest", **ask, number=6) == {"outdated": True}
    assert "words" in counted_page.post("suggest", **ask, number=8)
    assert "words" in counted_page.post("suggest", **{**ask, "page": "another"}, number=1)


@each("prompt, typed", [("the old ", ""), ("the old k", "k"), ("", ""), ("a dog\nth", "th")])
def test_contributions_add_up_to_the_probability_shown(counted_page, prompt, typed):
    words = counted_page.post("suggest", model=counted_page.id, text=prompt, page="b", number=1)["words"]
    for word in words[:3]:
        answer = counted_page.post("why", model=counted_page.id, text=prompt, word=word["word"])
        assert answer["typed"] == typed
        assert answer["p"] == pytest.approx(word["p"], rel=1e-4)
        assert math.fsum(row["bits"] for row in answer["rows"]) == pytest.approx(math.log2(answer["p"]), abs=1e-9)
        for part in answer["parts"]:
            assert math.fsum(row["bits"] for row in part["rows"]) == pytest.approx(part["bits"], abs=1e-9)
            assert all(row["class_bits"] is not None for row in part["rows"][:-1])


def test_words_of_several_tokens_are_explained_token_by_token(counted_page):
    answer = counted_page.post("why", model=counted_page.id, text="the old ", word="dogging")
    assert answer["parts"][0]["token"] == " dog" and len(answer["parts"]) > 1
    assert answer["bits"] == pytest.approx(sum(row["bits"] for row in answer["rows"]), abs=1e-9)
    by_token = sum(row["bits"] for part in answer["parts"] for row in part["rows"] if row["name"] == "n-grams")
    assert next(row["bits"] for row in answer["rows"] if row["name"] == "n-grams") == pytest.approx(by_token)


@pytest.mark.parametrize(
    ("prompt", "found_by", "fall_back"),
    [("the old king saw the small dog found a ", 6, 0), ("the sea in the garden . a old girl liked a ", 5, 3)],
)
def test_counts_behind_a_suggestion_are_those_of_the_text(counted_page, text, prompt, found_by, fall_back):
    """Each view's counts, found again by reading the text."""
    lm = counted_page.studio.subject(counted_page.id).version.lm
    model, tokenizer = lm.model_, lm.tokenizer_
    documents = [[EOD, *tokenizer.encode(line), EOD] for line in text.split("\n")[:-1]]
    context, (token,), _ = word_after(lm, prompt, "house")
    found = counts_behind(model, tokenizer, context, token)

    def reference(view, length):
        followed = total = 0
        wanted = [context[-distance] for distance in view.distances[:length]]
        classes = model.encoder.context_classes.get(view.classes)
        for document in documents:
            for place in range(1, len(document)):
                seen = [document[place - d] if place >= d else None for d in view.distances[:length]]
                same = all(
                    a is not None and (a == b or (classes is not None and i >= view.exact and classes[a] == classes[b]))
                    for i, (a, b) in enumerate(zip(seen, wanted, strict=True))
                )
                total += same
                followed += same and document[place] == token
        return followed, total

    assert found["prior"]["count"] == sum(document[1:].count(token) for document in documents)
    compared = shortened = 0
    for view in model.views:
        length = len(found[view.name]["seen"])
        assert (found[view.name]["count"], found[view.name]["total"]) == reference(view, length), view.name
        compared += found[view.name]["count"] > 0
        shorter = found[view.name]["shorter"]
        if shorter:
            shortened += 1
            reach = len(shorter["seen"])
            assert (shorter["count"], shorter["total"]) == reference(view, reach) and shorter["count"] > 0, view.name
            assert reference(view, reach + 1)[0] == found[view.name]["count"] == 0, view.name
    assert compared >= found_by and shortened >= fall_back
    assert found["document, half-life 20"] == {
        "seen": [],
        "count": 0,
        "total": len(context),
        "here": True,
        "gap": 0,
        "partial": False,
        "shorter": None,
    }


def test_the_only_document_stays(page):
    id = page.count("the old king saw the sea")["id"]
    error = page.post("forget", 422, model=id, document=0)["error"]
    assert error.startswith("this is the only document")


def test_forget_gives_the_model_that_never_saw_the_document(page, text):
    id = page.count(text)["id"]
    ask = {"model": id, "text": "the zebra crossed the quiet ", "word": "river"}
    first = page.studio.subject(id).version.lm
    (found,) = page.post("documents", **ask)["documents"]
    assert found["before"] + found["context"] + found["word"] == "the zebra crossed the quiet river"
    assert found["context"].endswith(" the quiet") and found["after"] == " ."
    bits = page.post("why", **ask)["bits"]
    facts = page.post("forget", model=id, document=found["number"])["models"][0]
    assert facts["documents"] == 400 and page.post("documents", **ask)["documents"] == []
    assert page.post("why", **ask)["bits"] < bits - 3
    page.post("forget", 422, model=id, document=found["number"])

    (change,) = page.settled()["models"][0]["changes"]
    assert change["equal"] and change["before"] != change["after"] == change["check"]
    assert (change["kind"], change["document"], change["recounted"]) == (
        "forget",
        "the zebra crossed the quiet river .",
        400,
    )
    never = copy.copy(first)
    others = text.split("\n")[:-2]
    never.model_ = first.model_.solved(first.model_.count(first.tokenize(others)))
    assert fingerprint(never) == change["after"]

    facts = page.post("undo", model=id)["models"][0]
    assert facts["documents"] == 401 and facts["changes"] == [] and not facts["can_undo"]
    assert page.post("why", **ask)["bits"] == bits
    assert "nothing to undo" in page.post("undo", 422, model=id)["error"]


def test_a_check_that_fails_is_shown(page, text, monkeypatch):
    """If forgetting left anything behind, the fingerprints would differ."""
    from saffu.model.language_model import SaffuLM

    id = page.count(text)["id"]
    monkeypatch.setattr(SaffuLM, "forget", lambda self, documents, **_: 1)  # forgets nothing
    page.post("forget", model=id, document=400)
    (change,) = page.settled()["models"][0]["changes"]
    assert change["equal"] is False and change["check"] != change["after"]


def test_a_sentence_is_learned_and_can_be_forgotten_again(page, text):
    id = page.count(text)["id"]
    ask = {"model": id, "text": "the old king saw the ", "word": "dragon"}
    before = page.post("why", **ask)["bits"]
    page.post("learn", model=id, text="the old king saw the dragon .")
    assert page.post("why", **ask)["bits"] > before + 2
    (found,) = page.post("documents", **ask)["documents"]
    assert found["number"] == 401
    page.post("forget", model=id, document=401)
    changes = page.settled()["models"][0]["changes"]
    assert all(change["equal"] for change in changes)
    assert changes[0]["before"] == changes[1]["after"]
    assert "no text to count" in page.post("learn", 422, model=id, text="  \n ")["error"]


def test_forgetting_names_what_is_gone_and_what_remains(page, text):
    id = page.count(text)["id"]
    before = page.studio.subject(id).version.lm
    page.post("forget", model=id, document=400)
    (change,) = page.settled()["models"][0]["changes"]
    others = set(" ".join(text.split("\n")[:-2]).split())
    assert change["vanished"] == [word for word in ("zebra", "crossed", "quiet", "river") if word not in others] != []
    ids = before.tokenizer_.encode("the zebra crossed the quiet river .")
    counted = before.model_.count(before.tokenize(text.split("\n")[:-2])).ngrams.rows()[:, -1]
    gone = [token for token in ids if token not in counted]  # single bytes are in every tokenizer
    expected = {before.tokenizer_.token(token) for token in gone if len(before.tokenizer_.decode_bytes([token])) > 1}
    assert set(change["pieces"]) == expected != set()
    page.post("forget", model=id, document=3)  # what remains of the first document remains
    assert expected <= set(page.settled()["models"][0]["changes"][-1]["pieces"])
    page.post("learn", model=id, text="the zebra crossed the quiet river .")  # and is counted again
    assert not expected & set(page.settled()["models"][0]["changes"][-1]["pieces"])


def test_pieces_that_are_gone_are_not_named_among_words_like_another(page, text):
    id = page.count(text)["id"]
    ask = {"model": id, "text": "the zebra ", "word": "crossed"}

    def alike():
        parts = page.post("why", **ask)["parts"]
        return {member for part in parts for member in part["class"]}

    before = alike()
    page.post("forget", model=id, document=400)
    (change,) = page.settled()["models"][0]["changes"]
    assert before & set(change["pieces"]) and not alike() & set(change["pieces"])


def test_a_recount_has_a_fresh_tokenizer_and_can_be_undone(page, text):
    id = page.count(text)["id"]
    page.post("forget", model=id, document=400)
    forgotten = fingerprint(page.studio.subject(id).version.lm)
    facts = page.post("recount", model=id)["models"][0]
    assert facts["documents"] == 400
    lm = page.studio.subject(id).version.lm
    others = text.split("\n")[:-2]
    assert fingerprint(lm) == fingerprint(saffu.SaffuLM().fit(others))
    assert " zebra" not in [lm.tokenizer_.token(token) for token in range(len(lm.tokenizer_))]
    change = page.settled()["models"][0]["changes"][-1]
    assert (change["kind"], change["equal"], change["recounted"]) == ("recount", True, 400)
    page.post("forget", model=id, document=3)  # documents keep their numbers
    page.post("undo", model=id)
    page.post("undo", model=id)
    assert fingerprint(page.studio.subject(id).version.lm) == forgotten
    page.studio.wait()


def test_a_typed_word_is_explained_with_what_else_might_stand_there(counted_page):
    lm = counted_page.studio.subject(counted_page.id).version.lm
    line = "the zebra crossed the quiet river ."
    spans = counted_page.post("suggest", model=counted_page.id, text=line, page="w", number=1)["spans"]
    for word in ("the", "zebra", "quiet", "river", "."):
        at = line.index(word)
        for place in (at, at + len(word) // 2):
            found = counted_page.post("read", model=counted_page.id, text=line[:place], rest=line[place:])
            assert (found["word"], found["start"], found["end"]) == (word, at, at + len(word))
            assert found["before"] == line[:at]
            assert math.fsum(row["bits"] for row in found["rows"]) == pytest.approx(found["bits"], abs=1e-9)
            ends = np.cumsum([len(span["text"]) for span in spans])
            bits = [s["bits"] for s, end in zip(spans, ends, strict=True) if at <= end <= at + len(word)]
            assert -found["bits"] == pytest.approx(sum(bits), abs=0.002 * len(bits))
        words = {each["word"]: each["p"] for each in found["words"]}
        assert words == pytest.approx(lm.complete_word(line[:at]), rel=1e-4)
    found = counted_page.post("read", model=counted_page.id, text="🎉 the ", rest="old king")
    assert (found["word"], found["start"], found["end"]) == ("old", 7, 10)  # in UTF-16, as browsers count
    counted_page.post("read", 422, model=counted_page.id, text="", rest="")


def test_suggestions_are_for_the_caret_and_surprisals_for_the_whole_text(counted_page):
    lm = counted_page.studio.subject(counted_page.id).version.lm
    answer = counted_page.post(
        "suggest", model=counted_page.id, text="the zebra cr", rest="x the sea", page="c", number=1
    )
    assert {word["word"]: word["p"] for word in answer["words"]} == pytest.approx(
        lm.complete_word("the zebra cr"), rel=1e-4
    )
    assert "".join(span["text"] for span in answer["spans"]) == "the zebra crx the sea"
    assert answer["bits"] == pytest.approx(-sum(step_bits(lm, "the zebra crx the sea")), rel=1e-4)


def test_scripts_without_spaces_are_completed_from_where_the_page_cuts_them(page):
    id = page.count("\n".join(["今天天气很好。我喜欢吃苹果。", "我喜欢喝茶。", "他喜欢吃面包。"] * 8))["id"]
    ask = {"model": id, "text": "天气很好。我喜欢喝", "page": "a", "number": 1}
    assert page.post("suggest", **ask)["words"][0]["word"] != "我喜欢喝茶"
    words = page.post("suggest", **ask, ending="我喜欢喝")["words"]
    assert words[0]["word"] == "我喜欢喝茶"
    answer = page.post("why", model=id, text=ask["text"], ending="我喜欢喝", word="我喜欢喝茶")
    assert answer["p"] == pytest.approx(words[0]["p"], rel=1e-4)
    assert "end of `text`" in page.post("suggest", 422, **ask, ending="x")["error"]


def test_half_a_word_is_completed_before_text_is_generated(counted_page):
    lm = counted_page.studio.subject(counted_page.id).version.lm
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 20, "seed": 3}
    ask = {"model": counted_page.id, "text": "the zebra cros", **settings}
    with counted_page.client.stream("POST", "api/generate", json=ask) as answer:
        assert "".join(answer.iter_text()) == "sed" + lm.generate("the zebra crossed", **settings)


def test_the_short_book_is_counted_with_prompts_to_try(page):
    page.client.post("api/count", params={"demo": "story"}, content=b"")
    (model,) = page.settled()["models"]
    assert model["name"] == "The Keeper’s Log" and model["documents"] > 100
    lm = page.studio.subject(model["id"]).version.lm
    best = {text: next(iter(lm.complete_word(text))) for text in model["examples"]}
    assert best["A whale "] == "came" and best["I wrote to the harbor "] == "office" and len(best) >= 5
    assert "must be one of" in page.client.post("api/count", params={"demo": "x"}, content=b"").json()["error"]


def test_a_model_folder_forgets_text_that_is_pasted(fitted, train_text, tmp_path):
    page = Page(Studio(copy.copy(fitted("calibrated")), "model", saved_in=tmp_path))
    (facts,) = page.state()["models"]
    assert (facts["id"], facts["has_texts"], facts["documents"]) == ("folder", False, 600)
    assert page.post("documents", model="folder", text="the ", word="old") == {"documents": [], "holding": 0}
    page.post("forget", model="folder", text=train_text[5])
    (change,) = page.settled()["models"][0]["changes"]
    assert change["equal"] and change["check"] == change["before"] and change["recounted"] is None
    assert "this document is not in" in page.post("forget", 422, model="folder", text="never counted")["error"]
    page.post("undo", model="folder")
    assert page.model("folder")["documents"] == 600


def test_a_network_is_trained_while_one_types(page, monkeypatch):
    pytest.importorskip("torch", reason="a network needs torch")
    from companion_data import CONFIG, texts

    monkeypatch.setattr(counting, "preset", lambda _: replace(CONFIG, epochs=6))
    id = page.count("\n\n".join(texts(1, 600)))["id"]
    page.post("train", model=id, minutes=10)
    assert "being trained already" in page.post("train", 422, model=id, minutes=10)["error"]
    page.post("suggest", model=id, text="ann saw ", rest="", ending=None, page="here", number=1)
    counted, trained = page.settled()["models"]
    training = counted["training"]
    assert training["done"] and not training["failed"] and training["model"] == trained["id"] == f"{id}-network"
    first, *_, last = training["moments"]
    assert first["bits"] == first["counts"] > last["bits"] and first["seconds"] < last["seconds"]
    assert "from " in training["outcome"] and trained["has_network"] and not counted["has_network"]
    (part, *_) = page.post("why", model=trained["id"], text="ann saw bob and ", ending=None, word="ann")["parts"]
    assert part["sides"][0]["name"] == "network"
    assert "network" in page.post("forget", 422, model=trained["id"], document=0)["error"]
    page.post("forget", model=trained["id"], document=0, drop_network=True)
    removed = page.settled()["models"][-1]
    assert not removed["has_network"] and removed["name"] == f"{counted['name']}, its network removed"


def test_training_after_forgetting_counts_what_is_left(page, monkeypatch):
    pytest.importorskip("torch", reason="a network needs torch")
    from companion_data import CONFIG, texts

    monkeypatch.setattr(counting, "preset", lambda _: replace(CONFIG, epochs=6))
    documents = [*texts(1, 300), "the xylophonist saw ann .", *texts(2, 300)]
    id = page.count("\n\n".join(documents))["id"]
    for number in (25, 9):  # one that the network would be trained on, and one that was held out
        page.post("forget", model=id, document=number)
    page.settled()
    page.post("train", model=id, minutes=10)
    page.settled()
    subject = page.studio.subject(f"{id}-network")
    trained, counted = subject.version.lm, page.studio.subject(id).version.lm
    with pytest.raises(saffu.SaffuError):
        copy.copy(trained).forget(["the xylophonist saw ann ."], drop_network=True)
    held_out = [documents[number] for number in range(19, len(documents), 10)]
    assert trained.model_.counted.frequencies.sum() == counted.frequencies_.sum() - counted.tokenize(held_out).targets


def test_what_is_forgotten_while_a_network_is_trained_is_not_in_it(page, monkeypatch):
    pytest.importorskip("torch", reason="a network needs torch")
    from companion_data import CONFIG, texts

    monkeypatch.setattr(counting, "preset", lambda _: replace(CONFIG, epochs=1))
    id = page.count("\n\n".join(texts(1, 200)))["id"]
    subject = page.studio.subject(id)
    train = saffu.SaffuLM.backprop

    def forget_meanwhile(*arguments, **options):
        subject.forget(3)
        return train(*arguments, **options)

    monkeypatch.setattr(saffu.SaffuLM, "backprop", forget_meanwhile)
    page.post("train", model=id, minutes=10)
    (counted,) = page.settled()["models"]
    assert counted["training"]["failed"] and not counted["training"]["model"] and counted["documents"] == 16


def test_training_says_why_it_cannot(page):
    id = page.count("one line\nand another\n")["id"]
    pytest.importorskip("torch", reason="a network needs torch")
    page.post("train", model=id, minutes=1)
    training = page.settled()["models"][0]["training"]
    assert training["done"] and "fewer than ten documents" in training["failed"]
    assert "must be a number" in page.post("train", 422, model=id, minutes=1000)["error"]


def test_a_model_with_a_network_forgets_without_it(train_text, tmp_path):
    torch = pytest.importorskip("torch", reason="a network needs torch")
    from saffu.companion.config import CompanionConfig
    from saffu.companion.torch_networks import TorchNetworks

    config = CompanionConfig(order=3, slots=1, word_classes=0, output_classes=4, depth=1, context=32)
    lm = saffu.SaffuLM(config).fit(train_text)
    networks = TorchNetworks.plain(config, lm.model_.counted, torch.device("cpu"))
    lm.model_ = lm.model_.with_parts(networks=networks.without_torch(lm.model_.counted))
    page = Page(Studio(lm, "model", saved_in=tmp_path))
    assert page.model("folder")["has_network"]
    answer = page.post("why", model="folder", text="the old ", word="king")
    network = next(row for row in answer["rows"] if row["name"] == "network")
    assert network["bits"] < -0.01  # it knows nothing yet
    assert math.fsum(row["bits"] for row in answer["rows"]) == pytest.approx(answer["bits"], abs=1e-9)
    (part,) = answer["parts"]
    by_network, by_counts = part["sides"]
    assert by_network["weight"] + by_counts["weight"] == pytest.approx(1)
    mixed = by_network["weight"] * by_network["p"] + by_counts["weight"] * by_counts["p"]
    assert mixed == pytest.approx(2 ** part["bits"], rel=1e-6)
    context, (token,), _ = word_after(lm, "the old ", "king")
    counted = lm.model_.counted
    alone = np.exp(counted.next_log_probabilities([counted.start(context)])[0])
    assert by_counts["p"] == pytest.approx(alone[token], rel=1e-4)
    assert by_counts["favorites"][0]["word"] == lm.tokenizer_.token(int(alone.argmax()))
    assert "cannot forget" in page.post("forget", 422, model="folder", text=train_text[5])["error"]
    page.post("forget", model="folder", text=train_text[5], drop_network=True)
    (change,) = page.settled()["models"][0]["changes"]
    assert change["equal"] and not page.model("folder")["has_network"]


def test_save_writes_an_ordinary_folder_and_never_replaces_one(counted_page):
    folder = counted_page.studio.saved_in
    assert counted_page.post("save", model=counted_page.id, name="my-model") == {"saved": "my-model"}
    lm = saffu.load(folder / "my-model", check=True)
    assert fingerprint(lm) == fingerprint(counted_page.studio.subject(counted_page.id).version.lm)
    assert "already exists" in counted_page.post("save", 422, model=counted_page.id, name="my-model")["error"]
    for name in ("", "..", ".hidden", "a/b", "../x", "/tmp/x", "a\\b", "a\0b", "x" * 65, "a.", "C:x", "a\nb"):
        counted_page.post("save", 422, model=counted_page.id, name=name)
    assert sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock")) == ["my-model"]


def test_generation_streams_the_same_text_as_the_library(counted_page):
    lm = counted_page.studio.subject(counted_page.id).version.lm
    settings = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 40, "seed": 3}
    with counted_page.client.stream(
        "POST", "api/generate", json={"model": counted_page.id, "text": "the old", **settings}
    ) as answer:
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert "".join(answer.iter_text()) == lm.generate("the old", **settings)
    wrong = {"model": counted_page.id, "text": "the old", **settings, "temperature": 11}
    assert "`temperature` must be a number from 0 to 10" in counted_page.post("generate", 422, **wrong)["error"]


def test_a_snapshot_has_a_link_that_does_not_hold_the_token(page):
    made = page.post("snapshot", name="why-river", page="<!doctype html><p>river</p>")
    assert made["path"].startswith("/s/") and made["path"].endswith("/why-river") and TOKEN not in made["path"]
    del page.client.headers["Origin"]
    answer = page.client.get(f"{ADDRESS}{made['path']}")
    assert answer.text == "<!doctype html><p>river</p>"
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy and "script-src" not in policy and "frame-ancestors" not in policy
    assert "x-frame-options" not in answer.headers
    assert page.client.get(f"{ADDRESS}/s/guess/why-river").status_code == 404
    assert page.client.post(f"{ADDRESS}{made['path']}").status_code == 403
    assert page.client.get(f"{ADDRESS}{made['path']}", headers={"Host": "evil.example:8765"}).status_code == 421
    page.client.headers["Origin"] = ADDRESS
    for name in ("", "a/b", "..", "x" * 65, "<b>"):
        page.post("snapshot", 422, name=name, page="x")


def test_any_unicode_is_counted_and_typed(page):
    lines = [
        "<script>alert('x')</script>",
        "שלום עולם",
        "مرحبا بالعالم",
        "👩‍👩‍👧‍👦 🎉",
        "日本語のテキスト",
        "a\u2028b\x1bc",
    ]
    id = page.count("\n".join(lines * 5) + "\n" + "x" * 5000)["id"]
    for line in lines:
        answer = page.post("suggest", model=id, text=line[:-1], page="c", number=1)
        assert "".join(span["text"] for span in answer["spans"]).rstrip() == line[:-1].rstrip()
        assert np.isfinite([span["bits"] for span in answer["spans"]]).all()
    words = page.post("suggest", model=id, text="שלום ", page="c", number=2)["words"]
    assert words[0]["word"] == "עולם" and words[0]["p"] > 0.5


def test_every_kind_of_model_suggests_and_explains(lm):
    found = Typist(lm).suggest("the small dog saw a ")
    assert {word["word"]: word["p"] for word in found["words"]} == pytest.approx(
        lm.complete_word("the small dog saw a ")
    )
    assert found["bits"] == pytest.approx(-sum(step_bits(lm, "the small dog saw a")), rel=1e-4)
    answer = why(lm, "the old ", "king")
    assert math.fsum(row["bits"] for row in answer["rows"]) == pytest.approx(answer["bits"], abs=1e-6)
    assert answer["p"] == pytest.approx(lm.complete_word("the old ")["king"], rel=1e-3)


def test_a_full_disk_is_one_line(fitted, tmp_path, monkeypatch):
    page = Page(Studio(copy.copy(fitted("calibrated")), "model", saved_in=tmp_path))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("saffu.commit.write_durably", full)
    assert "No space left on device" in page.post("save", 422, model="folder", name="mine")["error"]
    assert list(tmp_path.iterdir()) == []


def test_whole_words_as_tokens(train_text):
    lm = saffu.SaffuLM(tokenizer=saffu.TokenizerConfig(words_as_tokens=True)).fit(train_text)
    found = Typist(lm).suggest("the old ki")
    assert found["words"][0]["word"] == "king"
    answer = why(lm, "the old ki", "king")
    assert math.fsum(row["bits"] for row in answer["rows"]) == pytest.approx(
        math.log2(found["words"][0]["p"]), abs=1e-4
    )


@each("content", ["a", "a b", "\u200b", "🎉", "same line\n" * 200, "x" * 200, "\x1b[0m\n\ufffd"])
def test_texts_of_hardly_anything_are_counted(page, content):
    id = page.count(content)["id"]
    for typed in ("", "a ", "zq"):
        words = page.post("suggest", model=id, text=typed, page="a", number=1)["words"]
        for word in words[:2]:
            answer = page.post("why", model=id, text=typed, word=word["word"])
            assert math.fsum(row["bits"] for row in answer["rows"]) == pytest.approx(math.log2(word["p"]), abs=1e-3)


def test_large_models_keep_fewer_versions(page, text, monkeypatch):
    id = page.count(text)["id"]
    monkeypatch.setattr("saffu.play.subject.KEPT_TOKENS", 10_000)
    for number in range(5):
        page.post("forget", model=id, document=number)
    tokens = page.model(id)["tokens"]
    assert len(page.studio.subject(id).versions) == 1 + 10_000 // tokens < 5
    page.studio.wait()
