"""Which documents a model has counted, as salted hashes: enough to refuse what was never counted, and nothing more."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from saffu.corpus import TokenCorpus
from saffu.errors import SaffuError

HASH = 16  # bytes; two documents share a hash once in 2¹²⁸
Hashes = Counter[bytes]


class Ledger:
    """How often each document is counted. Tokens lose nothing of a text, so a document is known by its token ids.

    A hash is keyed by the salt of the model that counted the document; a merged model keeps the pages of all, each
    with its salt.
    """

    def __init__(self, pages: dict[bytes, Hashes] | None = None):
        self.pages = pages or {secrets.token_bytes(HASH): Counter()}

    @classmethod
    def of(cls, corpus: TokenCorpus) -> "Ledger":
        """The ledger of a corpus, with a salt of its own."""
        return cls().with_added(corpus)

    @property
    def documents(self) -> int:
        return sum(hashes.total() for hashes in self.pages.values())

    def with_added(self, corpus: TokenCorpus) -> "Ledger":
        """These documents counted too, on the first page."""
        salt = next(iter(self.pages))
        hashes = self.pages[salt] + Counter(hashed(document, salt) for document in token_bytes(corpus))
        return Ledger({**self.pages, salt: hashes})

    def counted(self, corpus: TokenCorpus) -> Tensor:
        """The numbers of the corpus's documents that are counted, each as often at most as the ledger has it."""
        left = {salt: Counter(hashes) for salt, hashes in self.pages.items()}
        return torch.tensor([number for number, d in enumerate(token_bytes(corpus)) if _strike(left, d)]).long()

    def without(self, corpus: TokenCorpus) -> "Ledger":
        """These documents counted no more; refused if one of them is not there as often as it is named."""
        left = {salt: Counter(hashes) for salt, hashes in self.pages.items()}
        missing = [number for number, document in enumerate(token_bytes(corpus), 1) if not _strike(left, document)]
        if missing and len(missing) == corpus.documents:
            raise SaffuError("nothing of the text is counted; give documents exactly as they were counted")
        if missing:
            were = "was" if len(missing) == 1 else "were"
            raise SaffuError(
                f"{len(missing)} of {corpus.documents} documents {were} never counted, or not that often (the first is "
                f"document {missing[0]} of the text); nothing was changed; "
                "`skip_uncounted` forgets the others"
            )
        return Ledger(left)

    def __add__(self, other: "Ledger") -> "Ledger":
        pages = dict(self.pages)
        for salt, hashes in other.pages.items():
            pages[salt] = pages.get(salt, Counter()) + hashes
        return Ledger(pages)

    def shared_with(self, other: "Ledger") -> int:
        """How many documents both are known to count: those on pages of one salt."""
        return sum((self.pages[salt] & other.pages[salt]).total() for salt in self.pages.keys() & other.pages.keys())

    def tensors(self) -> dict[str, Tensor]:
        """To be stored: for each page its salt, its hashes in order, and how often each is counted."""
        stored = {}
        for number, (salt, hashes) in enumerate(self.pages.items()):
            ordered = sorted(hashes)
            stored[f"{number}.salt"] = as_tensor(salt)
            stored[f"{number}.hashes"] = as_tensor(b"".join(ordered)).view(-1, HASH)
            stored[f"{number}.times"] = torch.tensor([hashes[entry] for entry in ordered], dtype=torch.int32)
        return stored

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> "Ledger":
        """The ledger whose `tensors()` these are."""
        pages: dict[bytes, Hashes] = {}
        for number in range(len(tensors) // 3):
            salt, joined = (tensors[f"{number}.{part}"].numpy().tobytes() for part in ("salt", "hashes"))
            hashes = (joined[at : at + HASH] for at in range(0, len(joined), HASH))
            pages[salt] = Counter(dict(zip(hashes, tensors[f"{number}.times"].tolist(), strict=True)))
        return cls(pages)


def token_bytes(corpus: TokenCorpus) -> Iterator[bytes]:
    """Each document's token ids as bytes, the same on every machine and for ids of any width."""
    ids = corpus.ids.cpu().numpy()
    for first, last in pairwise(corpus.starts.tolist()):
        yield ids[first:last].astype("<i4").tobytes()


def hashed(document: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(document, key=salt, digest_size=HASH).digest()


def as_tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def _strike(pages: dict[bytes, Hashes], document: bytes) -> bool:
    """Take one count of a document off the first page that has it; tells whether one did."""
    for salt, hashes in pages.items():
        entry = hashed(document, salt)
        if entry in hashes:
            hashes[entry] -= 1
            if not hashes[entry]:
                del hashes[entry]
            return True
    return False
