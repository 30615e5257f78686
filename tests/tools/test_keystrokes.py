"""Typing with suggestions, and `saffu complete`."""

import json
import re

import numpy as np
import pytest

from saffu import SaffuError, SaffuLM, TokenizerConfig
from saffu.tools.keystrokes import WORD, TypingScore, type_word, typing_score, unigrams


def typed_by_hand(complete, line):
    """Keystrokes of a line, given a function that lists the suggestions for what has been typed."""
    strokes, place, first, suggested = 0, 0, 0, 0
    for match in re.finditer(r"\w+", line):
        strokes += match.start() - place
        place = match.end()
        typed = 0
        while typed < len(match[0]) and match[0] not in complete(line[: match.start() + typed]):
            typed += 1
        if not typed:
            first += complete(line[: match.start()])[0] == match[0]
            suggested += 1
        strokes += min(typed + 1, len(match[0]))
    return strokes + len(line) - place + 1, first, suggested


def test_keystrokes_are_those_of_a_person_who_types(fitted, dev_text):
    lm, lines = fitted("calibrated"), dev_text[:6]

    def complete(prompt):
        return [word for word in lm.complete_word(prompt, 6) if word.isalnum()][:3]

    by_hand = np.sum([typed_by_hand(complete, line) for line in lines], axis=0)
    score = typing_score(lm.model_, lm.tokenizer_, lm.tokenize(lines), 10**6)
    assert score.words == sum(len(re.findall(r"\w+", line)) for line in lines)
    assert score.characters == sum(len(line) + 1 for line in lines)
    assert (score.keystrokes, score.first, score.suggested) == tuple(by_hand.tolist())
    assert 0 < score.top_1 < score.top_3 < 1 and 0.2 < score.saved < 0.8
    trivial = typing_score(unigrams(lm.frequencies_), lm.tokenizer_, lm.tokenize(lines), 10**6)
    assert trivial.characters == score.characters and trivial.saved < score.saved - 0.1
    some = typing_score(lm.model_, lm.tokenizer_, lm.tokenize(lines), 5)
    assert 5 <= some.words < score.words


def test_the_last_letter_saves_nothing(fitted):
    lm = fitted("calibrated")
    line = "a dog"
    first, second = WORD.finditer(line)
    assert type_word(lm.model_, lm.tokenizer_, [], line, first)[1] == 0  # one letter
    _, saved = type_word(lm.model_, lm.tokenizer_, [], line, second)
    assert 0 < saved <= 2
    assert TypingScore(10, 2, 5, 100, 60).saved == pytest.approx(0.4)
    with pytest.raises(SaffuError, match="no words"):
        typing_score(lm.model_, lm.tokenizer_, lm.tokenize(["..."]), 5)


def test_nobody_types_unk(dev_text):
    """A word that the vocabulary does not have is typed as it is, but the model does not know how it is spelled."""
    words = SaffuLM(tokenizer=TokenizerConfig(words_as_tokens=True)).fit(dev_text)
    with pytest.raises(SaffuError, match="2 words of the text are <unk>"):
        typing_score(words.model_, words.tokenizer_, words.tokenize(["the zebra", "a okapi"]), 3)
    known = typing_score(words.model_, words.tokenizer_, words.tokenize(dev_text[:9]), 10**6)
    assert known.words == sum(any(map(str.isalpha, word)) for line in dev_text[:9] for word in line.split())


def test_the_commands(saffu, fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lm = fitted("calibrated")
    lm.save(tmp_path / "counted")
    words = lm.complete_word("the d", 3)
    assert json.loads(saffu("complete counted 'the d' --number 3 --json").out) == {
        "prompt": "the d", "words": pytest.approx(words),
    }  # fmt: skip
    head, *rows = saffu("complete counted 'the d' -n 3").out.splitlines()
    assert head.split() == ["word", "probability"] and [row.split()[0] for row in rows] == list(words)
    several = [line.split("\t") for line in saffu("complete counted -n 2", stdin="the d\na h\n").out.splitlines()]
    assert several[0] == ["id", "word", "probability"] and {row[0] for row in several[1:]} == {"1", "2"}
    (tmp_path / "dev.txt").write_text("the dog saw a house .\n" * 3)
    shown = saffu("eval counted dev.txt --split line --typing 9")
    assert shown.status == 0 and "keystrokes saved" in shown.out and "most frequent words" in shown.out
    facts = json.loads(saffu("eval counted dev.txt --split line --typing 9 --json").out)["typing"]
    own = facts["this model"]
    assert f"typing {own['words']} words of this text, {own['characters']} characters" in shown.out
    assert own["keystrokes_saved"] == pytest.approx(1 - own["keystrokes"] / own["characters"])
    assert facts["this model"]["keystrokes_saved"] > facts["most frequent words"]["keystrokes_saved"]
