import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reference
from reference import EOD, FRG, PAD, SOD, Documents, as_corpus
from saffu import corpus as module
from saffu.corpus import TokenCorpus, Window, block_windows, encode_documents, radius_windows
from saffu.tokenizer import Tokenizer

TEXTS = ["the cat sat on the mat", "", "naïve cafés; the dog", "a", "the end, the very end"]
documents_of_ids = st.lists(st.lists(st.integers(4, 11), max_size=30), min_size=1, max_size=6)
heads = st.sampled_from(["previous", "first"])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 2)


def slots(window: Window, count: int) -> list[list[int]]:
    """All slots of a window, `<pad>` included where it leaves them out."""
    full = torch.full((len(window.rows), count), PAD)
    full[:, window.slots] = window.ids
    return full.tolist()


def windowed(documents: Documents, batch: int, lookback: int, windows, count: int, head: str):
    """(target, slots, head) of every target, each exactly once, in the order of the corpus."""
    found = []
    for targets in as_corpus(documents).batches(batch, lookback):
        rows = {}
        for window in windows(targets, count, head):
            assert window.rows.shape == window.head.shape
            contexts = zip(window.rows.tolist(), slots(window, count), window.head.tolist(), strict=True)
            for row, context, query in contexts:
                assert row not in rows
                rows[row] = (int(targets.ids[row]), context, query)
        found += [rows[row] for row in range(len(targets.ids))]
    return found


@settings(max_examples=60, deadline=None)
@given(documents_of_ids, st.integers(2, 20), st.integers(1, 100), heads)
@example([[4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7, 8]], 5, 2, "previous")  # b−2, b−1 and b tokens
@example([[], [4], [], list(range(4, 12)) * 5], 2, 3, "first")
@example([[], list(range(4, 12)) * 5], 40, 1, "previous")
def test_block_windows(documents, block, batch, head):
    expected = [e[:3] for e in reference.block_examples(documents, block, head)]
    assert windowed(documents, batch, block, block_windows, block, head) == expected


@settings(max_examples=60, deadline=None)
@given(documents_of_ids, st.integers(2, 20), st.integers(1, 100), heads)
@example([[4, 5], [], [4, 5, 6]], 18, 1, "previous")  # longer than any document
@example([[], [], list(range(4, 12)) * 5], 9, 7, "first")
def test_radius_windows(documents, radius, batch, head):
    expected = [e[:3] for e in reference.radius_examples(documents, radius, head)]
    assert windowed(documents, batch, radius + 3, radius_windows, radius, head) == expected


@pytest.mark.parametrize(("kind", "windows"), [("block", block_windows), ("radius", radius_windows)])
def test_windows_of_few_rows(kind, windows, monkeypatch):
    monkeypatch.setitem(module.WINDOW_ROWS, "cpu", 3)
    documents = [list(range(4, 24)), [4] * 11]
    expected = [e[:3] for e in getattr(reference, f"{kind}_examples")(documents, 12)]
    assert windowed(documents, 17, 12, windows, 12, "previous") == expected


def test_contexts_by_hand():
    documents = [[7, 8, 9], []]
    assert windowed(documents, 9, 3, block_windows, 3, "previous") == [
        (7, [SOD, PAD, PAD], SOD),
        (8, [SOD, 7, PAD], 7),
        (9, [FRG, PAD, PAD], FRG),
        (EOD, [FRG, 9, PAD], 9),
        (EOD, [SOD, PAD, PAD], SOD),
    ]
    assert windowed(documents, 9, 2, radius_windows, 2, "first") == [
        (7, [PAD, PAD], PAD),
        (8, [PAD, 7], PAD),
        (9, [7, 8], 7),
        (EOD, [8, 9], 8),
        (EOD, [PAD, PAD], PAD),
    ]


@settings(max_examples=30, deadline=None)
@given(documents_of_ids, st.integers(1, 40), st.integers(0, 9))
def test_batches(documents, batch, lookback):
    tokens = [[*document, EOD] for document in documents]
    flat = [(token, at, number) for number, t in enumerate(tokens) for at, token in enumerate(t)]
    found = []
    for targets in as_corpus(documents).batches(batch, lookback):
        columns = (targets.ids.tolist(), targets.positions.tolist(), targets.documents.tolist())
        found += zip(*columns, strict=True)
        first = flat[len(found) - len(targets.ids)]
        assert targets.history().tolist() == tokens[first[2]][: first[1]]
        assert targets.past[targets.at].tolist() == columns[0]
    assert found == flat


@settings(max_examples=30, deadline=None)
@given(documents_of_ids, st.integers(2, 12))
def test_fragments(documents, block):
    examples = reference.block_examples(documents, block)
    opening = [e for e in examples if e.slots[0] == FRG and e.slots[1] == PAD]
    assert as_corpus(documents).fragments(block) == len(opening)


def test_build(tokenizer):
    corpus = TokenCorpus.build(iter(TEXTS), tokenizer)
    pieces = [[*tokenizer.encode(text), EOD] for text in TEXTS]
    assert corpus.ids.tolist() == [id for piece in pieces for id in piece]
    assert corpus.starts.diff().tolist() == [len(piece) for piece in pieces]
    assert corpus.sizes.tolist() == [23, 1, 23, 2, 22]
    assert (corpus.documents, corpus.targets, corpus.bytes) == (5, sum(map(len, pieces)), 71)
    assert corpus.first_document == 0


def test_build_on_disk_is_the_same(tokenizer, tmp_path):
    memory, disk = TokenCorpus.build(TEXTS, tokenizer), TokenCorpus.build(TEXTS, tokenizer, tmp_path)
    assert torch.equal(disk.ids, memory.ids)
    assert torch.equal(disk.starts, memory.starts)
    assert torch.equal(disk.sizes, memory.sizes)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == 2 * memory.targets


@pytest.mark.parametrize("on_disk", [False, True])
def test_build_without_documents(tokenizer, tmp_path, on_disk):
    corpus = TokenCorpus.build([], tokenizer, tmp_path if on_disk else None)
    assert (corpus.documents, corpus.targets, corpus.bytes) == (0, 0, 0)
    assert list(corpus.batches(8, 4)) == []


@pytest.mark.parametrize("documents", [0, 1, 2, 4])
@pytest.mark.parametrize("on_disk", [False, True])
def test_build_stops_after_the_document_that_reaches_the_limit(tokenizer, tmp_path, documents, on_disk):
    whole = TokenCorpus.build(TEXTS, tokenizer)
    limit = int(whole.starts[documents])
    for wanted, last in [(limit, documents), (limit + 1, documents + 1)]:
        corpus = TokenCorpus.build(iter(TEXTS), tokenizer, tmp_path if on_disk else None, limit=wanted)
        assert corpus.ids.tolist() == whole.ids[: whole.starts[last]].tolist()
        assert corpus.documents == last
        assert whole.first(wanted).ids.tolist() == corpus.ids.tolist()
        assert whole.first(wanted).bytes == corpus.bytes


def test_a_limit_beyond_the_text_takes_all(tokenizer):
    whole = TokenCorpus.build(TEXTS, tokenizer)
    assert TokenCorpus.build(TEXTS, tokenizer, limit=10**6).targets == whole.targets
    assert whole.first(10**6).targets == whole.targets


def test_part():
    documents = [[4, 5], [], [6, 7, 8], [9]]
    part = as_corpus(documents).part(1, 4).part(1, 3)
    assert part.ids.tolist() == [6, 7, 8, EOD, 9, EOD]
    assert part.starts.tolist() == [0, 4, 6]
    assert part.sizes.tolist() == [4, 2]
    assert part.first_document == 2
    assert part.to("cpu").first_document == 2


@settings(max_examples=50, deadline=None)
@given(documents_of_ids, st.integers(1, 60))
def test_folds_are_whole_documents_each_once(documents, targets):
    corpus = as_corpus(documents)
    folds = corpus.folds(targets)
    assert torch.cat([fold.ids for fold in folds]).tolist() == corpus.ids.tolist()
    assert sum(fold.documents for fold in folds) == corpus.documents
    assert all(fold.documents for fold in folds)
    assert [fold.first_document for fold in folds] == [
        sum(fold.documents for fold in folds[:number]) for number in range(len(folds))
    ]


def test_folds_are_about_as_large_as_asked():
    corpus = as_corpus([[4] * (length % 5) for length in range(400)])  # 1,200 targets, documents of at most 5
    for targets, count in [(100, 12), (110, 11), (390, 3), (5000, 1)]:
        sizes = [fold.targets for fold in corpus.folds(targets)]
        assert len(sizes) == count
        assert max(abs(size - 1200 / count) for size in sizes) <= 5


@settings(max_examples=20, deadline=None)
@given(documents_of_ids)
def test_frequencies(documents):
    flat = [token for document in documents for token in [*document, EOD]]
    frequencies = as_corpus(documents).frequencies(12)
    assert frequencies.tolist() == [flat.count(token) for token in range(12)]
    assert frequencies.dtype == torch.float64


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("aT é漢9,.'’ \n\t_\u00a0\u3000"), max_size=60))
@example("the cat's  mat , the.  end 3 a 3 4b c")
def test_long_documents_in_pieces_keep_their_tokens(tokenizer, text):
    texts = [text, "the cat sat", text + " and " + text]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 4)
        assert list(encode_documents(texts, tokenizer)) == tokenizer.encode_batch(texts)


def test_long_documents_are_really_cut(monkeypatch):
    class Recorder:
        def __init__(self):
            self.seen = []

        def encode_batch(self, texts):
            return [self.encode(text) for text in texts]

        def encode(self, text):
            self.seen.append(text)
            return [ord(character) for character in text]

    monkeypatch.setattr(module, "PIECE", 10)
    recorder, text = Recorder(), "word " * 20
    assert list(encode_documents([text], recorder)) == [[ord(character) for character in text]]
    assert max(map(len, recorder.seen)) <= 15
