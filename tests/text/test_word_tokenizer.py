"""Words as tokens: a closed vocabulary with `<unk>`, from text to ARPA."""

import math

import pytest

from conftest import each, sentences
from saffu import CalibratedConfig, SaffuError, SaffuLM, Tokenizer, TokenizerConfig
from saffu.calibrated.kneser_ney import KneserNey
from saffu.text.tokenizer import EOD, WordTokenizer
from saffu.tools.arpa import write_arpa

WORDS = TokenizerConfig(words_as_tokens=True)
UNKNOWN = EOD + 1


@pytest.fixture(scope="module")
def lm():
    return SaffuLM(CalibratedConfig(order=4, slots=2, word_classes=10), tokenizer=WORDS).fit(
        [*sentences(1, 600), "rara"]
    )


def test_words_that_occur_once_are_unknown(lm):
    tokenizer = lm.tokenizer_
    assert isinstance(tokenizer, WordTokenizer)
    assert tokenizer.encode("the  zebra\tsaw rara") == [
        tokenizer.encode("the")[0], UNKNOWN, tokenizer.encode("saw")[0], UNKNOWN,
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("the zebra saw")) == " the <unk> saw"
    assert tokenizer.encode("<eod> <pad> <unk>") == [UNKNOWN] * 3
    assert tokenizer.encode_bytes(b"the \xff") == [tokenizer.encode("the")[0], UNKNOWN]
    assert (tokenizer.token(EOD), tokenizer.name(UNKNOWN)) == ("<eod>", "<unk>")
    assert Tokenizer.train(["a b", "c"], WORDS).encode("b d") == [6, UNKNOWN]  # all words, if none occurs twice
    with pytest.raises(SaffuError, match="no words"):
        Tokenizer.train([" "], WORDS)


@each("name", ["<pad>", "<sod>", "<frg>", "<eod>", "<unk>"])
def test_a_text_that_names_special_tokens(saffu, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(f"the {name} dog\nthe {name} cat\na {name} {name}\n" * 9)
    assert saffu("train text.txt --words-as-tokens --split line --out model --force --order 3 --slots 1").status == 0
    lm = SaffuLM.load("model", check=True)
    assert lm.encode(f"the {name}") == [*lm.encode("the"), UNKNOWN]
    assert [lm.tokenizer_.name(id) for id in range(len(lm.tokenizer_))].count(name) == 1
    with pytest.raises(SaffuError, match="no words"):
        Tokenizer.train([name, name], WORDS)


def test_the_smallest_count_is_a_setting():
    texts = ["a b b c c c", "<unk> c"]
    expected = {1: ["c", "b", "a"], 2: ["c", "b"], 3: ["c"], 4: ["c"], 5: ["c", "b", "a"]}  # all, if none is left
    for least, words in expected.items():
        made = Tokenizer.train(texts, TokenizerConfig(words_as_tokens=True, min_word_count=least))
        assert [made.name(id) for id in range(UNKNOWN + 1, len(made))] == words, least


def test_the_file_is_read_back(lm):
    again = Tokenizer.from_json(lm.tokenizer_.to_json())
    assert isinstance(again, WordTokenizer) and again.to_json() == lm.tokenizer_.to_json()
    assert again.encode("the dog rara") == lm.tokenizer_.encode("the dog rara")
    for damage in (('"<eod>":3', '"<end>":3'), ('"the":5', '"the":5000'), ('"<unk>":4', '"unk":4')):
        damaged = lm.tokenizer_.to_json().replace(*damage)
        if damaged != lm.tokenizer_.to_json():
            with pytest.raises(SaffuError, match="tokenizer"):
                Tokenizer.from_json(damaged)


def test_models_of_words(lm, tmp_path):
    lm.save(tmp_path / "model")
    again = SaffuLM.load(tmp_path / "model")
    text = "the old zebra saw the sea ."
    assert again.score([text]) == lm.score([text])
    rows = lm.surprisals(text)
    assert [row.word for row in rows] == ["the", "old", "<unk>", "saw", "the", "sea", ".", "<eod>"]
    assert math.fsum(row.bits for row in rows) == pytest.approx(lm.score_lines([text])[0].bits)
    assert set(lm.generate("the old", seed=1).split()) <= {lm.tokenizer_.name(id) for id in range(len(lm.tokenizer_))}
    assert next(iter(lm.complete_word("the old ki"))) == next(iter(lm.complete_word("ki"))) == "king"
    with pytest.raises(SaffuError, match="cannot be exported to transformers"):
        lm.export_hf(tmp_path / "hf")


def test_word_level_arpa(lm, tmp_path):
    kenlm = pytest.importorskip("kenlm", reason="pip install kenlm, which needs a compiler")
    write_arpa(lm.references_, lm.tokenizer_, tmp_path / "words.arpa")
    loaded = kenlm.Model(str(tmp_path / "words.arpa"))
    for line in ("the old king saw the sea .", "a dog", "rara avis"):
        expected = KneserNey(lm.references_).log_probabilities(lm.tokenize([line])) / math.log(10)
        assert [score for score, _, _ in loaded.full_scores(line)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_the_command(saffu, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(sentences(1, 300)) + "\n")
    trained = saffu("train text.txt --split line --words-as-tokens --order 3 --word-classes 4 --out model")
    assert trained.status == 0, trained.err
    assert isinstance(SaffuLM.load("model").tokenizer_, WordTokenizer)
    assert saffu("export model --to arpa --out words.arpa").status == 0
    assert "\tthe dog\t" in (tmp_path / "words.arpa").read_text()
    assert "train without --words-as-tokens" in saffu("export model --to hf --out hf").err
    assert saffu("train text.txt --tokenizer model --words-as-tokens --out other").status == 2
