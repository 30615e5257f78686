"""Small texts as token ids. A document is a list of ids that ends with `<eod>`, as in the reference."""

import numpy as np

from reference.paper import EOD, Documents
from saffu.text.corpus import TokenCorpus

VOCABULARY = 12


def as_corpus(documents: Documents) -> TokenCorpus:
    """The same documents for the library; every token is one byte long."""
    ids = np.array([token for document in documents for token in document], dtype=np.int32)
    starts = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    lines = np.split(ids, np.flatnonzero(ids == EOD) + 1)[:-1]
    return TokenCorpus(ids, starts, np.array([len(line) for line in lines], dtype=np.int64))


def random_documents(seed: int, count: int = 8) -> Documents:
    """Random tokens; the first document is only its end, and the last has two lines."""
    rng = np.random.default_rng(seed)
    documents = [[*rng.integers(4, VOCABULARY, size=n).tolist(), EOD] for n in [0, *rng.integers(1, 12, count - 1)]]
    documents[-1] += [5, 6, EOD]
    return documents


def patterned_documents(seed: int, count: int) -> Documents:
    """Tokens that follow each other by a rule, with exceptions: longer contexts predict better."""
    rng = np.random.default_rng(seed)
    documents = []
    for length in rng.integers(3, 30, count):
        tokens = [4, int(rng.integers(4, VOCABULARY))]
        while len(tokens) < length:
            follows = 4 + (tokens[-1] + 2 * tokens[-2]) % (VOCABULARY - 4)
            tokens.append(int(rng.integers(4, VOCABULARY)) if rng.random() < 0.2 else follows)
        documents.append([*tokens, EOD])
    return documents
