"""A tiny network, and text with something to learn: each token depends on the two before it."""

from functools import cache

import numpy as np

from saffu.paper.config import PaperConfig, TrainingConfig
from saffu.paper.model import PaperModel
from saffu.paper.start import start
from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD

VOCABULARY = 20
SHAPE = {"block": 12, "radius": 3, "block_dimension": 8, "radius_dimension": 6, "hidden_dimension": 12}
CONFIG = PaperConfig(**SHAPE, document_shards=0, fold_tokens=700)
QUICK = TrainingConfig(batch_size=64, max_folds=3)


def make_corpus(seed: int, documents: int) -> TokenCorpus:
    """Documents of 3 to 11 tokens and `<eod>`."""
    rng = np.random.default_rng(seed)
    lines = []
    for length in rng.integers(3, 12, documents):
        ids = [4, 5]
        while len(ids) < length + 2:
            ids.append(4 + int(3 * ids[-1] + 5 * ids[-2] + rng.choice(3, p=[0.8, 0.1, 0.1])) % (VOCABULARY - 4))
        lines.append([*ids[2:], EOD])
    starts = np.cumsum([0, *map(len, lines)])
    sizes = np.array([2 * len(line) for line in lines])
    return TokenCorpus(np.concatenate(lines).astype(np.uint16), starts, sizes)


TRAIN, DEV = make_corpus(1, 250), make_corpus(2, 40)


@cache
def started(config: PaperConfig = CONFIG, training: TrainingConfig = QUICK) -> PaperModel:
    """The model that training starts from; it is never changed."""
    *_, stage = start(TRAIN, VOCABULARY, config, training)
    assert isinstance(stage.model, PaperModel)
    return stage.model
