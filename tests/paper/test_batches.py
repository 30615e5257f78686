"""The order of training."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import each
from saffu.paper.batches import ShuffledFold, folds_per_epoch
from saffu.paper.fit import unsolved_network
from saffu.paper.windows import Targets, unit_windows
from saffu.text.corpus import TokenCorpus
from training_data import CONFIG, TRAIN, VOCABULARY

NETWORK = unsolved_network(TRAIN, VOCABULARY, CONFIG)


def contexts(targets: Targets) -> list[tuple[int, ...]]:
    """Each target with the tokens that the units see."""
    rows = [[int(token)] for token in targets.ids]
    for name in NETWORK.units:
        for window in unit_windows(name, targets, CONFIG):
            for row, ids, query in zip(window.rows.tolist(), window.ids.tolist(), window.query.tolist(), strict=True):
                rows[row] += [query, *[token for token in ids if token]]
    return [tuple(row) for row in rows]


def test_an_epoch_shows_every_target_once_with_its_own_context():
    expected = sorted(row for targets in NETWORK.batches(TRAIN, 500) for row in contexts(targets))
    orders = []
    for epoch in range(2):
        rows = []
        for number in range(1 + 5 * epoch, 6 + 5 * epoch):
            fold = ShuffledFold(TRAIN, 5, number, NETWORK, seed=5)
            assert abs(fold.targets - TRAIN.targets / 5) <= 12
            for first in range(0, fold.targets, 128):
                rows += contexts(fold.batch(first, 128))
        assert sorted(rows) == expected
        orders.append(rows)
    assert orders[0] != orders[1]


def test_the_order_follows_from_the_seed():
    def first_ids(seed: int) -> list[int]:
        return ShuffledFold(TRAIN, 3, 2, NETWORK, seed).batch(0, 50).ids.tolist()

    assert first_ids(1) == first_ids(1) != first_ids(2)


def test_tokens_are_equally_long_in_every_fold():
    folds = [ShuffledFold(TRAIN, 3, number, NETWORK, 0) for number in range(1, 7)]
    assert len({fold.targets for fold in folds}) > 1
    assert len({len(fold.tokens) for fold in folds}) == 1


def test_batches_are_short_at_the_end_of_a_fold():
    fold = ShuffledFold(TRAIN, 3, 1, NETWORK, 0)
    assert len(fold.batch(fold.targets - 7, 64).ids) == 7
    assert len(fold.batch(fold.targets, 64).ids) == 0


def test_the_document_model_reads_documents_in_order():
    network = unsolved_network(TRAIN, VOCABULARY, replace(CONFIG, document_shards=4))
    fold = ShuffledFold(TRAIN, 3, 2, network, seed=5)
    whole = fold.batch(0, fold.targets)
    parts = [fold.batch(first, 50).means for first in range(0, fold.targets, 50)]
    torch.testing.assert_close(whole.means, torch.cat(parts))
    row = int(torch.nonzero(whole.positions == 3)[0])  # the mean of <pad> and three tokens
    E = network.document_embeddings
    torch.testing.assert_close(whole.means[row], (E[0] + E[whole.ids[row - 3 : row]].sum(0)) / 4)


@each("lengths", [[5000, 1, 1], [1], [1, 5000], [3] * 10])
def test_folds_of_few_and_long_documents(lengths):
    starts = np.cumsum([0, *lengths])
    corpus = TokenCorpus(np.full(starts[-1], 3, dtype=np.uint16), starts, np.ones(starts[-1], dtype=np.int64))
    folds = min(3, len(lengths))
    sizes = [ShuffledFold(corpus, folds, number, NETWORK, 0).targets for number in range(1, folds + 1)]
    assert sum(sizes) == corpus.targets
    assert min(sizes) > 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 60), st.integers(0, 3))
def test_every_fold_has_documents_and_none_is_lost(lengths, fold_tokens, seed):
    starts = np.cumsum([0, *lengths])
    ids = np.arange(starts[-1]) % (VOCABULARY - 4) + 4
    corpus = TokenCorpus(ids.astype(np.uint16), starts, np.zeros(0, dtype=np.int64))
    folds = folds_per_epoch(corpus, fold_tokens)
    batches = [ShuffledFold(corpus, folds, number, NETWORK, seed).batch(0, 2000) for number in range(1, folds + 1)]
    assert all(len(batch.ids) for batch in batches)
    places = torch.cat([torch.from_numpy(starts)[batch.documents] + batch.positions for batch in batches])
    assert sorted(places.tolist()) == list(range(corpus.targets))
    assert torch.cat([batch.ids for batch in batches]).tolist() == ids[places.numpy()].tolist()
