import json
import re
from collections import Counter
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import each
from saffu.errors import SaffuError
from saffu.text import tokenizer as module
from saffu.text.tokenizer import (
    BYTE_CHARACTERS,
    SPECIAL_TOKENS,
    Tokenizer,
    TokenizerConfig,
    WordTokenizer,
    count_bpe_words,
    learn_merges,
    most_frequent,
    needed_merges,
    vocabulary,
)

CORPUS = [
    "the cat sat on the mat, the dog lay on the log.",
    "the cats' mats and the dogs' logs: nothing there, the others then",
    "singing, ringing and bringing; sing, ring and bring",
    "naïve cafés, naïve café; 1999, 2999 and 1998",
] * 2
BY_TYPES = TokenizerConfig(bpe_count="types")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(CORPUS, BY_TYPES)


def reference_merges(counts: dict[str, int]) -> list[tuple[str, str]]:
    """Byte-pair encoding as in the textbook: merge the most frequent pair until none occurs twice."""
    words = {word: list(word) for word in counts}
    merges = []
    while True:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, tokens in words.items():
            for pair in pairwise(tokens):
                pairs[pair] += counts[word]
        ranked = pairs.most_common(2)
        if not ranked or ranked[0][1] < 2:
            return merges
        assert len(ranked) == 1 or ranked[0][1] > ranked[1][1], "the example must have no ties"
        merges.append(ranked[0][0])
        words = {word: reference_encode(word, merges) for word in words}


def reference_encode(word: str, merges: list[tuple[str, str]]) -> list[str]:
    tokens = list(word)
    for left, right in merges:
        merged: list[str] = []
        for token in tokens:
            if merged and merged[-1] == left and token == right:
                merged[-1] += token
            else:
                merged.append(token)
        tokens = merged
    return tokens


def library_words(text: str) -> list[str]:
    return [word for word, _ in module._WORDS.pre_tokenize_str(text)]


# Words


def test_byte_characters_are_the_librarys() -> None:
    whole = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    assert set(BYTE_CHARACTERS) == set(whole.alphabet())
    for code in [*range(0x20, 0x300), 0x2028, 0x1F600, 0x10FFFF]:
        [(word, _)] = whole.pre_tokenize_str(chr(code))
        assert b"".join(module.BYTES[character] for character in word) == chr(code).encode()


def test_words_keep_their_leading_space() -> None:
    assert count_bpe_words(["a a.", "a  a's"]) == {"a": 2, "Ġa": 2, ".": 1, "Ġ": 1, "'s": 1}


@settings(max_examples=300)
@given(
    st.text(
        st.sampled_from("ab1½².'st \t\n\r\x0b\x1c\x1f\x85\xa0\u2028\u3000\u200b\u180e\ufeffé中")
        | st.characters(exclude_categories=["Cs"])
    )
)
def test_words_are_the_librarys(text: str) -> None:
    assert count_bpe_words([text]) == Counter(library_words(text))


def test_words_are_the_librarys_around_every_space_like_character() -> None:
    for character in map(chr, [*range(0x300), *range(0x1600, 0x1900), *range(0x2000, 0x2100), 0x3000, 0xFEFF]):
        for text in (
            f"a{character}a",
            f"a {character} a",
            f".{character}.",
            f"  {character}  a",
            f"a{character}",
        ):
            assert count_bpe_words([text]) == Counter(library_words(text)), repr(text)


def test_most_frequent_breaks_ties_by_the_word() -> None:
    assert most_frequent({"c": 1, "b": 2, "d": 2, "a": 1}, 3) == ["b", "d", "a"]


def test_words_seen_once_are_dropped_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COUNTED_LIMIT", 4)
    assert count_bpe_words(["a a a", "a b c d e f", "a b"]) == {"a": 3, "Ġa": 2, "Ġb": 1}


def test_overlong_runs_are_skipped() -> None:
    longest = "é" * (module.LONGEST_WORD // 2)
    assert count_bpe_words([f"{longest}é a", longest]) == {"Ġa": 1, "Ã©" * (module.LONGEST_WORD // 2): 1}
    made = Tokenizer.train(["x" * 10**6 + " a"])
    assert made.decode(made.encode("x" * 1000)) == "x" * 1000


# Merges


def test_types_and_tokens_learn_different_merges() -> None:
    # By types ab occurs 3 times and xy once; by tokens xy 5 times, ab 3 times.
    documents = ["xy"] * 5 + ["ab", "abc", "abd"]
    by_types = Tokenizer.train(documents, BY_TYPES)
    by_tokens = Tokenizer.train(documents, TokenizerConfig(bpe_count="tokens"))
    assert [by_types.token(id) for id in range(260, len(by_types))] == ["ab"]
    assert [by_tokens.token(id) for id in range(260, len(by_tokens))] == ["xy", "ab"]


@each(
    "counts",
    [
        {"aaaa": 3, "aa": 1},
        {"ab": 1, "abc": 1, "abcd": 1, "abcde": 1, "xyz": 1},
        {"dcbd": 9, "bccc": 20, "abd": 4, "dcbcc": 23},
        {"cccad": 32, "abccc": 14, "adab": 12, "bbcbb": 1},
    ],
)
def test_merges_equal_the_reference(counts: dict[str, int]) -> None:
    assert learn_merges(counts) == reference_merges(counts)


def test_hand_computed_merges() -> None:
    # a+b occurs in four words, then ab+c in three, then abc+d in two; nothing else occurs twice.
    counts = {"ab": 1, "abc": 1, "abcd": 1, "abcde": 1, "xyz": 1}
    assert learn_merges(counts) == [("a", "b"), ("ab", "c"), ("abc", "d")]


def test_needed_merges() -> None:
    merges = [("h", "e"), ("o", "n"), ("t", "he"), ("the", "r")]
    assert needed_merges(merges, ["the", "ton"]) == [("h", "e"), ("o", "n"), ("t", "he")]
    assert needed_merges(merges, ["xyz"]) == []


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=30), st.integers(1, 10))
def test_kept_words_are_encoded_as_by_the_full_merges(words: list[str], kept: int) -> None:
    full = Tokenizer.train(words, TokenizerConfig(bpe_kept_words=0))
    reduced = Tokenizer.train(words, TokenizerConfig(bpe_kept_words=kept))
    assert len(full) >= len(reduced)
    for word in most_frequent(Counter(words), kept):
        expected = [full.token(id) for id in full.encode(word)]
        assert [reduced.token(id) for id in reduced.encode(word)] == expected


def test_reduction_keeps_only_what_kept_words_need() -> None:
    documents = ["the the the thing bring"]
    full = Tokenizer.train(documents, TokenizerConfig(bpe_kept_words=0))
    reduced = Tokenizer.train(documents, TokenizerConfig(bpe_kept_words=1))
    assert most_frequent(count_bpe_words(documents), 1) == ["Ġthe"]
    assert "ing" in [full.token(id) for id in range(len(full))]
    assert "ing" not in [reduced.token(id) for id in range(len(reduced))]


def test_only_the_most_frequent_words_are_learned_from() -> None:
    documents = ["ab abc"] * 3 + ["xy xyz"]
    learned = Tokenizer.train(documents, TokenizerConfig(bpe_words=2))
    assert not {"xy", " xy"} & {learned.token(id) for id in range(len(learned))}


def test_training_is_deterministic(tokenizer: Tokenizer) -> None:
    assert Tokenizer.train(reversed(CORPUS), BY_TYPES).to_json() == tokenizer.to_json()
    lines = [word for text in CORPUS for word in re.split("(?= )", text)]
    assert Tokenizer.train(lines, BY_TYPES).to_json() == tokenizer.to_json()


# Vocabulary


def test_vocabulary_is_specials_then_bytes_then_merges(tokenizer: Tokenizer) -> None:
    assert (module.PAD, module.SOD, module.FRG, module.EOD) == (0, 1, 2, 3)
    assert tuple(tokenizer.token(id) for id in range(4)) == SPECIAL_TOKENS
    assert [tokenizer.decode_bytes([4 + byte]) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert len(tokenizer) > 260
    assert all(len(tokenizer.decode_bytes([id])) > 1 for id in range(260, len(tokenizer)))
    assert " the" in [tokenizer.token(id) for id in range(260, len(tokenizer))]


def test_two_merges_may_make_one_token() -> None:
    ids = vocabulary([("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")])
    assert len(ids) == 260 + 3
    assert ids["abc"] == 262


# Round trips

TRICKY = [
    "",
    " ",
    "\r\n\t\0\x0b",
    " a  b\n\n c ",
    "e\u0301 vs é",
    "👩‍👩‍👧 🇩🇪",
    "中文 العربية",
    "\u2028\ufeff",
    "<pad><sod> <frg>\n<eod>",
    "the<eod>",
]


@each("text", TRICKY)
def test_tricky_texts(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & {0, 1, 2, 3}
    assert Tokenizer.from_json(tokenizer.to_json()).encode(text) == ids


@settings(max_examples=200)
@given(st.text())
def test_any_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_bytes(text.encode()) == ids


@settings(max_examples=200)
@given(
    st.binary() | st.lists(st.sampled_from([b"the", b"\xff", b"\xc3", b"\xa9", b"\xed\xa0\x80", b" "])).map(b"".join)
)
def test_any_bytes_round_trip(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(ids) == data
    assert tokenizer.decode(ids) == data.decode("utf-8", "replace")


def test_text_around_invalid_bytes_is_encoded_as_text(tokenizer: Tokenizer) -> None:
    the = tokenizer.encode(" the")
    assert len(the) == 1
    assert tokenizer.encode_bytes(b" the\xff\xfe the") == [*the, 4 + 0xFF, 4 + 0xFE, *the]


def test_batches_equal_single_texts(tokenizer: Tokenizer) -> None:
    texts = CORPUS + TRICKY
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch([]) == []


def encoded_by_the_library(tokenizer: Tokenizer, text: str) -> list[int]:
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    backend.encode_special_tokens = True
    return list(backend.encode(text, add_special_tokens=False).ids)


@given(st.lists(st.text() | st.text(alphabet="the cat's\n\t\x1c\x1f\x85\xa0é1_.'"), max_size=3))
@settings(max_examples=300)
def test_texts_are_encoded_as_by_the_library(tokenizer: Tokenizer, texts: list[str]) -> None:
    expected = [encoded_by_the_library(tokenizer, text) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    assert tokenizer.encode_batch(texts) == expected  # from memory


def test_every_pair_of_ascii_characters_is_encoded_as_by_the_library(tokenizer: Tokenizer) -> None:
    characters = [chr(code) for code in range(128)]
    texts = ["the" + a + b + "cat " + a + b for a in characters for b in characters]
    backend = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    expected = [encoding.ids for encoding in backend.encode_batch(texts)]
    assert tokenizer.encode_batch(texts) == expected


def test_few_words_are_remembered(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_CHARACTERS", 10)
    texts = ["the cat sat", "on the mat the dog lay", "on the log"] * 2
    expected = [encoded_by_the_library(tokenizer, text) for text in texts]
    assert [tokenizer.encode(text) for text in texts] == expected
    assert tokenizer.encode_batch(texts) == expected


def test_words_are_encoded_by_the_merges() -> None:
    merges = [("h", "e"), ("t", "he"), ("Ġ", "the")]
    made = Tokenizer.from_merges(merges)
    for text in (" the", "then", "he the"):
        expected = [token for word in library_words(text) for token in reference_encode(word, merges)]
        assert made.encode(text) == [vocabulary(merges)[token] for token in expected]


def test_special_tokens_decode_to_nothing(tokenizer: Tokenizer) -> None:
    ids = [module.SOD, *tokenizer.encode("the cat"), module.EOD, module.PAD]
    assert tokenizer.decode(ids) == "the cat"


def test_json_round_trip(tokenizer: Tokenizer) -> None:
    text = tokenizer.to_json()
    loaded = Tokenizer.from_json(text)
    assert loaded.to_json() == text
    assert len(loaded) == len(tokenizer)
    assert loaded.encode_batch(CORPUS) == tokenizer.encode_batch(CORPUS)
    assert tokenizers.Tokenizer.from_str(text).encode("the cat").ids == tokenizer.encode("the cat")


# Errors


@pytest.mark.parametrize("documents", [[], [""]])
def test_empty_corpus(documents: list[str]) -> None:
    with pytest.raises(SaffuError, match="the text has no words"):
        Tokenizer.train(documents)


def test_settings() -> None:
    bpe = {"bpe_words": 2**17, "bpe_kept_words": 2**12, "bpe_count": "tokens"}
    assert TokenizerConfig().to_dict() == bpe | {"words_as_tokens": False, "min_word_count": 2}
    for wrong in ({"bpe_count": "lines"}, {"bpe_words": 0}, {"bpe_kept_words": -1}):
        with pytest.raises(SaffuError, match=f"`{next(iter(wrong))}` is "):
            TokenizerConfig(**wrong)


@each("cut", [0, 1, 100, -1])
def test_damaged_json(tokenizer: Tokenizer, cut: int) -> None:
    with pytest.raises(SaffuError, match="the tokenizer is damaged"):
        Tokenizer.from_json(tokenizer.to_json()[:cut])


def test_json_of_another_tokenizer(tokenizer: Tokenizer) -> None:
    without_bytes = tokenizers.Tokenizer(tokenizers.models.BPE())
    without_bytes.add_special_tokens(list(SPECIAL_TOKENS))
    content = json.loads(tokenizer.to_json())
    content["model"]["vocab"]["▁the"] = len(tokenizer)
    with_words = json.dumps(content)
    for text in (tokenizers.Tokenizer(tokenizers.models.BPE()).to_str(), without_bytes.to_str(), with_words):
        with pytest.raises(SaffuError, match="not a saffu tokenizer"):
            Tokenizer.from_json(text)


def test_lone_surrogates(tokenizer: Tokenizer) -> None:
    with pytest.raises(SaffuError, match="not valid Unicode; decode it with errors='replace'"):
        tokenizer.encode("a\udcff")


@each("text", [None, 5, b"bytes", ["a list"]])
def test_what_is_not_text_is_named(tokenizer: Tokenizer, text: object) -> None:
    for made in (tokenizer, WordTokenizer(["the"])):
        with pytest.raises(SaffuError, match=f"not a string but '{type(text).__name__}'"):
            made.encode(text)


@pytest.mark.parametrize("id", [-1, 10**6])
def test_unknown_ids(tokenizer: Tokenizer, id: int) -> None:
    with pytest.raises(SaffuError, match=f"no token has the id {id}; ids range from 0 to {len(tokenizer) - 1}"):
        tokenizer.decode([id])
    with pytest.raises(SaffuError, match=f"no token has the id {id}"):
        tokenizer.token(id)
