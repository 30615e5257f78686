"""Many processes, one model: each counts a share of the documents, and what all of them counted is added up.

    torchrun --nproc-per-node 4 -m saffu train books/*.txt.gz --out model

Counts are sums over documents, so a fit in several processes is the fit in one. Each process has all token ids (two
bytes a token, tokenised together), and so the same view of folds and documents; counting, the work, is shared.
"""

import io
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from saffu.corpus import TokenCorpus, encode_documents
from saffu.errors import SaffuError
from saffu.evaluate import Score
from saffu.explicit import Counts
from saffu.ngram import NgramCounts
from saffu.tokenizer import EOD, Tokenizer, count_words
from saffu.views import ViewCounts

DOCUMENTS = 1024  # tokenised by each process at a time
LOST = "another process of this run has ended, so it cannot go on; nothing half-written is left; see what it said"


def launched() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def together(device: str) -> Iterator["Ranks"]:
    """All processes that were launched, connected; a process alone if none were."""
    if not launched():
        yield Ranks(0, 1)
        return
    if int(os.environ["RANK"]):
        sys.stderr = Unseen(os.fdopen(os.dup(2), "wb"), "utf-8", write_through=True)  # bars are the first rank's
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    with talking():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


class Unseen(io.TextIOWrapper):
    """An error stream on which no progress is shown."""

    def isatty(self) -> bool:
        return False


@contextmanager
def talking() -> Iterator[None]:
    """What goes wrong between processes is that one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise SaffuError(LOST) from error
        raise


@dataclass(frozen=True)
class Ranks:
    """This process among `size`. Alone, all it does is give back what it was given."""

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, corpus: TokenCorpus) -> TokenCorpus:
        """This process's documents: a contiguous part, with about as many targets as all others have."""
        evenly = torch.arange(1, self.size, device=corpus.starts.device) * corpus.targets // self.size
        bounds = [0, *torch.searchsorted(corpus.starts, evenly).tolist(), corpus.documents]
        return corpus.part(bounds[self.rank], bounds[self.rank + 1])

    def sum(self, numbers: Tensor) -> Tensor:
        """Σ over processes, the same on all."""
        if self.size > 1:
            numbers = numbers.contiguous()
            with talking():
                dist.all_reduce(numbers)
        return numbers

    def sum_counts(self, counts: Counts) -> Counts:
        return Counts(self.sum(counts.F), self.sum(counts.norm), self.sum(counts.targets))

    def sum_score(self, score: Score) -> Score:
        nll, targets, size = self.sum(torch.tensor([score.nll, score.targets, score.bytes], dtype=torch.float64))
        return Score(float(nll), int(targets), int(size))

    def any(self, here: bool) -> bool:
        """Whether it is so in any process."""
        return here if self.size == 1 else bool(self.sum(torch.tensor(int(here))))

    def sum_ngrams(self, counts: NgramCounts) -> NgramCounts:
        """Σ over processes, on the first; the others hold what they passed on. Pairs add up, then pairs of pairs."""
        step = 1
        while step < self.size:
            if self.rank % (2 * step) == step:
                self._send(counts.keys, self.rank - step)
                self._send(counts.counts[None], self.rank - step)
                break
            if self.rank + step < self.size:
                keys, totals = self._receive(self.rank + step), self._receive(self.rank + step)[0]
                counts = counts + NgramCounts(counts.order, counts.vocabulary, keys, totals)
            step *= 2
        return counts

    def sum_views(self, counts: ViewCounts) -> ViewCounts:
        """As `sum_ngrams`."""
        return ViewCounts({name: self.sum_ngrams(stored) for name, stored in counts.stored.items()})

    def _send(self, rows: Tensor, to: int) -> None:
        with talking():
            dist.send(torch.tensor(rows.shape), to)
            dist.send(rows.cpu().contiguous(), to)

    def _receive(self, source: int) -> Tensor:
        shape = torch.zeros(2, dtype=torch.int64)
        with talking():
            dist.recv(shape, source)
            rows = torch.empty(shape.tolist(), dtype=torch.int64)
            dist.recv(rows, source)
        return rows

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of every process, on all."""
        sizes = self.sum(torch.eye(self.size, dtype=torch.int64)[self.rank] * len(data))
        mine = torch.zeros(int(sizes.max()), dtype=torch.uint8)
        mine[: len(data)] = torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[: len(data)]
        of_all = [torch.empty_like(mine) for _ in range(self.size)]
        with talking():
            dist.all_gather(of_all, mine)
        return [padded[:size].numpy().tobytes() for padded, size in zip(of_all, sizes.tolist(), strict=True)]

    def train_tokenizer(self, documents: Iterable[str], words: int, kept_words: int, count_by: str) -> Tokenizer:
        """`Tokenizer.train`, each process counting the words of some documents."""
        if self.size == 1:
            return Tokenizer.train(documents, words=words, kept_words=kept_words, count_by=count_by)
        counts = count_words(islice(documents, self.rank, None, self.size))
        total: Counter[str] = Counter()
        for part in self.gather(json.dumps(counts).encode()):
            total.update(json.loads(part))
        return Tokenizer.from_counts(total, words=words, kept_words=kept_words, count_by=count_by)

    def build_corpus(
        self, documents: Iterable[str], tokenizer: Tokenizer, folder: Path, limit: int | None, progress: str
    ) -> TokenCorpus:
        """`TokenCorpus.build`, each process tokenising some documents and passing their ids to all."""
        if self.size == 1:
            return TokenCorpus.build(documents, tokenizer, folder, limit, progress)
        dtype = np.dtype(np.uint16 if len(tokenizer) <= 1 << 16 else np.int32)
        lengths, sizes, source = [np.zeros(1, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], iter(documents)
        total = 0
        with (
            (folder / "ids.bin").open("wb") as file,
            tqdm(desc=progress, unit=" tokens", unit_scale=True, leave=False, disable=None) as bar,
        ):
            while (limit is None or total < limit) and (texts := list(islice(source, DOCUMENTS * self.size))):
                mine = texts[self.rank * DOCUMENTS : (self.rank + 1) * DOCUMENTS]
                encoded = [np.array([*ids, EOD], dtype=dtype) for ids in encode_documents(mine, tokenizer)]
                ids = np.concatenate(self._arrays(np.concatenate([np.zeros(0, dtype), *encoded])))
                ends = np.concatenate(self._arrays(np.array([len(e) for e in encoded], dtype=np.int64))).cumsum()
                kept = len(ends)
                if limit is not None:
                    kept = min(kept, int(np.searchsorted(ends, limit - total)) + 1)
                ids = ids[: ends[kept - 1]]
                file.write(ids.tobytes())
                lengths.append(np.diff(ends[:kept], prepend=0))
                sizes.append(np.array([len(text.encode()) + 1 for text in texts[:kept]], dtype=np.int64))
                total += len(ids)
                bar.update(len(ids))
        flat = np.memmap(folder / "ids.bin", dtype=dtype, mode="c") if total else np.zeros(0, dtype)
        starts = torch.from_numpy(np.concatenate(lengths)).cumsum(0)
        return TokenCorpus(torch.from_numpy(flat), starts, torch.from_numpy(np.concatenate(sizes)))

    def _arrays(self, array: np.ndarray) -> list[np.ndarray]:
        return [np.frombuffer(data, dtype=array.dtype) for data in self.gather(array.tobytes())]

    def parallel(self, loss: nn.Module) -> nn.Module:
        """A module whose gradients are averaged over processes."""
        if self.size == 1:
            return loss
        with talking():
            return nn.parallel.DistributedDataParallel(loss)


ALONE = Ranks(0, 1)
