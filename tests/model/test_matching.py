"""Forgetting documents of which lines were held out: every line is verified before anything changes."""

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import saffu as package
from conftest import corpus_of, part, sentences
from saffu import files
from saffu.model.ledger import Ledger
from saffu.model.matching import Matches
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import hold_out

QUICK = "--word-classes 0 --order 3"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder of two books of 300 and 500 lines, and of a model of both with held-out lines."""
    from saffu.cli.main import main

    folder = tmp_path_factory.mktemp("books")
    (folder / "a.txt").write_text("\n".join(sentences(1, 300)) + "\n")
    (folder / "b.txt").write_text("\n".join(sentences(2, 500)) + "\n")
    with pytest.raises(SystemExit) as exit:
        main(f"train {folder / 'a.txt'} {folder / 'b.txt'} --split file --quiet --out {folder / 'm'} {QUICK}".split())
    assert not exit.value.code
    return folder


@pytest.fixture
def books(trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


EDITS = {  # line numbers are from 1
    "edited": (lambda lines: [*lines[:49], "X" + lines[49], *lines[50:]], "% match|but not line"),
    "inserted": (lambda lines: [*lines[:49], "a new line", *lines[49:]], "but not line"),
    "deleted": (lambda lines: [*lines[:49], *lines[50:]], "but not line"),
    "truncated": (lambda lines: lines[:100], "it consists of parts|but not line"),
    "begun later": (lambda lines: lines[100:], "it consists of parts|but not line"),
    "extended": (
        lambda lines: [*lines, "one more line"],
        "500 of its 501 lines match (99%), but not line 501;",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_document_that_was_changed_is_not_forgotten(saffu, books, edit):
    change, message = EDITS[edit]
    (books / "e.txt").write_text("\n".join(change((books / "b.txt").read_text().splitlines())) + "\n")
    before = contents(books / "m")
    refused = saffu("forget m e.txt")
    assert (refused.status, refused.out) == (2, "")
    assert any(part in refused.err for part in message.split("|")) and len(refused.err.splitlines()) == 1, refused.err
    assert "lines match (" in refused.err and "the model is unchanged; --skip-uncounted removes" in refused.err
    assert contents(books / "m") == before
    counted = package.load("m").trained_on_["lines"]
    done = json.loads(saffu("forget m e.txt --skip-uncounted --json").out)
    assert done["removed"] > 0
    lines = len((books / "e.txt").read_text().splitlines())
    assert counted - done["trained_on"]["lines"] == lines - done["held_out_lines"] - done["skipped_lines"]


def test_documents_that_were_joined_are_not_called_a_part_of_one(saffu, books):
    (books / "e.txt").write_text((books / "a.txt").read_text() + (books / "b.txt").read_text())
    refused = saffu("forget m e.txt").err
    assert "this document was not counted as a whole: it consists of parts of one or more others; 800 of its" in refused


@pytest.mark.parametrize("hold_out", [20, 0])
def test_a_changed_line_is_found_by_its_ngrams(saffu, tmp_path, monkeypatch, hold_out):
    """The ledger knows parts of 1,900 lines as one hash, but the n-grams of the other lines are counted."""
    monkeypatch.chdir(tmp_path)
    lines = sentences(3, 800)
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n")
    assert saffu(f"train a.txt --split file --hold-out {hold_out} --quiet --out m --order 4 --slots 2").status == 0
    for number in (0, 50, 799):
        changed = [*lines[:number], f"{lines[number]} quux", *lines[number + 1 :]]
        (tmp_path / "e.txt").write_text("\n".join(changed) + "\n")
        refused = saffu("forget m e.txt")
        assert refused.status == 2 and f"phrases in line {number + 1} " in refused.err, refused.err
    (tmp_path / "e.txt").write_text("".join(f"quux {line} quux\n" for line in lines))
    assert "n-grams" not in saffu("forget m e.txt").err


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda lines: lines[:40], "0 of its 40 lines match (0%); all phrases were counted, so lines were moved"),
        (lambda lines: lines * 2, "this document is not in the model that often; pass it as it was counted"),
        (
            lambda lines: [line + " quux" if number in (9, 60) else line for number, line in enumerate(lines)],
            "2 of its 100 lines match (2%), but not lines 1–48, 51–100; phrases in lines 10, 61 were never",
        ),
    ],
)
def test_an_edited_document_of_which_no_part_is_left(saffu, tmp_path, monkeypatch, edit, message):
    """What was held out is known, and not called new."""
    monkeypatch.chdir(tmp_path)
    lines = sentences(3, 100)
    train = [*lines[:48], "some line", "that is new", *lines[50:]]
    flags = bytearray(2 if number in (48, 49) else number == 0 for number in range(100))
    sides = [[(n, text) for n, text in enumerate(train) if (flags[n] == 2) == side] for side in (False, True)]
    counted, held_out = ([(n in (0, 48, 50), text) for n, text in side] for side in sides)
    tokenizer = package.Tokenizer.train([text for _, text in counted])
    corpus = TokenCorpus.build(counted, tokenizer).divided(TokenCorpus.build(held_out, tokenizer), flags)
    lm = package.SaffuLM(package.CalibratedConfig(order=4, slots=2), tokenizer=tokenizer).fit(corpus)
    assert (lm.trained_on_["documents"], lm.trained_on_["parts"]) == (1, 2)
    with pytest.raises(package.SaffuError) as refused:
        lm.forget(["\n".join(edit(train))])
    assert message in str(refused.value)


def test_documents_and_parts_have_one_name_each(saffu, books):
    """In every command; a file of which lines were held out is one document in several parts."""
    trained = saffu(f"train a.txt b.txt --split file --out n {QUICK}").out
    assert "training on running text: 2 documents in 19 parts, 760 lines" in trained
    assert "scored on running text: 2 documents in 18 parts, 40 lines" in trained
    assert "2 documents in 19 parts, 760 lines" in saffu("info n").out
    assert "the ledger is complete: 2 documents in 19 parts" in saffu("check n a.txt b.txt").out
    (books / "c.txt").write_text("the old\nking\n")
    assert saffu("update n c.txt").out.startswith("added 1 document (6 tokens); n now holds 3 documents in 20 parts")
    said = saffu("forget n b.txt c.txt").out
    assert said.startswith("removed 2 documents in 7 parts; 26 lines had been held out; n now holds 1 document in 13 ")
    assert "forget       2 documents in 7 parts" in saffu("info n").out
    saffu("train c.txt --hold-out 0 --encoder n --out other")
    assert "merged 2 models: 2 documents in 14 parts" in saffu("merge n other --out both").out
    facts = json.loads(saffu("info both --json").out)["trained_on"]
    assert (facts["documents"], facts["parts"]) == (2, 14)


@pytest.mark.parametrize("tokens", [3000, 90_000])
def test_a_document_that_was_cut_is_forgotten(saffu, books, tokens):
    """Of the last document, all that was counted before --max-tokens was reached, also in the middle of a part."""
    (books / "c.txt").write_text("\n".join(sentences(3, 12_000)) + "\n")
    assert saffu(f"train a.txt c.txt --split file --max-tokens {tokens} --quiet --out n {QUICK}").status == 0
    refused = saffu("forget n c.txt").err
    assert "of its 12,000 lines match (" in refused and "but not line" in refused and "a change" not in refused
    said = saffu("forget n c.txt --skip-uncounted")
    assert "n now holds 1 document in 13 parts" in said.out, said.out
    assert saffu("check n a.txt").status == 0
    (page,) = package.load("n").ledger_.pages.values()
    assert page.openings.times.sum() == page.parts.times.sum() + page.held_out.times.sum()


def test_documents_that_models_share_are_counted_as_documents(saffu, books):
    shutil.copytree("m", "copy")
    merged = saffu("merge m copy --out twice")
    assert "saffu: 2 documents are in more than one of the models; each copy is counted" in merged.err
    assert "are not in the text, or not that often" in saffu("check twice a.txt b.txt").err


def test_parts_that_were_removed_before_are_not_called_changed(saffu, books):
    lines = (books / "b.txt").read_text().splitlines()
    (books / "e.txt").write_text("\n".join([*lines[:49], "X" + lines[49], *lines[50:]]) + "\n")
    said = saffu("forget m e.txt --skip-uncounted").out
    assert said.startswith("removed 5 parts of 1 document; ") and "m now holds 2 documents in 14 parts" in said
    refused = saffu("forget m b.txt").err
    assert "this document was counted, but lines 1–27, " in refused and "of it no longer are; the model is" in refused
    assert "m now holds 1 document in 13 parts" in saffu("forget m b.txt --skip-uncounted").out
    assert saffu("check m a.txt").status == 0


def test_a_copy_that_was_not_counted_is_skipped(saffu, books):
    """What is passed more often than it was counted is neither removed nor held out."""
    shutil.copy(books / "b.txt", books / "copy.txt")
    refused = saffu("forget m b.txt copy.txt")
    assert refused.status == 2 and "1 of 2 documents was never counted, or not that often" in refused.err
    assert "match" not in refused.err
    said = saffu("forget m b.txt copy.txt --skip-uncounted").out
    assert said.startswith(
        "removed 1 of 2 documents in 6 parts; 26 lines had been held out; skipped 500 lines that were"
    )
    assert saffu("check m a.txt").status == 0


def test_the_same_beginning_is_forgotten_where_it_was_counted(saffu, tmp_path, monkeypatch):
    """Each of two merged models keeps what it has counted, though the other has counted the same part."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a", "b", "c")):
        (tmp_path / f"{name}.txt").write_text("\n".join([*sentences(9, 25), *sentences(number, 100)]) + "\n")
    assert saffu(f"train a.txt --quiet --out one {QUICK}").status == 0
    assert saffu("train b.txt --encoder one --quiet --out two").status == 0
    assert saffu("update two c.txt").status == 0
    assert saffu("merge one two --out merged").status == 0
    assert saffu("forget merged b.txt").out.startswith("removed 1 document in 7 parts")
    checked = saffu("check merged a.txt c.txt")
    assert checked.status == 0, checked.err


def test_a_truncation_that_ends_with_a_part_is_refused_too(books):
    """Every line of it is known, but others of its document would stay."""
    lm, lines = package.load("m"), (books / "b.txt").read_text().splitlines()
    (whole,) = matched(lm, lines)
    assert whole.exact and len(whole.counted) > 3
    for end in [end for _, end in whole.counted[:-1]]:
        (match,) = matched(lm, lines[:end])
        assert match.partial and not match.unknown
    for end in (1, 7, whole.counted[1][1] + 1):
        assert not matched(lm, lines[:end])[0].exact


def matched(lm, lines):
    return Matches.of(lm.tokenize(["\n".join(lines)]), lm.ledger_, 20).documents


def test_forgetting_leaves_no_hash(saffu, books):
    assert saffu("forget m b.txt").out.startswith("removed ")
    ledger = package.load("m").ledger_
    (page,) = ledger.pages.values()
    corpus = package.load("m").tokenize([(books / "a.txt").read_text()])
    matches = Matches.of(corpus, ledger, 20)
    matches.require_exact()
    assert len(matches.documents[0].counted) == page.parts.times.sum()
    assert len(matches.documents[0].held_out) == page.held_out.times.sum()
    assert page.openings.times.sum() == page.parts.times.sum() + page.held_out.times.sum()
    assert page.counted.times.sum() == 0
    assert len(page.divided) == 1


@pytest.mark.parametrize("edits", [[[500]], [[0], [499]]], ids=["extended", "one by one"])
def test_forgetting_parts_one_by_one_leaves_no_hash_either(saffu, books, edits):
    """Of a document of which no part is counted any more, nothing is recorded, although it was never passed itself."""
    lines = (books / "b.txt").read_text().splitlines()
    for edit in edits:
        changed = [*lines, ""]
        changed[edit[0]] += "X"
        (books / "e.txt").write_text("\n".join(changed) + "\n")
        said = saffu("forget m e.txt --skip-uncounted").out
    assert "m now holds 1 document in 13 parts" in said
    (page,) = package.load("m").ledger_.pages.values()
    assert len(page.divided) == 1
    assert saffu("check m a.txt").status == 0
    assert "has counted" not in saffu("eval m b.txt").err


def test_python_forgets_a_file_of_which_lines_were_held_out(books):
    lm = package.load("m")
    removed = lm.forget([(books / "b.txt").read_text()])
    assert removed == 1
    assert lm.log_[-1]["parts"] == 6  # between held-out lines


def test_lines_that_were_held_out_are_known(saffu, books):
    assert saffu(f"train a.txt --split line --out lines {QUICK}").status == 0
    sides = [hold_out([(True, line) for line in sentences(1, 300)], 20, held_out=side) for side in (False, True)]
    counted, held_out = ({text for _, text in side} for side in sides)
    (books / "held-out.txt").write_text("\n".join(held_out - counted) + "\n")
    refused = saffu("forget lines held-out.txt")
    assert refused.status == 2 and "were held out and never counted" in refused.err
    (books / "some.txt").write_text("\n".join(sentences(1, 40)) + "\n")
    done = json.loads(saffu("forget lines some.txt --json").out)
    assert (done["removed"], done["held_out_lines"], done["skipped_lines"]) == (38, 2, 0)


def test_a_damaged_ledger_is_an_error(books):
    arrays = package.load("m").ledger_.arrays()
    for name, damaged in {
        "0.divided.parts": lambda a: a + 1,
        "0.divided.cuts": lambda a: a.astype(np.int32),
        "0.divided.counted": lambda a: a[1:],
        "0.parts.times": lambda a: -a,
        "0.held_out.times": lambda a: np.full(len(a), 2**62),
        "0.held_out.hashes": lambda a: a[::-1],
        "1.salt": lambda a: arrays["0.salt"],
    }.items():
        with pytest.raises((package.SaffuError, KeyError)):
            Ledger.from_arrays(arrays | {name: damaged(arrays.get(name))})


@pytest.mark.parametrize("cut", [0, 1, 2**62, -(2**63)])
def test_a_document_that_was_cut_elsewhere_is_damage(saffu, books, cut):
    arrays = package.load("m").ledger_.arrays()
    arrays["0.divided.cuts"] = np.full_like(arrays["0.divided.cuts"], cut)
    counted = len(arrays["0.divided.cuts"]) if cut > 0 else 0
    arrays["0.divided.counted"] = np.zeros((counted, 16), np.uint8)
    lm = package.load("m", check=True)
    lm.ledger_ = Ledger.from_arrays(arrays)
    lm.save("m")
    for line in ("forget m b.txt", "forget m b.txt --skip-uncounted", "check m a.txt b.txt"):
        refused = saffu(line)
        assert refused.status == 2 and "the ledger is damaged" in refused.err


numbers = st.lists(st.lists(st.integers(4, 6), min_size=1, max_size=12), min_size=1, max_size=4)


@settings(max_examples=100, deadline=None)
@given(numbers, st.integers(2, 4), st.integers(1, 3))
def test_what_was_divided_is_found_whatever_the_text(documents, every, stretch):
    """Lines are drawn from three, so that parts of different documents are often equal."""
    lines = [(number == 0, str(line)) for document in documents for number, line in enumerate(document)]
    flags = bytearray()
    sides = [list(hold_out(lines, every, held_out, stretch, flags=flags if held_out else None)) for held_out in (0, 1)]
    corpus, dev = (corpus_of(grouped(side)) for side in sides)
    ledger = Ledger.from_arrays(Ledger.of(corpus.divided(dev, flags)).arrays())
    whole = corpus_of([[[line] for line in document] for document in documents])
    matches = Matches.of(whole, ledger, every)
    assert matches.lines("unknown") == 0 and matches.lines("counted") == corpus.lines
    parts, left = matches.left()
    assert (parts.documents, left.documents) == (corpus.documents, 0)
    (page,) = left.pages.values()
    assert page.divided == () and not any(map(len, (page.parts.hashes, page.held_out.hashes, page.openings.hashes)))


@settings(max_examples=100, deadline=None)
@given(numbers, numbers, st.integers(2, 4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_documents_of_merged_ledgers_are_forgotten_in_any_order(first, second, every, stretch, rng):
    """Whatever parts they share, on one page or on both; nothing is left in the end."""
    ledger = Ledger({})
    for documents in (first, second):
        lines = [(number == 0, str(line)) for document in documents for number, line in enumerate(document)]
        flags = bytearray()
        held_out = list(hold_out(lines, every, True, stretch, flags=flags))
        counted = corpus_of(grouped(hold_out(lines, every, False, stretch)))
        ledger = ledger + Ledger.of(counted.divided(corpus_of(grouped(held_out)), flags))
    for document in rng.sample(first + second, len(first + second)):
        matches = Matches.of(corpus_of([[[line] for line in document]]), ledger, every)
        (match,) = matches.documents
        assert match.exact, (document, match)
        _, ledger = matches.left()
    assert ledger.documents == 0
    for page in ledger.pages.values():
        assert page.divided == () and not len(page.held_out.hashes) and not len(page.openings.hashes)


def grouped(lines):
    documents = []
    for begins, text in lines:
        if begins:
            documents.append([])
        documents[-1].append([int(text)])
    return documents


def test_words_of_another_text_are_not_mistaken_for_those_counted(saffu, books):
    """A tokenizer of words turns unknown ones into one token; the ledger still tells the texts apart."""
    (books / "one.txt").write_text("the king saw Ulla .\n")
    (books / "other.txt").write_text("the king saw Ingrid .\n")
    assert saffu("train a.txt one.txt --split line --words-as-tokens --hold-out 0 --out w").status == 0
    refused = saffu("forget w other.txt")
    assert refused.status == 2 and "this document is not in the model" in refused.err
    assert saffu("forget w one.txt").status == 0


def test_a_folder_records_its_ledger_whole(books):
    names = set(files.load_arrays(part(books / "m", "ledger.safetensors")))
    assert {"0.salt", "0.hashes", "0.parts.hashes", "0.held_out.hashes", "0.openings.hashes", "0.divided.cuts"} <= names


# What remains of a document in the tokenizer


@pytest.fixture
def secret(saffu, tmp_path, monkeypatch):
    """A folder with a model of two texts, one of which has a word of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(sentences(1, 80)) + "\n")
    (tmp_path / "secret.txt").write_text("the king is called xylophonist\n" * 3)
    assert saffu("train a.txt secret.txt --split line --hold-out 0 --out m").status == 0
    return tmp_path


def test_a_token_without_a_count_is_never_generated_suggested_or_listed(saffu, secret):
    before = package.load("m")
    (token,) = before.tokenizer_.encode(" xylophonist")
    assert " xylophonist" in before.generate("the king is called", temperature=0)
    done = json.loads(saffu("forget m secret.txt --json").out)
    assert " xylophonist" in done["remaining_tokens"]
    lm = package.load("m")
    assert lm.frequencies_[token] == 0 and lm.next(lm.start("the king is called"))[token] > -20
    for prompt in ("the king is called", "the king is called xylo"):
        assert not any("xylophonist" in word for word in lm.complete_word(prompt, 500))
    generated = lm.generate_batch(["the king is called"] * 200, temperature=3.0, max_tokens=30, seed=1)
    generated += lm.generate_batch([""] * 200, seed=1)
    assert not any("xylophonist" in text for text in generated)
    assert "xylophonist" not in saffu(["explain", "m", "the king is called", "--top", "1000"]).out
    assert saffu("embed m --out vectors.txt").status == 0
    assert "xylophonist" not in (secret / "vectors.txt").read_text()
    lm.export_hf("hf")
    assert token in json.loads((secret / "hf" / "generation_config.json").read_text())["suppress_tokens"]


def test_forgetting_names_the_tokens_that_remain(saffu, secret):
    said = saffu("forget m secret.txt").out
    assert "tokenizer.json, and with it every export, still has" in said and "▁xylophonist" in said


def test_the_rest_can_be_counted_again(saffu, secret):
    """As the page says: the rest is all that is still counted, and a model of it has no trace of what was forgotten."""
    assert saffu("forget m secret.txt").status == 0
    assert saffu("check m a.txt").status == 0
    assert saffu("check m a.txt secret.txt").status == 2
    assert saffu("train a.txt --split line --hold-out 0 --out m --force").status == 0
    assert b"xylo" not in b"".join(path.read_bytes() for path in (secret / "m").iterdir())
