import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from paper_data import as_corpus

from reference import paper as reference
from reference.paper import EOD, FRG, PAD, SOD, Documents
from saffu.paper import windows
from saffu.paper.config import PaperConfig
from saffu.paper.windows import Window, batches, unit_windows

documents_of_ids = st.lists(
    st.lists(st.integers(3, 11), max_size=30).map(lambda ids: [*ids, EOD]), min_size=1, max_size=6
)
choices = st.fixed_dictionaries(
    {"block_advance": st.sampled_from(["whole", "shifted"]), "pad_side": st.sampled_from(["left", "right"])}
)


def slots(window: Window, count: int) -> list[list[int]]:
    """All slots of a window, including the `<pad>` that it leaves out."""
    full = torch.full((len(window.rows), count), PAD)
    full[:, window.slots] = window.ids.long()
    if window.width < count:
        assert (window.seen[:, window.width] == PAD).all()
    return full.tolist()


def windowed(unit: str, documents: Documents, config: PaperConfig, batch: int) -> list[tuple[int, list[int], int]]:
    """(target, slots, query) of every target, each exactly once, in the order of the corpus."""
    found = []
    count = config.units()[unit].slots
    for targets in batches(as_corpus(documents), batch, config.lookback):
        rows = {}
        for window in unit_windows(unit, targets, config):
            for row, context, query in zip(
                window.rows.tolist(), slots(window, count), window.query.tolist(), strict=True
            ):
                assert row not in rows
                rows[row] = (int(targets.ids[row]), context, query)
        found += [rows[row] for row in range(len(targets.ids))]
    return found


@pytest.mark.parametrize("unit", ["block", "radius"])
@settings(max_examples=100, deadline=None)
@given(documents_of_ids, st.integers(2, 20), st.integers(2, 20), st.integers(1, 100), choices)
@example([[4, 5, EOD], [4, 5, 6, EOD], [4, 5, 6, 7, EOD]], 5, 4, 2, {})  # b−2, b−1, and b tokens
@example([[EOD], [4, EOD], [EOD], [*range(4, 12)] * 5], 2, 18, 3, {})
@example([[EOD], [*range(4, 12)] * 5], 40, 9, 1, {"block_advance": "shifted"})
@example([[*range(4, 12)] * 5], 5, 18, 100, {"pad_side": "right"})
def test_windows_are_the_references(unit, documents, block, radius, batch, changes):
    config = PaperConfig(block=block, radius=radius, **changes)
    assert windowed(unit, documents, config, batch) == reference.examples(unit, documents, config)


@pytest.mark.parametrize("unit", ["block", "radius"])
def test_windows_of_few_rows(unit, monkeypatch):
    monkeypatch.setitem(windows.WINDOW_ROWS, "cpu", 3)
    documents = [[*range(4, 24), EOD], [4] * 11]
    config = PaperConfig(block=12, radius=12)
    assert windowed(unit, documents, config, 17) == reference.examples(unit, documents, config)


def test_contexts_by_hand():
    """Each target with its slots and the token that queries attention: the one before the target, or the marker."""
    documents = [[7, 8, 9, EOD], [EOD]]

    def contexts(unit, **changes):
        return windowed(unit, documents, PaperConfig(**{"block": 3, "radius": 3, **changes}), 9)

    assert contexts("block") == [
        (7, [SOD, PAD, PAD], SOD),
        (8, [SOD, 7, PAD], 7),
        (9, [FRG, PAD, PAD], FRG),
        (EOD, [FRG, 9, PAD], 9),
        (EOD, [SOD, PAD, PAD], SOD),
    ]
    shifted = [[SOD, PAD, PAD], [SOD, 7, PAD], [SOD, 7, 8], [FRG, 9, PAD], [SOD, PAD, PAD]]
    assert [slots for _, slots, _ in contexts("block", block_advance="shifted")] == shifted
    assert contexts("radius") == [
        (7, [PAD, PAD, PAD], PAD),
        (8, [PAD, PAD, 7], 7),
        (9, [PAD, 7, 8], 8),
        (EOD, [7, 8, 9], 9),
        (EOD, [PAD, PAD, PAD], PAD),
    ]
    right = [[PAD, PAD, PAD], [7, PAD, PAD], [7, 8, PAD], [7, 8, 9], [PAD, PAD, PAD]]
    assert [slots for _, slots, _ in contexts("radius", pad_side="right")] == right


@settings(max_examples=30, deadline=None)
@given(documents_of_ids, st.integers(1, 40), st.integers(0, 9), st.integers(1, 3))
def test_batches(documents, size, lookback, step):
    flat = [(token, at, number) for number, tokens in enumerate(documents) for at, token in enumerate(tokens)]
    E = torch.from_numpy(np.random.default_rng(0).random((12, 2)))
    found = {}
    for first in range(step):
        lo = first * size
        for targets in batches(as_corpus(documents), size, lookback, first=first, step=step, embeddings=E):
            assert torch.equal(targets.tokens[targets.offsets].long(), targets.ids)
            columns = (targets.ids.tolist(), targets.positions.tolist(), targets.documents.tolist())
            rows = zip(*columns, strict=True)
            for number, (row, mean) in enumerate(zip(rows, targets.means, strict=True), lo):
                before = documents[row[2]][: row[1]]
                np.testing.assert_allclose(mean, (E[PAD] + E[before].sum(0)) / (row[1] + 1), rtol=1e-12)
                found[number] = row
            lo += step * size
    assert [found[number] for number in range(len(flat))] == flat


def test_documents_of_a_part_keep_their_numbers():
    part = as_corpus([[4, EOD], [5, EOD], [6, EOD]]).slice(1, 3)
    (targets,) = batches(part, 10, 2)
    assert targets.documents.tolist() == [1, 1, 2, 2]
    assert targets.tokens.tolist() == [PAD, PAD, 5, EOD, 6, EOD]
