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
readings = st.fixed_dictionaries(
    {
        "query_slot": st.sampled_from(["previous", "first"]),
        "padding": st.sampled_from(["right", "left"]),
        "block_advance": st.sampled_from(["whole", "shifted", "sliding"]),
        "radius_padding": st.sampled_from(["left", "right"]),
        "radius_span": st.sampled_from(["document", "start", "blocks", "block"]),
        "gap": st.sampled_from(["none", "block", "radius", "both"]),
    }
).filter(lambda reading: reading["radius_span"] != "blocks" or reading["gap"] in ("none", "block"))


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
@given(documents_of_ids, st.integers(2, 20), st.integers(2, 20), st.integers(1, 100), readings)
@example([[4, 5, EOD], [4, 5, 6, EOD], [4, 5, 6, 7, EOD]], 5, 4, 2, {})  # b−2, b−1, and b tokens
@example([[EOD], [4, EOD], [EOD], [*range(4, 12)] * 5], 2, 18, 3, {"query_slot": "first"})
@example([[EOD], [*range(4, 12)] * 5], 40, 9, 1, {"padding": "left"})
@example([[*range(4, 12)] * 5], 7, 20, 100, {"block_advance": "sliding", "radius_span": "block"})
@example([[*range(4, 12)] * 5], 2, 20, 3, {"radius_span": "blocks", "query_slot": "first"})
@example([[EOD], [*range(4, 12)] * 5], 4, 3, 1, {"gap": "both"})
@example([[*range(4, 12)] * 5], 4, 6, 3, {"radius_span": "blocks", "block_advance": "shifted"})
@example([[*range(4, 12)] * 5], 5, 18, 100, {"radius_padding": "right", "query_slot": "first"})
def test_windows_are_the_references(unit, documents, block, radius, batch, reading):
    config = PaperConfig(block=block, radius=radius, **reading)
    assert windowed(unit, documents, config, batch) == reference.examples(unit, documents, config)


@pytest.mark.parametrize("unit", ["block", "radius"])
def test_windows_of_few_rows(unit, monkeypatch):
    monkeypatch.setitem(windows.WINDOW_ROWS, "cpu", 3)
    documents = [[*range(4, 24), EOD], [4] * 11]
    config = PaperConfig(block=12, radius=12)
    assert windowed(unit, documents, config, 17) == reference.examples(unit, documents, config)


def test_contexts_by_hand():
    documents = [[7, 8, 9, EOD], [EOD]]

    def contexts(unit, **settings):
        return [slots for _, slots, _ in windowed(unit, documents, PaperConfig(**{"block": 3, **settings}), 9)]

    first = PaperConfig(block=3, radius=2, query_slot="first")
    assert windowed("block", documents, first, 9) == [
        (7, [SOD, PAD, PAD], SOD),
        (8, [SOD, 7, PAD], SOD),
        (9, [SOD, 7, 8], SOD),
        (EOD, [FRG, 9, PAD], FRG),
        (EOD, [SOD, PAD, PAD], SOD),
    ]
    whole = [[SOD, PAD, PAD], [SOD, 7, PAD], [FRG, PAD, PAD], [FRG, 9, PAD], [SOD, PAD, PAD]]
    assert contexts("block", block_advance="whole") == whole
    sliding = [[PAD, PAD, SOD], [PAD, SOD, 7], [SOD, 7, 8], [FRG, 8, 9], [PAD, PAD, SOD]]
    assert contexts("block", block_advance="sliding", padding="left") == sliding

    distances = PaperConfig(block=3, radius=2, query_slot="first", radius_padding="left")
    assert windowed("radius", documents, distances, 9) == [
        (7, [PAD, PAD], PAD),
        (8, [PAD, 7], PAD),
        (9, [7, 8], 7),
        (EOD, [8, 9], 8),
        (EOD, [PAD, PAD], PAD),
    ]
    right = [[PAD, PAD, PAD], [7, PAD, PAD], [7, 8, PAD], [7, 8, 9], [PAD, PAD, PAD]]
    assert contexts("radius", radius=3) == right
    assert contexts("radius", radius=3, block=0, radius_span="blocks") == right
    start = [[SOD, PAD, PAD], [SOD, 7, PAD], [SOD, 7, 8], [7, 8, 9], [SOD, PAD, PAD]]
    assert contexts("radius", radius=3, radius_span="start") == start
    left = {"radius": 3, "radius_padding": "left", "block_advance": "whole"}
    blocks = [[PAD, PAD, SOD], [PAD, SOD, 7], [7, 8, FRG], [8, FRG, 9], [PAD, PAD, SOD]]
    assert contexts("radius", radius_span="blocks", **left) == blocks
    block = [[PAD, PAD, SOD], [PAD, SOD, 7], [PAD, PAD, FRG], [PAD, FRG, 9], [PAD, PAD, SOD]]
    assert contexts("radius", radius_span="block", **left) == block


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
