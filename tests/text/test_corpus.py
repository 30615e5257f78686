from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from saffu.text import corpus as module
from saffu.text import tokenizer as tokenizers
from saffu.text.corpus import TokenCorpus, encode_lines, lines_of
from saffu.text.tokenizer import EOD, Tokenizer

TEXTS = ["the cat sat on the mat", "two\n\nlines", "naïve cafés; the dog", "a", "the end, the very end"]
ids = st.lists(st.integers(4, 11), max_size=8)
documents_of_ids = st.lists(st.lists(ids, min_size=1, max_size=4), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 2)


def as_corpus(documents: list[list[list[int]]]) -> TokenCorpus:
    """A corpus of documents of lines of token ids; each line of n ids is said to have n + 1 bytes."""
    flat = [[token for line in document for token in [*line, EOD]] for document in documents]
    starts = np.cumsum([0, *map(len, flat)])
    sizes = [len(line) + 1 for document in documents for line in document]
    return TokenCorpus(
        np.array(list(chain.from_iterable(flat)), dtype=np.uint16), starts, np.array(sizes, dtype=np.int64)
    )


def as_documents(corpus: TokenCorpus) -> list[list[list[int]]]:
    """The inverse of `as_corpus`; checks that all parts of a corpus fit together."""
    assert corpus.starts[0] == 0
    assert corpus.starts[-1] == corpus.targets == len(corpus.ids)
    assert len(corpus.line_starts()) == corpus.lines + 1
    documents, sizes = [], iter(corpus.sizes.tolist())
    for first, last in zip(corpus.starts[:-1], corpus.starts[1:], strict=True):
        lines: list[list[int]] = [[]]
        for token in corpus.ids[first:last].tolist():
            if token == EOD:
                assert next(sizes) == len(lines[-1]) + 1
                lines.append([])
            else:
                lines[-1].append(token)
        assert lines.pop() == []
        documents.append(lines)
    assert not list(sizes)
    return documents


# Building


def test_build(tokenizer):
    corpus = TokenCorpus.build(lines_of(TEXTS), tokenizer)
    pieces = [[id for line in text.split("\n") for id in [*tokenizer.encode(line), EOD]] for text in TEXTS]
    assert corpus.ids.tolist() == [id for piece in pieces for id in piece]
    assert np.diff(corpus.starts).tolist() == [len(piece) for piece in pieces]
    assert corpus.sizes.tolist() == [23, 4, 1, 6, 23, 2, 22]
    assert (corpus.documents, corpus.lines, corpus.targets) == (5, 7, sum(map(len, pieces)))
    assert corpus.bytes == sum(len(text.encode()) + 1 for text in TEXTS) == 81
    assert corpus.first_document == 0
    assert corpus.ids.dtype == np.uint16


def test_build_on_disk_is_the_same(tokenizer, tmp_path):
    memory, disk = (TokenCorpus.build(lines_of(TEXTS), tokenizer, folder) for folder in (None, tmp_path))
    assert isinstance(disk.ids, np.memmap)
    assert disk.ids.tolist() == memory.ids.tolist()
    assert disk.starts.tolist() == memory.starts.tolist()
    assert disk.sizes.tolist() == memory.sizes.tolist()
    assert disk.fingerprint() == memory.fingerprint()
    assert list(tmp_path.iterdir()) == []  # nothing that a killed process could leave behind


@pytest.mark.parametrize("on_disk", [False, True])
def test_build_without_documents(tokenizer, tmp_path, on_disk):
    corpus = TokenCorpus.build([], tokenizer, tmp_path if on_disk else None)
    assert (corpus.documents, corpus.lines, corpus.targets, corpus.bytes) == (0, 0, 0, 0)
    assert corpus.frequencies(8).tolist() == [0] * 8


@pytest.mark.parametrize("on_disk", [False, True])
def test_build_stops_after_the_line_that_reaches_the_limit(tokenizer, tmp_path, on_disk):
    whole = TokenCorpus.build(lines_of(TEXTS), tokenizer)
    ends = whole.line_starts()
    for lines in range(whole.lines + 1):
        for limit, expected in [(int(ends[lines]), lines), (int(ends[lines]) + 1, min(lines + 1, whole.lines))]:
            corpus = TokenCorpus.build(lines_of(TEXTS), tokenizer, tmp_path if on_disk else None, max_tokens=limit)
            assert corpus.ids.tolist() == whole.ids[: ends[expected]].tolist()
            assert corpus.sizes.tolist() == whole.sizes[:expected].tolist()
            assert corpus.starts[-1] == corpus.targets


def test_the_first_line_begins_a_document_whatever_it_says(tokenizer):
    corpus = TokenCorpus.build([(False, "a"), (False, "b")], tokenizer)
    assert (corpus.documents, corpus.lines) == (1, 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text("ab ", min_size=1).filter(str.strip), min_size=1, max_size=4), max_size=6))
def test_lines_of_strings_round_trip(documents):
    found: list[list[str]] = []
    for begins, text in lines_of("\n".join(lines) for lines in documents):
        if begins:
            found.append([])
        found[-1].append(text)
    assert found == documents


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("aT é漢9,.'’ \t_\u00a0\u3000"), max_size=60))
@example("the cat's  mat , the.  end 3 a 3 4b c")
def test_long_lines_in_pieces_keep_their_tokens(tokenizer, text):
    texts = [text, "the cat sat", text + " and " + text]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 4)
        patch.setattr(tokenizers, "PIECE", 4)
        patch.setattr(tokenizers, "FARTHEST", 1000)
        assert [list(ids) for ids in encode_lines(texts, tokenizer)] == tokenizer.encode_batch(texts)


def test_long_lines_are_really_cut(monkeypatch):
    class Recorder:
        def __init__(self):
            self.seen = []

        def encode_batch(self, texts):
            return [self.encode(text) for text in texts]

        def encode(self, text):
            self.seen.append(text)
            return [ord(character) for character in text]

    monkeypatch.setattr(module, "PIECE", 10)
    monkeypatch.setattr(tokenizers, "PIECE", 10)
    monkeypatch.setattr(tokenizers, "FARTHEST", 20)
    for text, longest in (("word " * 20, 15), ("word" * 20, 30)):
        recorder = Recorder()
        (ids,) = encode_lines([text], recorder)
        assert list(ids) == [ord(character) for character in text]
        assert max(map(len, recorder.seen)) <= longest


# Parts


@settings(max_examples=50, deadline=None)
@given(documents_of_ids, st.data())
def test_slice_and_select(documents, data):
    corpus = as_corpus(documents)
    assert as_documents(corpus) == documents
    first = data.draw(st.integers(0, len(documents)))
    last = data.draw(st.integers(first, len(documents)))
    part = corpus.slice(first, last)
    assert as_documents(part) == documents[first:last]
    assert part.first_document == (first if (first, last) != (0, len(documents)) else 0)
    numbers = data.draw(st.lists(st.integers(0, len(documents) - 1), max_size=10))
    assert as_documents(corpus.select(numbers)) == [documents[number] for number in numbers]
    if last - first > 1:
        assert as_documents(part.slice(1, last - first)) == documents[first + 1 : last]
        assert part.slice(1, last - first).first_document == first + 1


def test_a_slice_shares_storage():
    corpus = as_corpus([[[4]], [[5]], [[6]]])
    assert np.shares_memory(corpus.slice(1, 2).ids, corpus.ids)


@settings(max_examples=50, deadline=None)
@given(documents_of_ids, st.integers(0, 100), st.integers(1, 5))
def test_head_and_every_nth(documents, targets, step):
    corpus = as_corpus(documents)
    head = corpus.head(targets)
    assert as_documents(head) == documents[: head.documents]
    assert head.targets >= min(targets, corpus.targets)
    assert head.documents == 0 or corpus.starts[head.documents - 1] < targets
    assert as_documents(corpus.every_nth(step)) == documents[::step]


def test_sample_is_spread_over_the_corpus():
    corpus = as_corpus([[[4 + number % 8] * 4] for number in range(100)])  # 5 targets each
    sample = corpus.sample(50)
    assert sample.targets == 50
    assert as_documents(sample) == [[[4 + number % 8] * 4] for number in range(0, 100, 10)]
    assert corpus.sample(10**6) is corpus


@settings(max_examples=50, deadline=None)
@given(documents_of_ids, st.sampled_from([0, 0.1, 0.5, 0.95, 1]))
def test_split_is_a_partition(documents, share):
    first, second = as_corpus(documents).split(share)
    assert sorted(as_documents(first) + as_documents(second)) == sorted(documents)
    assert first.documents == int(np.floor(len(documents) * share))


@settings(max_examples=50, deadline=None)
@given(documents_of_ids, st.integers(1, 60))
def test_folds_are_whole_documents_each_once(documents, targets):
    corpus = as_corpus(documents)
    folds = corpus.folds(targets)
    assert [document for fold in folds for document in as_documents(fold)] == documents
    assert all(fold.documents for fold in folds)
    assert [fold.first_document for fold in folds] == [
        sum(fold.documents for fold in folds[:number]) for number in range(len(folds))
    ]


def test_folds_are_about_as_large_as_asked():
    corpus = as_corpus([[[4] * (length % 5)] for length in range(400)])  # 1,200 targets, documents of at most 5
    for targets, count in [(100, 12), (110, 11), (390, 3), (5000, 1)]:
        sizes = [fold.targets for fold in corpus.folds(targets)]
        assert len(sizes) == count
        assert max(abs(size - 1200 / count) for size in sizes) <= 5


@settings(max_examples=20, deadline=None)
@given(documents_of_ids)
def test_frequencies(documents):
    corpus = as_corpus(documents)
    frequencies = corpus.frequencies(12)
    assert frequencies.tolist() == [corpus.ids.tolist().count(token) for token in range(12)]
    assert frequencies.dtype == np.int64


@settings(max_examples=50, deadline=None)
@given(documents_of_ids, documents_of_ids)
@example([[[4], [5]]], [[[4]], [[5]]])
@example([[[4, 5]]], [[[4]], [[5]]])
def test_equal_corpora_have_equal_fingerprints(one, other):
    assert (as_corpus(one).fingerprint() == as_corpus(other).fingerprint()) == (one == other)
    wider = as_corpus(one)
    wider = TokenCorpus(wider.ids.astype(np.int32), wider.starts, wider.sizes)
    assert wider.fingerprint() == as_corpus(one).fingerprint()
